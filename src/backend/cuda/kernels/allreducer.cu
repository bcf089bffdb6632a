/* The reducer of GEMM-AllReduce.  In one shot every rank sums every tile, as reducer.cu
 * does its own.  In two shots the tiles of a round, W consecutive ones, have an owner each.
 * The owner sums its tile and gives it to the others from registers: it stores each piece
 * in place of the contributions that it has just read, of which it is the only reader, so
 * that every rank finds every sum in its own heap, in the slot of its own contribution. The
 * others copy it from there.  Where C lies in symmetric memory the owner stores into it on
 * all ranks, and the others only wait until it is there.
 *
 * x CTAs have every x-th round each.  Between its own sums a CTA copies rounds that are
 * there, but it waits for those of others only when it has no sum left to make: as all x
 * are resident together (cuda_engine.c), none of them keeps a sum that another rank waits
 * for from being made.  With a launch for each release unit, one follows another in the
 * rank's stream, so the same holds for the launches of one unit, on all ranks. */
#include "backend/cuda/kernels/reduce_tile.cuh"
#include "backend/cuda/kernels/straight.cuh"
#include "backend/cuda/kernels/variants.cuh"

namespace
{

/* ---- This rank's sums ---- */

/* The whole CTA, after a sum. */
__device__ void publish_sum(const ewx_cuda_call &call, uint32_t epoch, int64_t task,
                            ewx_tile tile)
{
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    await_result_push(call, ewx_tile_bytes(&call.grid, 0, tile, 2), threadIdx.x);
    if (threadIdx.x == 0)
        publish_result(call, epoch, task);
}

/* The whole CTA: false when the call is given up. */
template <class T, int THREADS, int W, int SOURCES, int ROWS, beyond BEYOND>
__device__ bool sum_tile(const ewx_cuda_output &output, const ewx_cuda_call &call,
                         uint32_t epoch, const ewx_cuda_rounds &rounds, int round)
{
    const int task = (int)(rounds.mine.first + round * rounds.mine.step);
    const ewx_tile tile = ewx_task_tile(&call.grid, 0, task);
    transfer on_link = {0, 0};
    bool ready = true;
    if (threadIdx.x < 32) {
        ready = await_tile(call, epoch, task, tile, threadIdx.x);
        if (ready && threadIdx.x == 0)
            stamp_begin(call.trace.reduced, task);
        if (ready && is_paced(call)) {
            on_link = book_pull(call, ewx_tile_bytes(&call.grid, 0, tile, 2), threadIdx.x);
            await_time(on_link.begin_ns);
        }
    }
    if (!__syncthreads_and(ready))
        return false;
#if EW_MUTANT == 46 /* planted bug: the flag before the sum */
    if (rounds.two_shots && threadIdx.x == 0)
        publish_result(call, epoch, task);
#endif
    reduce_tile<T, THREADS, W, SOURCES, ROWS, BEYOND>(
        place_of(output, call, epoch, tile), call, rounds.two_shots, rounds.symmetric);
    if (threadIdx.x < 32)
        await_time(on_link.end_ns); /* 0 without a link */
    if (rounds.two_shots)
        publish_sum(call, epoch, task, tile);
    if (threadIdx.x == 0)
        stamp_end(call.trace.reduced, task);
    return true;
}

/* ---- The others' sums ---- */

/* One warp: true when all sums of a round are there.  `waits`: until they are, or the call
 * is given up. */
__device__ bool round_is_there(const ewx_cuda_call &call, uint32_t epoch,
                               const ewx_cuda_rounds &rounds, int round, bool waits,
                               int lane)
{
    bool ok = true;
#if EW_MUTANT != 48 /* planted bug: sums are copied before they are made */
#pragma unroll 1
    for (int owner = lane; owner < call.num_ranks && ok; owner += 32) {
        const int task = round * call.num_ranks + owner;
        if (owner == call.rank || task >= rounds.tiles)
            continue;
        const uint32_t *word = result_of(call, call.rank, task);
        if (waits) {
            const ewx_tile tile = ewx_task_tile(&call.grid, 0, task);
            ok = await_epoch(call, word, epoch,
                             {EWX_CUDA_RESULT, owner, (int)tile.row, (int)tile.col});
        } else {
            ok = has_reached(word, epoch);
        }
    }
#endif
    return __all_sync(~0u, ok);
}

/* From this rank's slot: each thread a column of pieces. */
template <int THREADS>
__device__ void copy_sum(const tile_place &place, const ewx_cuda_call &call)
{
    constexpr int STEP = THREADS / PIECES_PER_ROW, AT_ONCE = THREADS == 512 ? 1 : 2;
    const uint64_t once = l2_evict_first();
    const int column = threadIdx.x % PIECES_PER_ROW;
    const unsigned char *from = call.heaps[call.rank] + place.source + column * 16;
    unsigned char *to = place.out + column * 16;
    const int height = column < place.pieces ? place.height : 0;
#pragma unroll 1
    for (int first = threadIdx.x / PIECES_PER_ROW; first < height;
         first += AT_ONCE * STEP) {
        uint4 v[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i * STEP < height)
                v[i] =
                    ld_16(from + (uint32_t)(first + i * STEP) * place.source_stride, once);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i * STEP < height)
                st_16(to + (uint32_t)(first + i * STEP) * place.out_stride, v[i], once);
    }
}

