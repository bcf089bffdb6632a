/* The flag protocol on the device: the one wait, publication, and how a call begins and
 * ends.  docs/PROTOCOL.md says why it is safe.  No other file polls. */
#ifndef EWX_CUDA_PROTOCOL_CUH
#define EWX_CUDA_PROTOCOL_CUH

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/ptx.cuh"
#include "base/epoch.h"

#define POLLS_PER_LOOK 16 /* between looks at the clock and at `stop` */
#define ABORT_LOOK_NS 200000ull
#define SHORT_SLEEP_NS 32 /* at first, doubled each time ... */
#define HOST_WAIT_NS 100000000ull
#define LONG_SLEEP_NS 512 /* ... up to this: polls cost the GEMM power and L2 */

__device__ __forceinline__ ewx_cuda_segment *segment_of(const ewx_cuda_call &call, int rank)
{
    return reinterpret_cast<ewx_cuda_segment *>(call.heaps[rank]);
}

/* ---- Giving up ---- */

/* What a wait was for, in case it has to be reported. */
struct waited_for {
    ewx_cuda_place place;
    int culprit;
    int tile_row, tile_col;
    uint32_t epoch; /* of the call, where `wanted` is something else */
};

__device__ __forceinline__ bool has_stopped(const ewx_cuda_call &call)
{
    return *(volatile uint32_t *)&call.counters->stop != 0;
}

/* The first to give up reports the reason to the host; all others only leave. */
__device__ __forceinline__ void give_up(const ewx_cuda_call &call, const waited_for &what,
                                        uint32_t wanted, uint32_t seen, bool aborted)
{
    if (atomicExch(&call.counters->stop, 1u) != 0)
        return;
    ewx_cuda_report *report = call.report;
    report->culprit = what.culprit;
    report->tile_row = what.tile_row;
    report->tile_col = what.tile_col;
    report->wanted = wanted;
    report->seen = seen;
    report->epoch = what.epoch;
    report->aborted = aborted;
    __threadfence_system();
    *(volatile int32_t *)&report->place = what.place;
}

/* The abort word lies across the bus, where polling by every waiting thread would slow the
 * GEMM: one thread polls for the whole rank, and the others see `stop` when it has given
 * up. */
__device__ __forceinline__ bool is_aborted(const ewx_cuda_call &call,
                                           unsigned long long now)
{
    unsigned long long *looked_ns = &call.counters->looked_ns;
    const unsigned long long last = *(volatile unsigned long long *)looked_ns;
    if (now - last < ABORT_LOOK_NS || atomicCAS(looked_ns, last, now) != last)
        return false;
#if EW_MUTANT == 6 /* planted bug: ignores the abort word */
    return false;
#endif
    return ld_relaxed_sys(call.abort) != 0;
}

/* ---- The one wait ---- */

/* Waits until *word has reached `wanted`; false when the call is given up.  Polls relaxed
 * and acquires once, after success: an acquire per poll would flush the L1 under a GEMM.
 * Pairs with st_release_sys in publish, announce_at_gate and enter_with_output, and with
 * fence_release_sys in publish_to_all, publish_to_owners, publish_result, publish_chunk and
 * let_peers_overwrite. */
__device__ __forceinline__ bool await_epoch(const ewx_cuda_call &call, const uint32_t *word,
                                            uint32_t wanted, const waited_for &what)
{
    unsigned long long started_ns = 0;
    unsigned sleep_ns = SHORT_SLEEP_NS;
    for (int polls = 1; !ewx_epoch_reached(ld_relaxed_sys(word), wanted); polls++) {
        __nanosleep(sleep_ns);
        sleep_ns = min(2 * sleep_ns, LONG_SLEEP_NS);
#if EW_MUTANT == 18 /* to measure what the rest costs: a wait that nothing ends */
        continue;
#endif
        if (polls % POLLS_PER_LOOK != 0)
            continue;
        const unsigned long long now = global_timer_ns();
        if (started_ns == 0)
            started_ns = now;
        const bool aborted = is_aborted(call, now);
        if (aborted || now - started_ns > call.timeout_ns)
            give_up(call, what, wanted, ld_relaxed_sys(word), aborted);
        if (has_stopped(call))
            return false;
    }
    (void)ld_acquire_sys(word);
    return true;
}

