/* Calls that start together: when the gate opens, and who comes late. */
#include <stdio.h>

#include "gpu_check.h"
#include "gpukit.h"

/* The clock of the GPU is known to within a launch and a wake-up. */
#define CLOCK_SLACK_NS 100000
#define LATE_NS 3000000

typedef struct start {
    bool late; /* the last rank is */
    int64_t returned_ns[GPU_MAX_RANKS], start_ns[GPU_MAX_RANKS];
} start;

static int call_once(gpu_job *job, start *s)
{
    ew_world *world = job->world;
    ew_timing timing;
    RANK_TRY(job_fill(job, 1));
    RANK_TRY(job_poison(job));
    RANK_OK(ew_plan_set_weight(job->plan, job->B));
    RANK_OK(ew_world_barrier(world));
    if (s->late && job->rank == job->num_ranks - 1)
        gpu_sleep_us(LATE_NS / 1000);
    RANK_OK(job_call(job, job->problem.max_m, job->A, NULL, job->C, NULL));
    s->returned_ns[job->rank] = ew_now_ns();
    RANK_OK(ew_plan_wait(job->plan));
    RANK_OK(ew_plan_timing(job->plan, &timing));
    s->start_ns[job->rank] = timing.start_ns;
    RANK_OK(ew_world_barrier(world));
    return job_verify(job, job->problem.max_m, 1);
}

/* No rank starts before every host has enqueued its whole call. */
static int check_order(const gpu_job *job, const start *s)
{
    ew_world *world = job->world;
    for (int other = 0; other < job->num_ranks; other++)
        RANK_CHECK(
            s->start_ns[job->rank] + CLOCK_SLACK_NS >= s->returned_ns[other],
            "rank %d started %lld us before rank %d had enqueued its call", job->rank,
            (long long)(s->returned_ns[other] - s->start_ns[job->rank]) / 1000, other);
    return 0;
}

static int start_together(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    start *s = argument;
    RANK_OK(ew_plan_start_together(job->plan));
    /* cuBLAS may load a kernel in the first call of so many rows, which is not held. */
    for (int round = 0; round < 5; round++) {
        if (job->rank == 0)
            s->late = round % 2;
        RANK_TRY(call_once(job, s));
        if (round > 0)
            RANK_TRY(check_order(job, s));
        RANK_OK(ew_world_barrier(world));
    }
    return 0;
}

/* Every method; with launches=unit one call is some hundred launches, which take the host
 * longer than the clock's slack. */
void check_held_start(void)
{
    static const char *const configs[] = {
        "",
        "release=output,pool=after",
        "pool=static",
        "launches=unit,release=1",
        "launches=unit,release=2",
        "transport=copy,order=contiguous,release=partition",
        "transport=push,release=output",
        "transport=add",
        "producer=blas,release=output"};
    const ew_problem problem = gpu_problem(4096, 2048, 256, EW_FP16);
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        start s = {.late = false};
        printf("  %s\n", *configs[i] ? configs[i] : "default");
        gpu_run(EW_RANKS_AS_THREADS, 4, NULL, problem, configs[i], start_together, &s);
    }
}
