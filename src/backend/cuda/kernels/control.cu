/* Small kernels around the two that matter. */
#include "backend/cuda/kernels/link.cuh"

namespace
{

/* One thread, in front of what a stream has of the call. */
__global__ void hold_kernel(const __grid_constant__ ewx_cuda_hold hold,
                            const __grid_constant__ ewx_cuda_call call)
{
    const uint32_t epoch = call.counters->epochs[hold.stage] + 1;
    if (hold.opens) {
        await_host(call, hold.number);
        announce_at_gate(call, epoch);
    }
    await_gate(call, epoch);
    const unsigned long long open_ns = global_timer_ns();
    while (global_timer_ns() - open_ns < hold.delay_ns)
        ;
    if (hold.opens)
        call.report->start_ns = global_timer_ns();
}

/* One warp: opens the call for a GEMM that is not ours, and closes that stage at once: what
 * follows in the stream is ordered by the stream. */
__global__ void open_call_kernel(const __grid_constant__ ewx_cuda_call call)
{
    uint32_t epoch = 0;
    if (threadIdx.x == 0)
        epoch = open_producer(call, true);
    epoch = __shfl_sync(~0u, epoch, 0);
    if (await_readers(call, epoch, threadIdx.x) && threadIdx.x == 0)
        count_call(call, epoch);
}

/* Between a GEMM and a collective that are both not ours. */
__global__ void mark_gemm_end_kernel(const __grid_constant__ ewx_cuda_call call)
{
    call.report->gemm_end_ns = global_timer_ns();
}

/* Counts a call whose reduction was not ours as reduced. */
__global__ void close_call_kernel(const __grid_constant__ ewx_cuda_call call)
{
    close_reducer(call, call.counters->epochs[EWX_STAGE_EXCHANGE] + 1, true);
}

/* One warp, before copies overwrite what peers may still read. */
__global__ void await_readers_kernel(const __grid_constant__ ewx_cuda_call call)
{
    (void)await_readers(call, call.counters->epochs[EWX_STAGE_COPY] + 1, threadIdx.x);
}

/* One thread.  The copy lies behind this kernel in its stream, and is on the link while it
 * runs. */
__global__ void book_copy_kernel(const __grid_constant__ ewx_cuda_call call, int dst)
{
    const int64_t elems = ewx_part_rows(&call.grid, dst) * call.grid.cols * call.num_pieces;
    if (!has_stopped(call))
        call.counters->copied_ns = book_push(call, dst, 2 * elems);
}

/* The copy lies before this kernel in its stream. */
__global__ void publish_copied_kernel(const __grid_constant__ ewx_cuda_call call, int dst,
                                      int closes)
{
    const uint32_t epoch = call.counters->epochs[EWX_STAGE_COPY] + 1;
    if (!has_stopped(call)) {
        if (is_paced(call))
            await_time(call.counters->copied_ns);
        st_release_sys(flag_of(call, dst, 0, call.rank), epoch);
    }
    if (closes)
        call.counters->epochs[EWX_STAGE_COPY] = epoch;
}

constexpr int PATCH = 32;
constexpr int PATCH_ROWS = 8;

__global__ void transpose(const uint16_t *from, uint16_t *to, int64_t rows, int64_t cols)
{
    __shared__ uint16_t patch[PATCH][PATCH + 1]; /* one more: no bank conflicts */
    const int64_t col = (int64_t)blockIdx.x * PATCH, step = (int64_t)gridDim.y * PATCH;
    for (int64_t row = (int64_t)blockIdx.y * PATCH; row < rows; row += step) {
        for (int i = threadIdx.y; i < PATCH; i += PATCH_ROWS)
            if (row + i < rows && col + threadIdx.x < cols)
                patch[i][threadIdx.x] = from[(row + i) * cols + col + threadIdx.x];
        __syncthreads();
        for (int i = threadIdx.y; i < PATCH; i += PATCH_ROWS)
            if (col + i < cols && row + threadIdx.x < rows)
                to[(col + i) * rows + row + threadIdx.x] = patch[threadIdx.x][i];
        __syncthreads(); /* before the patch is filled again */
    }
}

__global__ void read_clock(unsigned long long *ns_out)
{
    *ns_out = global_timer_ns();
}

} // namespace

ewx_cuda_entry ewx_cuda_hold_call(void)
{
    return {(const void *)hold_kernel, 1, 0, 0};
}

ewx_cuda_entry ewx_cuda_open_call(void)
{
    return {(const void *)open_call_kernel, 32, 0, 0};
}

ewx_cuda_entry ewx_cuda_mark_gemm_end(void)
{
    return {(const void *)mark_gemm_end_kernel, 1, 0, 0};
}

ewx_cuda_entry ewx_cuda_close_call(void)
{
    return {(const void *)close_call_kernel, 1, 0, 0};
}

ewx_cuda_entry ewx_cuda_await_readers(void)
{
    return {(const void *)await_readers_kernel, 32, 0, 0};
}

ewx_cuda_entry ewx_cuda_book_copy(void)
{
    return {(const void *)book_copy_kernel, 1, 0, 0};
}

ewx_cuda_entry ewx_cuda_publish_copied(void)
{
    return {(const void *)publish_copied_kernel, 1, 0, 0};
}

ewx_cuda_entry ewx_cuda_transpose(void)
{
    return {(const void *)transpose, PATCH * PATCH_ROWS, 0, 0};
}

ewx_cuda_entry ewx_cuda_clock(void)
{
    return {(const void *)read_clock, 1, 0, 0};
}
