/* The sim backend: answers the backend interface with simulated times.  Nothing is
 * computed; rank 0 simulates all ranks and sends the others their times. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/backend.h"
#include "backend/sim/simulate.h"
#include "base/status.h"

typedef struct sim_plan {
    ew_world *world;
    const ewx_spec *spec;
    ewx_sim_profile profile;
    bool together;
    bool tracing;
    int64_t known_rows; /* of the call that timing and events belong to; -1: none */
    int64_t traced_rows;
    ew_timing timing;
    ew_trace_event *events;
    size_t num_events, events_capacity;
} sim_plan;

/* ---- What the spec costs ---- */

static ew_status sim_survey(ew_world *world, int num_ranks, ewx_machine *machine_out)
{
    ewx_sim_profile profile;
    (void)world;
    EW_TRY(ewx_sim_profile_load(NULL, &profile));
    return ewx_sim_machine(&profile, num_ranks, machine_out);
}

static ew_status sim_check(const ewx_spec *spec)
{
    ewx_sim_profile profile;
    EW_TRY(ewx_sim_profile_load(NULL, &profile));
    return ewx_sim_check(&profile, spec);
}

static ewx_footprint sim_footprint(const ewx_spec *spec)
{
    (void)spec;
    return (ewx_footprint){0}; /* the heap is the forecast's; the rest is the engines' */
}

/* ---- Build and tear down ---- */

static void sim_destroy(void *state)
{
    sim_plan *plan = state;
    if (plan)
        free(plan->events);
    free(plan);
}

static ew_status sim_create(ew_world *world, const ewx_spec *spec, void **state_out)
{
    sim_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a plan");
    *plan = (sim_plan){.world = world, .spec = spec, .known_rows = -1, .traced_rows = -1};
    const ew_status status = ewx_sim_profile_load(NULL, &plan->profile);
    if (status != EW_OK)
        sim_destroy(plan);
    else
        *state_out = plan;
    return status;
}

/* ---- Calls ---- */

static ewx_sim_request request_of(const sim_plan *plan, int64_t rows)
{
    return (ewx_sim_request){.profile = &plan->profile,
                             .spec = plan->spec,
                             .rows = rows,
                             .link_gbs = plan->world->link_gbps / 8,
                             .link_us = (double)plan->world->link_latency_ns * 1e-3,
                             .link_header_bytes = plan->world->link_header_bytes,
                             .together = plan->together,
                             .traced_rank = -1};
}

/* What rank 0 found; the other ranks contribute only their rows. */
typedef struct answer {
    int64_t rows;
    int32_t status;
    char why[244];
    ew_timing timings[];
} answer;

static void simulate_all(const sim_plan *plan, int64_t rows, answer *a)
{
    const int num_ranks = plan->spec->num_ranks;
    const ewx_sim_request request = request_of(plan, rows);
    ewx_sim_rank_result ranks[EWX_MAX_RANKS];
    ewx_sim_result result = {.ranks = ranks};
    a->status = ewx_sim_run(&request, &result);
    if (a->status != EW_OK)
        strncpy(a->why, ew_last_error(), sizeof a->why - 1);
    for (int rank = 0; rank < num_ranks && a->status == EW_OK; rank++)
        a->timings[rank] = ranks[rank].timing;
}

static ew_status check_rows(sim_plan *plan, const unsigned char *all, size_t bytes)
{
    const int64_t mine = ((const answer *)(all + bytes * (size_t)plan->world->rank))->rows;
    for (int rank = 0; rank < plan->world->num_ranks; rank++) {
        const int64_t rows = ((const answer *)(all + bytes * (size_t)rank))->rows;
        if (rows != mine)
            return ewx_world_raise(plan->world, &(ewx_fault){.status = EW_ERR_MISMATCH,
                                                             .culprit = rank,
                                                             .reporter = plan->world->rank,
                                                             .code = EWX_FAULT_ROWS,
                                                             .detail = {mine, rows, 1}});
    }
    return EW_OK;
}

/* Collective. */
static ew_status learn_timing(sim_plan *plan, int64_t rows)
{
    ew_world *world = plan->world;
    const size_t bytes = sizeof(answer) + (size_t)world->num_ranks * sizeof(ew_timing);
    answer *mine = calloc(1, bytes);
    unsigned char *all = calloc((size_t)world->num_ranks, bytes);
    ew_status status = EW_OK;
    if (!mine || !all)
        status = ewx_fail(EW_ERR_MEMORY, "no memory for simulated times");
    EW_TRY_TO(status, ewx_world_agree(world, status, "simulate the call"), out);
    mine->rows = rows;
    if (world->rank == 0)
        simulate_all(plan, rows, mine);
    EW_TRY_TO(status, ewx_world_allgather(world, mine, all, bytes), out);
    EW_TRY_TO(status, check_rows(plan, all, bytes), out);
    const answer *found = (const answer *)(void *)all;
    if (found->status != EW_OK)
        EW_TRY_TO(status, ewx_fail((ew_status)found->status, "%s", found->why), out);
    plan->timing = found->timings[world->rank];
    plan->known_rows = rows;
out:
    free(mine);
    free(all);
    return status;
}

static ew_status sim_admit(const void *state, const ewx_call *call)
{
    (void)state;
    if (call->epilogue)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "the simulator knows no epilogue\n"
                        "  fix: use backend=cpu or backend=cuda, or leave it out");
    return EW_OK;
}

