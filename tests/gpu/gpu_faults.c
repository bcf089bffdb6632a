/* Ranks that never come, abort, die or disagree: kernels that wait for them end in bounded
 * time, the others learn who it was, and the GPU stays usable.  Bounds are generous, for
 * they tell an answer from a hang; with --long some are what is promised. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpu_check.h"
#include "gpukit.h"
#include "trial.h"

enum { MAX_W = 4, TEXT_BYTES = 512 };
#define SECOND_NS 1000000000LL

static ew_problem small_problem(void)
{
    return gpu_problem(300, 264, 72, EW_FP16);
}

/* ---- What the ranks saw ---- */

typedef struct story {
    ew_status statuses[MAX_W];
    char texts[MAX_W][TEXT_BYTES];
    int64_t took_ns[MAX_W]; /* to return, from the call or from the deed */
    atomic_int ready, out;  /* ranks that may be struck, and those that have an answer */
    _Atomic int64_t deed_ns;
} story;

static void tell(story *s, int rank, ew_status status, int64_t since_ns)
{
    s->took_ns[rank] = ew_now_ns() - since_ns;
    s->statuses[rank] = status;
    snprintf(s->texts[rank], TEXT_BYTES, "%s", status == EW_OK ? "" : ew_last_error());
    atomic_fetch_add(&s->out, 1);
}

static void wait_for_ranks(atomic_int *ranks, int count)
{
    for (int tries = 0; tries < 10000 && atomic_load(ranks) < count; tries++)
        gpu_sleep_ms(2);
}

static void wait_until_out(story *s, int count)
{
    wait_for_ranks(&s->out, count);
}

/* Words up to a NULL. */
static void expect_story(const story *s, int rank, ew_status want, int64_t least_ns,
                         int64_t most_ns, const char *const *words)
{
    bool has_words = true;
    for (; *words; words++)
        has_words &= strstr(s->texts[rank], *words) != NULL;
    if (s->statuses[rank] != want || !has_words || s->took_ns[rank] < least_ns ||
        s->took_ns[rank] > most_ns)
        harness_fail("rank %d got %s after %.3f s: %s\n  wanted %s in %.1f to %.1f s", rank,
                     ew_status_name(s->statuses[rank]), (double)s->took_ns[rank] * 1e-9,
                     s->texts[rank], ew_status_name(want), (double)least_ns * 1e-9,
                     (double)most_ns * 1e-9);
}

/* A new world, in the same process, has a GPU to work with. */
static void expect_still_works(ew_ranks_as kind)
{
    const ew_world_options options = gpu_options(10000);
    trial t = {.kind = kind,
               .num_ranks = 2,
               .problem = gpu_problem(300, 264, 72, EW_FP16),
               .config = EW_CONFIG_INIT,
               .seed = 1,
               .num_calls = 2,
               .rows = {300, 150},
               .options = &options};
    t.config.backend = EW_BACKEND_CUDA;
    trial_run(&t);
}

/* After a fault the plan says the same again, at once, and takes no call. */
static int expect_same_again(gpu_job *job, const story *s, int64_t m)
{
    ew_world *world = job->world;
    const ew_status status = s->statuses[job->rank];
    RANK_CHECK(ew_plan_wait(job->plan) == status, "%s", ew_last_error());
    RANK_CHECK(strcmp(ew_last_error(), s->texts[job->rank]) == 0, "%s", ew_last_error());
    RANK_CHECK(job_call(job, m, job->A, job->B, job->C, NULL) == status, "%s",
               ew_last_error());
    return 0;
}

/* ---- Deadline ---- */

#define DEADLINE_MS 1500
#define DEADLINE_NS (DEADLINE_MS * 1000000LL)

static int64_t longest_wait_ns; /* for somebody who never came */

typedef struct absence {
    story *story;
    int culprit;
    bool pretends; /* to have started its call */
    int64_t m;
    bool in_layer;
} absence;

