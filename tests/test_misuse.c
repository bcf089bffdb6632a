/* Programs that use the library wrongly: plans in another order than their peers,
 * collectives of another kind or size, memory that overlaps, two users of one world, a
 * forked child.  Each is refused with an error that says what is wrong, and never answered
 * with wrong values. */
#include "faultkit.h"
#include "harness.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"

enum { MAX_W = 3 };
#define SOME_TIMEOUT_MS 20000 /* never reached unless something hangs */

typedef struct story {
    int which;      /* of the cases */
    int first_rank; /* begins, and the others only when it is through or waits; -1: none */
    int64_t m;
    atomic_int has_begun;
    ew_status statuses[MAX_W];
    char texts[MAX_W][512];
} story;

static void keep(story *s, const ew_world *world, ew_status status)
{
    const int rank = ew_world_rank(world);
    s->statuses[rank] = status;
    snprintf(s->texts[rank], sizeof s->texts[rank], "%s", ew_last_error());
}

/* The rank that is to be first goes ahead by some milliseconds, bounded. */
static void take_turn(story *s, const ew_world *world)
{
    if (s->first_rank < 0)
        return;
    if (ew_world_rank(world) == s->first_rank) {
        atomic_store(&s->has_begun, 1);
        return;
    }
    for (int ms = 0; ms < 5000 && !atomic_load(&s->has_begun); ms++)
        sleep_ms(1);
    sleep_ms(30);
}

/* A rank that owns no row may be through with its call: it hears with the next thing it
 * does. */
static ew_status hear_later(ew_plan *plan, ew_status status)
{
    for (int ms = 0; ms < 5000 && status == EW_OK; ms++) {
        sleep_ms(1);
        status = ew_plan_wait(plan);
    }
    return status;
}

/* Rank 1 is the odd one; any of the others may have noticed. */
static void expect_mismatch(const story *s, int num_ranks, const char *one,
                            const char *other)
{
    for (int rank = 0; rank < num_ranks; rank++) {
        const char *text = s->texts[rank];
        if (s->statuses[rank] != EW_ERR_MISMATCH || !strstr(text, one) ||
            !strstr(text, other) || !strstr(text, "rank 1 ") || !strstr(text, "\n  fix: "))
            fail_msg("rank %d: %s \"%s\", wanted \"%s\" and \"%s\"", rank,
                     ew_status_name(s->statuses[rank]), text, one, other);
    }
}

static story *share_story(int which, int first_rank, int64_t m)
{
    story *s = harness_share(sizeof *s);
    s->which = which;
    s->first_rank = first_rank;
    s->m = m;
    return s;
}

static ew_world_options patient(void)
{
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = SOME_TIMEOUT_MS;
    return options;
}

/* ---- Equal plans in another order ---- */

enum { N = 6, K = 4, MAX_M = 9 };

typedef struct layer {
    ew_plan *plan;
    float A[MAX_M * K], C[MAX_M * N];
    float weight;
} layer;

static ew_status layer_open(layer *l, ew_world *world, float weight)
{
    const ew_problem problem = EW_PROBLEM(MAX_M, N, K, EW_FP32);
    float B[N * K];
    *l = (layer){.weight = weight};
    for (int i = 0; i < N * K; i++)
        B[i] = weight;
    const ew_status status = ew_plan_create(world, &problem, NULL, &l->plan);
    return status == EW_OK ? ew_plan_set_weight(l->plan, B) : status;
}

/* `input` is what all elements of A are, for all ranks' calls at this place the same. */
static ew_status layer_call(layer *l, int64_t m, float input)
{
    for (int i = 0; i < MAX_M * K; i++)
        l->A[i] = input;
    memset(l->C, 0xff, sizeof l->C);
    return ew_gemm_rs(l->plan, m, l->A, NULL, l->C, NULL);
}

static bool layer_is_right(const layer *l, const ew_world *world, int64_t m)
{
    int64_t first, count;
    ew_owned_rows(m, ew_world_size(world), ew_world_rank(world), &first, &count);
    for (int64_t i = 0; i < count * N; i++)
        if (l->C[i] != K * l->weight * l->A[0] * (float)ew_world_size(world))
            return false;
    return true;
}

/* A refused plan takes no number, whichever rank it failed on. */
static int fail_to_create(ew_world *world)
{
    ew_problem problem = EW_PROBLEM(MAX_M, N, K + ew_world_rank(world), EW_FP32);
    ew_plan *plan = NULL;
    RANK_CHECK(ew_plan_create(world, &problem, NULL, &plan) == EW_ERR_MISMATCH, "%s",
               ew_last_error());
    return 0;
}