/* The whole CTA: copies the sums of a round; false when they are not there, if it `waits`
 * because the call is given up. */
template <int THREADS>
__device__ bool collect_round(const ewx_cuda_output &output, const ewx_cuda_call &call,
                              uint32_t epoch, const ewx_cuda_rounds &rounds, int round,
                              bool waits)
{
    bool ready = true;
    if (threadIdx.x < 32)
        ready = round_is_there(call, epoch, rounds, round, waits, threadIdx.x);
    if (!__syncthreads_and(ready))
        return false;
#pragma unroll 1
    for (int owner = 0; owner < call.num_ranks; owner++) {
        const int task = round * call.num_ranks + owner;
        if (owner == call.rank || task >= rounds.tiles)
            continue;
        if (threadIdx.x == 0)
            stamp_begin(call.trace.reduced, task);
        copy_sum<THREADS>(place_of(output, call, epoch, ewx_task_tile(&call.grid, 0, task)),
                          call);
        if (threadIdx.x == 0)
            stamp_end(call.trace.reduced, task);
    }
    return true;
}

/* The whole CTA: waits until the sums of its rounds are in this rank's C.  All at once,
 * since nothing else is left to do. */
template <int THREADS>
__device__ void await_sums(const ewx_cuda_call &call, uint32_t epoch,
                           const ewx_cuda_rounds &rounds)
{
#if EW_MUTANT != 77 /* planted bug: the kernel ends before all sums are there */
    bool ok = true;
#pragma unroll 1
    for (int at = threadIdx.x; ok; at += THREADS) {
        const int round = (int)rounds.first + blockIdx.x + at / call.num_ranks * gridDim.x;
        const int owner = at % call.num_ranks, task = round * call.num_ranks + owner;
        if (round >= rounds.end)
            break;
        if (owner == call.rank || task >= rounds.tiles)
            continue;
        const ewx_tile tile = ewx_task_tile(&call.grid, 0, task);
        ok = await_epoch(call, result_of(call, call.rank, task), epoch,
                         {EWX_CUDA_RESULT, owner, (int)tile.row, (int)tile.col});
        stamp_begin(call.trace.reduced, task);
        stamp_end(call.trace.reduced, task);
    }
#endif
}

/* ---- The kernel ---- */

/* The whole CTA: whether all ranks are in this call, as reducer.cu asks with its first
 * tile; in two shots also whether sums go straight into C. */
__device__ bool all_agree(const ewx_cuda_call &call, uint32_t epoch,
                          const ewx_cuda_rounds &rounds, bool *straight_out)
{
    if (rounds.two_shots)
        return meet_with_outputs(call, epoch, rounds.symmetric.place, straight_out);
    return __syncthreads_and(threadIdx.x >= 32 || calls_agree(call, epoch, threadIdx.x));
}

