/* Chaos from outside: starts jobs, kills or stops some of their processes at random times,
 * or freezes all of them for a while, and judges how every survivor ends.
 *
 *     chaos [--blows N] [--freezes N] [--seed S] [--ways run,create,cli,mpi]
 *           [--cli ENTWINE] [--mpi-module MODULE] [--only NUMBER] [--until-bad]
 *
 * N counts those that met a running job; some come when it has ended.  The seed decides who
 * is struck, by what, and when, as a part of the time that such a job takes on this
 * machine.  What is judged wrong is printed with all that the ranks said, and with the
 * options that try the same again. */
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "canary.h"
#include "harness.h"
#include "ordeal.h"
#include "stress.h"

enum { MOST_SHOWN = 12 };

typedef struct tally {
    int64_t tried, hit, verdicts[NUM_VERDICTS];
    int64_t hits_in[NUM_STEPS], bad_in[NUM_STEPS]; /* by what a victim did */
    stress_times deaths, stops;
} tally;

typedef struct options {
    uint64_t seed;
    int64_t blows, freezes, only;
    unsigned ways;
    bool until_bad; /* the first one ends it */
    tools tools;
} options;

/* ---- How long jobs take here ---- */

static spans known[NUM_WAYS][MOST_RANKS + 1][MOST_WORLDS + 1];

/* Other programs make some jobs slow, none fast. */
static void follow(int64_t *known_ns, int64_t ns)
{
    *known_ns = *known_ns == 0 || ns < *known_ns ? ns : *known_ns + (ns - *known_ns) / 8;
}

/* Under mpirun ranks stay until they are dismissed. */
static int64_t last_ns(const ordeal *o)
{
    int64_t last = 0;
    for (int rank = 0; rank < o->fate.num_ranks; rank++) {
        const seat *s = &o->board->seats[rank];
        const bool stays = o->fate.way == WAY_MPI && atomic_load(&s->told);
        const int64_t ns = stays ? s->out_ns : o->ranks[rank].ended_ns;
        last = ns > last ? ns : last;
    }
    return last;
}

static void learn(spans *s, const ordeal *o)
{
    int64_t met_ns = 0;
    for (int rank = 0; rank < o->fate.num_ranks; rank++) {
        const int64_t ns = atomic_load(&o->board->seats[rank].met_ns) - o->started_ns;
        if (ns < 0)
            return; /* not all have met */
        met_ns = ns > met_ns ? ns : met_ns;
    }
    follow(&s->meeting_ns, met_ns);
    if (!judge_was_hit(o))
        follow(&s->whole_ns, last_ns(o) - o->started_ns);
}

static bool measure(const fate *f, const tools *t, spans *spans_out)
{
    ordeal o = {.fate = *f};
    char why[600];
    o.fate.num_victims = 0;
    o.fate.timeout_ms = 60000; /* never to be seen, however busy the machine is */
    attack_run(&o, t, (spans){0}, false);
    const verdict v = judge(&o, why, sizeof why);
    learn(spans_out, &o);
    if (f->way == WAY_CLI)
        follow(&spans_out->whole_ns, o.ended_ns - o.started_ns);
    if (v != VERDICT_GOOD) {
        fprintf(stderr, "an undisturbed job failed: %s\n", why);
        judge_describe(&o);
    }
    munmap(o.board, sizeof *o.board);
    return v == VERDICT_GOOD;
}

/* mpirun takes a second to start them, so that a guess must do. */
static spans *spans_of(const fate *f, const tools *t)
{
    spans *s = &known[f->way][f->num_ranks][f->num_worlds];
    if (f->way == WAY_MPI && s->whole_ns == 0)
        *s = (spans){.meeting_ns = 2000000,
                     .whole_ns = 5000000 * f->num_ranks * f->num_worlds};
    if (s->whole_ns == 0 && !(measure(f, t, s) && measure(f, t, s)))
        harness_fail("ranks cannot work here");
    return s;
}

/* ---- One after the other ---- */

static int64_t num_bad(const tally *c)
{
    return c->tried - c->verdicts[VERDICT_GOOD] - c->verdicts[VERDICT_STARVED];
}

static void count(tally *c, const ordeal *o, verdict v)
{
    c->tried++;
    c->verdicts[v]++;
    c->hit += v != VERDICT_STARVED && (o->frozen || judge_was_hit(o));
    for (int i = 0; i < o->fate.num_victims; i++) {
        if (!o->hit[i] || o->fate.victims[i] == LAUNCHER || o->fate.way == WAY_CLI)
            continue;
        const int step = atomic_load(&o->board->seats[o->fate.victims[i]].step);
        c->hits_in[step]++;
        c->bad_in[step] += v != VERDICT_GOOD;
    }
    if (judge_was_hit(o) && v != VERDICT_HANG)
        stress_time(judge_is_noticed(o) ? &c->deaths : &c->stops, judge_took_ns(o));
}

static void try_one(const options *given, tally *c, uint64_t number, bool freezes)
{
    ordeal o = {.fate = fate_draw(given->seed, number, given->ways, freezes)};
    char why[600], text[400];
    spans *usual = spans_of(&o.fate, &given->tools);
    attack_run(&o, &given->tools, *usual, true);
    const verdict v = judge(&o, why, sizeof why);
    if (!freezes)
        learn(usual, &o);
    count(c, &o, v);
    if ((v != VERDICT_GOOD && v != VERDICT_STARVED && num_bad(c) <= MOST_SHOWN) ||
        given->only >= 0) {
        fate_describe(&o.fate, text, sizeof text);
        fprintf(stderr, "%s: --seed %" PRIu64 " --only %" PRIu64 "%s: %s\n  %s\n",
                verdict_names[v], given->seed, number,
                freezes ? " --freezes 1 --blows 0" : "", text, why);
        judge_describe(&o);
    }
    munmap(o.board, sizeof *o.board);
}

