/* Cases of mpi_check in which all goes well, however slow or frozen the ranks are. */
#include "mpi_cases.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/testing.h"
#include "backend/cpu/cpu_engine.h"
#include "base/probe.h"
#include "conformance.h"
#include "layer_trial.h"

typedef struct suite {
    ew_world *world;
    int num_trials, failed;
} suite;

/* Configs with shots are GEMM-AllReduce's; "ag-gemm" may come before a config. */
static ew_problem problem_for(ew_problem problem, const char *argument)
{
    problem.op = strstr(argument, "shots")     ? EW_OP_GEMM_AR
                 : strstr(argument, "ag-gemm") ? EW_OP_AG_GEMM
                                               : EW_OP_GEMM_RS;
    return problem;
}

static const char *config_in(const char *argument)
{
    const char *name = strstr(argument, "ag-gemm");
    return !name ? argument : strchr(name, ',') ? strchr(name, ',') + 1 : "";
}

ew_status open_duty(duty *d, ew_world *world, ew_problem problem, const char *argument)
{
    return duty_open(d, world, problem_for(problem, argument), config_in(argument));
}

static void try_here(void *context, const trial *t)
{
    suite *s = context;
    trial copy = *t;
    if (t->num_ranks != ew_world_size(s->world) || s->failed)
        return;
    copy.config.release_first = copy.config.release_last = 0; /* of one host */
    trial_describe(&copy);
    s->failed = trial_body(s->world, &copy);
    s->num_trials++;
}

/* Every pair of options, and as many random combinations as asked for. */
int run_conformance(ew_world *world, const char *seeds)
{
    suite s = {.world = world};
    conformance_every_pair(&conformance_cpu, try_here, &s);
    conformance_random(&conformance_cpu, (uint32_t)atoi(seeds), try_here, &s);
    RANK_CHECK(s.failed || s.num_trials > 10, "only %d trials", s.num_trials);
    return s.failed;
}

int run_wrap(ew_world *world, const char *config)
{
    duty d;
    const ew_problem problem = EW_PROBLEM(300, 300, 32, EW_FP32);
    RANK_OK(open_duty(&d, world, problem, config));
    ewx_cpu_engine *engine = ewx_plan_state(d.plan);
    ewx_engine_set_epoch(engine, UINT32_MAX - 3);
    RANK_OK(ew_world_barrier(world));
    for (uint32_t call = 0; call < 10; call++) {
        const int64_t m = call % 2 ? 300 : 1; /* ranks without rows run ahead */
        RANK_OK(duty_call(&d, m, 1000 + call));
        RANK_CHECK(duty_wrong(&d, m, 1000 + call) == 0, "call %u", call);
    }
    RANK_CHECK(engine->epoch < 10, "epoch %u did not wrap", engine->epoch);
    duty_close(&d);
    return 0;
}

/* Ranks come late by turns, and some own nothing: tiles wait for receivers, receivers for
 * tiles, and fast ranks are a call ahead. */
int run_late(ew_world *world, const char *config)
{
    const int W = ew_world_size(world), rank = ew_world_rank(world);
    duty d;
    const ew_problem problem = EW_PROBLEM(700, 516, 24, EW_BF16);
    RANK_OK(open_duty(&d, world, problem, config));
    for (int call = 0; call < 24; call++) {
        const int64_t m = (int64_t[]){700, 1, 130, 1, 699, 0}[call % 6];
        if (call % W == rank)
            usleep(20000);
        RANK_OK(duty_call(&d, m, (uint32_t)call));
        RANK_CHECK(duty_wrong(&d, m, (uint32_t)call) == 0, "call %d", call);
    }
    duty_close(&d);
    return 0;
}

/* Whether MPI is given device memory, as the argument says: 0 or 1. */
int run_device_memory(ew_world *world, const char *expected)
{
    RANK_CHECK(world->takes_device_memory == (strcmp(expected, "1") == 0),
               "the fabric says %d, the world %d", world->fabric->takes_device_memory,
               world->takes_device_memory);
    return 0;
}

/* A world without a fabric: this is not reached where there are several hosts. */
int run_plain(ew_world *world, const char *argument)
{
    (void)argument;
    RANK_OK(ew_world_barrier(world));
    return 0;
}

/* A plan that outlives MPI: it and the world can still be destroyed, as at the end of a
 * program that had forgotten them. */
