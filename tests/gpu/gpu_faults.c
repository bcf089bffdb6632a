/* Ranks that never come, abort, die or disagree: kernels that wait for them end in bounded
 * time, the others learn who it was, and the GPU stays usable.  Bounds are generous: they
 * tell an answer from a hang. */
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

/* ---- What the ranks saw ---- */

typedef struct story {
    ew_status statuses[MAX_W];
    char texts[MAX_W][TEXT_BYTES];
    int64_t took_ns[MAX_W]; /* to return, from the call or from the deed */
    atomic_int out;
    _Atomic int64_t deed_ns;
} story;

static void tell(story *s, int rank, ew_status status, int64_t since_ns)
{
    s->took_ns[rank] = ew_now_ns() - since_ns;
    s->statuses[rank] = status;
    snprintf(s->texts[rank], TEXT_BYTES, "%s", status == EW_OK ? "" : ew_last_error());
    atomic_fetch_add(&s->out, 1);
}

static void wait_until_out(story *s, int count)
{
    for (int tries = 0; tries < 10000 && atomic_load(&s->out) < count; tries++)
        gpu_sleep_ms(2);
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
    RANK_CHECK(ew_gemm_rs(job->plan, m, job->A, job->B, job->C, NULL) == status, "%s",
               ew_last_error());
    return 0;
}

/* ---- Deadline ---- */

#define DEADLINE_MS 1500

typedef struct absence {
    story *story;
    int culprit;
    bool pretends; /* to have started its call */
    int64_t m;
    int calls; /* that the others make */
} absence;

/* Writes what the culprit's kernels would: the call it is in, but no tile. */
static int pretend(gpu_job *job, int64_t m)
{
    ew_world *world = job->world;
    ewx_cuda_engine *engine = job_engine(job);
    uint32_t epoch;
    RANK_TRY(job_use_device(job));
    RANK_CUDA(cudaMemcpy(&epoch, &engine->counters->producer_epoch, sizeof epoch,
                         cudaMemcpyDefault));
    epoch++;
    const uint64_t word = (uint64_t)epoch << 32 | (uint64_t)m;
    for (int rank = 0; rank < job->num_ranks; rank++) {
        ewx_cuda_segment *head = (ewx_cuda_segment *)(void *)engine->heap.segments[rank];
        RANK_CUDA(cudaMemcpy(&head->calls[epoch % EWX_CUDA_CALLS][job->rank], &word,
                             sizeof word, cudaMemcpyDefault));
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
    for (int call = 0; call < a->calls; call++)
        RANK_OK(ew_gemm_rs(job->plan, a->m, job->A, job->B, job->C, NULL));
    tell(a->story, job->rank, ew_plan_wait(job->plan), start_ns);
    return expect_same_again(job, a->story, a->m);
}

static void expect_deadline(const char *config, int num_ranks, absence a,
                            const char *const *words)
{
    const ew_world_options options = gpu_options(DEADLINE_MS);
    story s = {.out = 0};
    a.story = &s;
    gpu_run(EW_RANKS_AS_THREADS, num_ranks, &options, gpu_problem(300, 264, 72, EW_FP16),
            config, wait_for_the_absent, &a);
    for (int rank = 0; rank < num_ranks; rank++)
        if (rank != a.culprit)
            expect_story(&s, rank, EW_ERR_TIMEOUT, DEADLINE_MS * 1000000LL * 9 / 10,
                         DEADLINE_MS * 1000000LL + 2 * SECOND_NS, words);
    expect_still_works(EW_RANKS_AS_THREADS);
}

void check_deadline(void)
{
    expect_still_works(EW_RANKS_AS_THREADS); /* also: everything is loaded now */
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++) {
        expect_deadline(*kernel, 2, (absence){.culprit = 1, .m = 300, .calls = 1},
                        (const char *[]){"for rank 1 ", "fix:", NULL});
        expect_deadline(*kernel, 2,
                        (absence){.culprit = 1, .pretends = true, .m = 300, .calls = 1},
                        (const char *[]){"tile (", "of rank 1 ", "saw epoch ", "wanted ",
                                         "fix:", NULL});
        /* Rank 1 owns no row and runs ahead, until it would overwrite what rank 0 may
         * still read. */
        expect_deadline(*kernel, 2, (absence){.culprit = 0, .m = 1, .calls = 3},
                        (const char *[]){"rank 0 to finish reading", "fix:", NULL});
    }
    expect_deadline("", 4, (absence){.culprit = 2, .m = 300, .calls = 1},
                    (const char *[]){"for rank 2 ", NULL});
}