static int call_in_another_order(ew_world *world, void *argument)
{
    story *s = argument;
    layer layers[2];
    RANK_OK(layer_open(&layers[0], world, 1));
    RANK_TRY(fail_to_create(world));
    RANK_OK(layer_open(&layers[1], world, 1000));
    for (int i = 0; i < 4; i++) { /* in one order on all ranks: right */
        layer *l = &layers[i % 2];
        RANK_OK(layer_call(l, s->m, (float)(i + 1)));
        RANK_CHECK(layer_is_right(l, world, s->m), "call %d", i);
    }
    RANK_OK(ew_world_barrier(world));
    take_turn(s, world);
    ew_status status = EW_OK;
    for (int i = 0; i < 2 && status == EW_OK; i++) {
        layer *l = &layers[ew_world_rank(world) == 1 ? 1 - i : i];
        status = layer_call(l, s->m, (float)(i + 1));
        RANK_CHECK(status != EW_OK || layer_is_right(l, world, s->m),
                   "wrong values with EW_OK");
    }
    keep(s, world, hear_later(layers[0].plan, status));
    for (int i = 0; i < 2; i++)
        ew_plan_destroy(layers[i].plan);
    return 3;
}

/* With m=1 only rank 0 owns a row: the others never wait for anybody. */
static void plans_in_another_order_are_refused(void **state)
{
    (void)state;
    const ew_world_options options = patient();
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++)
        for (int num_ranks = 2; num_ranks <= MAX_W; num_ranks++)
            for (int first = -1; first < num_ranks; first++)
                for (int64_t m = 1; m <= MAX_M; m += MAX_M - 1) {
                    story *s = share_story(0, first, m);
                    harness_context("kind %d, W=%d, m=%d, rank %d first", kind, num_ranks,
                                    (int)m, first);
                    harness_run_failing(both_kinds[kind], num_ranks, &options,
                                        call_in_another_order, s, NULL);
                    expect_mismatch(s, num_ranks, "called plan 1", "called plan 2");
                    for (int rank = 0; rank < num_ranks; rank++)
                        assert_non_null(strstr(s->texts[rank], "(operation 8)"));
                    harness_unshare(s, sizeof *s);
                }
}

/* ---- Further ahead than records are kept ---- */

enum { MANY_PLANS = 520, CALLS_EACH = 2 }; /* more calls than EWX_RECORDS */

static int run_far_ahead(ew_world *world, void *argument)
{
    story *s = argument;
    layer *layers = calloc(MANY_PLANS, sizeof *layers);
    ew_status status = EW_OK;
    RANK_CHECK(layers, "no memory");
    for (int i = 0; i < MANY_PLANS; i++)
        RANK_OK(layer_open(&layers[i], world, (float)(i + 1)));
    RANK_OK(ew_world_barrier(world));
    take_turn(s, world);
    if (ew_world_rank(world) == 0)
        sleep_ms(300); /* by then rank 1 is through, or waits */
    for (int i = 0; i < MANY_PLANS * CALLS_EACH && status == EW_OK; i++) {
        /* The first two are swapped on one rank. */
        const int at = ew_world_rank(world) == 1 && i < 2 ? 1 - i : i % MANY_PLANS;
        status = layer_call(&layers[at], 1, (float)(i % 3));
        RANK_CHECK(status != EW_OK || layer_is_right(&layers[at], world, 1),
                   "call %d: wrong values with EW_OK", i);
    }
    keep(s, world, hear_later(layers[0].plan, status));
    for (int i = 0; i < MANY_PLANS; i++)
        ew_plan_destroy(layers[i].plan);
    free(layers);
    return 3;
}

static void nobody_outruns_the_records(void **state)
{
    (void)state;
    const ew_world_options options = patient();
    story *s = share_story(0, 1, 1);
    harness_run_failing(EW_RANKS_AS_THREADS, 2, &options, run_far_ahead, s, NULL);
    expect_mismatch(s, 2, "called plan 1", "called plan 2");
    harness_unshare(s, sizeof *s);
}

/* ---- Collectives ---- */

