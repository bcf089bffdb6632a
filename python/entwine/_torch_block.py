"""The two halves of a transformer block that are split over ranks: ParallelMLP and
ParallelAttentionProjections, with one gather for all weights that need the same rows."""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ._errors import ArgumentError, ShapeError
from ._products import activation_code
from ._torch_column import ColumnParallelLinear
from ._torch_linear import check_plain
from ._torch_operators import replicate
from ._torch_products import ag_gemm_act, ag_gemm_multi
from ._torch_row import RowParallelLinear
from ._torch_sums import activated_columns, as_matrix, own_columns, torchs_columns
from ._torch_world import chosen_world
from ._world import World

if TYPE_CHECKING:
    from typing_extensions import Self

_ROWS = ("scattered", "replicated")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _are_untouched(layers: Sequence[torch.nn.Module]) -> bool:
    """Whether a call of each would be its product and nothing else."""
    return all(type(layer).forward is ColumnParallelLinear.forward
               and "forward" not in layer.__dict__
               and not any(layer.__dict__[hooks] for hooks in _HOOKS) for layer in layers)


class _Block(torch.nn.Module):
    """Column-parallel layers that read the same rows, and a row-parallel one that ends them."""

    world: World
    rows: str

    def _set_up(self, rows: str, world: World | None, group: dist.ProcessGroup | None) -> None:
        if rows not in _ROWS:
            raise ArgumentError(f"rows is {rows!r}; expected 'scattered' or 'replicated'")
        self.world, self.rows = chosen_world(world, group), rows

    def _column(self, given: int, features: int, **options: Any) -> ColumnParallelLinear:
        return ColumnParallelLinear(given, features, input=self.rows, world=self.world, **options)

    def _row(self, given: int, features: int, **options: Any) -> torch.nn.Module:
        return RowParallelLinear(given, features, output=self.rows, world=self.world, **options)

    def _take_parts(self, module: torch.nn.Module, columns: Sequence[str], row: str) -> None:
        """This rank's parts of a module's linear layers, under their names."""
        for name in (*columns, row):
            check_plain(getattr(module, name), name)
        for name in columns:
            setattr(self, name, ColumnParallelLinear.from_linear(getattr(module, name), self.world,
                                                                 input=self.rows))
        setattr(self, row, RowParallelLinear.from_linear(getattr(module, row), self.world,
                                                         output=self.rows))
        self.training = module.training

    def _products(self, x: torch.Tensor, layers: Sequence[ColumnParallelLinear],
                  num_rows: int | None) -> list[torch.Tensor]:
        """What the layers give, of rows that are gathered once unless a layer is more than its
        product."""
        if not _are_untouched(layers):
            return [layer(x) if num_rows is None else layer(x, num_rows) for layer in layers]
        if self.rows == "replicated":
            if not torch.is_grad_enabled():
                return [own_columns(x, layer.weight, layer.bias, self.world, layer.frozen)
                        for layer in layers]
            x = replicate(x, self.world)
            return [torchs_columns(x, layer.weight, layer.bias, self.world) for layer in layers]
        layers[0]._check_rows(x.shape, num_rows)
        products = ag_gemm_multi(as_matrix(x), [layer.weight for layer in layers], self.world,
                                 num_rows, all(layer.frozen for layer in layers))
        return [self._like(x, y if layer.bias is None else y + layer.bias.to(y.dtype))
                for layer, y in zip(layers, products)]

    def _like(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The rows of y in the dimensions of x, of which the first was gathered."""
        if x.dim() == 2:
            return y
        return y.view(x.shape[0] * self.world.size, *x.shape[1:-1], y.shape[-1])

    def freeze(self) -> Self:
        """As ``freeze`` of each layer."""
        for layer in self.children():
            layer.freeze()  # type: ignore[operator]
        return self


# ---- The MLP ---------------------------------------------------------------------------------

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": torch.nn.functional.silu, "none": lambda x: x,
    "gelu-tanh": functools.partial(torch.nn.functional.gelu, approximate="tanh")}
_NAMES_OF_ACTIVATIONS = {"SiLU": "silu", "SiLUActivation": "silu", "GELUTanh": "gelu-tanh",
                         "PytorchGELUTanh": "gelu-tanh", "NewGELUActivation": "gelu-tanh",
                         "Identity": "none"}


def activation_of(module: torch.nn.Module) -> str:
    act = getattr(module, "act_fn", None)
    name = _NAMES_OF_ACTIVATIONS.get(type(act).__name__)
    if isinstance(act, torch.nn.GELU) and act.approximate == "tanh":
        name = "gelu-tanh"
    if name is None:
        raise ArgumentError(f"the module's act_fn is {act!r}, which is not known\n"
                            f"  fix: pass activation=")
    return name


class ParallelMLP(_Block):
    """The MLP of a Llama-style block, ``down_proj(act(gate_proj(x)) * up_proj(x))``, whose hidden
    features are split over the ranks.

    With ``rows="scattered"`` (sequence parallelism) ``x`` holds this rank's rows, [owned rows,
    hidden_size], and so does the result.  One call gathers the rows, computes gate and up as
    they arrive and activates them tile by tile; another computes down and its ReduceScatter.  The
    number of all rows is ``num_rows`` of the call; without it every rank has as many as this one.
    With more dimensions the first is scattered.  With ``rows="replicated"`` both are whole on
    every rank, and down ends in an AllReduce.

    ``activation`` is "silu", "gelu-tanh" or "none".  The parameters are ``gate_proj.weight`` and
    ``up_proj.weight``, [intermediate_size / W, hidden_size], and ``down_proj.weight``,
    [hidden_size, intermediate_size / W]; with a bias the activation is torch's.

    ``world`` is an entwine.World; without one it is ``world_of(group)``.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool = False, *,
                 activation: str = "silu", rows: str = "scattered", world: World | None = None,
                 group: dist.ProcessGroup | None = None,
                 device: torch.device | str | int | None = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        activation_code(activation)
        self._set_up(rows, world, group)
        self.activation = activation
        options = {"bias": bias, "device": device, "dtype": dtype}
        self.gate_proj = self._column(hidden_size, intermediate_size, **options)
        self.up_proj = self._column(hidden_size, intermediate_size, **options)
        self.down_proj = self._row(intermediate_size, hidden_size, **options)

    @classmethod
    def from_module(cls, module: torch.nn.Module, world: World | None = None, *,
                    group: dist.ProcessGroup | None = None, rows: str = "scattered",
                    activation: str | None = None) -> Self:
        """This rank's part of an MLP that all ranks hold: one with ``gate_proj``, ``up_proj`` and
        ``down_proj``, and ``act_fn`` unless ``activation`` is given."""
        gate = check_plain(module.gate_proj, "gate_proj")
        layer = cls(gate.in_features, gate.out_features, rows=rows, world=world, group=group,
                    activation=activation or activation_of(module), device="meta")
        layer._take_parts(module, ("gate_proj", "up_proj"), "down_proj")
        return layer

    def _activated(self, x: torch.Tensor, num_rows: int | None) -> torch.Tensor:
        gate, up = self.gate_proj, self.up_proj
        if _are_untouched((gate, up)) and gate.bias is None and up.bias is None:
            frozen = gate.frozen and up.frozen
            if self.rows == "scattered":
                gate._check_rows(x.shape, num_rows)
                return self._like(x, ag_gemm_act(as_matrix(x), gate.weight, up.weight, self.world,
                                                 num_rows, self.activation, frozen))
            h = activated_columns(x, gate.weight, up.weight, self.activation, self.world, frozen)
            if h is not None:
                return h
        first, second = self._products(x, (gate, up), num_rows)
        return _ACTIVATIONS[self.activation](first) * second

    def forward(self, x: torch.Tensor, num_rows: int | None = None) -> torch.Tensor:
        y: torch.Tensor = self.down_proj(self._activated(x, num_rows))
        return y

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}, rows={self.rows!r}, ranks={self.world._size}"


