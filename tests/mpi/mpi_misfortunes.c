/* Cases of mpi_check in which the last rank dies, stops, loses a tile or calls something
 * else: every rank says what the fault of its world was. */
#include "mpi_cases.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/probe.h"

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
int run_misfortune(ew_world *world, const char *kind)
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
int run_swap(ew_world *world, const char *first_rank)
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
int run_meet(ew_world *world, const char *kind)
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
int run_tardy(ew_world *world, const char *argument)
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