/* Writes what the culprit's kernels would: the call it is in, but no tile. */
static int pretend(gpu_job *job, int64_t m)
{
    ew_world *world = job->world;
    ewx_cuda_engine *engine = job_engine(job);
    uint32_t epoch, calls_made;
    RANK_TRY(job_use_device(job));
    RANK_CUDA(cudaMemcpy(&calls_made, engine->device->calls_made, sizeof calls_made,
                         cudaMemcpyDefault));
    RANK_CUDA(cudaMemcpy(&epoch, &engine->counters->epochs[EWX_STAGE_GEMM], sizeof epoch,
                         cudaMemcpyDefault));
    epoch++;
    const uint64_t word = (uint64_t)epoch << 32 | (uint64_t)m;
    const uint64_t order = (uint64_t)epoch << 32 | (calls_made + 1);
    for (int rank = 0; rank < job->num_ranks; rank++) {
        ewx_cuda_segment *head = (ewx_cuda_segment *)(void *)engine->heap.segments[rank];
        RANK_CUDA(cudaMemcpy(&head->calls[epoch % EWX_CUDA_CALLS][job->rank], &word,
                             sizeof word, cudaMemcpyDefault));
        RANK_CUDA(cudaMemcpy(&head->orders[epoch % EWX_CUDA_CALLS][job->rank], &order,
                             sizeof order, cudaMemcpyDefault));
    }
    return 0;
}

static int wait_for_the_absent(gpu_job *job, void *argument)
{
    const absence *a = argument;
    ew_world *world = job->world;
    RANK_TRY(job_compute(job, a->m, 1, NULL));
    if (job->rank == a->culprit && a->pretends)
        RANK_TRY(pretend(job, a->m));
    RANK_OK(ew_world_barrier(world));
    if (job->rank == a->culprit) {
        wait_until_out(a->story, job->num_ranks - 1);
        return 0;
    }
    const int64_t start_ns = ew_now_ns();
    const ew_status called = job_call(job, a->m, job->A, job->B, job->C, NULL);
    tell(a->story, job->rank, called == EW_OK ? ew_plan_wait(job->plan) : called, start_ns);
    return called == EW_OK ? expect_same_again(job, a->story, a->m) : 0;
}

static void expect_deadline(const char *config, int num_ranks, absence a,
                            const char *const *words)
{
    const ew_world_options options = gpu_options(DEADLINE_MS);
    const int64_t most_ns = gpu_long ? DEADLINE_NS * 12 / 10 : DEADLINE_NS + 2 * SECOND_NS;
    story s = {.out = 0};
    a.story = &s;
    gpu_run(EW_RANKS_AS_THREADS, num_ranks, &options, small_problem(), config,
            wait_for_the_absent, &a);
    for (int rank = 0; rank < num_ranks; rank++) {
        if (rank == a.culprit)
            continue;
        expect_story(&s, rank, EW_ERR_TIMEOUT, DEADLINE_NS * 9 / 10, most_ns, words);
        if (s.took_ns[rank] > longest_wait_ns)
            longest_wait_ns = s.took_ns[rank];
    }
    expect_still_works(EW_RANKS_AS_THREADS);
}

static void expect_every_deadline(void)
{
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++) {
        expect_deadline(*kernel, 2, (absence){.culprit = 1, .m = 300},
                        (const char *[]){"for rank 1 ", "fix:", NULL});
        expect_deadline(*kernel, 2, (absence){.culprit = 1, .pretends = true, .m = 300},
                        (const char *[]){gpu_op == EW_OP_AG_GEMM ? "rows of A" : "tile (",
                                         "of rank 1 ", "saw epoch ", "wanted ",
                                         "fix:", NULL});
        /* Ranks without rows meet the others before they leave the call. */
        expect_deadline(*kernel, 2, (absence){.culprit = 0, .m = 1},
                        (const char *[]){"for rank 0 ", "fix:", NULL});
    }
    expect_deadline("", 4, (absence){.culprit = 2, .m = 300},
                    (const char *[]){"for rank 2 ", NULL});
}

