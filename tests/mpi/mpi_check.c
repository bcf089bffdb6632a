/* One rank of a world under mpirun, for tests/mpi/run.sh: tries one case and says how it
 * went.  With ENTWINE_HOSTS one machine stands for several, and all that crosses its
 * borders goes through MPI.
 *
 *     mpirun -np W mpi_check MODULE CASE [ARGUMENT]
 *
 * Says "rank R: OK", or what the world's fault was: "rank R: STATUS: text"; also to the end
 * of the file MPI_CHECK_LOG, since mpirun hears nothing from a host that is cut off. */
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cpu/cpu_engine.h"
#include "base/probe.h"
#include "conformance.h"
#include "entwine/mpi_module.h"
#include "faultkit.h"
#include "layer_trial.h"
#include "api/testing.h"

enum { LINGER_US = 1500000 }; /* so that mpirun ends nobody who has yet to speak */

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    const char *path = getenv("MPI_CHECK_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    char text[1200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (log) {
        fputs(text, log);
        fclose(log);
    }
    fputs(text, stdout);
    fflush(stdout);
}

/* ---- Well-behaved worlds ---- */

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

static ew_status open_duty(duty *d, ew_world *world, ew_problem problem,
                           const char *argument)
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
static int run_conformance(ew_world *world, const char *seeds)
{
    suite s = {.world = world};
    conformance_every_pair(&conformance_cpu, try_here, &s);
    conformance_random(&conformance_cpu, (uint32_t)atoi(seeds), try_here, &s);
    RANK_CHECK(s.failed || s.num_trials > 10, "only %d trials", s.num_trials);
    return s.failed;
}

static int run_wrap(ew_world *world, const char *config)
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
static int run_late(ew_world *world, const char *config)
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
static int run_device_memory(ew_world *world, const char *expected)
{
    RANK_CHECK(world->takes_device_memory == (strcmp(expected, "1") == 0),
               "the fabric says %d, the world %d", world->fabric->takes_device_memory,
               world->takes_device_memory);
    return 0;
}

/* A world without a fabric: this is not reached where there are several hosts. */
static int run_plain(ew_world *world, const char *argument)
{
    (void)argument;
    RANK_OK(ew_world_barrier(world));
    return 0;
}

/* A plan that outlives MPI: it and the world can still be destroyed, as at the end of a
 * program that had forgotten them. */
static ew_plan *left_over;

static int run_ended(ew_world *world, const char *config)
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

static int end_mpi(const ew_mpi_module *mpi, ew_world *world)
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
static int run_crawl(ew_world *world, const char *config)
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

static int run_layer(ew_world *world, const char *config)
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
static int run_cramped(ew_world *world, const char *config)
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
static int run_rows(ew_world *world, const char *config)
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
static int run_bits(ew_world *world, const char *config)
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
static int run_traffic(ew_world *world, const char *config)
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
static int run_frozen(ew_world *world, const char *config)
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

/* ---- Misfortunes: the last rank's ---- */

static int drop_a_tile(void *context, ewx_probe_point point, int rank, int64_t where)
{
    return point == EWX_PROBE_PUBLISH && rank == *(const int *)context && where == 0;
}

/* With a result, or the second panel of gathered rows: it never comes, its rank dies, or
 * its rank stops. */
static int in_a_call(void *context, ewx_probe_point point, int rank, int64_t where)
{
    const char *kind = context;
    const bool is_due = strstr(kind, "-result") ? point == EWX_PROBE_RESULT
                                                : point == EWX_PROBE_PUBLISH && where == 1;
    (void)rank;
    if (is_due && strncmp(kind, "kill-", 5) == 0)
        raise(SIGKILL);
    if (is_due && strncmp(kind, "stall-", 6) == 0)
        sleep(60);
    return is_due;
}

