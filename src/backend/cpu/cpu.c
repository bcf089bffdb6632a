/* The CPU backend: builds an engine from a spec and answers the backend interface. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/cpu_blas.h"
#include "backend/cpu/cpu_engine.h"
#include "backend/cpu/cpu_workers.h"
#include "base/checked.h"
#include "base/cores.h"
#include "base/probe.h"
#include "base/status.h"

#define HUGE_PAGE ((size_t)2 << 20)

/* ---- What the spec costs ---- */

typedef struct sizes {
    ewx_weight_form weight;
    size_t activation_piece, activation_panel, activations, aside, tile_scratch, scratch;
    size_t panel_states, consumers, unreleased, squares, row_tiles;
} sizes;

static sizes measure_spec(const ewx_spec *spec)
{
    const ew_problem *problem = &spec->problem;
    const ewx_layout *layout = &spec->layout;
    const int64_t num_panels = layout->num_parts * layout->max_tile_rows;
    const int64_t part_rows = ewx_div_up(problem->max_m, layout->num_parts);
    const int64_t rows = ewx_min64(EWX_TILE_M, part_rows);
    const int64_t cols = ewx_min64(EWX_TILE_N, problem->n);
    sizes s = {.weight = ewx_weight_form_build(spec, problem->n),
               .panel_states = (size_t)num_panels,
               .consumers = (size_t)spec->config.budget * sizeof(ewx_consumer),
               .unreleased = (size_t)ewx_release_groups(spec) * sizeof(int64_t),
               /* what an epilogue needs */
               .scratch = (size_t)(EWX_TILE_M * EWX_TILE_N) * spec->elem_bytes,
               .squares = (size_t)(part_rows * layout->tile_cols) * sizeof(float),
               .row_tiles = (size_t)layout->max_tile_rows * sizeof(int64_t)};
    if (spec->config.producer == EW_PRODUCER_BLAS)
        return s;
    s.activation_piece = ewx_packed_a_bytes(&s.weight.gemm, rows);
    s.activation_panel = s.activation_piece * (size_t)layout->num_pieces;
    const ewx_size activations =
        ewx_size_mul((ewx_size){s.activation_panel, true}, ewx_size_of(num_panels));
    /* Beyond 64 bits no memory is large enough either, which the claim then finds. */
    s.activations = activations.ok ? activations.value : INT64_MAX;
    s.aside = (ewx_gemm_scratch_bytes(&s.weight.gemm, rows, cols) + 63) & ~(size_t)63;
    s.tile_scratch = s.aside;
    if (spec->op->gemm_waits) /* an activation may follow */
        s.tile_scratch +=
            ((size_t)(rows * EWX_TILE_N) * spec->elem_bytes + 63) & ~(size_t)63;
    const size_t scratch = s.tile_scratch * (size_t)ewx_tiles_together(spec);
    if (scratch > s.scratch)
        s.scratch = scratch;
    return s;
}

static ewx_footprint cpu_footprint(const ewx_spec *spec)
{
    const sizes s = measure_spec(spec);
    return (ewx_footprint){.weight_bytes = s.weight.bytes,
                           .workspace_bytes = s.activations +
                                              s.scratch * (size_t)spec->config.workers +
                                              s.panel_states + s.consumers + s.unreleased +
                                              s.squares + s.row_tiles};
}

static ew_status cpu_survey(ew_world *world, int num_ranks, ewx_machine *machine_out)
{
    ewx_home home = {.num_domains = 0};
    const ewx_provision provision = world
                                        ? ewx_places_provide(world)
                                        : ewx_places_forecast(num_ranks, &home.num_domains);
    const int cores = provision.cores;
    if (world)
        ewx_place_home(world, &home);
    /* The cores of all hosts, which are taken to be alike: a rank's share is its share of
     * its own host. */
    machine_out->cores = world ? cores * num_ranks / world->num_locals : cores;
    machine_out->cores_each = provision.each;
    machine_out->domains = home.num_domains;
    machine_out->unplaced = ewx_domains_find()->why;
    machine_out->hosts = world ? world->num_hosts : 1;
    for (int dtype = EW_FP32; dtype <= EW_FP16; dtype++) {
        const ewx_kernel *kernel = ewx_kernel_select((ew_dtype)dtype, NULL);
        machine_out->cpu_block[dtype] = kernel->block_side;
        machine_out->cpu_packs[dtype] = kernel->packs;
    }
    ewx_text text = ewx_text_in(machine_out->device, sizeof machine_out->device);
    ewx_cpu_model(&text);
    ewx_text_add(&text, "/%dcores", cores);
    if (world && world->num_hosts > 1)
        ewx_text_add(&text, "/%dhosts", world->num_hosts);
    return EW_OK;
}