/* Whether *word has reached `wanted`; asks once.  What await_epoch pairs with. */
__device__ __forceinline__ bool has_reached(const uint32_t *word, uint32_t wanted)
{
    return ewx_epoch_reached(ld_relaxed_sys(word), wanted) &&
           ewx_epoch_reached(ld_acquire_sys(word), wanted);
}

/* Waits until other CTAs of this rank's kernel have counted up to `wanted`; false when the
 * call is given up.  It has no deadline of its own: theirs end it, and name who is silent.
 * Pairs with count_tile. */
__device__ __forceinline__ bool await_count(const ewx_cuda_call &call, const uint32_t *word,
                                            uint32_t wanted)
{
    unsigned sleep_ns = SHORT_SLEEP_NS;
    while (*(const volatile uint32_t *)word < wanted) {
        if (has_stopped(call))
            return false;
        __nanosleep(sleep_ns);
        sleep_ns = min(2 * sleep_ns, LONG_SLEEP_NS);
    }
    return true;
}

/* ---- Trace ---- */

__device__ __forceinline__ void stamp_begin(ewx_cuda_stamp *stamps, int64_t at)
{
    if (stamps)
        stamps[at].begin_ns = global_timer_ns();
}

__device__ __forceinline__ void stamp_end(ewx_cuda_stamp *stamps, int64_t at)
{
    if (stamps)
        stamps[at].end_ns = global_timer_ns();
}

__device__ __forceinline__ void stamp_published(ewx_cuda_stamp *stamps, int64_t at)
{
    if (stamps)
        stamps[at].published_ns = global_timer_ns();
}

/* Where a contribution to dst's tile number `task` lies. */
__device__ __forceinline__ int64_t produced_at(const ewx_cuda_call &call, int dst,
                                               int64_t task)
{
    return (int64_t)dst * call.tile_rows * call.grid.tile_cols + task;
}

/* ---- A call that starts together with those of other ranks: one thread ---- */

/* Until the host has enqueued all of the call, so that no method's time has launches in it
 * that others make in advance.  Bounded: a host that is held up by a full queue, or by a
 * kernel that has to be loaded, must not wait for the GPU that waits for it. */
__device__ __forceinline__ void await_host(const ewx_cuda_call &call, uint32_t number)
{
    const unsigned long long started_ns = global_timer_ns();
#if EW_MUTANT == 68 /* planted bug: starts while the host still enqueues the call */
    return;
#endif
    while (!ewx_epoch_reached(ld_relaxed_sys(&call.report->enqueued), number) &&
           !has_stopped(call) && global_timer_ns() - started_ns < HOST_WAIT_NS)
        __nanosleep(LONG_SLEEP_NS);
}

__device__ __forceinline__ void await_gate(const ewx_cuda_call &call, uint32_t epoch)
{
    for (int rank = 0; rank < call.num_ranks; rank++)
        if (!await_epoch(call, &segment_of(call, call.rank)->gate[rank], epoch,
                         {EWX_CUDA_GATE, rank, 0, 0}))
            return;
}

__device__ __forceinline__ void announce_at_gate(const ewx_cuda_call &call, uint32_t epoch)
{
    for (int rank = 0; rank < call.num_ranks; rank++)
        st_release_sys(&segment_of(call, rank)->gate[call.rank], epoch);
}

/* ---- A call begins: one thread of every producer CTA ---- */

/* Where nothing held the call, it begins with its first kernel. */
__device__ __forceinline__ void note_start(const ewx_cuda_call &call)
{
    if (blockIdx.x == 0 && !call.gate)
        call.report->start_ns = global_timer_ns();
}