/* Calls until the world fails, then tells why. */
static int run_misfortune(ew_world *world, const char *kind)
{
    static int culprit;
    static char how[32];
    const int rank = ew_world_rank(world);
    const char *config = strstr(kind, "-result")   ? "shots=2"
                         : strstr(kind, "-gather") ? "ag-gemm"
                                                   : "";
    const ew_problem problem = EW_PROBLEM(600, 300, 64, EW_FP32);
    duty d;
    ew_world *smaller;
    ew_status status = EW_OK;
    culprit = ew_world_size(world) - 1;
    snprintf(how, sizeof how, "%s", kind);
    RANK_OK(open_duty(&d, world, problem, config));
    for (int call = 0; call < 400 && status == EW_OK; call++) {
        const bool now = rank == culprit && call == 3;
        if (now && strcmp(kind, "abort") == 0)
            ew_world_abort(world);
        if (now && strcmp(kind, "kill") == 0)
            raise(SIGKILL);
        if (now && strcmp(kind, "drop") == 0)
            ewx_probe_install(drop_a_tile, &culprit);
        if (now && strchr(kind, '-'))
            ewx_probe_install(in_a_call, how);
        if (now && strcmp(kind, "stall") == 0)
            sleep(60);
        if (now && strcmp(kind, "leave") == 0)
            break;
        if (strcmp(kind, "slow") == 0)
            usleep(50000);
        status = duty_call(&d, now && strncmp(kind, "rows", 4) == 0 ? 599 : 600, 1);
    }
    say("rank %d: %s: %s\n", rank, ew_status_name(status),
        status == EW_OK ? "no fault" : ew_last_error());
    if (status != EW_OK) /* MPI does not go on without a rank */
        RANK_CHECK(ew_world_shrink(world, &smaller) == EW_ERR_UNSUPPORTED, "%s",
                   ew_last_error());
    duty_close(&d);
    return 0;
}

/* Equal plans that the last rank calls in another order, with one row, so that only rank 0
 * waits for anything; the rank named by the argument goes first.  Nobody may get a wrong
 * value. */
static int run_swap(ew_world *world, const char *first_rank)
{
    const int rank = ew_world_rank(world);
    const bool odd = rank == ew_world_size(world) - 1;
    duty plans[2];
    ew_status status = EW_OK;
    for (int i = 0; i < 2; i++)
        RANK_OK(duty_open(&plans[i], world, (ew_problem)EW_PROBLEM(8, 30, 8, EW_FP32), ""));
    RANK_OK(ew_world_barrier(world));
    if (rank != atoi(first_rank))
        usleep(200000);
    for (int i = 0; i < 2 && status == EW_OK; i++) {
        duty *d = &plans[odd ? 1 - i : i];
        status = duty_call(d, 1, 10 + (uint32_t)i);
        RANK_CHECK(status != EW_OK || duty_wrong(d, 1, 10 + (uint32_t)i) == 0,
                   "wrong values with EW_OK");
    }
    if (status == EW_OK)
        status = ew_world_barrier(world);
    say("rank %d: %s: %s\n", rank, ew_status_name(status),
        status == EW_OK ? "no fault" : ew_last_error());
    for (int i = 0; i < 2; i++)
        duty_close(&plans[i]);
    return 0;
}

/* The last rank comes to a collective with other bytes, or to a barrier. */
static int run_meet(ew_world *world, const char *kind)
{
    const int rank = ew_world_rank(world);
    const bool odd = rank == ew_world_size(world) - 1;
    static char mine[5000], all[5000 * EWX_MAX_RANKS];
    const ew_status status =
        odd && strcmp(kind, "barrier") == 0
            ? ew_world_barrier(world)
            : ew_world_allgather(world, mine, all, odd ? (size_t)atoi(kind) : 8);
    say("rank %d: %s: %s\n", rank, ew_status_name(status),
        status == EW_OK ? "no fault" : ew_last_error());
    return 0;
}

/* The last rank comes to a barrier when the others have given it up, which then stay away:
 * it learns why. */
static int run_tardy(ew_world *world, const char *argument)
{
    enum { TARDY_US = 1000000, THEN_AWAY_US = 1300000 };
    const int rank = ew_world_rank(world);
    const bool is_last = rank == ew_world_size(world) - 1;
    (void)argument;
    if (is_last)
        usleep(TARDY_US);
    ew_status status = ew_world_barrier(world);
    if (is_last && status == EW_OK)
        status = ew_world_barrier(world);
    say("rank %d: %s: %s\n", rank, ew_status_name(status),
        status == EW_OK ? "no fault" : ew_last_error());
    if (!is_last)
        usleep(THEN_AWAY_US);
    return 0;
}

/* ---- Control messages that need help ---- */

/* Rank 0's leave when it looks at the fabric after so long. */
enum { HELD_NS = 30000000, MOST_HELD = 64, AWAY_US = 900000 };
static ew_fabric swift; /* which takes them then */
static struct {
    size_t count;
    struct {
        int64_t until_ns;
        int dst;
        size_t bytes;
        unsigned char message[EW_CONTROL_BYTES];
    } at[MOST_HELD];
} held;

