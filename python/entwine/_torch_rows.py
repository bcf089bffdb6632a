"""Rows that are scattered over the ranks: gathered, or summed and scattered, in rank order."""
import functools

import torch
import torch.distributed as dist

from ._errors import ArgumentError, MismatchError, ShapeError
from ._library import lib
from ._world import find_world, owned_rows


def _check_matrix(rows):
    if rows.dim() != 2:
        raise ShapeError(f"rows has shape {tuple(rows.shape)}; expected two dimensions")


def _through_group(world, tensor):
    """torch.distributed carries what is on a GPU or goes to another host.  Among CPUs of one
    host Entwine's own exchange is several times faster, and every rank finds the same answer."""
    return world.group is not None and (not tensor.is_cpu or world._spans_hosts())


_WORDS_BYTES = 96  # for two numbers of 19 digits, and the names


@functools.lru_cache
def _words(verb, num_rows, n, dtype):
    return f"{verb} {num_rows} rows of {n} {dtype}".encode().ljust(_WORDS_BYTES)


def _agree(world, verb, num_rows, rows):
    """Refuses, on all ranks, what the exchange of bytes would take for the same.  Ranks with GPUs
    do not meet here: their host would wait for that of the others."""
    if world._size == 1 or _through_group(world, rows) and not rows.is_cpu:
        return
    mine = _words(verb, num_rows, rows.shape[1], rows.dtype)
    everybody = world._allgather(mine, _WORDS_BYTES)
    if everybody.count(mine) == world._size:
        return
    rank = next(rank for rank, words in enumerate(everybody) if words != everybody[0])
    first, other = (everybody[which].decode().strip() for which in (0, rank))
    raise MismatchError(f"ranks disagree: rank 0 {first}, rank {rank} {other}\n  fix: make the same "
                        f"calls, with rows of one length and dtype, on all ranks", rank)


def _own_exchange(world, mine, everyone):
    """ew_world_allgather of contiguous tensors, wherever they are."""
    if not mine.is_cpu:
        there = everyone.cpu()
        _own_exchange(world, mine.cpu(), there)
        everyone.copy_(there)
        return
    world._call(lib.ew_world_allgather, world._check_open(), mine.data_ptr(), everyone.data_ptr(),
                mine.numel() * mine.element_size())


def _exchange(world, mine, everyone):
    """Every rank's `mine`, one after the other, in `everyone`; both are contiguous."""
    if mine.numel() == 0:
        return
    if _through_group(world, mine):
        parts = everyone.view(world.size, -1).view(torch.uint8)  # bytes: any backend will do
        dist.all_gather(list(parts.unbind(0)), mine.view(-1).view(torch.uint8), group=world.group)
    else:
        _own_exchange(world, mine, everyone)


def parts_of_all(mine, world):
    """Every rank's tensor, of one shape on all of them: [ranks, ...]."""
    everyone = mine.new_empty((world.size, *mine.shape))
    _exchange(world, mine.contiguous(), everyone)
    return everyone


def gather(rows, num_rows, world):
    """The kernel of all_gather_rows."""
    world = find_world(world)
    _check_matrix(rows)
    count, n = rows.shape
    if count != world._share(num_rows):
        raise ShapeError(f"rows has shape {(count, n)}; expected {world._share(num_rows)} rows, "
                         f"this rank's share of {num_rows}")
    _agree(world, "gathers", num_rows, rows)
    size = world._size
    most = -(-num_rows // size)
    if count == most:
        mine = rows.detach().contiguous() if rows.requires_grad else rows.contiguous()
    else:  # the exchange wants equal shares; nobody reads the last row
        mine = rows.new_empty((most, n))
        if count > 0:
            mine[:count] = rows.detach()
    everyone = rows.new_empty((size * most, n))
    _exchange(world, mine, everyone)
    longer = num_rows % size  # that many ranks own `most` rows, the others one less
    if longer == 0:
        return everyone
    if most == 1:
        return everyone.resize_(num_rows, n)  # not a view: it is an operator's result
    parts = everyone.view(size, most, n)
    return torch.cat((parts[:longer].flatten(0, 1), parts[longer:, :-1].flatten(0, 1)))


def _sum(parts, dtype):
    """Of all ranks' parts, in rank order, rounded once."""
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    total = parts[0].to(wide, copy=True)
    for part in parts[1:]:
        total += part
    return total.to(dtype)


def _exchange_shares(world, rows, shares):
    """What every rank holds of this rank's rows: [ranks, share, n]."""
    n = rows.shape[1]
    mine = rows.new_empty((world.size, shares[world.rank], n))
    if n == 0:
        return mine
    if _through_group(world, rows):
        row_bytes = n * rows.element_size()
        dist.all_to_all_single(mine.view(-1).view(torch.uint8), rows.view(-1).view(torch.uint8),
                               [mine[0].numel() * rows.element_size()] * world.size,
                               [share * row_bytes for share in shares], group=world.group)
        return mine
    scratch = rows.new_empty((world.size * shares[0] * n,))
    for rank, part in enumerate(rows.split(shares)):
        if shares[rank] > 0:
            _own_exchange(world, part, mine if rank == world.rank
                          else scratch[:world.size * part.numel()])
    return mine


def _looks_replicated(world, parts):
    """Every rank gave the same: to within rounding, and not only zeros.  All ranks agree on it."""
    largest = parts.abs().max().item() if parts.numel() else 0.0
    same = largest == 0 or (parts - parts[0]).abs().max().item() <= 1e-3 * largest
    votes = world._allgather(bytes([0 if largest == 0 else 1 if same else 2]), 1)
    return b"\1" in votes and b"\2" not in votes


def reduce_scatter(rows, world, replicated=False):
    """The kernel of reduce_scatter_rows.  `replicated` of None: the sum, unless what the ranks
    hold looks as if it were not meant to be summed."""
    world = find_world(world)
    _check_matrix(rows)
    rows = rows.detach()
    first, count = world.owned_rows(rows.shape[0])
    if replicated:
        return rows[first:first + count].clone(memory_format=torch.contiguous_format)
    _agree(world, "sums", rows.shape[0], rows)
    shares = [owned_rows(rows.shape[0], world.size, rank)[1] for rank in range(world.size)]
    parts = _exchange_shares(world, rows.contiguous(), shares)
    if replicated is None and world.size > 1 and _looks_replicated(world, parts):
        raise ArgumentError(
            "the gradients of the gathered rows are the same on all ranks, and whether they are to "
            "be summed depends on what the ranks do with the rows\n  fix: pass replicated=True to "
            "all_gather_rows where all ranks go on with the same computation and the same loss, as "
            "after an AllReduce; replicated=False where the losses of the ranks add up")
    return _sum(parts.unbind(0), rows.dtype)