static const struct {
    size_t bytes[2]; /* of rank 0 and the others; 0: nothing is gathered */
    bool barrier[2];
    const char *one, *other;
} meetings[] = {
    {{8, 64}, {0}, "ew_world_allgather of 8 bytes", "ew_world_allgather of 64 bytes"},
    {{64, 8}, {0}, "ew_world_allgather of 8 bytes", "ew_world_allgather of 64 bytes"},
    {{0, 8}, {0}, "ew_world_allgather of 0 bytes", "ew_world_allgather of 8 bytes"},
    {{4088, 4089}, {0}, "4088 bytes", "4089 bytes"},
    {{8192, 10000}, {0}, "8192 bytes", "10000 bytes"},
    {{8, 0}, {false, true}, "ew_world_allgather of 8 bytes", "ew_world_barrier"},
    {{0, 10000}, {true, false}, "ew_world_barrier", "ew_world_allgather of 10000 bytes"},
    {{0, 0}, {true, false}, "ew_world_barrier", "ew_world_allgather of 0 bytes"},
};

static int meet_otherwise(ew_world *world, void *argument)
{
    story *s = argument;
    const int which = s->which, side = ew_world_rank(world) != 0;
    char *mine = calloc(1, 10000), *all = calloc(MAX_W, 10000);
    RANK_CHECK(mine && all, "no memory");
    RANK_TRY(gather_and_compare(world, 5000));
    take_turn(s, world);
    const ew_status status =
        meetings[which].barrier[side]
            ? ew_world_barrier(world)
            : ew_world_allgather(world, mine, all, meetings[which].bytes[side]);
    keep(s, world, status);
    free(mine);
    free(all);
    return 3;
}

static void collectives_compare_kind_and_size(void **state)
{
    (void)state;
    const ew_world_options options = patient();
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++)
        for (int num_ranks = 2; num_ranks <= MAX_W; num_ranks++)
            for (size_t which = 0; which < sizeof meetings / sizeof *meetings; which++) {
                story *s = share_story((int)which, (int)which % num_ranks, 0);
                harness_context("kind %d, W=%d, meeting %zu", kind, num_ranks, which);
                harness_run_failing(both_kinds[kind], num_ranks, &options, meet_otherwise,
                                    s, NULL);
                for (int rank = 0; rank < num_ranks; rank++)
                    if (s->statuses[rank] != EW_ERR_MISMATCH ||
                        !strstr(s->texts[rank], meetings[which].one) ||
                        !strstr(s->texts[rank], meetings[which].other) ||
                        !strstr(s->texts[rank], "rank 0 ") ||
                        !strstr(s->texts[rank], "\n  fix: "))
                        fail_msg("meeting %zu, rank %d: %s \"%s\"", which, rank,
                                 ew_status_name(s->statuses[rank]), s->texts[rank]);
                harness_unshare(s, sizeof *s);
            }
}

/* 16 bytes are what the first step of ew_plan_create gathers. */
static int gather_while_others_plan(ew_world *world, void *argument)
{
    story *s = argument;
    const ew_problem problem = EW_PROBLEM(MAX_M, N, K, EW_FP32);
    ew_plan *plan = NULL;
    char mine[16] = {0}, all[16 * MAX_W];
    keep(s, world,
         ew_world_rank(world) == 0 ? ew_world_allgather(world, mine, all, sizeof mine)
                                   : ew_plan_create(world, &problem, NULL, &plan));
    return 3;
}

static void a_collective_is_no_step_of_a_plan(void **state)
{
    (void)state;
    const ew_world_options options = patient();
    story *s = share_story(0, -1, 0);
    harness_run_failing(both_kinds[FIRST_KIND], 2, &options, gather_while_others_plan, s,
                        NULL);
    expect_mismatch(s, 2, "ew_world_allgather of 16 bytes", "creates or calls a plan");
    harness_unshare(s, sizeof *s);
}

/* ---- Memory that overlaps ---- */

/* Places in one arena, in elements; a case moves one of them. */
typedef struct places {
    int64_t A, B, C, bias, residual, norm_weight, normed;
} places;
enum { ROWS = 4, A_ELEMS = ROWS * K, B_ELEMS = N * K, OUT_ELEMS = ROWS * N, ARENA = 700 };
static const places apart = {.A = 0,
                             .B = 100,
                             .C = 200,
                             .bias = 300,
                             .residual = 400,
                             .norm_weight = 500,
                             .normed = 600};