static ew_status cpu_check(const ewx_spec *spec)
{
    if (!ewx_cpu_op_find(spec->op->id))
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "the cpu backend does not have the operation %s", spec->op->name);
    if (spec->config.transport != EW_TRANSPORT_PULL)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "transport=%s is not available on the cpu backend, whose ranks "
                        "share their memory\n  fix: use transport=pull",
                        ewx_transport_name(spec->config.transport));
    if (spec->config.producer != EW_PRODUCER_BLAS)
        return EW_OK;
    if (spec->problem.dtype != EW_FP32)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "producer=blas has no %s GEMM\n"
                        "  fix: use fp32, or producer=own",
                        ew_dtype_name(spec->problem.dtype));
    return ewx_blas_check();
}

/* ---- Build and tear down ---- */

static ew_status allocate(size_t bytes, void **buffer_out)
{
    return ewx_buffer_allocate(bytes, "a plan buffer", buffer_out);
}

static ew_status allocate_all(ewx_cpu_engine *engine, const sizes *s)
{
    const ewx_spec *spec = engine->spec;
    EW_TRY(allocate(s->activations, (void **)&engine->gemm.activations));
    EW_TRY(allocate(s->scratch * (size_t)spec->config.workers,
                    (void **)&engine->gemm.scratch));
    EW_TRY(allocate(s->panel_states, (void **)&engine->gemm.panel_states));
    EW_TRY(allocate(s->consumers, (void **)&engine->reduce.consumers));
    EW_TRY(allocate(s->unreleased, (void **)&engine->gemm.unreleased));
    EW_TRY(allocate((size_t)spec->num_ranks, (void **)&engine->reduce.peer_agrees));
    EW_TRY(allocate((size_t)spec->num_ranks * sizeof(ewx_collector),
                    (void **)&engine->collect.collectors));
    EW_TRY(allocate((size_t)spec->num_ranks * sizeof(ewx_gather_source),
                    (void **)&engine->gather.sources));
    EW_TRY(allocate(s->row_tiles, (void **)&engine->collect.rows_finished));
    EW_TRY(allocate(s->squares, (void **)&engine->epilogue.squares));
    EW_TRY(allocate(s->row_tiles, (void **)&engine->epilogue.row_tiles));
    if (ewx_host_sum_is_needed(engine))
        EW_TRY(allocate((size_t)(spec->config.workers * EWX_TILE_M * EWX_TILE_N) *
                            spec->elem_bytes,
                        (void **)&engine->host_sum.partials));
    atomic_flag_clear(&engine->host_sum.held);
    for (int j = 0; j < spec->config.budget; j++)
        atomic_flag_clear(&engine->reduce.consumers[j].held);
    for (int rank = 0; rank < spec->num_ranks; rank++)
        atomic_flag_clear(&engine->collect.collectors[rank].held);
    return EW_OK;
}

static void cpu_destroy(void *state)
{
    ewx_cpu_engine *engine = state;
    if (!engine)
        return;
    (void)EWX_PROBE(EWX_PROBE_TEARDOWN, engine->world->rank, 0);
    for (int rank = 0; rank < engine->world->num_ranks; rank++)
        engine->from[rank]->close(engine);
    ewx_heap_close(&engine->heap);
    free(engine->trace.events);
    free(engine->host_sum.partials);
    free((void *)engine->epilogue.row_tiles);
    free(engine->epilogue.squares);
    free((void *)engine->collect.rows_finished);
    free(engine->gather.sources);
    free(engine->collect.collectors);
    free((void *)engine->reduce.peer_agrees);
    free((void *)engine->gemm.unreleased);
    free(engine->reduce.consumers);
    free((void *)engine->gemm.panel_states);
    free(engine->gemm.scratch);
    free(engine->gemm.activations);
    free(engine->gemm.passing_weight);
    free(engine);
}