void check_deadline(void)
{
    expect_still_works(EW_RANKS_AS_THREADS); /* also: everything is loaded now */
    for (int round = 0; round < (gpu_long ? 5 : 1); round++)
        expect_every_deadline();
    gpu_remark("with a deadline of %d ms the longest wait was %.0f ms, %.1f %% more",
               DEADLINE_MS, (double)longest_wait_ns * 1e-6,
               ((double)longest_wait_ns / (double)DEADLINE_NS - 1) * 100);
}

/* ---- Abort ---- */

typedef struct deed {
    story *story;
    ew_world *world;
    int rank; /* that does it */
    int after_us;
} deed;

/* The rank that aborts makes no call, so the kernels of the others wait. */
static int wait_for_an_abort(gpu_job *job, void *argument)
{
    const deed *d = argument;
    ew_world *world = job->world;
    RANK_TRY(job_compute(job, 300, 1, NULL));
    RANK_OK(ew_world_barrier(world));
    if (job->rank == d->rank) {
        gpu_sleep_us(d->after_us);
        atomic_store(&d->story->deed_ns, ew_now_ns());
        ew_world_abort(world);
        wait_until_out(d->story, job->num_ranks - 1);
        return 0;
    }
    RANK_OK(job_call(job, 300, job->A, job->B, job->C, NULL));
    const ew_status status = ew_plan_wait(job->plan);
    tell(d->story, job->rank, status, atomic_load(&d->story->deed_ns));
    return expect_same_again(job, d->story, 300);
}

static void *abort_later(void *argument)
{
    const deed *d = argument;
    gpu_sleep_us(d->after_us);
    atomic_store(&d->story->deed_ns, ew_now_ns());
    ew_world_abort(d->world);
    return NULL;
}

/* Calls until one fails. */
static ew_status work_until_a_fault(gpu_job *job, int calls_at_once)
{
    ew_status status = EW_OK;
    while (status == EW_OK) {
        for (int call = 0; call < calls_at_once && status == EW_OK; call++)
            status = job_call(job, 300, job->A, job->B, job->C, NULL);
        if (status == EW_OK)
            status = ew_plan_wait(job->plan);
    }
    return status;
}

/* All ranks are at work, the one whose other thread aborts too. */
static int work_until_aborted(gpu_job *job, void *argument)
{
    deed d = *(const deed *)argument;
    ew_world *world = job->world;
    pthread_t thread;
    RANK_TRY(job_compute(job, 300, 1, NULL));
    RANK_OK(ew_world_barrier(world));
    d.world = world;
    if (job->rank == d.rank)
        RANK_CHECK(pthread_create(&thread, NULL, abort_later, &d) == 0, "no thread");
    const ew_status status = work_until_a_fault(job, 4);
    tell(d.story, job->rank, status, atomic_load(&d.story->deed_ns));
    if (job->rank == d.rank)
        pthread_join(thread, NULL);
    return 0;
}

static void expect_aborted(gpu_work work, const char *config, int after_ms, bool all)
{
    const ew_world_options options = gpu_options(20000);
    story s = {.out = 0};
    deed d = {.story = &s, .rank = 2, .after_us = after_ms * 1000};
    gpu_run(EW_RANKS_AS_THREADS, 3, &options, small_problem(), config, work, &d);
    for (int rank = 0; rank < 3; rank++)
        if (all || rank != d.rank)
            expect_story(&s, rank, EW_ERR_ABORTED, 0, 2 * SECOND_NS,
                         (const char *[]){"rank 2 aborted", NULL});
}

void check_abort(void)
{
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++) {
        expect_aborted(wait_for_an_abort, *kernel, 200, false);
        for (int after_ms = 1; after_ms <= 100; after_ms *= 10)
            expect_aborted(work_until_aborted, *kernel, after_ms, true);
    }
    expect_still_works(EW_RANKS_AS_THREADS);
}