static int hold(void *context, int dst, const void *message, size_t bytes)
{
    (void)context;
    if (held.count == MOST_HELD)
        return 1;
    held.at[held.count].until_ns = ew_now_ns() + HELD_NS;
    held.at[held.count].dst = dst;
    held.at[held.count].bytes = bytes;
    memcpy(held.at[held.count++].message, message, bytes);
    return 0;
}

static int help(void *context)
{
    if (held.count == 0 || ew_now_ns() < held.at[0].until_ns)
        return 0;
    const int failed =
        swift.send_control(context, held.at[0].dst, held.at[0].message, held.at[0].bytes);
    memmove(&held.at[0], &held.at[1], --held.count * sizeof held.at[0]);
    return failed;
}

static int help_and_receive(void *context, int *src_out, void *message, size_t *bytes_out)
{
    *src_out = -1;
    return help(context) || swift.receive_control(context, src_out, message, bytes_out);
}

static int help_and_count(void *context, size_t *count_out)
{
    const int failed = help(context) || swift.unsent_control(context, count_out);
    *count_out += held.count;
    return failed;
}

static const ew_fabric *in_need_of_help(const ew_fabric *fabric)
{
    static ew_fabric slow;
    swift = slow = *fabric;
    slow.send_control = hold;
    slow.receive_control = help_and_receive;
    slow.unsent_control = help_and_count;
    return fabric->rank == 0 ? &slow : fabric;
}

/* Every rank stays away for longer than the timeout, after a call and after a barrier. */
static int run_away(ew_world *world, const char *config)
{
    duty d;
    RANK_OK(open_duty(&d, world, (ew_problem)EW_PROBLEM(300, 200, 24, EW_FP32), config));
    RANK_OK(duty_call(&d, 300, 1));
    usleep(AWAY_US);
    RANK_CHECK(duty_wrong(&d, 300, 1) == 0, "wrong");
    RANK_OK(ew_world_barrier(world));
    usleep(AWAY_US);
    RANK_OK(ew_world_barrier(world));
    duty_close(&d);
    return 0;
}

/* ---- The rank ---- */

typedef enum manner {
    ORDINARY,
    WITHOUT_FABRIC, /* ew_world_create, as on one host */
    SLOW,           /* control messages need help */
    ENDED,          /* MPI ends before the world does */
    AGAIN,          /* several worlds on one fabric, one after the other */
    REOPENED,       /* no world, but one fabric after the other */
    FAILING,        /* the world ends in a fault */
    ABSENT          /* ... already while ranks join */
} manner;

static const struct {
    const char *name;
    int (*run)(ew_world *world, const char *argument);
    manner manner;
} cases[] = {{"conformance", run_conformance, ORDINARY},
             {"wrap", run_wrap, ORDINARY},
             {"late", run_late, ORDINARY},
             {"again", run_wrap, AGAIN},
             {"reopened", NULL, REOPENED},
             {"bits", run_bits, ORDINARY},
             {"rows", run_rows, ORDINARY},
             {"cramped", run_cramped, ORDINARY},
             {"traffic", run_traffic, ORDINARY},
             {"layer", run_layer, ORDINARY},
             {"crawl", run_crawl, ORDINARY},
             {"frozen", run_frozen, ORDINARY},
             {"device-memory", run_device_memory, ORDINARY},
             {"plain", run_plain, WITHOUT_FABRIC},
             {"away", run_away, SLOW},
             {"ended", run_ended, ENDED},
             {"misfortune", run_misfortune, FAILING},
             {"swap", run_swap, FAILING},
             {"meet", run_meet, FAILING},
             {"tardy", run_tardy, FAILING},
             {"absent", run_plain, ABSENT}};

static const ew_mpi_module *load(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    ew_mpi_module_getter getter = NULL;
    if (handle)
        *(void **)&getter = dlsym(handle, "ew_mpi_module_get");
    else
        fprintf(stderr, "%s\n", dlerror());
    return getter ? getter() : NULL;
}

/* The last rank comes late to the world that all are to join, or dies while they meet. */
static int die_in_the_meeting(void *context, ewx_probe_point point, int rank, int64_t where)
{
    if (point == EWX_PROBE_MEETING && where == *(const int *)context && rank >= 0)
        raise(SIGKILL);
    return 0;
}