static const ewx_route *route_of(const ew_world *world, int rank)
{
    if (!ewx_world_is_local(world, rank))
        return &ewx_route_wire;
    return world->link_gbps > 0.0 && rank != world->rank ? &ewx_route_link
                                                         : &ewx_route_heap;
}

/* With two levels a tile for another host goes to the rank that makes this host's sum. */
static void choose_routes(ewx_cpu_engine *engine)
{
    engine->farthest = engine->world->num_hosts > 1 ? &ewx_route_wire : &ewx_route_heap;
    engine->to_all_here =
        engine->world->link_gbps > 0.0 ? &ewx_route_link : &ewx_route_heap;
    engine->to_everyone =
        engine->world->num_hosts > 1 ? &ewx_route_wire : engine->to_all_here;
    for (int rank = 0; rank < engine->world->num_ranks; rank++) {
        engine->from[rank] = route_of(engine->world, rank);
        engine->to[rank] =
            ewx_host_sum_is_needed(engine) ? &ewx_route_heap : engine->from[rank];
    }
}

/* What a worker's thread takes of its stack. */
#define STACK_BYTES ((size_t)64 << 10)

/* All that a plan touches: the kernel kills a process for whatever was not counted. */
static size_t claimed_bytes(const ew_world *world, const ewx_spec *spec)
{
#if EW_MUTANT == 31 /* planted bug: packed operands are not counted */
    const size_t workspace = 0;
#else
    const size_t workspace = cpu_footprint(spec).workspace_bytes;
#endif
    const size_t tile = (size_t)(EWX_TILE_M * EWX_TILE_N) * spec->elem_bytes;
    const size_t small = workspace / EWX_BYTES_PER_TABLE_BYTE + sizeof(ewx_cpu_engine) +
                         (STACK_BYTES + tile) * (size_t)spec->config.workers;
    const ewx_size sum =
        ewx_size_add(ewx_heap_bytes(world, spec),
                     ewx_size_add((ewx_size){workspace, workspace < INT64_MAX},
                                  (ewx_size){small, true}));
    return sum.ok ? sum.value : INT64_MAX;
}

static ew_status build(ewx_cpu_engine *engine, const sizes *s)
{
    const ewx_spec *spec = engine->spec;
    choose_routes(engine);
    EW_TRY(
        ewx_wire_open(engine, ewx_heap_open(&engine->heap, engine->world, &spec->layout)));
    engine->gemm.form.gemm.progress =
        &ewx_heap_header(&engine->heap, engine->world->rank)->progress;
    EW_TRY(allocate_all(engine, s));
    EW_TRY(ewx_workers_start(engine->world, spec->config.workers));
    if (spec->config.producer == EW_PRODUCER_BLAS)
        ewx_blas_set_threads(spec->config.workers);
    return EW_OK;
}

/* Collective: no rank touches a byte before all know that there is enough for all. */
static ew_status create_claimed(ew_world *world, const ewx_spec *spec, ew_status claimed,
                                void **state_out)
{
    const sizes s = measure_spec(spec);
    void *memory = NULL;
    if (claimed == EW_OK)
        claimed = allocate(sizeof(ewx_cpu_engine), &memory);
    ewx_cpu_engine *engine = memory;
    if (engine)
        *engine = (ewx_cpu_engine){
            .world = world,
            .spec = spec,
            .op = ewx_cpu_op_find(spec->op->id),
            .gemm = {.form = s.weight,
                     .activation_piece_bytes = s.activation_piece,
                     .activation_panel_bytes = s.activation_panel,
                     .scratch_bytes = s.scratch,
                     .tile_scratch_bytes = s.tile_scratch,
                     .aside_offset = s.aside},
            .reduce = {.levels = world->num_hosts > 1 ? spec->config.levels : 1}};
    ew_status status = ewx_world_agree(world, claimed, "find memory for the plan");
    if (status != EW_OK) {
        free(memory);
        return status;
    }
    ewx_home home;
    ewx_place_home(world, &home);
    const ewx_stay stay = ewx_home_enter(&home);
    status = build(engine, &s);
    ewx_home_leave(&stay);
    if (status != EW_OK)
        cpu_destroy(engine);
    else
        *state_out = engine;
    return status;
}

