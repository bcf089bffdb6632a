/* Checks and times the methods of a case side by side, on every rank alike. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "block.h"

#include "backend/cuda/cuda_memory.h"
#include "base/clock.h"
#include "base/stats.h"

typedef struct bench {
    int64_t begun_ns;
    block b;
    block_method methods[MAX_METHODS];
    block_result *mine; /* this rank's, of each method; the program's on rank 0 */
    double times_us[MAX_METHODS][MAX_SAMPLES];
    block_window windows[MAX_METHODS][MAX_STEPS][MAX_SAMPLES];
} bench;

/* So that a run that does not end says how far it came. */
static void say(const bench *run, const char *stage, const char *of)
{
    if (run->b.world->rank == 0)
        fprintf(stderr, "# %7.1f s: %s%s\n", (double)(ewx_now_ns() - run->begun_ns) * 1e-9,
                stage, of);
}

/* ---- One block ---- */

typedef struct capture {
    block *b;
    const block_method *method;
} capture;

static ew_status enqueue_block(void *context, ew_stream stream)
{
    const capture *c = context;
    return block_run(c->b, c->method, stream, false);
}

/* Ranks that are threads on one GPU have none, since theirs could stand still (graph.c):
 * these enqueue every call. */
static ew_status open_graph(bench *run, block_method *method, bool together, void **graph)
{
    capture c = {&run->b, method};
    const ew_plan *plan = method->plans[0];
    block_start_together(&run->b, method, together);
    EW_TRY(ew_world_barrier(run->b.world));
    const ew_status status =
        plan->backend->graphs.open(plan->state, enqueue_block, &c, graph);
    if (status != EW_ERR_UNSUPPORTED)
        return status;
    say(run, "without graphs: ", ew_last_error());
    return EW_OK;
}

static ew_status open_graphs(bench *run, block_method *method)
{
    EW_TRY(open_graph(run, method, false, &method->loose));
    EW_TRY(open_graph(run, method, true, &method->held));
    return ew_world_barrier(run->b.world);
}

static ew_status wait_for_all(const bench *run, const block_method *method)
{
    EW_CUDA_TRY(cudaStreamSynchronize(run->b.stream), "a block"); /* kernels are bounded */
    for (int i = 0; i < run->b.num_steps; i++)
        if (method->plans[i])
            EW_TRY(ew_plan_wait(method->plans[i]));
    return EW_OK;
}

/* All ranks start together.  Without a graph the host enqueues while the first step runs;
 * *ahead is false where it was too slow for that. */
static ew_status run_held(bench *run, const block_method *method, bool *ahead)
{
    ew_timing first;
    double ignored_us;
    EW_TRY(ew_world_barrier(run->b.world));
    if (method->held)
        EW_TRY(method->plans[0]->backend->graphs.replay(method->held, 1, &ignored_us));
    else
        EW_TRY(block_run(&run->b, method, run->b.stream, false));
    const int64_t enqueued_ns = ewx_now_ns();
    EW_TRY(wait_for_all(run, method));
    EW_TRY(ew_plan_timing(method->plans[0], &first));
    *ahead = method->held || enqueued_ns < first.end_ns;
    return EW_OK;
}

/* ---- Checks ---- */

static ew_status launch_compare(block *b, const void *one, const void *other, int64_t count)
{
    enum { CTAS_PER_SM = 8 };
    void *arguments[] = {&one, &other, &count, &b->verdict};
    const dim3 grid = {(unsigned)(CTAS_PER_SM * b->device->sms), 1, 1};
    const dim3 threads = {(unsigned)b->compare.threads, 1, 1};
    EW_TRY(ewx_device_enter(b->device));
    const ew_status status =
        ewx_cuda_launch(b->device, &b->compare, grid, threads, (ewx_launch_how){0},
                        b->device->producing, arguments);
    ewx_device_leave(b->device);
    return status;
}

/* What is no number is worse than any, and stays. */
static double worse(double one, double other)
{
    return one >= other || isnan(one) ? one : other;
}

/* A matrix with another; adds what differs, and how much of the largest element that is. */
static ew_status compare(block *b, const void *one, const void *other, int64_t count,
                         int64_t *different, double *worst)
{
    block_verdict verdict = {0};
    float difference, largest;
    EW_TRY(ewx_cuda_copy(b->world, b->verdict, &verdict, sizeof verdict));
    EW_TRY(launch_compare(b, one, other, count));
    EW_TRY(ewx_cuda_copy(b->world, &verdict, b->verdict, sizeof verdict));
    memcpy(&difference, &verdict.worst_bits, sizeof difference);
    memcpy(&largest, &verdict.largest_bits, sizeof largest);
    *different += (int64_t)verdict.different;
    if (difference != 0)
        *worst = worse(*worst, difference / largest);
    return EW_OK;
}

