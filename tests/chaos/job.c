/* What the attacked ranks do: meet, create plans, gather, call, with a layer and without,
 * meet at a barrier, destroy it all, and begin again.  Every value is compared. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "board.h"
#include "canary.h"
#include "entwine/measure.h"
#include "entwine/mpi_module.h"
#include "faultkit.h"
#include "harness.h"

static void enter(seat *s, chaos_step step)
{
    atomic_store(&s->step, step);
}

/* Goes on to a step unless an earlier one has failed. */
static bool goes_on(seat *s, chaos_step step, ew_status status)
{
    if (status == EW_OK)
        enter(s, step);
    return status == EW_OK;
}

static int tell(seat *s, ew_status status)
{
    if (atomic_load(&s->told))
        return status == EW_OK ? 0 : 3;
    s->status = status;
    s->out_ns = ewx_now_ns();
    s->queued_ns = queued_ns(getpid());
    if (status != EW_OK)
        snprintf(s->text, sizeof s->text, "%s", ew_last_error());
    atomic_store(&s->told, true);
    return status == EW_OK ? 0 : 3;
}

/* ---- In a world ---- */

static ew_status gather(seat *s, ew_world *world, size_t bytes)
{
    static unsigned char mine[5000], all[MOST_RANKS * sizeof mine];
    memset(mine, 1 + ew_world_rank(world), sizeof mine);
    const ew_status status = ew_world_allgather(world, mine, all, bytes);
    for (int src = 0; status == EW_OK && src < ew_world_size(world); src++)
        s->wrong |= all[(size_t)src * bytes] != 1 + src ||
                    all[((size_t)src + 1) * bytes - 1] != 1 + src;
    return status;
}

static ew_status call(seat *s, duty *d, int64_t m, uint32_t seed)
{
    const ew_status status = duty_call(d, m, seed);
    s->wrong |= status == EW_OK && duty_wrong(d, m, seed) != 0;
    return status;
}

/* The same call; C is added to a residual, which was 0, so that both must be equal. */
static ew_status call_with_layer(seat *s, duty *d, int64_t m, uint32_t seed)
{
    const ew_problem *p = &d->problem;
    const int rank = ew_world_rank(d->world), num_ranks = ew_world_size(d->world);
    const bool all_rows = p->op == EW_OP_GEMM_AR;
    int64_t first, count;
    ew_status status = ew_owned_rows(m, num_ranks, rank, &first, &count);
    count = all_rows ? m : count;
    float *residual = calloc((size_t)(count * p->n) + 1, sizeof *residual);
    ew_epilogue epilogue = EW_EPILOGUE_INIT;
    epilogue.residual = residual;
    epilogue.residual_rows = all_rows ? EW_RESIDUAL_ALL : EW_RESIDUAL_OWNED;
    ew_exact_fill_a(p->dtype, seed, rank, num_ranks, m, p->k, d->A);
    ew_exact_fill_b(p->dtype, seed, rank, p->weight_layout, p->n, p->k, d->B);
    if (status == EW_OK)
        status = (all_rows ? ew_gemm_ar_layer : ew_gemm_rs_layer)(d->plan, m, d->A, d->B,
                                                                  d->C, &epilogue, NULL);
    s->wrong |=
        status == EW_OK && (duty_wrong(d, m, seed) != 0 ||
                            memcmp(residual, d->C, (size_t)(count * p->n) * 4) != 0);
    free(residual);
    return status;
}

static ew_status turn(seat *s, ew_world *world, harness_random *random)
{
    static const size_t sizes[] = {8, 100, 5000};
    const int64_t m = harness_between(random, 1, 200);
    ew_problem problem = EW_PROBLEM(200, 128 * harness_between(random, 1, 4), 32, EW_FP32);
    const bool all_rows = harness_between(random, 0, 1); /* and results that are awaited */
    const uint32_t seed = (uint32_t)harness_between(random, 1, 1000);
    const size_t bytes = sizes[harness_between(random, 0, 2)];
    duty d;
    enter(s, STEP_PLAN);
    problem.op = all_rows ? EW_OP_GEMM_AR : EW_OP_GEMM_RS;
    ew_status status =
        duty_open(&d, world, problem, all_rows ? "workers=1,shots=2" : "workers=1");
    if (goes_on(s, STEP_GATHER, status))
        status = gather(s, world, bytes);
    for (uint32_t i = 0; i < 3 && goes_on(s, STEP_CALL, status); i++)
        status = call(s, &d, m, seed + i);
    if (goes_on(s, STEP_LAYER, status))
        status = call_with_layer(s, &d, m, seed);
    if (goes_on(s, STEP_BARRIER, status))
        status = ew_world_barrier(world);
    if (!goes_on(s, STEP_UNPLAN, status))
        tell(s, status); /* now: destroying may take its time */
    duty_close(&d);
    return status;
}

static ew_status work(const board *b, seat *s, ew_world *world)
{
    harness_random random = harness_seed(b->seed);
    ew_status status = EW_OK;
    int64_t none = 0;
    atomic_compare_exchange_strong(&s->met_ns, &none, ewx_now_ns());
    for (int i = 0; i < b->num_turns && status == EW_OK; i++) {
        atomic_store(&s->turn, i);
        status = turn(s, world, &random);
    }
    goes_on(s, STEP_LEAVE, status);
    return status;
}