static const struct {
    const char *name, *one, *other;
    size_t field; /* moved there */
    int64_t to;
    bool refused;
    bool bound; /* B is not passed */
} moves[] = {
#define MOVE(part, to, one, other, refused, bound)                                 \
    {                                                                              \
#part " to " #to, #one, #other, offsetof(places, part), to, refused, bound \
    }
    MOVE(C, 0, C, A, true, false),
    MOVE(C, A_ELEMS - 1, C, A, true, true),
    MOVE(C, A_ELEMS, C, A, false, true),
    MOVE(C, 101, C, B, true, false),
    MOVE(C, 101, C, B, false, true), /* where B would lie */
    MOVE(C, 100 + B_ELEMS - 1, C, B, true, false),
    MOVE(C, 100 + B_ELEMS, C, B, false, false),
    MOVE(C, 100 - OUT_ELEMS, C, B, false, false),
    MOVE(C, 101 - OUT_ELEMS, C, B, true, false),
    MOVE(A, 201 - A_ELEMS, C, A, true, false),
    MOVE(A, 200 - A_ELEMS, C, A, false, false),
    MOVE(A, 200 + OUT_ELEMS - 1, C, A, true, true),
    MOVE(A, 200 + OUT_ELEMS, C, A, false, true),
    MOVE(C, 305, C, bias, true, false),
    MOVE(C, 300 - OUT_ELEMS, C, bias, false, false),
    MOVE(C, 500, C, norm_weight, true, false),
    MOVE(residual, 200, C, residual, true, false),
    MOVE(residual, 200 + OUT_ELEMS - 1, C, residual, true, false),
    MOVE(residual, 200 + OUT_ELEMS, C, residual, false, false),
    MOVE(residual, 3, residual, A, true, false),
    MOVE(residual, 110, residual, B, true, false),
    MOVE(residual, 110, residual, B, false, true),
    MOVE(residual, 300 + N - 1, residual, bias, true, false),
    MOVE(residual, 300 + N, residual, bias, false, false),
    MOVE(residual, 499, residual, norm_weight, true, false),
    MOVE(normed, 200, C, normed, true, false),
    MOVE(normed, 401, residual, normed, true, false),
    MOVE(normed, 502, normed, norm_weight, true, false),
    MOVE(normed, 1, normed, A, true, false),
    MOVE(normed, 120, normed, B, true, false),
    MOVE(normed, 299, normed, bias, true, false),
    MOVE(norm_weight, 300, bias, norm_weight, false, false), /* both are only read */
    MOVE(B, 0, A, B, false, false),
#undef MOVE
};

static int try_move(ew_world *world, ew_plan *plan, float *arena, size_t which, bool fused)
{
    places at = apart;
    memcpy((char *)&at + moves[which].field, &moves[which].to, sizeof moves[which].to);
    for (int i = 0; i < ARENA; i++)
        arena[i] = (float)i;
    ew_epilogue epilogue = EW_EPILOGUE_INIT;
    epilogue.bias = arena + at.bias;
    epilogue.residual = arena + at.residual;
    epilogue.norm_weight = arena + at.norm_weight;
    epilogue.normed = arena + at.normed;
    const float *B = moves[which].bound ? NULL : arena + at.B;
    const ew_status status =
        fused ? ew_gemm_rs_layer(plan, ROWS, arena + at.A, B, arena + at.C, &epilogue, NULL)
              : ew_gemm_rs(plan, ROWS, arena + at.A, B, arena + at.C, NULL);
    /* Without an epilogue only A, B and C are there. */
    const bool counts =
        fused || (strlen(moves[which].one) == 1 && strlen(moves[which].other) == 1);
    const bool refused = moves[which].refused && counts;
    RANK_CHECK((status == EW_ERR_ARGUMENT) == refused && (refused || status == EW_OK),
               "%s, %s: %s \"%s\"", moves[which].name, fused ? "layer" : "plain",
               ew_status_name(status), ew_last_error());
    char wanted[64], turned[64];
    snprintf(wanted, sizeof wanted, "%s and %s overlap", moves[which].one,
             moves[which].other);
    snprintf(turned, sizeof turned, "%s and %s overlap", moves[which].other,
             moves[which].one);
    RANK_CHECK(!refused || ((strstr(ew_last_error(), wanted) ||
                             strstr(ew_last_error(), turned) || moves[which].bound) &&
                            strstr(ew_last_error(), "\n  fix: ")),
               "%s: \"%s\"", moves[which].name, ew_last_error());
    for (int i = 0; i < ARENA && refused; i++)
        RANK_CHECK(arena[i] == (float)i, "%s: written at %d", moves[which].name, i);
    return 0;
}

