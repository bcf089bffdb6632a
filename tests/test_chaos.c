/* Faults on demand: the parser of ENTWINE_FAULT, what each rule does, and chaos: faults
 * drawn from a seed, calls under them, and a judge who knows how each may end.
 *
 *     test_chaos --seed S             runs seed S alone, and tells how it went
 *     test_chaos --seed S COUNT       ... and those after it, and tells of the wrong ones
 */
#include "faultkit.h"
#include "harness.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/clock.h"
#include "entwine/measure.h"
#include "exhaust.h"
#include "stress.h"

/* ---- The parser ---- */

static void good_rules_are_read(void **state)
{
    (void)state;
    ewx_rule rules[EWX_MAX_RULES];
    int count;
    assert_int_equal(ewx_inject_parse("publish:rank=1,tile=7,drop;kill:rank=2,phase=reduce",
                                      rules, &count),
                     EW_OK);
    assert_int_equal(count, 2);
    assert_int_equal(rules[0].deal, EWX_DEAL_DROP);
    assert_int_equal(rules[0].point, EWX_PROBE_PUBLISH);
    assert_int_equal(rules[0].rank, 1);
    assert_int_equal(rules[0].where, 7);
    assert_int_equal(rules[0].nth, 0);
    assert_int_equal(rules[1].deal, EWX_DEAL_KILL);
    assert_int_equal(rules[1].point, EWX_PROBE_REDUCE);
    assert_int_equal(rules[1].rank, 2);
    assert_int_equal(rules[1].nth, 1);
    assert_int_equal(ewx_inject_parse("wait:delay=20,nth=3;memory:nth=9", rules, &count),
                     EW_OK);
    assert_int_equal(rules[0].delay_ms, 20);
    assert_int_equal(rules[0].nth, 3);
    assert_int_equal(rules[1].rank, -1);
    assert_int_equal(ewx_inject_parse("", rules, &count), EW_OK);
    assert_int_equal(count, 0);
}

static const char *const bad_rules[] = {
    "publsh:drop",
    "publish",
    "publish:",
    "publish:drop,",
    "publish:,drop",
    "publish:drop,drop",
    "publish:drop,delay=3",
    "publish:rank=1",
    "publish:rank=-1,drop",
    "publish:rank=256,drop",
    "publish:rank=,drop",
    "publish:rank=1x,drop",
    "publish:tile=99999999999,drop",
    "publish:phase=reduce,drop",
    "publish:dropp",
    "publish:drop;",
    ";publish:drop",
    "publish:drop;;wait:delay=1",
    "wait:rank=1,delay=3",
    "wait:nth=1",
    "wait:delay=60001",
    "kill:rank=1",
    "kill:phase=reduce",
    "kill:rank=1,phase=lunch",
    "kill:rank=1,phase=reduce,nth=0",
    "stop:rank=1,phase=",
    "memory:rank=1",
    "system:nth=1,drop",
    " publish:drop",
    "PUBLISH:drop",
};

static int work_and_tell(ew_world *world, void *argument);

static void bad_rules_are_named(void **state)
{
    (void)state;
    ewx_rule rules[EWX_MAX_RULES];
    char many[1024] = "wait:delay=1";
    int count;
    for (size_t i = 0; i < sizeof bad_rules / sizeof *bad_rules; i++)
        harness_expect_error(ewx_inject_parse(bad_rules[i], rules, &count), EW_ERR_ARGUMENT,
                             "ENTWINE_FAULT", bad_rules[i]);
    for (int i = 0; i < EWX_MAX_RULES; i++)
        strcat(many, ";wait:delay=1");
    harness_expect_error(ewx_inject_parse(many, rules, &count), EW_ERR_ARGUMENT, "16",
                         "many rules");
    setenv("ENTWINE_FAULT", "publish:dropp", 1);
    harness_expect_error(
        ew_run_ranks(EW_RANKS_AS_PROCESSES, 2, NULL, work_and_tell, NULL, NULL),
        EW_ERR_ARGUMENT, "dropp", "a job under a bad rule");
    unsetenv("ENTWINE_FAULT");
}

/* ---- Chaos ---- */

enum {
    MOST_RANKS = 4,
    CALLS = 5,
    TIMEOUT_MS = 400,
    PATIENT_MS = 2000,
    TILES = 4,
    M = 100,
    N = 512,
    K = 32
};
#define SOON_NS 15000000000