static ew_status cpu_create(ew_world *world, const ewx_spec *spec, void **state_out)
{
    if (world->num_hosts > 1 && spec->config.producer == EW_PRODUCER_BLAS)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "producer=blas among ranks on %d hosts\n"
                        "  fix: use producer=own, or compare with the method blas+mpi",
                        world->num_hosts);
    if (world->num_hosts > 1 && spec->config.levels == 2 &&
        !ewx_op_has_levels(spec->op, spec->num_ranks))
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "levels=2 of %s among ranks on %d hosts\n"
                        "  fix: use levels=1",
                        spec->op->name, world->num_hosts);
    const size_t bytes = claimed_bytes(world, spec);
    const ew_status claimed = ewx_claim_memory(world, bytes, true, "the plan");
    const ew_status status = create_claimed(world, spec, claimed, state_out);
    if (claimed == EW_OK)
        ewx_claim_settle(world, bytes);
    return status;
}

/* ---- Calls ---- */

static ew_status cpu_admit(const void *state, const ewx_call *call)
{
    (void)state;
    if (call->stream)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "the cpu backend has no streams\n  fix: pass NULL");
    return EW_OK;
}

/* Many plans never get a B with a call: the first that comes allocates the room for it, and
 * so do several, which need a little more. */
static ew_status make_room(ewx_cpu_engine *engine, size_t bytes)
{
    ewx_gemm_stage *gemm = &engine->gemm;
    if (gemm->passing_bytes >= bytes)
        return EW_OK;
    free(gemm->passing_weight);
    gemm->passing_weight = NULL;
    gemm->passing_bytes = 0;
    const ew_status status =
        ewx_weight_room_open(engine->world, bytes, (void **)&gemm->passing_weight);
    if (status == EW_OK) {
        gemm->passing_bytes = bytes;
    } else {
        ewx_world_give_up(engine->world,
                          status); /* or peers would wait for this rank's part */
        ewx_engine_progress(engine, 0);
    }
    return status;
}

static ew_status cpu_run(void *state, const ewx_call *call)
{
    EW_TRY(make_room(state, ewx_gemm_stage_passing_bytes(state, call)));
    return ewx_engine_run(state, call);
}

static ew_status cpu_wait(void *state)
{
    return ewx_world_check(((ewx_cpu_engine *)state)->world);
}

static ew_status cpu_timing(const void *state, ew_timing *timing_out)
{
    *timing_out = ((const ewx_cpu_engine *)state)->timing;
    return EW_OK;
}

static ew_status cpu_trace_enable(void *state)
{
    ewx_cpu_engine *engine = state;
    const ewx_spec *spec = engine->spec;
    if (engine->trace.events)
        return EW_OK;
    /* A block each, and a sum each that a rank makes or copies; by rows, where a tile may
     * have several owners, results of every rank besides. */
    engine->trace.capacity =
        (size_t)((spec->layout.num_parts + 1) * spec->layout.slots_per_part);
    if (spec->op->rows_c == ewx_rows_all)
        engine->trace.capacity += (size_t)(spec->num_ranks + spec->layout.max_tile_rows);
    if (spec->op->gemm_waits) /* each of several weights may end within a tile */
        engine->trace.capacity +=
            (size_t)(EW_MAX_PRODUCTS * spec->layout.num_parts * spec->layout.max_tile_rows);
    return allocate(engine->trace.capacity * sizeof(ew_trace_event),
                    (void **)&engine->trace.events);
}

