/* Programs that use the library wrongly: plans in another order than their peers,
 * collectives of another kind or size, memory that overlaps.  Each is refused with an error
 * that says what is wrong, and never answered with wrong values. */
#include "faultkit.h"
#include "harness.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(plans_in_another_order_are_refused), TIDY(nobody_outruns_the_records),
        TIDY(collectives_compare_kind_and_size),  TIDY(a_collective_is_no_step_of_a_plan),
        TIDY(overlapping_memory_is_refused),      TIDY(no_rows_overlap_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