/* ---- Abort ---- */

typedef struct deed {
    story *story;
    ew_world *world;
    int rank; /* that does it */
    int after_ms;
} deed;

/* The rank that aborts makes no call, so the kernels of the others wait. */
static int wait_for_an_abort(gpu_job *job, void *argument)
{
    const deed *d = argument;
    ew_world *world = job->world;
    RANK_TRY(job_compute(job, 300, 1, NULL));
    RANK_OK(ew_world_barrier(world));
    if (job->rank == d->rank) {
        gpu_sleep_ms(d->after_ms);
        atomic_store(&d->story->deed_ns, ew_now_ns());
        ew_world_abort(world);
        wait_until_out(d->story, job->num_ranks - 1);
        return 0;
    }
    RANK_OK(ew_gemm_rs(job->plan, 300, job->A, job->B, job->C, NULL));
    const ew_status status = ew_plan_wait(job->plan);
    tell(d->story, job->rank, status, atomic_load(&d->story->deed_ns));
    return expect_same_again(job, d->story, 300);
}

static void *abort_later(void *argument)
{
    const deed *d = argument;
    gpu_sleep_ms(d->after_ms);
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
            status = ew_gemm_rs(job->plan, 300, job->A, job->B, job->C, NULL);
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
    deed d = {.story = &s, .rank = 2, .after_ms = after_ms};
    gpu_run(EW_RANKS_AS_THREADS, 3, &options, gpu_problem(300, 264, 72, EW_FP16), config,
            work, &d);
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

/* ---- Different rows ---- */

static int call_with_own_rows(gpu_job *job, void *argument)
{
    story *s = argument;
    ew_world *world = job->world;
    RANK_TRY(job_compute(job, 300, 1, NULL));
    RANK_OK(ew_world_barrier(world));
    const int64_t start_ns = ew_now_ns(), m = job->rank == 0 ? 256 : 200;
    RANK_OK(ew_gemm_rs(job->plan, m, job->A, job->B, job->C, NULL));
    tell(s, job->rank, ew_plan_wait(job->plan), start_ns);
    return expect_same_again(job, s, m);
}

void check_rows_disagree(void)
{
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++) {
        story s = {.out = 0};
        gpu_run(EW_RANKS_AS_THREADS, 2, NULL, gpu_problem(300, 264, 72, EW_FP16), *kernel,
                call_with_own_rows, &s);
        for (int rank = 0; rank < 2; rank++)
            expect_story(
                &s, rank, EW_ERR_MISMATCH, 0, 5 * SECOND_NS,
                (const char *[]){"rank 0", "rank 1", "m=256", "m=200", "fix:", NULL});
        if (strcmp(s.texts[0], s.texts[1]) != 0)
            harness_fail("two stories: %s\n%s", s.texts[0], s.texts[1]);
    }
    expect_still_works(EW_RANKS_AS_THREADS);
}

/* ---- Killed ---- */

static void *die_later(void *argument)
{
    const deed *d = argument;
    gpu_sleep_ms(d->after_ms);
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
    const ew_status status = work_until_a_fault(job, 8);
    tell(d.story, job->rank, status, atomic_load(&d.story->deed_ns));
    return 3;
}

void check_killed(void)
{
    const ew_world_options options = gpu_options(10000);
    expect_still_works(EW_RANKS_AS_PROCESSES);
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++) {
        story *s = harness_share(sizeof *s);
        deed d = {.story = s, .rank = 1, .after_ms = 300};
        int exits[MAX_W];
        const ew_status status = gpu_run_failing(EW_RANKS_AS_PROCESSES, 3, &options,
                                                 gpu_problem(300, 264, 72, EW_FP16),
                                                 *kernel, work_until_one_dies, &d, exits);
        if (status != EW_ERR_PEER_DIED || exits[1] != 128 + SIGKILL)
            harness_fail("ew_run_ranks: %s, rank 1 ended with %d: %s",
                         ew_status_name(status), exits[1], ew_last_error());
        for (int rank = 0; rank < 3; rank += 2) {
            expect_story(s, rank, EW_ERR_PEER_DIED, 0, 5 * SECOND_NS,
                         (const char *[]){"rank 1 died", NULL});
            if (exits[rank] != 3)
                harness_fail("rank %d had to be killed too (%d)", rank, exits[rank]);
        }
        harness_unshare(s, sizeof *s);
    }
    expect_still_works(EW_RANKS_AS_PROCESSES);
}