static ew_plan *left_over;

int run_ended(ew_world *world, const char *config)
{
    duty d;
    RANK_OK(open_duty(&d, world, (ew_problem)EW_PROBLEM(300, 200, 24, EW_FP32), config));
    RANK_OK(duty_call(&d, 300, 1));
    RANK_CHECK(duty_wrong(&d, 300, 1) == 0, "wrong");
    left_over = d.plan;
    d.plan = NULL;
    duty_close(&d);
    return 0;
}

int end_mpi(const ew_mpi_module *mpi, ew_world *world)
{
    mpi->close();
    const ew_status status = ew_world_barrier(world);
    RANK_CHECK(status == EW_ERR_SYSTEM && strstr(ew_last_error(), "cannot reach other"),
               "%s: %s", ew_status_name(status), ew_last_error());
    ew_plan_destroy(left_over);
    int rank, num_ranks;
    const ew_fabric *fabric;
    RANK_CHECK(mpi->open(&rank, &num_ranks) != 0, "MPI has started again");
    RANK_CHECK(mpi->fabric_open(NULL, &fabric) != 0, "a fabric without MPI");
    return 0;
}

static int crawl(void *context, ewx_probe_point point, int rank, int64_t where)
{
    (void)where;
    if (point == EWX_PROBE_BLOCK && rank == *(const int *)context)
        usleep(300000);
    return 0;
}

/* A rank whose call takes longer than the timeout, but which gets on: nobody may blame it,
 * and across hosts only control messages can show that it does. */
int run_crawl(ew_world *world, const char *config)
{
    static int slow;
    duty d;
    const ew_problem problem = EW_PROBLEM(600, 500, 64, EW_FP32);
    slow = ew_world_size(world) - 1;
    RANK_OK(open_duty(&d, world, problem, config));
    ewx_probe_install(crawl, &slow);
    RANK_OK(duty_call(&d, 600, 1));
    ewx_probe_install(NULL, NULL);
    RANK_CHECK(duty_wrong(&d, 600, 1) == 0, "wrong");
    duty_close(&d);
    return 0;
}

int run_layer(ew_world *world, const char *config)
{
    layer_trial t = {.problem = EW_PROBLEM(523, 300, 40, EW_BF16),
                     .config = config,
                     .parts = LAYER_ALL | LAYER_C,
                     .num_calls = LAYER_MAX_CALLS,
                     .rows = {523, 1, 300, 523},
                     .seed = 7};
    t.problem = problem_for(t.problem, config);
    if (t.problem.op == EW_OP_GEMM_RS)
        return layer_trial_body(world, &t);
    t.parts = LAYER_BIAS | LAYER_RESIDUAL | LAYER_NORM;
    RANK_TRY(layer_trial_body(world, &t)); /* by rows */
    t.all_rows = true;
    t.parts |= LAYER_C;
    return layer_trial_body(world, &t);
}

static int64_t address_space_bytes(void)
{
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file) {
        (void)!fscanf(file, "%lld", &pages);
        fclose(file);
    }
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

/* The last rank has address space for its own part of a plan, not for another host's: no
 * rank gets the plan, and the next ones are none the worse for it. */
int run_cramped(ew_world *world, const char *config)
{
    const bool is_last = ew_world_rank(world) == ew_world_size(world) - 1;
    struct rlimit before, cramped;
    duty d;
    const ew_problem problem = EW_PROBLEM(2048, 2048, 24, EW_FP32);
    RANK_CHECK(getrlimit(RLIMIT_AS, &before) == 0, "no limit");
    cramped = before;
    cramped.rlim_cur = (rlim_t)(address_space_bytes() + 3 * 2048 * 2048 * 4);
    for (int attempt = 0; attempt < 2; attempt++) {
        RANK_CHECK(!is_last || setrlimit(RLIMIT_AS, &cramped) == 0, "no new limit");
        const ew_status status = open_duty(&d, world, problem, config);
        RANK_CHECK(setrlimit(RLIMIT_AS, &before) == 0, "no old limit");
        RANK_CHECK(status == EW_ERR_MEMORY, "%s: %s", ew_status_name(status),
                   ew_last_error());
        duty_close(&d);
    }
    return run_late(world, config);
}

/* Long rows cross in several messages, which may come in any order; several panels of short
 * ones in one. */