static void stay_away(const ew_fabric *fabric, const char *how)
{
    static int where;
    if (fabric->rank < fabric->num_ranks - 1)
        return;
    if (strcmp(how, "late") == 0)
        sleep(60);
    where = atoi(how);
    ewx_probe_install(die_in_the_meeting, &where);
}

static int run_in_world(const ew_mpi_module *mpi, const ew_fabric *fabric, size_t at,
                        const char *argument)
{
    ew_world *world = NULL;
    if (cases[at].manner == ABSENT)
        stay_away(fabric, argument);
    const ew_status joined = cases[at].manner == WITHOUT_FABRIC
                                 ? ew_world_create(fabric->rank, fabric->num_ranks,
                                                   mpi->allgather, NULL, NULL, &world)
                                 : ew_world_join(fabric, NULL, &world);
    if (joined != EW_OK) {
        say("rank %d: %s: %s\n", fabric->rank, ew_status_name(joined), ew_last_error());
        return 1;
    }
    int failed = cases[at].run(world, argument);
    if (cases[at].manner == ENDED && !failed)
        failed = end_mpi(mpi, world);
    ew_world_destroy(world);
    return failed;
}

/* Rank 0 receives `count` numbers of the last rank, in order, and nothing else.  Then the
 * last rank sends what nobody receives any more. */
static int pass_numbers(const ew_mpi_module *mpi, int count, int *rank_out)
{
    enum { TURNS = 5000 };
    const ew_fabric *fabric;
    unsigned char message[EW_CONTROL_BYTES];
    size_t bytes;
    int failed = 0, next = 0, src;
    if (mpi->fabric_open(NULL, &fabric))
        return 1;
    *rank_out = fabric->rank;
    const bool sends = fabric->rank == fabric->num_ranks - 1;
    for (int i = 0; i < count && sends; i++)
        failed |= fabric->send_control(fabric->context, 0, &i, sizeof i);
    for (int turn = 0; fabric->rank == 0 && next < count && !failed; turn++) {
        failed = turn == TURNS ||
                 fabric->receive_control(fabric->context, &src, message, &bytes);
        if (src < 0)
            usleep(1000);
        else if (bytes == sizeof next && memcmp(message, &next, sizeof next) == 0)
            next++;
        else
            failed = 1;
    }
    if (failed)
        say("rank %d: number %d did not come, or something else\n", fabric->rank, next);
    for (int i = 0; i < 3 && sends; i++)
        failed |= fabric->send_control(fabric->context, 0, "last words", 10);
    mpi->fabric_close(fabric, failed);
    return failed;
}

/* What is left of one fabric never comes in the next one, not even in the place of a
 * message that is as many messages behind its beginning. */
static int run_reopened(const ew_mpi_module *mpi)
{
    int failed = 0, rank = -1;
    for (int round = 0; round < 100 && !failed; round++)
        failed = pass_numbers(mpi, round % 2 ? 60 : 20, &rank);
    say("rank %d: %s\n", rank, failed ? "FAILED" : "OK");
    return failed;
}

static int run_case(const ew_mpi_module *mpi, size_t at, const char *argument)
{
    const ew_fabric *fabric;
    const int num_worlds = cases[at].manner == AGAIN ? 8 : 1;
    int failed = 0;
    if (cases[at].manner == REOPENED)
        return run_reopened(mpi);
    if (mpi->fabric_open(NULL, &fabric))
        return 1;
    const ew_fabric *taken = cases[at].manner == SLOW ? in_need_of_help(fabric) : fabric;
    for (int number = 0; number < num_worlds && !failed; number++)
        failed = run_in_world(mpi, taken, at, argument);
    say("rank %d: %s\n", fabric->rank, failed ? "FAILED" : "OK");
    mpi->fabric_close(fabric, cases[at].manner >= FAILING || failed);
    return failed;
}

int main(int argc, char **argv)
{
    int rank, num_ranks;
    const ew_mpi_module *mpi = argc > 2 ? load(argv[1]) : NULL;
    if (!mpi || mpi->open(&rank, &num_ranks))
        return 2;
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++)
        if (strcmp(cases[at].name, argv[2]) == 0) {
            const int failed = run_case(mpi, at, argc > 3 ? argv[3] : "");
            if (failed || cases[at].manner >= FAILING) {
                usleep(LINGER_US); /* MPI_Finalize would wait for ranks that are gone */
                _exit(failed);
            }
            mpi->close();
            return 0;
        }
    fprintf(stderr, "no case is called %s\n", argv[2]);
    return 2;
}