static int overlap_body(ew_world *world, void *argument)
{
    (void)argument;
    const ew_problem problem = EW_PROBLEM(ROWS, N, K, EW_FP32);
    float arena[ARENA], B[N * K] = {0};
    ew_plan *plan;
    RANK_OK(ew_plan_create(world, &problem, NULL, &plan));
    for (size_t which = 0; which < sizeof moves / sizeof *moves; which++)
        for (int fused = 0; fused < 2; fused++) {
            RANK_OK(ew_plan_set_weight(plan, B));
            RANK_TRY(try_move(world, plan, arena, which, fused));
        }
    ew_plan_destroy(plan);
    return 0;
}

static void overlapping_memory_is_refused(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_THREADS, 1, overlap_body, NULL);
}

/* A rank without rows has nothing that could overlap, wherever its pointers lead. */
static int rowless_body(ew_world *world, void *argument)
{
    (void)argument;
    const ew_problem problem = EW_PROBLEM(1, N, K, EW_FP32);
    const bool owns = ew_world_rank(world) == 0;
    float A[K] = {1, 1, 1, 1}, B[N * K] = {0}, C[N];
    ew_plan *plan;
    RANK_OK(ew_plan_create(world, &problem, NULL, &plan));
    RANK_OK(ew_gemm_rs(plan, 1, A, B, owns ? C : A, NULL));
    RANK_CHECK(A[0] == 1, "written");
    ew_plan_destroy(plan);
    return 0;
}

static void no_rows_overlap_nothing(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_THREADS, 2, rowless_body, NULL);
}

/* ---- Two users of one world ---- */

enum { CALLS = 300, USERS = 2 };

typedef struct desk {
    ew_world *world;
    ew_plan *plan;
    const float *A;
    int64_t m;
    atomic_int next_call, refused, wrong;
} desk;

enum { DESK_M = 40, DESK_N = 24, DESK_K = 8 };

static bool was_in_use(ew_status status)
{
    return status == EW_ERR_ARGUMENT && error_has("in use", "\n  fix: ", NULL);
}

static void check_desk(desk *d, const float *C)
{
    int64_t first, count;
    ew_owned_rows(d->m, ew_world_size(d->world), ew_world_rank(d->world), &first, &count);
    for (int64_t i = 0; i < count * DESK_N; i++)
        if (C[i] != (float)(DESK_K * ew_world_size(d->world))) {
            atomic_fetch_add(&d->wrong, 1);
            return;
        }
}

/* Makes its share of the calls, and each of them until it is let in. */
static void *use_desk(void *argument)
{
    desk *d = argument;
    float C[DESK_M * DESK_N];
    while (atomic_fetch_add(&d->next_call, 1) < CALLS) {
        ew_status status;
        memset(C, 0xff, sizeof C);
        while (was_in_use(status = ew_gemm_rs(d->plan, d->m, d->A, NULL, C, NULL))) {
            atomic_fetch_add(&d->refused, 1);
            sched_yield();
        }
        if (status != EW_OK) {
            atomic_fetch_add(&d->wrong, 1);
            return NULL;
        }
        check_desk(d, C);
    }
    return NULL;
}

static int desk_open(desk *d, ew_world *world, float *A, const char *config_text)
{
    const ew_problem problem = EW_PROBLEM(DESK_M, DESK_N, DESK_K, EW_FP32);
    ew_config config = EW_CONFIG_INIT;
    float B[DESK_N * DESK_K];
    for (int i = 0; i < DESK_M * DESK_K; i++)
        A[i] = 1;
    for (int i = 0; i < DESK_N * DESK_K; i++)
        B[i] = 1;
    *d = (desk){.world = world, .A = A, .m = DESK_M};
    RANK_OK(ew_config_parse(config_text, &config));
    RANK_OK(ew_plan_create(world, &problem, &config, &d->plan));
    RANK_OK(ew_plan_set_weight(d->plan, B));
    return 0;
}

static int share_a_desk(ew_world *world, void *argument)
{
    float A[DESK_M * DESK_K];
    pthread_t threads[USERS];
    desk d;
    RANK_TRY(desk_open(&d, world, A, argument));
    for (int i = 0; i < USERS; i++)
        RANK_CHECK(pthread_create(&threads[i], NULL, use_desk, &d) == 0, "no thread");
    for (int i = 0; i < USERS; i++)
        pthread_join(threads[i], NULL);
    RANK_CHECK(atomic_load(&d.wrong) == 0, "%d wrong calls", atomic_load(&d.wrong));
    ew_plan_destroy(d.plan);
    return 0;
}