/* Announces how many rows this rank thinks the call has, and its place among the rank's
 * calls: counted here, since a graph replays calls without the host. */
__device__ __forceinline__ void note_call(const ewx_cuda_call &call, uint32_t epoch)
{
    const int at = epoch % EWX_CUDA_CALLS;
    const uint64_t high = (uint64_t)epoch << 32;
    for (int rank = 0; rank < call.num_ranks; rank++) {
        ewx_cuda_segment *segment = segment_of(call, rank);
        st_relaxed_sys(&segment->calls[at][call.rank], high | (uint64_t)call.grid.rows);
        if (call.calls_made)
            st_relaxed_sys(&segment->orders[at][call.rank], high | (*call.calls_made + 1));
    }
}

/* One warp: true when all ranks have announced `mine` for this call: the lower halves of
 * their words, once the upper halves hold the epoch. */
__device__ __forceinline__ bool notes_agree(const ewx_cuda_call &call,
                                            const uint64_t *words, uint32_t mine,
                                            uint32_t epoch, ewx_cuda_place place, int lane)
{
    bool ok = true;
    for (int rank = lane; rank < call.num_ranks && ok; rank += 32) {
        const waited_for what = {EWX_CUDA_CALL, rank, 0, 0};
        ok = await_epoch(call, reinterpret_cast<const uint32_t *>(words + rank) + 1, epoch,
                         what);
        const uint64_t word = ld_relaxed_sys(words + rank);
        /* A rank without rows of its own may be two calls ahead: then it has agreed. */
        if (ok && (uint32_t)(word >> 32) == epoch && (uint32_t)word != mine) {
            give_up(call, {place, rank, 0, 0, epoch}, mine, (uint32_t)word, false);
            ok = false;
        }
    }
    return __all_sync(~0u, ok);
}

/* One warp: true when all ranks are in this call, with the same number of rows and at the
 * same place among their calls.  If they were not, tiles would be published in time and be
 * the wrong ones. */
__device__ __forceinline__ bool calls_agree(const ewx_cuda_call &call, uint32_t epoch,
                                            int lane)
{
    const ewx_cuda_segment *segment = segment_of(call, call.rank);
    const int at = epoch % EWX_CUDA_CALLS;
    if (!notes_agree(call, segment->calls[at], (uint32_t)call.grid.rows, epoch,
                     EWX_CUDA_ROWS, lane))
        return false;
    if (!call.calls_made)
        return true;
    const uint64_t *orders = segment->orders[at];
    const waited_for what = {EWX_CUDA_CALL, call.rank, 0, 0};
    const bool ok = await_epoch(
        call, reinterpret_cast<const uint32_t *>(orders + call.rank) + 1, epoch, what);
    return __all_sync(~0u, ok) &&
           notes_agree(call, orders, (uint32_t)ld_relaxed_sys(orders + call.rank), epoch,
                       EWX_CUDA_ORDER, lane);
}

/* One thread.  A GEMM without rows stores nothing, and so need not wait for readers as
 * below: calls ahead, it would announce them where the exchange of this one still has to
 * read what was announced. */
__device__ __forceinline__ void await_exchanges(const ewx_cuda_call &call, uint32_t epoch)
{
    for (int rank = 0; rank < call.num_ranks; rank++)
        if (!await_epoch(call, &segment_of(call, call.rank)->done[rank],
                         epoch - (uint32_t)call.num_slices, {EWX_CUDA_READERS, rank, 0, 0}))
            return;
}

__device__ __forceinline__ uint32_t open_producer(const ewx_cuda_call &call, bool opens)
{
    const uint32_t epoch = call.counters->epochs[EWX_STAGE_GEMM] + 1;
    if (!opens)
        return epoch;
    if (blockIdx.x == 0) {
#if EW_MUTANT != 87 /* planted bug: a call without rows waits for nobody */
        if (call.grid.rows == 0)
            await_exchanges(call, epoch);
#endif
        note_call(call, epoch);
    }
    note_start(call);
    return epoch;
}