/* ---- How soon an abort is heard ---- */

/* Somebody of a waiting rank looks at the abort word every 0.2 ms (ABORT_LOOK_NS). */
#define ABORT_P99_MS 1.0

/* Every producing CTA waits at the gate and every reducing one for rank 1's rows. */
static int spin_until_aborted(gpu_job *job, void *argument)
{
    const deed *d = argument;
    ew_world *world = job->world;
    RANK_OK(ew_plan_start_together(job->plan));
    RANK_OK(ew_world_barrier(world));
    if (job->rank == d->rank) {
        wait_for_ranks(&d->story->ready, 1);
        gpu_sleep_us(d->after_us);
        atomic_store(&d->story->deed_ns, ew_now_ns());
        ew_world_abort(world);
        wait_until_out(d->story, 1);
        return 0;
    }
    RANK_OK(job_call(job, job->problem.max_m, job->A, job->B, job->C, NULL));
    atomic_fetch_add(&d->story->ready, 1);
    const ew_status status = ew_plan_wait(job->plan);
    tell(d->story, job->rank, status, atomic_load(&d->story->deed_ns));
    return 0;
}

/* As many blocks as a slice of half a GPU has room for, and a small heap. */
static double abort_once(const char *config, int after_us)
{
    const ew_world_options options = gpu_options(20000);
    story s = {.out = 0};
    deed d = {.story = &s, .rank = 1, .after_us = after_us};
    gpu_run(EW_RANKS_AS_THREADS, 2, &options, gpu_problem(2048, 1024, 8, EW_FP16), config,
            spin_until_aborted, &d);
    expect_story(&s, 0, EW_ERR_ABORTED, 0, 2 * SECOND_NS,
                 (const char *[]){"rank 1 aborted", NULL});
    return (double)s.took_ns[0] * 1e-6;
}

void check_abort_latency(void)
{
    static gpu_figures took_ms;
    const int aborts = gpu_long ? 1000 : gpu_quick ? 5 : 20;
    const char *const *kernels = gpu_kernels();
    harness_random random = harness_seed(gpu_seed);
    expect_still_works(EW_RANKS_AS_THREADS);
    const size_t free_before = gpu_free_bytes();
    for (int i = 0; i < aborts; i++) {
        char config[EW_CONFIG_TEXT_BYTES];
        snprintf(config, sizeof config, "%s,block=128x128,ctas=persistent",
                 kernels[i % 2 && kernels[1]]);
        gpu_figures_add(&took_ms,
                        abort_once(config, (int)harness_between(&random, 3000, 13000)));
    }
    const double kept = (double)free_before - (double)gpu_free_bytes();
    expect_still_works(EW_RANKS_AS_THREADS);
    const double p99 = gpu_figures_at(&took_ms, 0.99);
    gpu_remark("%d aborts of kernels that all wait: p50 %.2f ms, p99 %.2f ms, longest %.2f "
               "ms; %.0f MiB of heaps were not given back",
               aborts, gpu_figures_at(&took_ms, 0.5), p99, gpu_figures_at(&took_ms, 1),
               kept / (1 << 20));
    if (gpu_long && p99 > ABORT_P99_MS)
        harness_fail("p99 is more than %.1f ms", ABORT_P99_MS);
}

/* ---- Different rows ---- */

static int call_with_own_rows(gpu_job *job, void *argument)
{
    story *s = argument;
    ew_world *world = job->world;
    RANK_TRY(job_compute(job, 300, 1, NULL));
    RANK_OK(ew_world_barrier(world));
    const int64_t start_ns = ew_now_ns(), m = job->rank == 0 ? 256 : 200;
    RANK_OK(job_call(job, m, job->A, job->B, job->C, NULL));
    tell(s, job->rank, ew_plan_wait(job->plan), start_ns);
    return expect_same_again(job, s, m);
}

