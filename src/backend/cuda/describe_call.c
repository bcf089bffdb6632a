/* What the kernels of a call are told of it. */
#include "backend/cuda/cuda_engine.h"
#include "plan/link.h"
#include "plan/policy.h"

_Static_assert(EWX_CUDA_MAX_SOURCES >= EWX_CUDA_MAX_RANKS, "every rank is one");

/* Slots of a partition lie together, by owner where contributions stay with their source,
 * by source where they lie with their owner. */
static const unsigned char *source_of(const ewx_cuda_engine *engine,
                                      const ewx_cuda_call *call, int rank)
{
    const ewx_layout *layout = &engine->spec->layout;
    const int64_t partition_bytes = layout->slots_per_part * (int64_t)layout->slot_bytes;
    if (call->pushed)
        return engine->heap.segments[call->rank] + (rank - call->rank) * partition_bytes;
    return ewx_world_is_local(engine->world, rank) ? engine->heap.segments[rank]
                                                   : ewx_carrier_source(engine, rank);
}

/* K goes on from one rank's last piece to the next rank's first. */
static void describe_heaps(const ewx_cuda_engine *engine, ewx_cuda_call *call)
{
    const size_t piece_bytes = engine->spec->layout.piece_bytes;
    if (call->adds)
        call->sources[0] = engine->heap.segments[call->rank];
    for (int rank = 0; rank < engine->spec->num_ranks; rank++) {
        call->heaps[rank] = engine->heap.segments[rank];
        for (int piece = 0; piece < call->num_pieces && !call->adds; piece++) {
#if EW_MUTANT == 80 /* planted bug: all ranks' first pieces first */
            const int at = piece * call->num_ranks + rank;
#else
            const int at = rank * call->num_pieces + piece;
#endif
            call->sources[at] = source_of(engine, call, rank) + (size_t)piece * piece_bytes;
        }
    }
}

static ewx_cuda_link describe_link(const ew_world *world)
{
    const double byte_ns = world->link_gbps > 0 ? 8.0 / world->link_gbps : 0;
    return (ewx_cuda_link){
        .ns_per_byte = byte_ns * ewx_link_sent_per_byte(world->link_header_bytes),
        .asked_ns_per_byte = byte_ns * ewx_link_asked_per_byte(world->link_header_bytes),
        .latency_ns = (uint64_t)world->link_latency_ns};
}

ewx_cuda_call ewx_cuda_describe_call(const ewx_cuda_engine *engine, int64_t m)
{
    const ewx_spec *spec = engine->spec;
    const ewx_layout *layout = &spec->layout;
    const ew_world *world = engine->world;
    const ewx_share share = ewx_spec_share(spec, m, world->rank);
    const bool adds = ewx_transport_adds(spec->config.transport);
    ewx_cuda_call call = {
        .grid = ewx_spec_grid(spec, m),
        .rank = world->rank,
        .num_ranks = world->num_ranks,
        .release = ewx_release_of(&spec->config),
        .tile_rows = (int32_t)layout->max_tile_rows,
        .num_slots = (int32_t)layout->num_slots,
        .num_pieces = layout->num_pieces,
        .num_sources = adds ? 1 : world->num_ranks * layout->num_pieces,
        .row_major = layout->row_major,
        .pushed = spec->config.transport != EW_TRANSPORT_PULL,
        .adds = adds,
        .ownership = share.ownership,
        .part = share.part,
        .flags_offset = (int64_t)layout->flags_offset,
        .num_chunks = (int32_t)layout->num_chunks,
        .results_offset = (int64_t)layout->results_offset,
        .slice_offset = {(int64_t)layout->slice_offset[0],
                         (int64_t)layout->slice_offset[1]},
        .num_slices = layout->slice_offset[0] == layout->slice_offset[1] ? 1 : 2,
        .counters = engine->counters,
        .calls_made = engine->counts ? engine->device->calls_made : NULL,
        .report = engine->report,
        .abort = engine->device->abort,
        .timeout_ns = (uint64_t)engine->timeout_ns,
        .gate = engine->start.together,
        .link = describe_link(world),
        .trace = engine->trace,
    };
#if EW_MUTANT == 16 /* planted bug: the deadline comes too late */
    call.timeout_ns *= 4;
#endif
    describe_heaps(engine, &call);
    return call;
}

static ewx_columns columns_of(const ewx_call *request)
{
    ewx_columns columns = {.paired = request->activates && request->num_products == 2};
    for (int i = 0; i < request->num_products; i++)
        ewx_columns_add(&columns, request->products[i].n);
    return columns;
}

ewx_grid ewx_cuda_products_grid(const ewx_spec *spec, const ewx_call *request)
{
    const ewx_columns columns = columns_of(request);
    return ewx_grid_build(request->m, ewx_columns_all(&columns),
                          spec->op->num_parts(spec->num_ranks), &spec->config);
}

ewx_cuda_products ewx_cuda_describe_products(const ewx_call *request)
{
    ewx_cuda_products products = {.columns = columns_of(request),
                                  .activation = (int32_t)request->activation};
    for (int i = 0; i < request->num_products; i++) {
        products.b[i] = request->products[i].packed;
        products.c[i] = request->products[i].C;
        products.keeps |= products.c[i] != NULL;
    }
    products.c[EWX_CUDA_ACTIVATED] = request->activates ? request->C : NULL;
    return products;
}