typedef struct chaos {
    /* Drawn from the seed. */
    uint64_t seed;
    int num_ranks;
    const char *config;
    char faults[256];
    /* How it may end. */
    bool may_succeed, may_time_out, may_die, may_lack;
    int culprits; /* bits of the ranks that may be blamed */
    int stopped;  /* ... and of those that stop */
    /* How it ended. */
    ew_status statuses[MOST_RANKS];
    char texts[MOST_RANKS][512];
    bool told[MOST_RANKS], wrong[MOST_RANKS];
    int exits[MOST_RANKS];
    ew_status status;
    char text[512];
    int64_t took_ns;
} chaos;

/* Every rank has its own copy, and none of them is allocated. */
static float A[M * K], B[N * K], C[M * N];

static void add_fault(chaos *c, const char *format, ...)
{
    const size_t used = strlen(c->faults);
    va_list arguments;
    va_start(arguments, format);
    if (used)
        strcat(c->faults, ";");
    vsnprintf(c->faults + strlen(c->faults), sizeof c->faults - strlen(c->faults), format,
              arguments);
    va_end(arguments);
}

static void draw_fault(chaos *c, harness_random *random)
{
    static const char *const phases[] = {"bootstrap", "block", "publish", "reduce",
                                         "teardown"};
    const int rank = (int)harness_between(random, 0, c->num_ranks - 1);
    const int nth = (int)harness_between(random, 1, 12);
    const int slot = (int)harness_between(random, 0, TILES * c->num_ranks - 1);
    const int phase = (int)harness_between(random, 0, 4);
    const bool fatal_phase = phase >= 1 && phase <= 3;
    switch (harness_between(random, 0, 9)) {
    case 0:
    case 1: /* late, but in time */
        add_fault(c, "publish:rank=%d,delay=%d,nth=%d", rank, nth * 3, nth);
        return;
    case 2:
        add_fault(c, "wait:delay=%d,nth=%d", nth * 3, nth);
        return;
    case 3: /* a tile that is never published */
        add_fault(c, "publish:rank=%d,tile=%d,drop", rank, slot);
        c->may_succeed = false;
        c->may_time_out = true;
        break;
    case 4: /* ... or by the next call: its data was there all the time */
        add_fault(c, "publish:rank=%d,drop,nth=%d", rank, nth);
        c->may_time_out = true;
        break;
    case 5:
    case 6: /* in a phase that every rank comes to, as often as that */
        add_fault(c, "kill:rank=%d,phase=%s,nth=%d", rank, phases[phase],
                  fatal_phase ? 1 + nth % 4 : 1);
        c->may_succeed &= !(fatal_phase || phase == 0);
        c->may_die = true;
        break;
    case 7:
        c->stopped |= 1 << rank;
        if (c->stopped == (1 << c->num_ranks) - 1)
            return; /* somebody has to be left who notices */
        add_fault(c, "stop:rank=%d,phase=%s,nth=%d", rank, phases[1 + phase % 3],
                  1 + nth % 4);
        c->may_succeed = false;
        c->may_time_out = c->may_die = true;
        break;
    case 8:
        add_fault(c, "memory:rank=%d,nth=%d", rank, nth);
        c->may_lack = true;
        break;
    default:
        add_fault(c, "system:rank=%d,nth=%d", rank, nth * 2);
        c->may_lack = true;
    }
    c->culprits |= 1 << rank;
}

static void draw(chaos *c, uint64_t seed)
{
    static const char *const configs[] = {"", "order=contiguous", "release=partition",
                                          "block=128x128", "release=output"};
    harness_random random = harness_seed(seed);
    *c = (chaos){.seed = seed, .may_succeed = true};
    c->num_ranks = (int)harness_between(&random, 2, MOST_RANKS);
    c->config = configs[harness_between(&random, 0, 4)];
    for (int64_t faults = harness_between(&random, 1, 2); faults > 0; faults--)
        draw_fault(c, &random);
}