/* Before the first store of a call: everyone must have read what it overwrites, which with
 * two slices is the call before the last.  Lanes of one warp; false when the call is given
 * up. */
__device__ __forceinline__ bool await_readers(const ewx_cuda_call &call, uint32_t epoch,
                                              int lane)
{
    bool ok = true;
#if EW_MUTANT != 2 /* planted bug: overwrite what peers may still read */
    for (int rank = lane; rank < call.num_ranks && ok; rank += 32)
#if EW_MUTANT == 47 /* planted bug: overwrite sums that this rank has yet to copy */
        if (rank != call.rank)
#endif
            ok = await_epoch(call, &segment_of(call, call.rank)->done[rank],
                             epoch - (uint32_t)call.num_slices,
                             {EWX_CUDA_READERS, rank, 0, 0});
#endif
    return __all_sync(~0u, ok);
}

/* The same where the readers have stored in the slots too, by ordinary stores, before bulk
 * copies to them. */
__device__ __forceinline__ bool await_storing_readers(const ewx_cuda_call &call,
                                                      uint32_t epoch, int lane)
{
    const bool ok = await_readers(call, epoch, lane);
    accesses_before_bulk();
    return ok;
}

/* ---- Contributions ---- */

__device__ __forceinline__ int64_t slot_of(const ewx_cuda_call &call, int part,
                                           ewx_tile tile)
{
    return ewx_slot(call.tile_rows, call.grid.tile_cols, part, tile);
}

/* Bytes from the start of a slice to the first contribution of a slot. */
__device__ __forceinline__ int64_t slot_offset(const ewx_cuda_call &call, int64_t slot)
{
    return slot * call.num_pieces * EWX_CUDA_TILE_BYTES;
}

/* ---- Publication ---- */

__device__ __forceinline__ uint32_t *flag_of(const ewx_cuda_call &call, int owner,
                                             int64_t unit, int source)
{
    return reinterpret_cast<uint32_t *>(call.heaps[owner] + call.flags_offset) +
           unit * call.num_ranks + source;
}

/* The release unit of a part's task. */
__device__ __forceinline__ int64_t release_unit_of(const ewx_cuda_call &call, int part,
                                                   int64_t task)
{
    return ewx_release_unit(call.release, ewx_part_tiles(&call.grid, part), task);
}

/* True for the tile that completes its unit.  The counter is private and goes back to zero
 * with the last tile, so that the next call finds it so. */
__device__ __forceinline__ bool completes_unit(const ewx_cuda_call &call, int dst,
                                               int64_t unit)
{
    const int64_t units_per_part = (int64_t)call.tile_rows * call.grid.tile_cols;
    uint32_t *count =
        &call.counters
             ->unit_tiles[ewx_release_counter(call.release, units_per_part, dst, unit)];
    __threadfence(); /* this tile, before its count; and all counted tiles, before flags */
    const bool last =
        atomicAdd(count, 1u) + 1 == ewx_release_tiles(&call.grid, call.release, dst, unit);
    if (last)
        *count = 0;
    __threadfence();
    return last;
}

/* To every rank: whatever it owns of the unit, all of it is there. */
__device__ __forceinline__ void publish_to_all(const ewx_cuda_call &call, uint32_t epoch,
                                               int64_t unit)
{
    fence_release_sys();
    for (int owner = 0; owner < call.num_ranks; owner++)
        st_relaxed_sys(flag_of(call, owner, unit, call.rank), epoch);
}

/* To the owners of a tile's rows, each of which reads its own of them. */
__device__ __forceinline__ void publish_to_owners(const ewx_cuda_call &call, uint32_t epoch,
                                                  int64_t task)
{
    const ewx_tile tile = ewx_task_tile(&call.grid, 0, task);
    const ewx_owners owners = ewx_tile_owners(&call.grid, call.num_ranks, tile);
#if EW_MUTANT == 71 /* planted bug: of several owners the last is left out */
    const int last = owners.last > owners.first ? owners.last - 1 : owners.last;
#else
    const int last = owners.last;
#endif
    fence_release_sys();
    for (int owner = owners.first; owner <= last; owner++)
        st_relaxed_sys(flag_of(call, owner, task, call.rank), epoch);
}