static void two_threads_do_no_harm(void **state)
{
    (void)state;
    static const char *const configs[] = {"workers=1", "workers=2"};
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++)
        for (int num_ranks = 1; num_ranks <= 2; num_ranks++)
            for (int i = 0; i < 2; i++) {
                harness_context("kind %d, W=%d, %s", kind, num_ranks, configs[i]);
                harness_run(both_kinds[kind], num_ranks, share_a_desk, (void *)configs[i]);
            }
}

/* ---- A weight that another thread takes away and brings back ---- */

typedef struct binder {
    ew_plan *plan;
    ew_weight *weight;
    atomic_bool stop;
} binder;

static void *bind_and_unbind(void *argument)
{
    binder *b = argument;
    for (bool bound = true; !atomic_load(&b->stop); bound = !bound)
        if (ew_plan_bind_weight(b->plan, bound ? NULL : b->weight) != EW_OK)
            bound = !bound; /* refused: the other thread is in a call */
    return NULL;
}

static int call_without_a_hold(ew_world *world, void *argument)
{
    enum { ENOUGH = 100000, MOST = 1000000 };
    const ew_problem problem = EW_PROBLEM(DESK_M, DESK_N, DESK_K, EW_FP32);
    float A[DESK_M * DESK_K], B[DESK_N * DESK_K], C[DESK_M * DESK_N];
    binder b = {.stop = false};
    pthread_t thread;
    desk d;
    int without = 0;
    RANK_TRY(desk_open(&d, world, A, argument));
    for (int i = 0; i < DESK_N * DESK_K; i++)
        B[i] = 1;
    RANK_OK(ew_weight_create(world, &problem, NULL, B, &b.weight));
    b.plan = d.plan;
    RANK_OK(ew_plan_bind_weight(b.plan, b.weight));
    RANK_CHECK(pthread_create(&thread, NULL, bind_and_unbind, &b) == 0, "no thread");
    for (int call = 0; call < MOST && without < ENOUGH; call++) {
        memset(C, 0xff, sizeof C);
        const ew_status status = ew_gemm_rs(d.plan, d.m, A, NULL, C, NULL);
        if (status == EW_OK)
            check_desk(&d, C);
        else if (status == EW_ERR_ARGUMENT && error_has("no weight", "\n  fix: ", NULL))
            without++;
        else if (!was_in_use(status))
            atomic_fetch_add(&d.wrong, 1);
    }
    atomic_store(&b.stop, true);
    pthread_join(thread, NULL);
    RANK_CHECK(atomic_load(&d.wrong) == 0, "%d wrong calls", atomic_load(&d.wrong));
    RANK_CHECK(without > 0, "the weight was never away");
    ew_weight_destroy(b.weight);
    ew_plan_destroy(d.plan);
    return 0;
}

static void a_weight_may_go_at_any_time(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++)
        harness_run(both_kinds[kind], 1, call_without_a_hold, (void *)"workers=1");
}

/* ---- A call inside a call ---- */

static desk *interrupted;
static atomic_int inside, refused_inside, odd_inside;

static void call_again(int signal_number)
{
    (void)signal_number;
    static float C[DESK_M * DESK_N];
    memset(C, 0xff, sizeof C);
    const ew_status status =
        ew_gemm_rs(interrupted->plan, interrupted->m, interrupted->A, NULL, C, NULL);
    atomic_fetch_add(&inside, 1);
    if (was_in_use(status))
        atomic_fetch_add(&refused_inside, 1);
    else if (status == EW_OK)
        check_desk(interrupted, C);
    else
        atomic_fetch_add(&odd_inside, 1);
}

static void ring(int microseconds)
{
    struct sigaction action = {.sa_handler = call_again, .sa_flags = SA_RESTART};
    const struct timeval every = {.tv_usec = microseconds};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){every, every}, NULL);
}