static ew_status work(chaos *c, ew_world *world)
{
    const ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    const int rank = ew_world_rank(world), num_ranks = ew_world_size(world);
    ew_config config = EW_CONFIG_INIT;
    ew_plan *plan = NULL;
    ew_config_parse(c->config, &config);
    ew_status status = ew_plan_create(world, &problem, &config, &plan);
    for (uint32_t call = 0; call < CALLS && status == EW_OK; call++) {
        ew_check check = {0};
        ew_exact_fill_a(EW_FP32, call, rank, num_ranks, M, K, A);
        ew_exact_fill_b(EW_FP32, call, rank, EW_WEIGHT_NK, N, K, B);
        memset(C, 0xff, sizeof C);
        status = ew_gemm_rs(plan, M, A, B, C, NULL);
        if (status == EW_OK &&
            ew_exact_verify(&problem, call, rank, num_ranks, M, C, &check) == EW_OK)
            c->wrong[rank] |= check.wrong != 0;
    }
    ew_plan_destroy(plan);
    return status == EW_OK ? ew_world_barrier(world) : status;
}

static int work_and_tell(ew_world *world, void *argument)
{
    chaos *c = argument;
    const int rank = ew_world_rank(world);
    c->statuses[rank] = work(c, world);
    snprintf(c->texts[rank], sizeof c->texts[rank], "%s", ew_last_error());
    c->told[rank] = true;
    return c->statuses[rank] == EW_OK ? 0 : 3;
}

static void run_chaos(chaos *c)
{
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    /* Where nobody is to time out, a machine that is busy shall make nobody. */
    options.timeout_ms = c->may_time_out || c->may_lack ? TIMEOUT_MS : PATIENT_MS;
    const int64_t start_ns = ewx_now_ns();
    setenv("ENTWINE_FAULT", c->faults, 1);
    c->status = ew_run_ranks(EW_RANKS_AS_PROCESSES, c->num_ranks, &options, work_and_tell,
                             c, c->exits);
    snprintf(c->text, sizeof c->text, "%s", ew_last_error());
    unsetenv("ENTWINE_FAULT");
    ewx_inject_load(-1);
    c->took_ns = ewx_now_ns() - start_ns;
}

/* ---- The judge ---- */

static bool blames_a_culprit(const chaos *c, const char *text)
{
    for (int rank = 0; rank < c->num_ranks; rank++) {
        char words[4][32];
        snprintf(words[0], sizeof words[0], "rank %d died", rank);
        snprintf(words[1], sizeof words[1], "of rank %d (", rank);
        snprintf(words[2], sizeof words[2], "for rank %d ", rank);
        snprintf(words[3], sizeof words[3], "rank %d left", rank);
        for (int i = 0; i < 4 && c->culprits & 1 << rank; i++)
            if (strstr(text, words[i]))
                return true;
    }
    return false;
}

/* NULL, or what is wrong with how a rank ended. */
static const char *judge_rank(const chaos *c, int rank)
{
    const ew_status status = c->statuses[rank];
    if (c->wrong[rank])
        return "computed nonsense";
    if (!c->told[rank]) /* killed, or never in a world */
        return c->culprits ? NULL : "vanished";
    if (status == EW_OK)
        return NULL; /* it may have been done before */
    if (c->may_lack)
        return NULL; /* that rank has its own story, the others hear of it in some way */
    if (status == EW_ERR_TIMEOUT && !c->may_time_out)
        return "gave up on somebody who was only late";
    if (status == EW_ERR_PEER_DIED && !c->may_die)
        return "saw a death that was none";
    if (status != EW_ERR_TIMEOUT && status != EW_ERR_PEER_DIED)
        return "has an error that nothing explains";
    return blames_a_culprit(c, c->texts[rank]) ? NULL : "blames the wrong rank";
}

/* Ranks that stopped for a peer all tell the same story. */
static bool tells_another(const chaos *c, int rank)
{
    for (int other = 0; other < rank && !c->may_lack; other++)
        if (c->statuses[other] != EW_OK && c->statuses[rank] != EW_OK &&
            strcmp(c->texts[other], c->texts[rank]) != 0)
            return true;
    return false;
}

static const char *judge(const chaos *c, int *rank_out)
{
    *rank_out = -1;
    if (c->took_ns > SOON_NS)
        return "it took too long";
    if (c->status == EW_OK && !c->may_succeed)
        return "nobody noticed";
    if (c->status != EW_OK && c->culprits == 0)
        return "it failed without a cause";
    for (int rank = 0; rank < c->num_ranks; rank++) {
        const char *wrong = judge_rank(c, rank);
        *rank_out = rank;
        if (wrong || tells_another(c, rank))
            return wrong ? wrong : "tells another story than the rest";
    }
    return NULL;
}