/* Behind the last round of the launch of which this rank sums a tile. */
__device__ __forceinline__ int end_of_sums(const ewx_cuda_rounds &rounds)
{
    return (int)ewx_min64(rounds.mine.count, rounds.end);
}

/* The whole CTA: its sums, and in between, and at the end, what the others give. */
template <class T, int THREADS, int W, int SOURCES, int ROWS>
__device__ __forceinline__ void sum_and_copy(const ewx_cuda_output &output,
                                             const ewx_cuda_call &call, uint32_t epoch,
                                             const ewx_cuda_rounds &rounds)
{
    const int last = (int)rounds.end, summed = end_of_sums(rounds);
    int round = (int)rounds.first + blockIdx.x;      /* the next to sum a tile of ... */
    int collected = rounds.two_shots ? round : last; /* ... and to copy */
    bool going = true;
#pragma unroll 1
    while (going && (round < summed || collected < last)) {
        if (round < summed) {
            going = sum_tile<T, THREADS, W, SOURCES, ROWS, beyond::SLOTS>(
                output, call, epoch, rounds, round);
            round += gridDim.x;
        }
        const bool waits = round >= summed;
        const int end = waits ? last : round;
        bool there = true;
#pragma unroll 1
        for (; going && there && collected < end; collected += there ? gridDim.x : 0)
            there = collect_round<THREADS>(output, call, epoch, rounds, collected, waits);
        going = going && (there || !waits);
    }
}

/* The same where sums go straight into C. */
template <class T, int THREADS, int W, int SOURCES, int ROWS>
__device__ __forceinline__ void sum_straight(const ewx_cuda_output &output,
                                             const ewx_cuda_call &call, uint32_t epoch,
                                             const ewx_cuda_rounds &rounds)
{
    const int summed = end_of_sums(rounds);
    bool going = true;
#pragma unroll 1
    for (int round = (int)rounds.first + blockIdx.x; going && round < summed;
         round += gridDim.x)
        going = sum_tile<T, THREADS, W, SOURCES, ROWS, beyond::OUTPUTS>(output, call, epoch,
                                                                        rounds, round);
    if (going)
        await_sums<THREADS>(call, epoch, rounds);
}

template <class T, int THREADS, int W, int SOURCES, int ROWS>
__global__ void __launch_bounds__(THREADS, CTAS_PER_SM<THREADS>)
    allreducer(const __grid_constant__ ewx_cuda_output output,
               const __grid_constant__ ewx_cuda_call call,
               const __grid_constant__ ewx_cuda_rounds rounds)
{
    const uint32_t epoch = call.counters->epochs[EWX_STAGE_EXCHANGE] + 1;
    if (output.announce && blockIdx.x == 0 && threadIdx.x == 0)
        announce_output(call, epoch);
    bool straight = false;
    if (rounds.first + blockIdx.x < rounds.end &&
        all_agree(call, epoch, rounds, &straight)) {
        if (straight)
            sum_straight<T, THREADS, W, SOURCES, ROWS>(output, call, epoch, rounds);
        else
            sum_and_copy<T, THREADS, W, SOURCES, ROWS>(output, call, epoch, rounds);
    }
    let_next_kernel_start();
    __syncthreads();
    if (threadIdx.x == 0)
        close_reducer(call, epoch, output.closes);
}

/* As in reducer.cu, but the stores to the others need registers too. */
struct allreducers {
    static constexpr int FEWEST = 2, MOST_THREADS = 512;

    template <class T, int THREADS, int W>
    static const void *kernel()
    {
        constexpr int MOST = THREADS == 512 ? 2 : W == 0 ? 4 : 8;
        constexpr int SOURCES = W == 0 || W > MOST ? MOST : W;
        constexpr int ROWS = THREADS == 512 || W == 0 ? 1 : SOURCES == 2 ? 2 : 8 / SOURCES;
        return (const void *)allreducer<T, THREADS, W, SOURCES, ROWS>;
    }
};

} // namespace

ewx_cuda_entry ewx_cuda_allreducer(ew_dtype dtype, int num_ranks, int threads)
{
    return entry_of<allreducers>(dtype, num_ranks, threads);
}