/* Until enough calls were interrupted, but not for ever. */
static int call_while_interrupted(ew_world *world, void *argument)
{
    float A[DESK_M * DESK_K], C[DESK_M * DESK_N];
    desk d;
    RANK_TRY(desk_open(&d, world, A, argument));
    interrupted = &d;
    ring(200);
    for (int call = 0; call < 2000000 && atomic_load(&refused_inside) < 20; call++) {
        memset(C, 0xff, sizeof C);
        RANK_OK(ew_gemm_rs(d.plan, d.m, A, NULL, C, NULL));
        check_desk(&d, C);
    }
    signal(SIGALRM, SIG_IGN);
    ring(0);
    signal(SIGALRM, SIG_DFL);
    RANK_CHECK(atomic_load(&d.wrong) == 0, "%d wrong calls", atomic_load(&d.wrong));
    RANK_CHECK(atomic_load(&odd_inside) == 0, "%d unexpected ends",
               atomic_load(&odd_inside));
    RANK_CHECK(atomic_load(&refused_inside) >= 20, "%d of %d refused",
               atomic_load(&refused_inside), atomic_load(&inside));
    ew_plan_destroy(d.plan);
    return 0;
}

static void calls_inside_calls_are_refused(void **state)
{
    (void)state;
    if (FIRST_KIND > 0)
        skip(); /* ThreadSanitizer holds signals back until a call has ended */
    harness_run(EW_RANKS_AS_PROCESSES, 1, call_while_interrupted, "workers=1");
    harness_run(EW_RANKS_AS_PROCESSES, 1, call_while_interrupted, "workers=2");
}

/* Everything that is not for two users, while another has the world. */
static int try_everything(ew_world *world, desk *d)
{
    const ew_problem problem = EW_PROBLEM(1, 1, 1, EW_FP32);
    char mine = 0, all[MAX_W];
    float C[DESK_M * DESK_N];
    ew_plan *plan = NULL;
    ew_timing timing;
    size_t count;
    RANK_CHECK(was_in_use(ew_plan_create(world, &problem, NULL, &plan)) && !plan, "create");
    RANK_CHECK(was_in_use(ew_plan_set_weight(d->plan, d->A)), "set_weight");
    RANK_CHECK(was_in_use(ew_gemm_rs(d->plan, 1, d->A, NULL, C, NULL)), "call");
    RANK_CHECK(was_in_use(ew_gemm_rs_layer(d->plan, 1, d->A, NULL, C, NULL, NULL)),
               "layer");
    RANK_CHECK(was_in_use(ew_plan_wait(d->plan)), "wait");
    RANK_CHECK(was_in_use(ew_plan_timing(d->plan, &timing)), "timing");
    RANK_CHECK(was_in_use(ew_plan_trace_enable(d->plan)), "trace_enable");
    RANK_CHECK(was_in_use(ew_plan_trace(d->plan, NULL, 0, &count)), "trace");
    RANK_CHECK(was_in_use(ew_plan_start_together(d->plan)), "start_together");
    RANK_CHECK(was_in_use(ew_world_allgather(world, &mine, all, 1)), "allgather");
    RANK_CHECK(was_in_use(ew_world_barrier(world)), "barrier");
    ew_plan_destroy(d->plan); /* which is still needed */
    RANK_CHECK(error_has("in use", NULL), "plan_destroy: %s", ew_last_error());
    ew_world_destroy(world);
    RANK_CHECK(error_has("in use", NULL), "world_destroy: %s", ew_last_error());
    return 0;
}

typedef struct stay {
    ew_world *world;
    ew_status status;
} stay;

static void *stay_at_barrier(void *argument)
{
    stay *s = argument;
    /* The other thread, which looks whether this one is here, may have the world itself. */
    for (int ms = 0; was_in_use(s->status = ew_world_barrier(s->world)) && ms < 5000; ms++)
        sleep_ms(1);
    return NULL;
}

/* One thread of rank 0 waits for rank 1, and another tries all the rest meanwhile. */
static int use_twice(ew_world *world, void *argument)
{
    atomic_int *tried = argument;
    float A[DESK_M * DESK_K];
    pthread_t thread;
    desk d;
    RANK_TRY(desk_open(&d, world, A, "workers=1"));
    if (ew_world_rank(world) == 0) {
        stay s = {world, EW_OK};
        RANK_CHECK(pthread_create(&thread, NULL, stay_at_barrier, &s) == 0, "no thread");
        for (int ms = 0; ms < 5000 && !was_in_use(ew_plan_wait(d.plan)); ms++)
            sleep_ms(1);
        const int failed = try_everything(world, &d);
        atomic_store(tried, 1);
        pthread_join(thread, NULL);
        RANK_TRY(failed);
        RANK_OK(s.status);
    } else {
        for (int ms = 0; ms < 10000 && !atomic_load(tried); ms++)
            sleep_ms(1);
        RANK_OK(ew_world_barrier(world));
    }
    float C[DESK_M * DESK_N];
    RANK_OK(ew_gemm_rs(d.plan, DESK_M, A, NULL, C, NULL));
    check_desk(&d, C);
    RANK_CHECK(atomic_load(&d.wrong) == 0, "wrong values");
    ew_plan_destroy(d.plan);
    return 0;
}