/* The results with those of the calls made singly. */
static ew_status compare_with_reference(block *b, int64_t *different)
{
    double ignored = 0;
    for (int i = 0; i < b->num_matrices; i++) {
        const block_matrix *matrix = &b->matrices[i];
        if (matrix->reference)
            EW_TRY(compare(b, matrix->at, matrix->reference, matrix->rows * matrix->cols,
                           different, &ignored));
    }
    return EW_OK;
}

/* Those with the first method's. */
static ew_status compare_with_first(block *b, block_result *result)
{
    for (int i = 0; i < b->num_matrices; i++) {
        const block_matrix *matrix = &b->matrices[i];
        if (matrix->reference)
            EW_TRY(compare(b, matrix->reference, matrix->first, matrix->rows * matrix->cols,
                           &result->different, &result->worst));
    }
    return EW_OK;
}

static ew_status keep(block *b, bool is_first)
{
    for (int i = 0; i < b->num_matrices; i++) {
        const block_matrix *matrix = &b->matrices[i];
        const size_t bytes = (size_t)(matrix->rows * matrix->cols) * 2;
        if (!matrix->reference)
            continue;
        EW_TRY(ewx_cuda_copy(b->world, matrix->reference, matrix->at, bytes));
        if (is_first)
            EW_TRY(ewx_cuda_copy(b->world, matrix->first, matrix->at, bytes));
    }
    return EW_OK;
}

static ew_status check_method(bench *run, int which)
{
    block *b = &run->b;
    const block_method *method = &run->methods[which];
    block_result *result = &run->mine[which];
    bool ahead;
    EW_TRY(block_poison(b));
    EW_TRY(ew_world_barrier(b->world));
    block_start_together(b, method, false);
    EW_TRY(block_run(b, method, b->stream, true));
    EW_TRY(keep(b, which == 0));
    EW_TRY(compare_with_first(b, result));
    EW_TRY(block_poison(b));
    block_start_together(b, method, true);
    EW_TRY(run_held(run, method, &ahead));
    return compare_with_reference(b, &result->wrong);
}

static ew_status load(bench *run, bool exact)
{
    EW_TRY(block_load(&run->b, exact));
    for (int i = 0; i < run->b.options->num_methods; i++)
        EW_TRY(block_bind(&run->b, &run->methods[i]));
    return EW_OK;
}

static ew_status check_all(bench *run)
{
    EW_TRY(load(run, true));
    for (int i = 0; i < run->b.options->num_methods; i++) {
        say(run, "check of ", run->methods[i].name);
        EW_TRY(check_method(run, i));
    }
    return EW_OK;
}

/* ---- Samples ---- */

static void rest(const bench *run, double us)
{
    const int64_t ns = (int64_t)(us * 1e3 * run->b.options->idle);
    const struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    nanosleep(&time, NULL);
}

static ew_status read_windows(const bench *run, int which, block_window *windows,
                              double *time_us)
{
    ew_timing first, timing;
    EW_TRY(ew_plan_timing(run->methods[which].plans[0], &first));
    for (int i = 0; i < run->b.num_steps; i++) {
        if (!run->methods[which].plans[i])
            continue;
        EW_TRY(ew_plan_timing(run->methods[which].plans[i], &timing));
        windows[i] =
            (block_window){.begin_us = (double)(timing.start_ns - first.start_ns) * 1e-3,
                           .gemm_us = (double)(timing.gemm_end_ns - timing.start_ns) * 1e-3,
                           .end_us = (double)(timing.end_ns - first.start_ns) * 1e-3};
        *time_us = windows[i].end_us; /* the last one's, which a plan has in every case */
    }
    return EW_OK;
}

/* The host of some rank was late: all take the sample again. */
static ew_status agree_on(const bench *run, bool *kept)
{
    int32_t mine = *kept, all[EWX_MAX_RANKS];
    EW_TRY(ew_world_allgather(run->b.world, &mine, all, sizeof mine));
    for (int rank = 0; rank < run->b.world->num_ranks; rank++)
        *kept &= all[rank] != 0;
    return EW_OK;
}