/* One thread, after the tile's bytes are in memory: by its own full bulk wait, or behind a
 * block barrier that all writers have passed. */
__device__ __forceinline__ void publish(const ewx_cuda_call &call, uint32_t epoch, int dst,
                                        int64_t task)
{
    if (call.release.size == 1) {
        if (call.ownership == EWX_OWNS_ROWS)
            publish_to_owners(call, epoch, task);
        else
            st_release_sys(flag_of(call, dst, task, call.rank), epoch);
        return;
    }
    const int64_t unit = release_unit_of(call, dst, task);
    if (!completes_unit(call, dst, unit))
        return;
    if (call.release.size != EW_RELEASE_OUTPUT)
        st_release_sys(flag_of(call, dst, unit, call.rank), epoch);
    else
        publish_to_all(call, epoch, 0);
}

/* ---- Results: sums that their owner gives to all others ---- */

__device__ __forceinline__ uint32_t *result_of(const ewx_cuda_call &call, int reader,
                                               int64_t task)
{
    return reinterpret_cast<uint32_t *>(call.heaps[reader] + call.results_offset) + task;
}

/* One thread, behind a block barrier that all who wrote the sum into the others' memory
 * have passed: the fence makes their writes its own.  Pairs with the acquire of await_epoch
 * or has_reached in those who collect it.  As the owner of a task is the same in every
 * call, its word has one writer and only grows. */
__device__ __forceinline__ void publish_result(const ewx_cuda_call &call, uint32_t epoch,
                                               int64_t task)
{
    fence_release_sys();
    for (int reader = 0; reader < call.num_ranks; reader++)
        if (reader != call.rank)
            st_relaxed_sys(result_of(call, reader, task), epoch);
}

/* ---- A call ends: one thread of every CTA, when the CTA has done everything ---- */

/* The producer's part of the call is over. */
__device__ __forceinline__ void count_call(const ewx_cuda_call &call, uint32_t epoch)
{
    call.counters->epochs[EWX_STAGE_GEMM] = epoch;
    if (call.calls_made)
        ++*call.calls_made;
}

__device__ __forceinline__ void close_producer(const ewx_cuda_call &call, uint32_t epoch,
                                               bool closes)
{
    ewx_cuda_counters *counters = call.counters;
    __threadfence();
    if (atomicAdd(&counters->exits[EWX_STAGE_GEMM], 1u) + 1 != gridDim.x)
        return;
    counters->exits[EWX_STAGE_GEMM] = 0;
    counters->next_position = 0;
    if (!closes)
        return;
    count_call(call, epoch);
    call.report->gemm_end_ns = global_timer_ns();
}

/* One thread, behind everything that the rank reads of the call's slices. */
__device__ __forceinline__ void let_peers_overwrite(const ewx_cuda_call &call,
                                                    uint32_t epoch)
{
    if (has_stopped(call)) /* not everything was read */
        return;
    fence_release_sys();
    for (int rank = 0; rank < call.num_ranks; rank++)
        st_relaxed_sys(&segment_of(call, rank)->done[call.rank], epoch);
}

__device__ __forceinline__ void close_reducer(const ewx_cuda_call &call, uint32_t epoch,
                                              bool closes)
{
    ewx_cuda_counters *counters = call.counters;
    __threadfence(); /* this CTA's reads, before its ticket */
    if (atomicAdd(&counters->exits[EWX_STAGE_EXCHANGE], 1u) + 1 != gridDim.x)
        return;
    counters->exits[EWX_STAGE_EXCHANGE] = 0;
    if (!closes)
        return;
    counters->epochs[EWX_STAGE_EXCHANGE] = epoch;
    call.report->end_ns = global_timer_ns();
    let_peers_overwrite(call, epoch);
}

#endif