static void expect_rows_disagree(void)
{
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++) {
        story s = {.out = 0};
        gpu_run(EW_RANKS_AS_THREADS, 2, NULL, small_problem(), *kernel, call_with_own_rows,
                &s);
        for (int rank = 0; rank < 2; rank++)
            expect_story(
                &s, rank, EW_ERR_MISMATCH, 0, 5 * SECOND_NS,
                (const char *[]){"rank 0", "rank 1", "m=256", "m=200", "fix:", NULL});
        if (strcmp(s.texts[0], s.texts[1]) != 0)
            harness_fail("two stories: %s\n%s", s.texts[0], s.texts[1]);
    }
    expect_still_works(EW_RANKS_AS_THREADS);
}

void check_rows_disagree(void)
{
    expect_rows_disagree();
}

/* ---- Plans in another order ---- */

typedef struct disorder {
    story story;
    bool captured; /* each rank's two calls are a graph, which is replayed */
} disorder;

static int call_both(gpu_job *job, ew_plan *other, ew_stream stream)
{
    ew_world *world = job->world;
    ew_plan *plans[2] = {job->plan, other};
    for (int i = 0; i < 2; i++)
        RANK_OK(ew_gemm_rs(plans[job->rank == 1 ? 1 - i : i], 1, job->A, job->B, job->C,
                           stream));
    return 0;
}

static int replay_both(gpu_job *job, ew_plan *other)
{
    ew_world *world = job->world;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t runnable;
    RANK_TRY(job_stream(job, &stream));
    RANK_OK(ew_world_barrier(world));
    RANK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    RANK_TRY(call_both(job, other, stream));
    RANK_CUDA(cudaStreamEndCapture(stream, &graph));
    RANK_CUDA(cudaGraphInstantiate(&runnable, graph, 0));
    RANK_CUDA(cudaGraphUpload(runnable, stream));
    RANK_CUDA(cudaStreamSynchronize(stream));
    RANK_OK(ew_world_barrier(world));
    RANK_CUDA(cudaGraphLaunch(runnable, stream));
    RANK_CUDA(cudaStreamSynchronize(stream));
    return 0;
}

/* With one row rank 1 waits for nobody, and hears when rank 0 has noticed. */
static int call_in_own_order(gpu_job *job, void *argument)
{
    disorder *d = argument;
    ew_world *world = job->world;
    ew_config config = EW_CONFIG_INIT;
    ew_plan *other;
    RANK_TRY(job_compute(job, 1, 1, NULL));
    RANK_OK(ew_plan_config(job->plan, &config));
    RANK_OK(ew_plan_create(world, &job->problem, &config, &other));
    RANK_OK(ew_world_barrier(world));
    const int64_t start_ns = ew_now_ns();
    RANK_TRY(d->captured ? replay_both(job, other) : call_both(job, other, NULL));
    ew_status status = ew_plan_wait(job->plan);
    RANK_CHECK(job->rank != 0 || status == EW_ERR_MISMATCH, "%s", ew_last_error());
    for (int tries = 0; tries < 1000 && status == EW_OK; tries++) {
        gpu_sleep_ms(2);
        status = ew_plan_wait(job->plan);
    }
    tell(&d->story, job->rank, status, start_ns);
    ew_plan_destroy(other);
    return 0;
}

static void expect_disorder(const char *config, bool captured)
{
    disorder d = {.captured = captured};
    harness_context("%s, captured %d", config, captured);
    gpu_run(EW_RANKS_AS_THREADS, 2, NULL, small_problem(), config, call_in_own_order, &d);
    for (int rank = 0; rank < 2; rank++)
        expect_story(&d.story, rank, EW_ERR_MISMATCH, 0, 5 * SECOND_NS,
                     (const char *[]){"rank 0 called plan 1 as its call 2",
                                      "rank 1 as its call 3", "fix:", NULL});
}

void check_plans_disagree(void)
{
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++)
        for (int captured = 0; captured < 2; captured++)
            expect_disorder(*kernel, captured);
    expect_disorder("transport=copy", false);
    expect_disorder("producer=blas", false);
    expect_still_works(EW_RANKS_AS_THREADS);
}