static ew_status take_sample(bench *run, int which, int at)
{
    enum { MOST_TRIES = 5 };
    block_window windows[MAX_STEPS] = {{0}};
    double time_us = 0;
    for (int tries = 1;; tries++) {
        bool kept;
        EW_TRY(run_held(run, &run->methods[which], &kept));
        EW_TRY(read_windows(run, which, windows, &time_us));
        rest(run, time_us);
        EW_TRY(agree_on(run, &kept));
        if (kept || tries == MOST_TRIES)
            break;
        run->mine[which].discarded++;
    }
    if (at < 0)
        return EW_OK;
    run->times_us[which][at] = time_us;
    for (int i = 0; i < run->b.num_steps; i++)
        run->windows[which][i][at] = windows[i];
    return EW_OK;
}

/* Whoever always ran behind the same one would inherit its heat. */
static int turn(const bench *run, int round, int at)
{
    const int count = run->b.options->num_methods;
    return round % 2 ? (round + at) % count : (round + count - 1 - at) % count;
}

static ew_status sample_all(bench *run)
{
    const block_options *options = run->b.options;
    for (int round = 0; round < options->warmup + options->samples; round++)
        for (int at = 0; at < options->num_methods; at++)
            EW_TRY(take_sample(run, turn(run, round, at), round - options->warmup));
    return EW_OK;
}

static ew_status replay_in_a_row(bench *run, int which, int round)
{
    const block_method *method = &run->methods[which];
    const int calls = run->b.options->calls;
    double mine, all[EWX_MAX_RANKS], slowest = 0;
    EW_TRY(ew_world_barrier(run->b.world));
    EW_TRY(method->plans[0]->backend->graphs.replay(method->loose, calls, &mine));
    EW_TRY(wait_for_all(run, method));
    EW_TRY(ew_world_allgather(run->b.world, &mine, all, sizeof mine));
    for (int rank = 0; rank < run->b.world->num_ranks; rank++)
        slowest = fmax(slowest, all[rank]);
    rest(run, slowest);
    if (round > 0) /* the first warms up */
        run->mine[which].graphs_us[run->mine[which].num_graphs++] = slowest / calls;
    return EW_OK;
}

static ew_status replay_all(bench *run)
{
    const block_options *options = run->b.options;
    for (int round = 0; round <= options->rounds; round++)
        for (int at = 0; at < options->num_methods; at++)
            if (run->methods[turn(run, round, at)].loose)
                EW_TRY(replay_in_a_row(run, turn(run, round, at), round));
    for (int i = 0; i < options->num_methods; i++) {
        double sorted[MAX_SAMPLES];
        memcpy(sorted, run->mine[i].graphs_us, sizeof sorted);
        run->mine[i].graph_us = cli_median(sorted, run->mine[i].num_graphs);
    }
    return EW_OK;
}

/* ---- Results ---- */

static double median_of(const double *values, int count, int stride)
{
    double sorted[MAX_SAMPLES];
    for (int i = 0; i < count; i++)
        sorted[i] = values[i * stride];
    return cli_median(sorted, count);
}

/* Every rank has its median; all get the largest. */
static ew_status share_largest(const bench *run, double *value, int *rank_out)
{
    double all[EWX_MAX_RANKS];
    EW_TRY(ew_world_allgather(run->b.world, value, all, sizeof *value));
    for (int rank = 0; rank < run->b.world->num_ranks; rank++)
        if (rank == 0 || all[rank] > *value) {
            *value = all[rank];
            *rank_out = rank;
        }
    return EW_OK;
}

static ew_status share_windows(const bench *run, int which)
{
    enum { PARTS = sizeof(block_window) / sizeof(double) };
    const int count = run->b.options->samples;
    int ignored;
    for (int i = 0; i < run->b.num_steps; i++)
        for (int part = 0; part < PARTS; part++) {
            double *to = (double *)(void *)&run->mine[which].steps[i] + part;
            *to = median_of((const double *)(const void *)run->windows[which][i] + part,
                            count, PARTS);
            EW_TRY(share_largest(run, to, &ignored));
        }
    return EW_OK;
}

static ew_status share_samples(const bench *run, int which, int slowest)
{
    const size_t bytes = sizeof run->times_us[which];
    block_result *result = &run->mine[which];
    double *all = malloc(bytes * (size_t)run->b.world->num_ranks);
    if (!all)
        return ewx_fail(EW_ERR_MEMORY, "no memory for samples");
    const ew_status status =
        ew_world_allgather(run->b.world, run->times_us[which], all, bytes);
    if (status == EW_OK)
        memcpy(result->samples_us, all + slowest * MAX_SAMPLES, bytes);
    result->num_samples = run->b.options->samples;
    free(all);
    return status;
}