static ew_status sim_run(void *state, const ewx_call *call)
{
    sim_plan *plan = state;
    EW_TRY(ewx_world_check(plan->world));
    return call->m == plan->known_rows ? EW_OK : learn_timing(plan, call->m);
}

static ew_status sim_wait(void *state)
{
    return ewx_world_check(((sim_plan *)state)->world);
}

/* ---- Observation ---- */

/* Local: this rank's own simulation, for its events. */
static ew_status record_events(sim_plan *plan)
{
    const ewx_layout *layout = &plan->spec->layout;
    ewx_sim_rank_result ranks[EWX_MAX_RANKS];
    ewx_sim_result result = {.ranks = ranks};
    ewx_sim_request request = request_of(plan, plan->known_rows);
    if (!plan->events) {
        plan->events_capacity = (size_t)((layout->num_parts + 1) * layout->slots_per_part);
        plan->events = calloc(plan->events_capacity + 1, sizeof *plan->events);
    }
    if (!plan->events)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a trace\n  fix: use a smaller shape");
    request.traced_rank = plan->world->rank;
    request.events = plan->events;
    request.capacity = plan->events_capacity;
    EW_TRY(ewx_sim_run(&request, &result));
    plan->num_events = result.num_traced;
    plan->traced_rows = plan->known_rows;
    return EW_OK;
}

static ew_status sim_timing(const void *state, ew_timing *timing_out)
{
    *timing_out = ((const sim_plan *)state)->timing;
    return EW_OK;
}

static ew_status sim_trace_enable(void *state)
{
    ((sim_plan *)state)->tracing = true;
    return EW_OK;
}

static ew_status sim_trace_read(void *state, ew_trace_event *events, size_t capacity,
                                size_t *count_out)
{
    sim_plan *plan = state;
    *count_out = 0;
    if (!plan->tracing || plan->known_rows < 0)
        return EW_OK;
    if (plan->traced_rows != plan->known_rows)
        EW_TRY(record_events(plan));
    if (events && plan->num_events > 0)
        memcpy(events, plan->events,
               (plan->num_events < capacity ? plan->num_events : capacity) *
                   sizeof *events);
    *count_out = plan->num_events;
    return EW_OK;
}

static void sim_describe(const void *state, char *text, size_t bytes)
{
    (void)state, (void)bytes;
    text[0] = '\0';
}

static void sim_set_start(void *state, ewx_start start)
{
    sim_plan *plan = state;
    if (plan->together == start.together)
        return;
    plan->together = start.together;
    plan->known_rows = plan->traced_rows = -1;
}

/* ---- Memory: matrices of any size, since nothing lies in them ---- */

/* The smallest that a system protects; a program that takes a matrix for memory of its own
 * then ends at its first access, and overwrites nothing. */
#define GUARD_BYTES 1

static ew_status sim_allocate(ew_world *world, size_t bytes, void **memory_out)
{
    (void)world, (void)bytes;
    void *guard = mmap(NULL, GUARD_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (guard == MAP_FAILED)
        return ewx_fail(EW_ERR_MEMORY, "no address for a simulated matrix\n"
                                       "  fix: free some of the matrices before");
    *memory_out = guard;
    return EW_OK;
}

static void sim_release(ew_world *world, void *memory)
{
    (void)world;
    munmap(memory, GUARD_BYTES);
}

static ew_status sim_copy(ew_world *world, void *to, const void *from, size_t bytes)
{
    (void)world, (void)to, (void)from, (void)bytes;
    return EW_OK;
}

static ew_status sim_fill(ew_world *world, void *to, int byte, size_t bytes)
{
    (void)world, (void)to, (void)byte, (void)bytes;
    return EW_OK;
}

static ew_status sim_generate(ew_world *world, const ewx_input *input, void *matrix)
{
    (void)world, (void)input, (void)matrix;
    return EW_OK;
}

/* Nothing was computed, so nothing can be wrong; output marks results as simulated. */
static ew_status sim_verify(ew_world *world, const ew_problem *problem, uint32_t seed,
                            int64_t m, const void *C, ew_check *check_out)
{
    (void)world, (void)problem, (void)seed, (void)m, (void)C;
    *check_out = (ew_check){0};
    return EW_OK;
}

static ew_status sim_weight_open(ew_world *world, const ewx_spec *spec, void **packed_out)
{
    (void)world, (void)spec;
    *packed_out = NULL;
    return EW_OK;
}

static ew_status sim_weight_pack(ew_world *world, const ewx_spec *spec, void *packed,
                                 const void *B)
{
    (void)world, (void)spec, (void)packed, (void)B;
    return EW_OK;
}

static void sim_weight_close(ew_world *world, void *packed)
{
    (void)world, (void)packed;
}

const ewx_backend ewx_backend_sim = {
    .traits = &ewx_traits_sim,
    .survey = sim_survey,
    .check = sim_check,
    .footprint = sim_footprint,
    .create = sim_create,
    .admit = sim_admit,
    .run = sim_run,
    .wait = sim_wait,
    .timing = sim_timing,
    .trace_enable = sim_trace_enable,
    .trace_read = sim_trace_read,
    .describe = sim_describe,
    .set_start = sim_set_start,
    .destroy = sim_destroy,
    .memory = {.allocate = sim_allocate,
               .release = sim_release,
               .copy = sim_copy,
               .fill = sim_fill,
               .generate = sim_generate,
               .verify = sim_verify},
    .weights = {.open = sim_weight_open,
                .pack = sim_weight_pack,
                .close = sim_weight_close},
    .graphs = {.open = ewx_graphs_refuse},
};