static void tell(const chaos *c, FILE *stream)
{
    fprintf(stream, "seed %" PRIu64 ": W=%d, config '%s', ENTWINE_FAULT=\"%s\"\n", c->seed,
            c->num_ranks, c->config, c->faults);
    fprintf(stream, "  ended as %s in %.2f s: %s\n", ew_status_name(c->status),
            (double)c->took_ns * 1e-9, c->text);
    for (int rank = 0; rank < c->num_ranks; rank++)
        fprintf(stream, "  rank %d: %s, exit %d %s\n", rank,
                c->told[rank] ? ew_status_name(c->statuses[rank]) : "silent",
                c->exits[rank], c->texts[rank]);
}

static bool try_seed(uint64_t seed, bool talk)
{
    chaos *c = harness_share(sizeof *c);
    int rank;
    draw(c, seed);
    run_chaos(c);
    const char *wrong = judge(c, &rank);
    if (talk || wrong)
        tell(c, wrong ? stderr : stdout);
    if (wrong)
        fprintf(stderr, "  WRONG: rank %d %s; replay with test_chaos --seed %" PRIu64 "\n",
                rank, wrong, seed);
    harness_unshare(c, sizeof *c);
    return !wrong;
}

#ifdef __SANITIZE_ADDRESS__
enum { SEEDS = 15 };
#else
enum { SEEDS = 60 };
#endif

static void chaos_ends_well(void **state)
{
    (void)state;
    int wrong = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        wrong += !try_seed(seed, false);
    assert_int_equal(wrong, 0);
}

static void a_seed_draws_the_same_again(void **state)
{
    (void)state;
    chaos one, two;
    int different = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        ewx_rule rules[EWX_MAX_RULES];
        int count;
        draw(&one, seed);
        draw(&two, seed);
        assert_string_equal(one.faults, two.faults);
        assert_int_equal(one.num_ranks, two.num_ranks);
        assert_ptr_equal(one.config, two.config);
        assert_int_equal(ewx_inject_parse(one.faults, rules, &count), EW_OK);
        draw(&two, seed + 1);
        different += strcmp(one.faults, two.faults) != 0;
    }
    assert_true(different > 150);
}

/* The judge must be able to say no. */
static void the_judge_is_strict(void **state)
{
    (void)state;
    int rank;
    chaos c = {.num_ranks = 2, .may_succeed = true, .told = {true, true}};
    assert_null(judge(&c, &rank));
    c.may_succeed = false;
    assert_non_null(judge(&c, &rank));
    c.status = EW_ERR_ABORTED;
    assert_non_null(judge(&c, &rank));
    c.culprits = 2;
    c.statuses[0] = EW_ERR_TIMEOUT;
    assert_non_null(judge(&c, &rank));
    c.may_time_out = true;
    strcpy(c.texts[0], "rank 1 waited 0.4 s for tile (0,1) of rank 0 (saw");
    assert_non_null(judge(&c, &rank));
    strcpy(c.texts[0], "rank 0 waited 0.4 s for tile (0,1) of rank 1 (saw");
    assert_null(judge(&c, &rank));
    c.wrong[1] = true;
    assert_non_null(judge(&c, &rank));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TIDY(good_rules_are_read),
        TIDY(bad_rules_are_named),
        TIDY(a_seed_draws_the_same_again),
        TIDY(the_judge_is_strict),
        TIDY(chaos_ends_well),
    };
    if (argc < 3 || strcmp(argv[1], "--seed") != 0)
        return cmocka_run_group_tests(tests, NULL, NULL);
    const uint64_t first = strtoull(argv[2], NULL, 10);
    const uint64_t count = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    int wrong = 0;
    for (uint64_t seed = first; seed < first + count; seed++)
        wrong += !try_seed(seed, count == 1);
    stress_tell("seeds", "[%" PRIu64 ", %" PRIu64 "]", first, first + count - 1);
    stress_tell("wrong", "%d", wrong);
    stress_figure("chaos");
    return wrong ? 1 : 0;
}
