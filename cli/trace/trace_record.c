/* Records the quickest call of a plan on every rank, beside sequential calls of the same
 * kernels that say how long the GEMM takes by itself. */
#include <math.h>
#include <stdlib.h>

#include "output/derived.h"
#include "trace/trace.h"

#define TRY(call)                         \
    do {                                  \
        const ew_status failed_ = (call); \
        if (failed_)                      \
            return failed_;               \
    } while (0)

typedef struct record_call {
    const cli_job *job;
    cli_trace *trace;
} record_call;

/* What one rank holds while it records. */
typedef struct recorder {
    ew_world *world;
    cli_trace *trace;
    uint32_t seed;
    ew_plan *plan, *sequential;
    ew_backend backend;
    void *A, *B, *C; /* where the backend wants them */
    void *staging;   /* on the host, for any of them */
    size_t c_bytes;
    int64_t best_ns; /* 0: no call was kept yet */
} recorder;

typedef struct call_times {
    int64_t total_ns, gemm_ns;
} call_times;

static ew_status make_plans(recorder *r, const ew_config *traced)
{
    const ew_problem *problem = &r->trace->problem;
    ew_config used = EW_CONFIG_INIT, plain = EW_CONFIG_INIT;
    TRY(ew_plan_create(r->world, problem, traced, &r->plan));
    TRY(ew_plan_trace_enable(r->plan));
    TRY(ew_plan_config(r->plan, &used));
    TRY(ew_method_config("sequential", &used, &plain));
    TRY(ew_plan_create(r->world, problem, &plain, &r->sequential));
    TRY(ew_plan_start_together(r->plan));
    TRY(ew_plan_start_together(r->sequential));
    r->backend = used.backend;
    if (ew_world_rank(r->world) == 0)
        r->trace->config = used;
    return EW_OK;
}