static ew_status share_checks(const bench *run, block_result *result)
{
    struct {
        int64_t wrong, different;
        double worst;
    } mine = {result->wrong, result->different, result->worst}, all[EWX_MAX_RANKS];
    EW_TRY(ew_world_allgather(run->b.world, &mine, all, sizeof mine));
    result->wrong = result->different = 0;
    for (int rank = 0; rank < run->b.world->num_ranks; rank++) {
        result->wrong += all[rank].wrong;
        result->different += all[rank].different;
        result->worst = worse(result->worst, all[rank].worst);
    }
    return EW_OK;
}

static ew_status describe_plans(const bench *run, int which)
{
    for (int i = 0; i < run->b.num_steps; i++) {
        const ew_plan *plan = run->methods[which].plans[i];
        block_result *result = &run->mine[which];
        ew_config config = EW_CONFIG_INIT;
        if (!plan)
            continue;
        EW_TRY(ew_plan_config(plan, &config));
        EW_TRY(ew_config_print(&config, result->configs[i], sizeof result->configs[i]));
        plan->backend->describe(plan->state, result->notes[i], sizeof result->notes[i]);
    }
    return EW_OK;
}

static ew_status summarise(bench *run, int which)
{
    block_result *result = &run->mine[which];
    int slowest = 0;
    result->time_us = median_of(run->times_us[which], run->b.options->samples, 1);
    EW_TRY(share_largest(run, &result->time_us, &slowest));
    result->in_graph = run->methods[which].held != NULL;
    EW_TRY(share_samples(run, which, slowest));
    EW_TRY(share_windows(run, which));
    EW_TRY(share_checks(run, result));
    return describe_plans(run, which);
}

static void describe_steps(const block *b, block_results *results)
{
    results->num_steps = b->num_steps;
    for (int i = 0; i < b->num_steps; i++) {
        const block_step *step = &b->steps[i];
        const ew_problem problem = block_problem(b, step);
        const double bytes =
            ew_problem_remote_bytes(&problem, b->options->m, b->options->num_ranks);
        results->steps[i].name = step->name;
        results->steps[i].has_plan = block_has_plan(step);
        results->steps[i].link_us = block_has_plan(step) && b->options->link_gbs > 0
                                        ? bytes / (b->options->link_gbs * 1e3)
                                        : 0;
    }
}

/* ---- The whole ---- */

static ew_status open_all(bench *run)
{
    const int count = run->b.options->num_methods;
    EW_TRY(block_open(&run->b));
    for (int i = 0; i < count; i++) {
        run->methods[i].name = run->b.options->methods[i];
        say(run, "plans of ", run->methods[i].name);
        EW_TRY(block_method_open(&run->b, &run->methods[i]));
    }
    /* Kernels are loaded, and plans have had their first calls, before graphs are made. */
    EW_TRY(load(run, true));
    for (int i = 0; i < count; i++) {
        say(run, "first calls of ", run->methods[i].name);
        EW_TRY(block_run(&run->b, &run->methods[i], run->b.stream, true));
        say(run, "graphs of ", run->methods[i].name);
        EW_TRY(open_graphs(run, &run->methods[i]));
    }
    return EW_OK;
}

static ew_status measure(bench *run)
{
    EW_TRY(open_all(run));
    EW_TRY(check_all(run));
    EW_TRY(load(run, false));
    say(run, "samples", "");
    EW_TRY(sample_all(run));
    say(run, "calls in a row", "");
    EW_TRY(replay_all(run));
    EW_TRY(check_all(run));
    for (int i = 0; i < run->b.options->num_methods; i++)
        EW_TRY(summarise(run, i));
    return EW_OK;
}

ew_status block_measure(ew_world *world, void *argument)
{
    block_results *results = argument;
    bench *run = calloc(1, sizeof *run);
    block_result *own = calloc(MAX_METHODS, sizeof *own);
    ew_status status =
        run && own ? EW_OK : ewx_fail(EW_ERR_MEMORY, "no memory for the benchmark");
    EW_TRY_TO(status, status, out);
    run->begun_ns = ewx_now_ns();
    run->b.world = world;
    run->b.options = results->options;
    run->mine = world->rank == 0 ? results->methods : own;
    EW_TRY_TO(status, ewx_device_of(world, &run->b.device), out);
    status = measure(run);
    if (status == EW_OK && world->rank == 0)
        describe_steps(&run->b, results);
    for (int i = 0; i < results->options->num_methods; i++)
        block_method_close(&run->b, &run->methods[i]);
    block_close(&run->b);
out:
    free(own);
    free(run);
    return status;
}