static void a_world_in_use_is_refused_everywhere(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        atomic_int *tried = harness_share(sizeof *tried);
        harness_run(both_kinds[kind], 2, use_twice, tried);
        harness_unshare(tried, sizeof *tried);
    }
}

/* ---- Forked children ---- */

typedef enum child_deed {
    CHILD_DESTROYS,
    CHILD_USES,
    CHILD_ABORTS,
    CHILD_DESTROYS_HALF,
    NUM_CHILD_DEEDS
} child_deed;

static bool was_foreign(ew_status status)
{
    return status == EW_ERR_ARGUMENT && error_has("process", "\n  fix: ", NULL);
}

/* 0 when all went as it should. */
static int play_child(ew_world *world, desk *d, child_deed deed)
{
    char mine = 0, all[MAX_W];
    float C[DESK_M * DESK_N];
    if (deed == CHILD_ABORTS)
        ew_world_abort(world);
    if (deed == CHILD_USES)
        return !(was_foreign(ew_gemm_rs(d->plan, d->m, d->A, NULL, C, NULL)) &&
                 was_foreign(ew_plan_wait(d->plan)) &&
                 was_foreign(ew_world_barrier(world)) &&
                 was_foreign(ew_world_allgather(world, &mine, all, 1)) &&
                 ew_world_rank(world) >= 0);
    if (deed != CHILD_DESTROYS_HALF)
        ew_plan_destroy(d->plan);
    ew_world_destroy(world);
    return 0;
}

static int fork_in_the_middle(ew_world *world, void *argument)
{
    const child_deed deed = *(const child_deed *)argument;
    float A[DESK_M * DESK_K], C[DESK_M * DESK_N];
    desk d;
    RANK_TRY(desk_open(&d, world, A, "workers=2"));
    for (int call = 0; call < 3; call++) {
        if (call == 1) {
            const pid_t child = fork();
            if (child == 0) {
                alarm(20); /* which ends a child that waits for ever */
                _exit(play_child(world, &d, deed));
            }
            int status = -1;
            RANK_CHECK(waitpid(child, &status, 0) == child && status == 0,
                       "deed %d: the child ended with %d", (int)deed, status);
        }
        memset(C, 0xff, sizeof C);
        RANK_OK(ew_gemm_rs(d.plan, DESK_M, A, NULL, C, NULL));
        check_desk(&d, C);
        RANK_CHECK(atomic_load(&d.wrong) == 0, "wrong values");
        RANK_OK(ew_world_barrier(world));
    }
    ew_plan_destroy(d.plan);
    return 0;
}

static void forked_children_do_no_harm(void **state)
{
    (void)state;
    if (FIRST_KIND > 0)
        skip(); /* ... and does not see other processes */
    for (int deed = 0; deed < NUM_CHILD_DEEDS; deed++)
        for (int kind = 0; kind < NUM_KINDS; kind++)
            for (int num_ranks = 1; num_ranks <= 2; num_ranks++) {
                harness_context("deed %d, kind %d, W=%d", deed, kind, num_ranks);
                harness_run(both_kinds[kind], num_ranks, fork_in_the_middle, &deed);
            }
}

#ifdef __SANITIZE_THREAD__ /* whose runtime starts a thread of its own */
#define TRY(test) cmocka_unit_test(test)
#else
#define TRY(test) TIDY(test)
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        TRY(plans_in_another_order_are_refused),
        TRY(nobody_outruns_the_records),
        TRY(collectives_compare_kind_and_size),
        TRY(a_collective_is_no_step_of_a_plan),
        TRY(overlapping_memory_is_refused),
        TRY(no_rows_overlap_nothing),
        TRY(two_threads_do_no_harm),
        TRY(a_weight_may_go_at_any_time),
        TRY(a_world_in_use_is_refused_everywhere),
        TRY(calls_inside_calls_are_refused),
        TRY(forked_children_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