static size_t largest(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* A copy of what the staging holds. */
static ew_status make_matrix(recorder *r, size_t bytes, void **matrix_out)
{
    const ew_status status = ew_memory_alloc(r->world, r->backend, bytes, matrix_out);
    return status ? status
                  : ew_memory_copy(r->world, r->backend, *matrix_out, r->staging, bytes);
}

static ew_status make_matrices(recorder *r)
{
    void **places[] = {&r->A, &r->B, &r->C};
    if (cli_bed_of(r->backend)->is_simulated) {
        /* Its calls touch no values, however many there would be. */
        for (size_t at = 0; at < 3; at++)
            TRY(ew_memory_alloc(r->world, r->backend, 1, places[at]));
        return EW_OK;
    }
    const ew_problem *p = &r->trace->problem;
    const size_t elem_bytes = ew_dtype_bytes(p->dtype);
    const int rank = ew_world_rank(r->world), num_ranks = ew_world_size(r->world);
    const size_t a_bytes = (size_t)(p->max_m * p->k) * elem_bytes;
    const size_t b_bytes = (size_t)(p->n * p->k) * elem_bytes;
    r->c_bytes = (size_t)(cli_most_output_rows(p, num_ranks) * p->n) * elem_bytes;
    r->staging = malloc(largest(largest(a_bytes, b_bytes), r->c_bytes));
    TRY(r->staging ? EW_OK : EW_ERR_MEMORY);
    TRY(ew_exact_fill_a(p->dtype, r->seed, rank, num_ranks, p->max_m, p->k, r->staging));
    TRY(make_matrix(r, a_bytes, &r->A));
    TRY(ew_exact_fill_b(p->dtype, r->seed, rank, p->weight_layout, p->n, p->k, r->staging));
    TRY(make_matrix(r, b_bytes, &r->B));
    TRY(ew_memory_alloc(r->world, r->backend, r->c_bytes, &r->C));
    TRY(ew_plan_set_weight(r->plan, r->B));
    return ew_plan_set_weight(r->sequential, r->B);
}

static ew_status call_op(const recorder *r, ew_plan *plan)
{
    const ew_problem *p = &r->trace->problem;
    switch (p->op) {
    case EW_OP_GEMM_AR:
        return ew_gemm_ar(plan, p->max_m, r->A, NULL, r->C, NULL);
    case EW_OP_AG_GEMM:
        return ew_ag_gemm(plan, p->max_m, r->A, NULL, r->C, NULL, NULL);
    case EW_OP_GEMM_RS:
        break;
    }
    return ew_gemm_rs(plan, p->max_m, r->A, NULL, r->C, NULL);
}

/* One call on all ranks; every rank learns the slowest rank's times. */
static ew_status call_plan(recorder *r, ew_plan *plan, call_times *slowest_out)
{
    call_times all[CLI_MAX_RANKS], mine, slowest = {0, 0};
    ew_timing timing;
    TRY(ew_memory_fill(r->world, r->backend, r->C, 0xff, r->c_bytes));
    TRY(ew_world_barrier(r->world)); /* the values before this call are poison now */
    TRY(call_op(r, plan));
    TRY(ew_plan_wait(plan));
    TRY(ew_plan_timing(plan, &timing));
    mine =
        (call_times){timing.end_ns - timing.start_ns, timing.gemm_end_ns - timing.start_ns};
    TRY(ew_world_allgather(r->world, &mine, all, sizeof mine));
    for (int rank = 0; rank < ew_world_size(r->world); rank++) {
        if (all[rank].total_ns > slowest.total_ns)
            slowest.total_ns = all[rank].total_ns;
        if (all[rank].gemm_ns > slowest.gemm_ns)
            slowest.gemm_ns = all[rank].gemm_ns;
    }
    *slowest_out = slowest;
    return EW_OK;
}

/* Keeps the last call: its events, its times, and whether its values were right. */
static ew_status keep_call(recorder *r)
{
    cli_trace *trace = r->trace;
    const int rank = ew_world_rank(r->world);
    cli_rank_trace *mine = &trace->ranks[rank];
    ew_check check = {0, 0.0};
    TRY(ew_plan_timing(r->plan, &mine->timing));
    TRY(ew_plan_trace(r->plan, trace->events + (size_t)rank * trace->events_per_rank,
                      trace->events_per_rank, &mine->num_events));
    if (mine->num_events > trace->events_per_rank)
        mine->num_events = trace->events_per_rank;
    if (cli_bed_of(r->backend)->is_simulated)
        return EW_OK;
    TRY(ew_memory_copy(r->world, r->backend, r->staging, r->C, r->c_bytes));
    TRY(ew_exact_verify(&trace->problem, r->seed, rank, ew_world_size(r->world),
                        trace->problem.max_m, r->staging, &check));
    mine->wrong = check.wrong;
    return EW_OK;
}

static ew_status run_calls(recorder *r, int warmup, int iters)
{
    cli_trace *trace = r->trace;
    int64_t gemm_alone_ns = INT64_MAX;
    for (int at = -warmup; at < iters; at++) {
        call_times plain, traced;
        TRY(call_plan(r, r->sequential, &plain));
        TRY(call_plan(r, r->plan, &traced));
        if (at < 0)
            continue;
        if (plain.gemm_ns < gemm_alone_ns)
            gemm_alone_ns = plain.gemm_ns;
        if (r->best_ns == 0 || traced.total_ns < r->best_ns) {
            r->best_ns = traced.total_ns;
            TRY(keep_call(r));
        }
    }
    if (ew_world_rank(r->world) == 0)
        trace->gemm_alone_ns = gemm_alone_ns;
    return EW_OK;
}

static ew_status record_body(ew_world *world, void *argument)
{
    const record_call *call = argument;
    const ew_bench_options *bench = &call->job->bench;
    recorder r = {.world = world, .trace = call->trace, .seed = bench->seed};
    ew_status status = make_plans(&r, &call->job->entries[0].config);
    if (status == EW_OK)
        status = make_matrices(&r);
    if (status == EW_OK)
        status = run_calls(&r, bench->warmup, bench->iters);
    ew_plan_destroy(r.sequential);
    ew_plan_destroy(r.plan);
    free(r.staging);
    ew_memory_free(world, r.backend, r.C);
    ew_memory_free(world, r.backend, r.B);
    ew_memory_free(world, r.backend, r.A);
    return status;
}

static int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* A rank computes every tile at most once, and reduces those it owns; where it gets the
 * whole sum, it copies the others. */
static cli_trace *allocate_trace(const cli_problem *problem)
{
    const ew_problem *shape = &problem->problem;
    const int num_parts = cli_num_parts(shape->op, problem->num_ranks);
    const int64_t tile_rows = div_up(div_up(shape->max_m, num_parts), CLI_TILE);
    const int64_t tile_cols = div_up(shape->n, CLI_TILE);
    const size_t num_events = (size_t)(tile_rows * tile_cols * (num_parts + 1));
    const size_t bytes = sizeof(cli_trace) +
                         num_events * (size_t)problem->num_ranks * sizeof(ew_trace_event);
    cli_trace *trace = cli_shared_alloc(bytes);
    if (!trace)
        return NULL;
    trace->bytes = bytes;
    trace->problem = *shape;
    trace->num_ranks = problem->num_ranks;
    trace->num_parts = num_parts;
    trace->tile_rows = tile_rows;
    trace->tile_cols = tile_cols;
    trace->events_per_rank = num_events;
    return trace;
}

/* Where tiles span owners, which a plan decides by itself, all blocks are of one part.  Of
 * two rows rank 1 has one, so that without spanning there is a block of its part. */
static void find_parts(cli_trace *trace)
{
    if (trace->problem.max_m < 2)
        return;
    for (int rank = 0; rank < trace->num_ranks; rank++) {
        const ew_trace_event *events = cli_trace_events(trace, rank);
        for (size_t at = 0; at < trace->ranks[rank].num_events; at++)
            if (events[at].kind == EW_TRACE_BLOCK && events[at].dst != 0)
                return;
    }
    trace->num_parts = 1;
    trace->tile_rows = div_up(trace->problem.max_m, CLI_TILE);
}

cli_exit cli_trace_record(const cli_job *job, cli_trace **trace_out)
{
    const cli_problem *problem = &job->problems[0];
    char error[CLI_ERROR_BYTES];
    record_call call = {job, allocate_trace(problem)};
    if (!call.trace)
        return cli_fail_status(EW_ERR_MEMORY, "no memory for the trace\n  fix: free some");
    ew_status status =
        cli_ranks_run(&job->ranks, problem->num_ranks, record_body, &call, error);
    if (status == EW_OK && !cli_interrupted()) {
        find_parts(call.trace);
        *trace_out = call.trace;
        return CLI_EXIT_OK;
    }
    cli_trace_free(call.trace);
    return cli_interrupted() ? CLI_EXIT_INTERRUPTED : cli_fail_status(status, error);
}

void cli_trace_free(cli_trace *trace)
{
    if (trace)
        cli_shared_free(trace, trace->bytes);
}

const ew_trace_event *cli_trace_events(const cli_trace *trace, int rank)
{
    return trace->events + (size_t)rank * trace->events_per_rank;
}

void cli_trace_derive(const cli_trace *trace, cli_trace_numbers *numbers_out)
{
    const ew_problem *p = &trace->problem;
    cli_trace_numbers n = {.gemm_alone_us = (double)trace->gemm_alone_ns * 1e-3};
    for (int rank = 0; rank < trace->num_ranks; rank++) {
        const ew_timing *timing = &trace->ranks[rank].timing;
        const double time_us = (double)(timing->end_ns - timing->start_ns) * 1e-3;
        n.gemm_us =
            fmax(n.gemm_us, (double)(timing->gemm_end_ns - timing->start_ns) * 1e-3);
        n.wrong += trace->ranks[rank].wrong;
        if (time_us > n.time_us) {
            n.time_us = time_us;
            n.tail_us = (double)(timing->end_ns - timing->gemm_end_ns) * 1e-3;
        }
    }
    n.overlap = cli_overlap_efficiency("entwine", n.time_us, n.gemm_us, n.gemm_alone_us);
    n.tail_share = n.tail_us / n.time_us;
    n.slowdown = n.gemm_us / n.gemm_alone_us;
    n.breq = cli_remote_gbs(p, trace->num_ranks, n.gemm_alone_us);
    n.achieved = cli_remote_gbs(p, trace->num_ranks, n.time_us);
    if (ew_config_print(&trace->config, n.config, sizeof n.config))
        n.config[0] = '\0';
    *numbers_out = n;
}