int run_rows(ew_world *world, const char *config)
{
    static const struct {
        int64_t m, k;
    } shapes[] = {{300, 20000}, {1100, 3000}, {1100, 700}, {1100, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        duty d;
        ew_problem problem = EW_PROBLEM(shapes[i].m, 40, shapes[i].k, EW_FP32);
        problem.op = EW_OP_AG_GEMM;
        RANK_OK(duty_open(&d, world, problem, config));
        for (uint32_t call = 0; call < 8; call++) {
            const int64_t m = (int64_t[]){shapes[i].m, 1, shapes[i].m - 101, 33}[call % 4];
            RANK_OK(duty_call(&d, m, call));
            RANK_CHECK(duty_wrong(&d, m, call) == 0, "K=%d call %u", (int)problem.k, call);
        }
        duty_close(&d);
    }
    return 0;
}

static uint64_t hash_of(const uint16_t *values, int64_t count)
{
    uint64_t hash = 1469598103934665603u;
    for (int64_t i = 0; i < count; i++)
        hash = (hash ^ values[i]) * 1099511628211u;
    return hash;
}

/* A hash of every rank, for run.sh to compare. */
static int print_bits(ew_world *world, uint64_t hash)
{
    uint64_t hashes[EWX_MAX_RANKS];
    RANK_OK(ew_world_allgather(world, &hash, hashes, sizeof hash));
    for (int r = 0; r < ew_world_size(world) && ew_world_rank(world) == 0; r++)
        printf("bits %016llx\n", (unsigned long long)hashes[r]);
    return 0;
}

/* The forms of AllGather-GEMM: a weight, several, and an activation behind two. */
static int run_gathered_bits(ew_world *world, const char *argument)
{
    enum { M = 520, N = 300, K = 1100 };
    static uint16_t A[M * K], B[N * K], C[M * N], all[M * K];
    const uint32_t rank = (uint32_t)ew_world_rank(world);
    const ew_problem problem =
        problem_for((ew_problem)EW_PROBLEM(M, N, K, EW_BF16), argument);
    const ew_product three[] = {{.n = 10, .B = B, .C = C},
                                {.n = 140, .B = B + 10 * K, .C = C + M * 10},
                                {.n = 150, .B = B + 150 * K, .C = C + M * 150}};
    const ew_product two[] = {{.n = N / 2, .B = B}, {.n = N / 2, .B = B + N / 2 * K}};
    ew_config request = EW_CONFIG_INIT;
    ew_plan *plan;
    RANK_OK(ew_config_parse(config_in(argument), &request));
    RANK_OK(ew_random_fill(EW_BF16, 10 + rank, M * K, A));
    RANK_OK(ew_random_fill(EW_BF16, 50 + rank, N * K, B));
    RANK_OK(ew_plan_create(world, &problem, &request, &plan));
    RANK_OK(ew_ag_gemm(plan, M, A, B, C, all, NULL));
    RANK_TRY(print_bits(world, hash_of(C, M * N)));
    RANK_TRY(print_bits(world, hash_of(all, M * K)));
    RANK_OK(ew_ag_gemm_multi(plan, M, A, three, 3, NULL, NULL));
    RANK_TRY(print_bits(world, hash_of(C, M * N)));
    RANK_OK(ew_ag_gemm_act(plan, M, A, two, 2, EW_ACTIVATION_SILU, C, NULL, NULL));
    RANK_TRY(print_bits(world, hash_of(C, M * (N / 2))));
    ew_plan_destroy(plan);
    return 0;
}

/* Rounding shows the order of summation: prints a hash of every rank's rows, for run.sh to
 * compare between numbers of hosts and operations.  AllReduce has all rows on all ranks. */
int run_bits(ew_world *world, const char *config)
{
    enum { M = 520, N = 300, K = 70 };
    const int W = ew_world_size(world), rank = ew_world_rank(world);
    const ew_problem problem =
        problem_for((ew_problem)EW_PROBLEM(M, N, K, EW_BF16), config);
    if (problem.op == EW_OP_AG_GEMM)
        return run_gathered_bits(world, config);
    const bool all_rows = problem.op == EW_OP_GEMM_AR;
    ew_config request = EW_CONFIG_INIT;
    ew_plan *plan;
    static uint16_t A[M * K], B[N * K], C[M * N];
    uint64_t hash, hashes[EWX_MAX_RANKS];
    int64_t first, rows;
    RANK_OK(ew_config_parse(config, &request));
    RANK_OK(ew_random_fill(EW_BF16, 10 + (uint32_t)rank, M * K, A));
    RANK_OK(ew_random_fill(EW_BF16, 50 + (uint32_t)rank, N * K, B));
    RANK_OK(ew_plan_create(world, &problem, &request, &plan));
    RANK_OK(ew_owned_rows(M, W, rank, &first, &rows));
    RANK_OK((all_rows ? ew_gemm_ar : ew_gemm_rs)(plan, M, A, B, C, NULL));
    hash = hash_of(C, M * N);
    RANK_OK(ew_world_allgather(world, &hash, hashes, sizeof hash));
    for (int r = 0; r < W && all_rows; r++)
        RANK_CHECK(hashes[r] == hash, "rank %d has other bits", r);
    ew_plan_destroy(plan);
    return print_bits(world, hash_of(all_rows ? C + first * N : C, rows * N));
}

/* What is sent between hosts in one call, of all ranks together. */
int run_traffic(ew_world *world, const char *config)
{
    duty d;
    ew_traffic before, after, all[EWX_MAX_RANKS];
    int64_t bytes = 0;
    const ew_problem problem = EW_PROBLEM(1024, 512, 24, EW_FP32);
    RANK_OK(open_duty(&d, world, problem, config));
    RANK_OK(ew_world_traffic(world, &before));
    RANK_OK(duty_call(&d, 1024, 1));
    RANK_OK(ew_world_traffic(world, &after));
    after.tile_bytes -= before.tile_bytes;
    RANK_OK(ew_world_allgather(world, &after, all, sizeof after));
    for (int r = 0; r < ew_world_size(world); r++)
        bytes += all[r].tile_bytes;
    if (ew_world_rank(world) == 0)
        printf("traffic %lld of %lld bytes, %d hosts\n", (long long)bytes,
               (long long)1024 * 512 * 4, after.num_hosts);
    duty_close(&d);
    return 0;
}

/* ---- Frozen ---- */

enum { FREEZES = 6, MOST_FROZEN = 16 };

/* Stops all ranks, several times, each time for twice their timeout. */
_Noreturn static void freeze_and_thaw(const pid_t *ranks, int num_ranks)
{
    const char *timeout_ms = getenv("ENTWINE_TIMEOUT_MS");
    for (int freeze = 0; freeze < FREEZES; freeze++) {
        usleep(30000 + 7001 * (unsigned)freeze);
        for (int rank = 0; rank < num_ranks; rank++)
            kill(ranks[rank], SIGSTOP);
        usleep(2000 * (unsigned)atoi(timeout_ms ? timeout_ms : "1000"));
        for (int rank = 0; rank < num_ranks; rank++)
            kill(ranks[rank], SIGCONT);
    }
    _exit(0);
}

/* Barriers, all-gathers, plans and calls, while a child of rank 0 freezes the job. */
int run_frozen(ew_world *world, const char *config)
{
    const ew_problem problem = EW_PROBLEM(300, 200, 64, EW_FP32);
    pid_t ranks[MOST_FROZEN], freezer = 0;
    const pid_t mine = getpid();
    char over = 0, everybody[MOST_FROZEN];
    RANK_OK(ew_world_allgather(world, &mine, ranks, sizeof mine));
    if (ew_world_rank(world) == 0 && (freezer = fork()) == 0)
        freeze_and_thaw(ranks, ew_world_size(world));
    for (uint32_t round = 1; !over; round++) {
        duty d;
        RANK_OK(open_duty(&d, world, problem, config));
        for (uint32_t call = 0; call < 20; call++) {
            const int64_t m = call & 3 ? 300 : 1;
            RANK_OK(duty_call(&d, m, round + call));
            RANK_CHECK(duty_wrong(&d, m, round + call) == 0, "m=%d", (int)m);
        }
        duty_close(&d);
        RANK_OK(ew_world_barrier(world));
        over = freezer > 0 && waitpid(freezer, NULL, WNOHANG) == freezer;
        RANK_OK(ew_world_allgather(world, &over, everybody, 1));
        over = everybody[0];
    }
    return 0;
}