# ---- Attention -------------------------------------------------------------------------------

def _check_heads(name: str, heads: int, ranks: int) -> None:
    if heads % ranks:
        raise ShapeError(f"{name} is {heads}; expected a multiple of the {ranks} ranks\n"
                         f"  fix: use as many ranks as divide it")


class ParallelAttentionProjections(_Block):
    """The linear layers around attention, ``q_proj``, ``k_proj``, ``v_proj`` and ``o_proj``, whose
    heads are split over the ranks.

        y = layer(x, lambda q, k, v: attention(q, k, v))

    ``attention`` gets all rows of this rank's heads, q [m, num_heads / W * head_dim] and k and v
    [m, num_key_value_heads / W * head_dim], and returns a tensor of q's shape.  ``qkv`` and
    ``out`` are the two halves for programs that call attention themselves.

    Rows, ``num_rows`` and ``world`` are as in ParallelMLP: with ``rows="scattered"`` one call
    gathers the rows for q, k and v.  ``bias`` is that of q, k and v, ``output_bias`` that of
    o_proj.
    """

    def __init__(self, hidden_size: int, num_heads: int, num_key_value_heads: int | None = None,
                 head_dim: int | None = None, bias: bool = False, output_bias: bool = False, *,
                 rows: str = "scattered", world: World | None = None,
                 group: dist.ProcessGroup | None = None,
                 device: torch.device | str | int | None = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self._set_up(rows, world, group)
        kv_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        _check_heads("num_heads", num_heads, self.world.size)
        _check_heads("num_key_value_heads", kv_heads, self.world.size)
        self.num_heads, self.num_key_value_heads = num_heads, kv_heads
        self.head_dim = hidden_size // num_heads if head_dim is None else head_dim
        place = {"device": device, "dtype": dtype}
        features, kv_features = num_heads * self.head_dim, kv_heads * self.head_dim
        self.q_proj = self._column(hidden_size, features, bias=bias, **place)
        self.k_proj = self._column(hidden_size, kv_features, bias=bias, **place)
        self.v_proj = self._column(hidden_size, kv_features, bias=bias, **place)
        self.o_proj = self._row(features, hidden_size, bias=output_bias, **place)

    @classmethod
    def from_module(cls, module: torch.nn.Module, world: World | None = None, *,
                    group: dist.ProcessGroup | None = None, rows: str = "scattered",
                    head_dim: int | None = None) -> Self:
        """This rank's part of an attention layer that all ranks hold: one with ``q_proj``,
        ``k_proj``, ``v_proj`` and ``o_proj``, and ``head_dim`` unless that is given."""
        q, k = check_plain(module.q_proj, "q_proj"), check_plain(module.k_proj, "k_proj")
        size = head_dim or getattr(module, "head_dim", None)
        if not size or q.out_features % size or k.out_features % size:
            raise ArgumentError(f"head_dim is {size}; expected a divisor of the {q.out_features} "
                                f"features of q_proj and the {k.out_features} of k_proj\n"
                                f"  fix: pass head_dim=")
        layer = cls(q.in_features, q.out_features // size, k.out_features // size, size, rows=rows,
                    world=world, group=group, device="meta")
        layer._take_parts(module, ("q_proj", "k_proj", "v_proj"), "o_proj")
        return layer

    def qkv(self, x: torch.Tensor, num_rows: int | None = None
            ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All rows of this rank's heads."""
        q, k, v = self._products(x, (self.q_proj, self.k_proj, self.v_proj), num_rows)
        return q, k, v

    def out(self, attended: torch.Tensor) -> torch.Tensor:
        """``o_proj``: the sum over all ranks' heads."""
        y: torch.Tensor = self.o_proj(attended)
        return y

    def forward(self, x: torch.Tensor,
                attention: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
                num_rows: int | None = None) -> torch.Tensor:
        return self.out(attention(*self.qkv(x, num_rows)))

    def extra_repr(self) -> str:
        return (f"num_heads={self.num_heads}, num_key_value_heads={self.num_key_value_heads}, "
                f"head_dim={self.head_dim}, rows={self.rows!r}, ranks={self.world._size}")