/* ---- Ranks that ew_run_ranks starts ---- */

static board *forking;
static int forked; /* every rank keeps the number it was forked with */

/* Before a fork, in the parent: which rank comes next. */
static void count_rank(void)
{
    forked++;
}

static void sit_down(void)
{
    seat *s = &forking->seats[forked - 1];
    enter(s, STEP_MEET);
    atomic_store(&s->pid, getpid());
}

static int rank_main(ew_world *world, void *argument)
{
    board *b = argument;
    seat *s = &b->seats[ew_world_rank(world)];
    return tell(s, work(b, s, world));
}

int job_under_run_ranks(board *b)
{
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = b->timeout_ms;
    forking = b;
    pthread_atfork(count_rank, NULL, sit_down);
    b->launcher_status =
        ew_run_ranks(EW_RANKS_AS_PROCESSES, b->num_ranks, &options, rank_main, b, NULL);
    if (b->launcher_status != EW_OK)
        snprintf(b->launcher_text, sizeof b->launcher_text, "%s", ew_last_error());
    atomic_store(&b->launcher_told, true);
    return 0;
}

/* ---- Ranks that meet by an all-gather of ours ---- */

typedef struct gathering {
    board *board;
    int rank, world;
} gathering;

typedef enum offers { OFFERS_ALL, OFFERS_AWAITED, OFFERS_LOST } offers;

/* A rank that has ended offers no more, so all ranks come to the same answer. */
static offers look_around(const board *b, int world)
{
    offers found = OFFERS_ALL;
    for (int rank = 0; rank < b->num_ranks; rank++) {
        const seat *s = &b->seats[rank];
        const bool gone = atomic_load(&s->gone); /* read first: it offered before */
        if (atomic_load(&s->offered[world]))
            continue;
        if (gone)
            return OFFERS_LOST;
        found = OFFERS_AWAITED;
    }
    return found;
}

static int gather_on_board(void *context, const void *mine, void *all, size_t bytes)
{
    const gathering *g = context;
    board *b = g->board;
    offers found;
    if (bytes > HELLO_BYTES)
        return 1;
    memcpy(b->seats[g->rank].hello[g->world], mine, bytes);
    atomic_store(&b->seats[g->rank].offered[g->world], true);
    /* In turns, not by the clock: a frozen job must go on. */
    for (uint32_t turn = 0;
         (found = look_around(b, g->world)) == OFFERS_AWAITED && turn < b->gather_turns;
         turn++)
        usleep(turn < 100 ? 100 : 1000);
    for (int rank = 0; rank < b->num_ranks; rank++)
        memcpy((char *)all + (size_t)rank * bytes, b->seats[rank].hello[g->world], bytes);
    b->seats[g->rank].refused = found != OFFERS_ALL;
    return found != OFFERS_ALL;
}

int job_with_own_bootstrap(board *b, int rank)
{
    seat *s = &b->seats[rank];
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    ew_status status = EW_OK;
    options.timeout_ms = b->timeout_ms;
    for (int world = 0; world < b->num_worlds && status == EW_OK; world++) {
        gathering g = {b, rank, world};
        ew_world *joined = NULL;
        atomic_store(&s->world, world);
        enter(s, STEP_MEET);
        status =
            ew_world_create(rank, b->num_ranks, gather_on_board, &g, &options, &joined);
        if (status == EW_OK)
            status = work(b, s, joined);
        else
            tell(s, status);
        ew_world_destroy(joined);
    }
    goes_on(s, STEP_DONE, status);
    return tell(s, status);
}

/* ---- Ranks that mpirun starts ---- */

static const ew_mpi_module *load(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    ew_mpi_module_getter getter = NULL;
    if (handle)
        *(void **)&getter = dlsym(handle, "ew_mpi_module_get");
    return getter ? getter() : NULL;
}

/* mpirun would end all ranks with the first, and MPI_Finalize wait for those that are gone.
 */
_Noreturn static void await_dismissal(const board *b)
{
    for (int i = 0; i < 30000 && !atomic_load(&b->dismissed); i++)
        usleep(1000);
    _exit(0);
}

int job_under_mpi(board *b, const char *module)
{
    const ew_fabric *fabric;
    int rank, num_ranks;
    const ew_mpi_module *mpi = load(module);
    if (!mpi || mpi->open(&rank, &num_ranks) || num_ranks != b->num_ranks ||
        mpi->fabric_open(NULL, &fabric))
        return 2;
    seat *s = &b->seats[rank];
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    ew_status status = EW_OK;
    options.timeout_ms = b->timeout_ms;
    atomic_store(&s->pid, getpid());
    for (int world = 0; world < b->num_worlds && status == EW_OK; world++) {
        ew_world *joined = NULL;
        atomic_store(&s->world, world);
        enter(s, STEP_MEET);
        status = ew_world_join(fabric, &options, &joined);
        if (status == EW_OK)
            status = work(b, s, joined);
        else
            tell(s, status);
        ew_world_destroy(joined);
    }
    goes_on(s, STEP_DONE, status);
    tell(s, status);
    await_dismissal(b);
}