/* ---- Killed ---- */

enum { KILLED_W = 4 };

static void *die_later(void *argument)
{
    const deed *d = argument;
    wait_for_ranks(&d->story->ready, KILLED_W);
    gpu_sleep_us(d->after_us);
    atomic_store(&d->story->deed_ns, ew_now_ns());
    kill(getpid(), SIGKILL);
    return NULL;
}

static int work_until_one_dies(gpu_job *job, void *argument)
{
    deed d = *(const deed *)argument;
    ew_world *world = job->world;
    pthread_t thread;
    RANK_TRY(job_compute(job, 300, 1, NULL));
    RANK_OK(ew_world_barrier(world));
    if (job->rank == d.rank)
        RANK_CHECK(pthread_create(&thread, NULL, die_later, &d) == 0, "no thread");
    atomic_fetch_add(&d.story->ready, 1);
    const ew_status status = work_until_a_fault(job, 8);
    tell(d.story, job->rank, status, atomic_load(&d.story->deed_ns));
    return 3;
}

/* The times of the survivors go to `took_ms`. */
static void kill_one(const char *config, int victim, int after_us, gpu_figures *took_ms)
{
    const ew_world_options options = gpu_options(10000);
    story *s = harness_share(sizeof *s);
    deed d = {.story = s, .rank = victim, .after_us = after_us};
    int exits[KILLED_W];
    char culprit[32];
    snprintf(culprit, sizeof culprit, "rank %d died", victim);
    const ew_status status =
        gpu_run_failing(EW_RANKS_AS_PROCESSES, KILLED_W, &options, small_problem(), config,
                        work_until_one_dies, &d, exits);
    if (status != EW_ERR_PEER_DIED || exits[victim] != 128 + SIGKILL)
        harness_fail("%s, rank %d killed after %d us: ew_run_ranks: %s, it ended with %d: "
                     "%s",
                     config, victim, after_us, ew_status_name(status), exits[victim],
                     ew_last_error());
    for (int rank = 0; rank < KILLED_W; rank++) {
        if (rank == victim)
            continue;
        expect_story(s, rank, EW_ERR_PEER_DIED, 0, 5 * SECOND_NS,
                     (const char *[]){culprit, NULL});
        if (exits[rank] != 3)
            harness_fail("rank %d had to be killed too (%d)", rank, exits[rank]);
        gpu_figures_add(took_ms, (double)s->took_ns[rank] * 1e-6);
    }
    harness_unshare(s, sizeof *s);
}

/* Every rank's memory is mapped by all others: whoever is killed was an exporter. */
static void kill_some(const char *more)
{
    static gpu_figures took_ms;
    const int kills = gpu_long ? 100 : gpu_quick ? 2 : 5;
    const char *const *kernels = gpu_kernels();
    harness_random random = harness_seed(gpu_seed);
    expect_still_works(EW_RANKS_AS_PROCESSES);
    for (int i = 0; i < kills; i++) {
        const int victim = (int)harness_between(&random, 0, KILLED_W - 1);
        const int after_us = (int)harness_between(&random, 0, 500000);
        char config[EW_CONFIG_TEXT_BYTES];
        snprintf(config, sizeof config, "%s,%s", kernels[i % 2 && kernels[1]], more);
        kill_one(config, victim, after_us, &took_ms);
        if (i % 10 == 9)
            expect_still_works(EW_RANKS_AS_PROCESSES);
    }
    expect_still_works(EW_RANKS_AS_PROCESSES);
    gpu_remark("%d kills, %d survivors: p50 %.1f ms, p99 %.1f ms, longest %.1f ms", kills,
               took_ms.count, gpu_figures_at(&took_ms, 0.5), gpu_figures_at(&took_ms, 0.99),
               gpu_figures_at(&took_ms, 1));
}

void check_killed(void)
{
    kill_some("transport=pull");
}

