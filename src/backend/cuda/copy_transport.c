/* transport=copy: the output is computed destination by destination, the own partition
 * last.  Each partition goes through the outbox and is copied to its owner by a copy
 * engine, on the exchange's stream, while the next one is computed. */
#include "backend/cuda/cuda_engine.h"

/* Where the positions of dst's partition begin in the contiguous order. */
static int64_t first_position_of(const ewx_grid *grid, int dst)
{
    int64_t rows = 0;
    for (int before = 0; before < dst; before++)
        rows += ewx_part_block_rows(grid, before);
    return rows * grid->blocks_per_row;
}

/* From the outbox into dst's inbox. */
static ew_status copy(const ewx_cuda_engine *engine, int dst, int64_t tiles)
{
    const ewx_layout *layout = &engine->spec->layout;
    const size_t partition_bytes = (size_t)layout->slots_per_part * layout->slot_bytes;
    unsigned char *inbox = engine->heap.segments[dst] + layout->slice_offset[0];
    if (tiles > 0)
        EW_CUDA_TRY(cudaMemcpyAsync(inbox + (size_t)engine->world->rank * partition_bytes,
                                    engine->outbox + (size_t)dst * partition_bytes,
                                    (size_t)tiles * layout->slot_bytes, cudaMemcpyDefault,
                                    engine->device->reducing),
                    "copying a partition");
    return EW_OK;
}

static ew_status copy_and_publish(ewx_cuda_engine *engine, ewx_cuda_call *call, int dst,
                                  int closes)
{
    const cudaStream_t copying = engine->device->reducing;
    void *arguments[] = {call, &dst, &closes};
    EW_TRY(ewx_cuda_record(engine->computed, engine->device->producing));
    EW_TRY(ewx_cuda_follow(copying, engine->computed));
    if (call->link.ns_per_byte > 0)
        EW_TRY(ewx_cuda_launch_ctas(engine, &engine->book_copy, 1, copying, arguments));
    EW_TRY(copy(engine, dst, ewx_part_tiles(&call->grid, dst)));
    return ewx_cuda_launch_ctas(engine, &engine->publish_copied, 1, copying, arguments);
}

/* What is not published is not read. */
ew_status ewx_cuda_warm_copies(const ewx_cuda_engine *engine)
{
    for (int dst = 0; dst < engine->spec->num_ranks; dst++)
        if (dst != engine->world->rank)
            EW_TRY(copy(engine, dst, engine->spec->layout.slots_per_part));
    return EW_OK;
}

/* Copies into the peers' memory begin when they have read what lies there. */
static ew_status open_copies(ewx_cuda_engine *engine, ewx_cuda_call *call)
{
    const cudaStream_t copying = engine->device->reducing;
    void *arguments[] = {call};
    EW_TRY(ewx_cuda_record(engine->computed, engine->device->producing));
    EW_TRY(ewx_cuda_follow(copying, engine->computed));
    return ewx_cuda_launch_ctas(engine, &engine->await_readers, 1, copying, arguments);
}

ew_status ewx_cuda_launch_copied(ewx_cuda_engine *engine, ewx_cuda_call *call,
                                 const ewx_call *request)
{
    const int num_ranks = engine->spec->num_ranks;
    if (num_ranks > 1)
        EW_TRY(open_copies(engine, call));
    for (int step = 1; step <= num_ranks; step++) {
        const int dst = (call->rank + step) % num_ranks;
        const bool own = dst == call->rank;
        const ewx_cuda_operands part = {
            .first_position = first_position_of(&call->grid, dst),
            .end_position = first_position_of(&call->grid, dst + 1),
            .opens = step == 1,
            .closes = step == num_ranks,
            .outbox = own ? NULL : engine->outbox};
        EW_TRY(ewx_cuda_launch_gemm(engine, call, part, request));
        if (!own)
            EW_TRY(copy_and_publish(engine, call, dst, step == num_ranks - 1));
    }
    if (num_ranks == 1)
        return EW_OK;
    EW_TRY(ewx_cuda_record(engine->copied, engine->device->reducing));
    return ewx_cuda_follow(engine->device->producing, engine->copied);
}