/* Ctrl-C ends it after the job at hand, so that nothing is left behind. */
static volatile sig_atomic_t interrupted;

static void interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

/* Until so many have met a running job. */
static void try_all(const options *given, tally *c, int64_t wanted, bool freezes)
{
    if (given->only >= 0 && wanted > 0)
        try_one(given, c, (uint64_t)given->only, freezes);
    for (uint64_t number = 0; given->only < 0 && c->hit < wanted && !interrupted;
         number++) {
        try_one(given, c, number, freezes);
        if (given->until_bad && num_bad(c) > 0)
            return;
    }
}

static void tell_steps(const char *name, const int64_t *counts)
{
    static const char *const names[] = {
#define CHAOS_STEP_NAME(name, text) text,
        CHAOS_STEPS(CHAOS_STEP_NAME)
#undef CHAOS_STEP_NAME
    };
    char text[500] = "";
    for (int step = 0; step < NUM_STEPS; step++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s\"%s\": %" PRId64,
                 step ? ", " : "{", names[step], counts[step]);
    stress_tell(name, "%s}", text);
}

/* Returns how many were not good. */
static int64_t tell(const char *name, tally *c)
{
    if (c->tried == 0)
        return 0;
    stress_tell("tried", "%" PRId64, c->tried);
    stress_tell("hit", "%" PRId64, c->hit);
    for (int v = VERDICT_GOOD; v < NUM_VERDICTS; v++)
        stress_tell(verdict_names[v], "%" PRId64, c->verdicts[v]);
    if (c->deaths.count + c->stops.count > 0) {
        tell_steps("in", c->hits_in);
        tell_steps("bad_in", c->bad_in);
    }
    stress_tell_times("survivors_of_deaths", &c->deaths);
    stress_tell_times("survivors_of_stops", &c->stops);
    stress_figure(name);
    return num_bad(c);
}

/* ---- The command line ---- */

static unsigned read_ways(char *list)
{
    static const char *const names[] = {"run", "create", "cli", "mpi"};
    unsigned ways = 0;
    for (char *word = strtok(list, ","); word; word = strtok(NULL, ","))
        for (int i = 0; i < NUM_WAYS; i++)
            if (strcmp(word, names[i]) == 0)
                ways |= 1u << i;
    return ways;
}

static options read_options(int argc, char **argv)
{
    static const struct option long_options[] = {
        {"blows", 1, NULL, 'b'}, {"freezes", 1, NULL, 'f'},   {"seed", 1, NULL, 's'},
        {"ways", 1, NULL, 'w'},  {"cli", 1, NULL, 'c'},       {"mpi-module", 1, NULL, 'm'},
        {"only", 1, NULL, 'o'},  {"until-bad", 0, NULL, 'u'}, {NULL, 0, NULL, 0}};
    options given = {.seed = 1, .only = -1, .tools.mpirun = "mpirun"};
    for (int key; (key = getopt_long(argc, argv, "", long_options, NULL)) != -1;)
        switch (key) {
        case 'b':
            given.blows = atoll(optarg);
            break;
        case 'f':
            given.freezes = atoll(optarg);
            break;
        case 's':
            given.seed = strtoull(optarg, NULL, 10);
            break;
        case 'w':
            given.ways = read_ways(optarg);
            break;
        case 'c': /* whole paths: jobs run in a folder of their own */
            given.tools.cli = realpath(optarg, NULL);
            break;
        case 'm':
            given.tools.mpi_module = realpath(optarg, NULL);
            break;
        case 'u':
            given.until_bad = true;
            break;
        case 'o':
            given.only = atoll(optarg);
            break;
        default:
            exit(2);
        }
    return given;
}

/* mpirun starts this program again as a rank: chaos --rank MODULE BOARD */
static int be_rank(const char *module, const char *path)
{
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    board *b = fd < 0 ? MAP_FAILED
                      : mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return b == MAP_FAILED ? 2 : job_under_mpi(b, module);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--rank") == 0)
        return be_rank(argv[2], argv[3]);
    static char self[PATH_MAX];
    options given = read_options(argc, argv);
    tally blows = {0}, freezes = {0};
    if (!given.ways || (given.ways & 1u << WAY_CLI && !given.tools.cli) ||
        (given.ways & 1u << WAY_MPI && !given.tools.mpi_module) ||
        readlink("/proc/self/exe", self, sizeof self - 1) < 0) {
        fprintf(stderr, "chaos: --ways, --cli or --mpi-module is missing\n");
        return 2;
    }
    given.tools.self = self;
    signal(SIGINT, interrupt);
    signal(SIGTERM, interrupt);
    attack_prepare(&given.tools);
    canary_start();
    try_all(&given, &blows, given.blows, false);
    try_all(&given, &freezes, given.freezes, true);
    canary_stop();
    attack_clean_up(&given.tools);
    return tell("blows", &blows) + tell("freezes", &freezes) > 0 ? 1 : 0;
}