static ew_status cpu_trace_read(void *state, ew_trace_event *events, size_t capacity,
                                size_t *count_out)
{
    ewx_cpu_engine *engine = state;
    size_t count = (size_t)atomic_load(&engine->trace.count);
    if (count > engine->trace.capacity)
        count = engine->trace.capacity;
    if (count > 0 && events)
        memcpy(events, engine->trace.events,
               (count < capacity ? count : capacity) * sizeof *events);
    *count_out = count;
    return EW_OK;
}

static void cpu_describe(const void *state, char *text, size_t bytes)
{
    (void)state, (void)bytes;
    text[0] = '\0';
}

static void cpu_set_start(void *state, ewx_start start)
{
    (void)state, (void)start; /* a barrier before the call does it */
}

/* ---- Memory ---- */

/* Huge pages where the system grants them: one source of noise less. */
static ew_status cpu_allocate(ew_world *world, size_t bytes, void **memory_out)
{
    (void)world;
    const ewx_size size = {bytes, bytes <= PTRDIFF_MAX}, least = {1, true};
    const ewx_size rounded = ewx_size_round_up(ewx_size_add(size, least), HUGE_PAGE);
    void *memory = rounded.ok ? aligned_alloc(HUGE_PAGE, rounded.value) : NULL;
    if (!memory)
        return ewx_fail(EW_ERR_MEMORY,
                        "no memory for a matrix of %zu bytes\n"
                        "  fix: use a smaller shape or fewer ranks",
                        bytes);
    madvise(memory, rounded.value, MADV_HUGEPAGE);
    *memory_out = memory;
    return EW_OK;
}

static void cpu_release(ew_world *world, void *memory)
{
    (void)world;
    free(memory);
}

static ew_status cpu_copy(ew_world *world, void *to, const void *from, size_t bytes)
{
    (void)world;
    memcpy(to, from, bytes);
    return EW_OK;
}

static ew_status cpu_fill(ew_world *world, void *to, int byte, size_t bytes)
{
    (void)world;
    memset(to, byte, bytes);
    return EW_OK;
}

static ew_status cpu_generate(ew_world *world, const ewx_input *input, void *matrix)
{
    (void)world;
    switch (input->kind) {
    case EWX_INPUT_EXACT_A:
        return ew_exact_fill_a(input->dtype, input->seed, input->rank, input->num_ranks,
                               input->rows, input->depth, matrix);
    case EWX_INPUT_EXACT_B:
        return ew_exact_fill_b(input->dtype, input->seed, input->rank, input->layout,
                               input->rows, input->depth, matrix);
    case EWX_INPUT_RANDOM:
        break;
    }
    return ew_random_fill(input->dtype, input->seed, input->rows * input->depth, matrix);
}

static ew_status cpu_verify(ew_world *world, const ew_problem *problem, uint32_t seed,
                            int64_t m, const void *C, ew_check *check_out)
{
    return ew_exact_verify(problem, seed, world->rank, world->num_ranks, m, C, check_out);
}

const ewx_backend ewx_backend_cpu = {
    .traits = &ewx_traits_cpu,
    .survey = cpu_survey,
    .check = cpu_check,
    .footprint = cpu_footprint,
    .create = cpu_create,
    .admit = cpu_admit,
    .run = cpu_run,
    .wait = cpu_wait,
    .timing = cpu_timing,
    .trace_enable = cpu_trace_enable,
    .trace_read = cpu_trace_read,
    .describe = cpu_describe,
    .set_start = cpu_set_start,
    .destroy = cpu_destroy,
    .memory = {.allocate = cpu_allocate,
               .release = cpu_release,
               .copy = cpu_copy,
               .fill = cpu_fill,
               .generate = cpu_generate,
               .verify = cpu_verify},
    .weights = {.open = ewx_cpu_weight_open,
                .pack = ewx_cpu_weight_pack,
                .close = ewx_cpu_weight_close},
    .graphs = {.open = ewx_graphs_refuse},
};