/* ---- AllReduce: the same, and ranks that owe others a sum ---- */

/* Its reducers start when the others have given up. */
static void CUDART_CB hold_until_out(void *argument)
{
    const absence *a = argument;
    wait_until_out(a->story, MAX_W - 1);
}

/* Or, of a layer, rows that they have normalised. */
static ew_status call_for_sums(const gpu_job *job, const absence *a)
{
    ew_epilogue norm = EW_EPILOGUE_INIT;
    norm.norm_weight = job->B;
    norm.normed = job->C;
    return a->in_layer
               ? ew_gemm_ar_layer(job->plan, a->m, job->A, job->B, NULL, &norm, NULL)
               : job_call(job, a->m, job->A, job->B, job->C, NULL);
}

static int wait_for_a_sum(gpu_job *job, void *argument)
{
    absence *a = argument;
    ew_world *world = job->world;
    RANK_TRY(job_compute(job, a->m, 1, NULL));
    RANK_OK(ew_world_barrier(world));
    if (job->rank == a->culprit)
        RANK_TRY(job_hold_exchange(job, hold_until_out, a));
    RANK_OK(ew_world_barrier(world)); /* a first host function may wait for the GPU */
    const int64_t start_ns = ew_now_ns();
    RANK_OK(call_for_sums(job, a));
    tell(a->story, job->rank, ew_plan_wait(job->plan), start_ns);
    return 0;
}

static void expect_missing_sum(const char *config, bool in_layer)
{
    const ew_world_options options = gpu_options(DEADLINE_MS);
    story s = {.out = 0};
    absence a = {.story = &s, .culprit = 1, .m = 300, .in_layer = in_layer};
    gpu_run(EW_RANKS_AS_THREADS, MAX_W, &options, small_problem(), config, wait_for_a_sum,
            &a);
    for (int rank = 0; rank < MAX_W; rank++)
        expect_story(&s, rank, EW_ERR_TIMEOUT, rank == a.culprit ? 0 : DEADLINE_NS * 9 / 10,
                     DEADLINE_NS + 3 * SECOND_NS,
                     (const char *[]){"the result of tile (", "of rank 1 ", "fix:", NULL});
    expect_still_works(EW_RANKS_AS_THREADS);
}

void check_allreduce_faults(void)
{
    gpu_op = EW_OP_GEMM_AR;
    expect_still_works(EW_RANKS_AS_THREADS);
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++) {
        char config[EW_CONFIG_TEXT_BYTES], by_parts[EW_CONFIG_TEXT_BYTES];
        snprintf(config, sizeof config, "%s,shots=2", *kernel);
        expect_missing_sum(config, false);
        expect_missing_sum(config, true);
        snprintf(by_parts, sizeof by_parts, "%s,group=1", *kernel);
        expect_missing_sum(by_parts, true);
        expect_deadline(config, 2, (absence){.culprit = 1, .pretends = true, .m = 300},
                        (const char *[]){"tile (", "of rank 1 ", "saw epoch ", "wanted ",
                                         "fix:", NULL});
        expect_deadline(config, 2, (absence){.culprit = 0, .m = 1},
                        (const char *[]){"for rank 0 ", "fix:", NULL});
        expect_aborted(wait_for_an_abort, config, 200, false);
        for (int after_ms = 1; after_ms <= 100; after_ms *= 10)
            expect_aborted(work_until_aborted, config, after_ms, true);
    }
    expect_rows_disagree();
}

void check_allreduce_killed(void)
{
    gpu_op = EW_OP_GEMM_AR;
    kill_some("shots=2");
}

/* ---- AllGather-GEMM, whose GEMM is the one that waits ---- */

void check_gather_faults(void)
{
    gpu_op = EW_OP_AG_GEMM;
    check_deadline();
    check_abort();
    check_rows_disagree();
}

void check_gather_killed(void)
{
    gpu_op = EW_OP_AG_GEMM;
    kill_some("transport=push");
}
