/* The option table, its walk over getopt_long, and the help made from it.  What the
 * values mean is in option_rules.c; this file only knows the table. */
#include "options/options.h"

#include <getopt.h>
#include <stddef.h>
#include <string.h>

#include "options/option_rules.h"

static const cli_choice kinds_of_ranks[] = {
    {"processes", EW_RANKS_AS_PROCESSES}, {"threads", EW_RANKS_AS_THREADS}, {NULL, 0}};
static const cli_choice backends[] = {
    {"cpu", EW_BACKEND_CPU}, {"cuda", EW_BACKEND_CUDA}, {"sim", EW_BACKEND_SIM}, {NULL, 0}};
static const cli_choice formats[] = {{"table", CLI_FORMAT_TABLE},
                                     {"csv", CLI_FORMAT_CSV},
                                     {"json", CLI_FORMAT_JSON},
                                     {NULL, 0}};

_Static_assert(sizeof(ew_backend) == sizeof(int) && sizeof(ew_op) == sizeof(int) &&
                   sizeof(cli_format) == sizeof(int),
               "choices are stored as int");

/* What a row's value is and where it goes. */
/* clang-format off */
#define FIELD(field) offsetof(cli_settings, field)
#define SWITCH(field) {.kind = CLI_VALUE_SWITCH, .offset = FIELD(field)}
#define TEXT(field) {.kind = CLI_VALUE_TEXT, .offset = FIELD(field)}
#define CHOICE(field, list) {.kind = CLI_VALUE_CHOICE, .offset = FIELD(field), .choices = list}
#define COUNT(field, from, to, what) \
    {.kind = CLI_VALUE_COUNT, .offset = FIELD(field), .least = from, .most = to, .fix = what}
#define REAL(field, from, to, what) \
    {.kind = CLI_VALUE_REAL, .offset = FIELD(field), .least = from, .most = to, .fix = what}
#define LIST(field, to, what) \
    {.kind = CLI_VALUE_LIST, .offset = FIELD(field), .least = 1, .most = to, .fix = what}
#define OTHER(setter) {.kind = CLI_VALUE_OTHER, .set = setter}
#define REFUSED(reason, what) {.kind = CLI_VALUE_REFUSED, .why = reason, .fix = what}
#define SIZES "a number such as 1024 or 8K; bench and tune also take 1024,2048 and 1024-8192*2"
#define SOME_RANKS "1 to 256 ranks, such as 4; bench and tune also take 2,4,8 and 2-8*2"
#define RANKS_TO_PLAN "1 to 1024 ranks, such as 8"
#define TIME(field) \
    {.kind = CLI_VALUE_REAL, .offset = FIELD(field), .least = 0.001, .most = 86400, \
     .fix = "a time for each problem, such as 60s or 2m", .endings = "sm", .factors = {1, 60}}
#define PERCENT(field) \
    {.kind = CLI_VALUE_REAL, .offset = FIELD(field), .most = 1000, \
     .fix = "per cent, such as 5%", .endings = "%", .factors = {0.01}}
/* clang-format on */

#define MEASURE (CLI_RUN | CLI_BENCH)
#define LISTS (CLI_BENCH | CLI_TUNE)
#define RECORDS (MEASURE | CLI_TRACE)
#define SHAPE (RECORDS | CLI_PLAN | CLI_DEMO | CLI_TUNE)
#define TALKS (SHAPE | CLI_DOCTOR)
#define ALL (TALKS | CLI_CACHE | CLI_COMPARE | CLI_REPORT | CLI_SIM | CLI_STATUS)

#define LINK                                                                              \
    "emulate a link of RATE GB/s per rank and direction (or gigabits per second, as in "  \
    "2.5Gb), with US us latency (default 5, with cuda 1) and a header of BYTES for each " \
    "128 bytes (default 0)"

static const cli_option option_table[] = {
    {0, "op", "NAME", RECORDS | CLI_PLAN | CLI_TUNE, CHOICE(op, cli_op_choices),
     "gemm-rs (GEMM, then ReduceScatter; the default), gemm-ar (AllReduce) or ag-gemm "
     "(AllGather, then GEMM)"},
    {'W', "ranks", "W", RECORDS | CLI_DEMO | CLI_TUNE | CLI_DOCTOR,
     LIST(ranks, CLI_MAX_RANKS, SOME_RANKS), "ranks that work together (default 2)"},
    {'W', "ranks", "W", CLI_PLAN, LIST(ranks, CLI_MAX_SIMULATED, RANKS_TO_PLAN),
     "ranks that work together (default 2, with --profile 8)"},
    {'m', "rows", "M", SHAPE, LIST(rows, CLI_ANY_COUNT, SIZES),
     "rows of A and of the output (default 1024; demo 2048; plan --profile 8192)"},
    {'N', "cols", "N", SHAPE, LIST(cols, CLI_ANY_COUNT, SIZES),
     "columns of the output (default 1024; demo 2048; plan --profile 8192)"},
    {'k', "depth", "K", SHAPE, LIST(depth, CLI_ANY_COUNT, SIZES),
     "depth of one rank's GEMM (default 512; plan --profile 2048)"},
    {'d', "datatype", "TYPE", SHAPE, OTHER(cli_set_dtypes),
     "fp32, bf16 or fp16 (default fp32; on GPUs, also simulated ones, bf16)"},
    {0, "weight", "LAYOUT", MEASURE | CLI_PLAN, CHOICE(weight, cli_weight_choices),
     "nk (N rows of K, the default) or kn"},
    {0, "suite", "NAME[:TEXT]", LISTS, TEXT(suite),
     "problems of a suite file: a name such as smoke, or a path; with :TEXT only problems "
     "whose names start with TEXT. -W and -d replace what the suite says"},
    {0, "figure", "NAME", CLI_BENCH, TEXT(figure),
     "a figure of the paper's evaluation: its problems and methods; other options replace "
     "parts of them"},
    {0, "method", "A,B", MEASURE, OTHER(cli_set_methods),
     "entwine, sequential, blas; the rivals' ideas static, wavegroup, chunked, "
     "blas-chunked, chunk-signals, fused-push, fused-add, fused-tma-add; "
     "under mpirun also blas+mpi, blas+mpi-best"},
    {0, "method", "NAME", CLI_PLAN | CLI_TUNE, OTHER(cli_set_methods),
     "the method to plan or to tune (default entwine, whose configs alone are stored): "
     "sequential, blas, or one of the rivals' ideas, which entwine bench --help lists; "
     "plan "
     "--profile shows every method"},
    {0, "variant", "TEXT", MEASURE, OTHER(cli_add_variant),
     "one more entwine entry with this config; may be repeated"},
    {0, "baseline-method", "NAME", MEASURE, OTHER(cli_set_baseline),
     "what speedup is relative to (default sequential, else the first method)"},
    {0, "config", "TEXT", RECORDS | CLI_PLAN | CLI_DEMO, OTHER(cli_set_config),
     "schedule of every method, e.g. order=contiguous,x=2"},
    {0, "backend", "NAME", RECORDS | CLI_PLAN | CLI_TUNE, CHOICE(config.backend, backends),
     "cpu, cuda or sim"},
    {0, "profile", "NAME", RECORDS | CLI_PLAN, OTHER(cli_set_profile),
     "hardware to simulate: the name of a profile (entwine sim lists them) or the path of "
     "one; means --backend sim (default h200-8)"},
    {0, "merge", NULL, CLI_TRACE, SWITCH(merge),
     "merge flight recordings of one job and name the rank that diverged first; exit "
     "status 3 when there is one"},
    {0, "ranks-as", "KIND", RECORDS | CLI_DEMO | CLI_TUNE, CHOICE(ranks_as, kinds_of_ranks),
     "processes (default) or threads"},
    {0, "link", "RATE[,US[,BYTES]]", RECORDS, OTHER(cli_set_link), LINK},
    {0, "link", "RATE[,US[,BYTES]]", CLI_DEMO, OTHER(cli_set_link),
     LINK "; without it, one that needs 0.8 of the GEMM's time"},
    {0, "link", "RATE[,US[,BYTES]]", CLI_TUNE,
     REFUSED("entries are for this machine, not for an emulated link",
             "tune without it; bench --link then measures what was found"),
     NULL},
    {'n', "iters", "COUNT", RECORDS | CLI_DEMO | CLI_TUNE,
     COUNT(iters, 1, EW_BENCH_MAX_SAMPLES, "a count from 1 to 1024"),
     "timed calls of each method, 1..1024 (default 15, for a figure 25; demo 9; tune: "
     "calls of each candidate before slow ones drop out, chosen unless given)"},
    {'w', "warmup", "COUNT", RECORDS | CLI_DEMO,
     COUNT(warmup, 0, 1000000, "a count from 0 to 1000000"),
     "calls before timing starts (default 3; demo 1)"},
    {0, "gate", "MS", MEASURE | CLI_DEMO,
     REAL(gate_ms, 0, 1000, "milliseconds; 20 is a good value, and 0 turns it off"),
     "quiet gate: retake samples during which a core was preempted"},
    {0, "idle", "X", MEASURE,
     REAL(
         idle, 0, 100,
         "a multiple of the sample's time; 1 is a good value on a GPU, and 0 turns it off"),
     "rest after each sample, X times as long as it took: a hot GPU lowers its clock "
     "(default 0, with cuda 1)"},
    {0, "skew", "US", MEASURE,
     REAL(skew_us, 0, 1e6, "microseconds, such as 30; 0 turns it off"),
     "in each round every rank starts late by a random time of up to US us (default 0)"},
    {0, "graph", NULL, CLI_BENCH, SWITCH(graph),
     "with cuda: also time 20 replays in a row of a CUDA graph (always done up to 256 "
     "rows)"},
    {0, "seed", "NUMBER", RECORDS | CLI_TUNE,
     COUNT(seed, 0, UINT32_MAX, "a number from 0 to 4294967295"),
     "seed of the inputs and of what is random in a run (default 1)"},
    {'T', "timeout", "SECONDS", RECORDS | CLI_DEMO | CLI_DOCTOR | CLI_TUNE,
     REAL(timeout_s, 0.01, 86400, "seconds, from 0.01 to 86400"),
     "give up on a rank that makes no progress for this long (default 30)"},
    {0, "gflops", "RATE", CLI_PLAN,
     REAL(gflops, 1e-3, 1e9, "GFLOP/s of one rank, for example 75"),
     "GFLOP/s of one rank, for the times and the required bandwidth; not with "
     "--profile, which has rates of its own"},
    {0, "budget", "TIME", CLI_TUNE, TIME(budget_s),
     "time for each problem, e.g. 60s or 2m (default: until the search ends)"},
    {0, "tuned", NULL, CLI_BENCH, SWITCH(tuned),
     "tune each entry's open fields first, all entries with the same effort"},
    {0, "tune-budget", "TIME", CLI_BENCH, TIME(budget_s),
     "with --tuned: time for each entry of a problem (default: until its search ends, or "
     "2000 calls)"},
    {0, "resume", NULL, CLI_TUNE, SWITCH(resume), "skip problems that have an entry"},
    {0, "dry-run", NULL, CLI_TUNE, SWITCH(dry_run), "store nothing"},
    {0, "older", "DAYS", CLI_CACHE,
     REAL(older_days, 0, 36500, "a number of days, such as 30"),
     "prune: also entries older than DAYS"},
    {0, "all", NULL, CLI_CACHE, SWITCH(all), "prune: every entry"},
    {0, "threshold", "PERCENT", CLI_COMPARE, PERCENT(threshold),
     "slower by more than this is a regression (default 5%)"},
    {0, "across-machines", NULL, CLI_COMPARE, SWITCH(across_machines),
     "also judge results of different machines"},
    {'o', "output", "FORMAT",
     MEASURE | CLI_PLAN | CLI_DOCTOR | CLI_TUNE | CLI_COMPARE | CLI_SIM | CLI_STATUS,
     CHOICE(format, formats), "table, csv or json; csv only where calls are timed"},
    {'o', "output", "FILE", CLI_TRACE | CLI_REPORT, TEXT(output_path),
     "where the trace (default trace.json) or the page (default report.html) goes; - is "
     "stdout"},
    {'J', "json", "FILE", MEASURE, TEXT(json_path), "also write JSON to FILE"},
    {'v', "verbose", NULL, CLI_DOCTOR, SWITCH(verbose),
     "also the GPU's kernels: registers, shared memory, occupancy"},
    {'q', "quiet", NULL, TALKS, SWITCH(quiet), "no context lines, no progress"},
    {'h', "help", NULL, ALL, SWITCH(help), "this text"},
};

enum {
    NUM_OPTIONS = sizeof option_table / sizeof option_table[0],
    LONG_BASE = 256, /* getopt values of the table's rows, clear of any letter */
    HELP_COLUMN = 26,
    HELP_WIDTH = 79
};

static bool belongs(const cli_option *option, const cli_command *command)
{
    return (option->commands & (unsigned)command->bit) != 0;
}

/* Fills what getopt wants from the table's rows for this command. */
static void build_getopt(const cli_command *command, struct option *longs, char *letters)
{
    int count = 0;
    *letters++ = ':'; /* so that a missing argument is told from an unknown option */
    for (int row = 0; row < NUM_OPTIONS; row++) {
        const cli_option *option = &option_table[row];
        if (!belongs(option, command))
            continue;
        longs[count++] = (struct option){option->name,
                                         option->argument ? required_argument : no_argument,
                                         NULL, LONG_BASE + row};
        if (option->letter) {
            *letters++ = option->letter;
            if (option->argument)
                *letters++ = ':';
        }
    }
    longs[count] = (struct option){NULL, 0, NULL, 0};
    *letters = '\0';
}

/* A letter may stand for one thing here and for another in the next command. */
static const cli_option *find_option(const cli_command *command, int got)
{
    if (got >= LONG_BASE && got < LONG_BASE + NUM_OPTIONS)
        return &option_table[got - LONG_BASE];
    for (int row = 0; row < NUM_OPTIONS; row++)
        if (option_table[row].letter && option_table[row].letter == got &&
            belongs(&option_table[row], command))
            return &option_table[row];
    return NULL;
}

static cli_exit fail_unknown(const cli_command *command, const char *word, int letter)
{
    const char *names[NUM_OPTIONS + 1];
    char fix[96], name[64];
    int count = 0;
    snprintf(fix, sizeof fix, "entwine %s --help lists the options", command->name);
    if (letter >= '0' && letter <= '9' && command->words)
        snprintf(fix, sizeof fix, "entwine %s -- -%c, if it is not an option",
                 command->name, letter);
    if (letter && strncmp(word, "--", 2) != 0)
        return cli_fail_usage(fix, "'%s' has no option -%c", command->name, letter);
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
    for (int row = 0; row < NUM_OPTIONS; row++)
        if (belongs(&option_table[row], command))
            names[count++] = option_table[row].name;
    names[count] = NULL;
    const char *near = cli_closest(name, names);
    if (near)
        snprintf(fix, sizeof fix, "did you mean --%s?", near);
    return cli_fail_usage(fix, "'%s' has no option '--%s'", command->name, name);
}

/* getopt has reported ':' or '?'; `word` is the argument it looked at. */
static cli_exit fail_getopt(const cli_command *command, int got, const char *word)
{
    const cli_option *known = find_option(command, optopt);
    char fix[96];
    if (!known)
        return fail_unknown(command, word, optopt);
    snprintf(fix, sizeof fix, "entwine %s --help lists the options", command->name);
    return got == ':' ? cli_fail_usage(fix, "--%s needs a value (%s)", known->name,
                                       known->argument)
                      : cli_fail_usage(fix, "--%s takes no value", known->name);
}

/* As many as the help shows, where ... stands for any number. */
static cli_exit take_word(const cli_command *command, char *word, cli_settings *settings)
{
    const bool takes_files = command->words && strstr(command->words, "...");
    int most = command->words ? 1 : 0;
    for (const char *at = command->words; at && *at; at++)
        most += *at == ' ';
    if (takes_files && settings->num_words == CLI_MAX_WORDS)
        return cli_fail_usage("leave some out",
                              "'%s' takes at most %d files: '%.60s' is one too many",
                              command->name, CLI_MAX_WORDS, word);
    if (!takes_files && settings->num_words == most)
        return cli_fail_usage("options start with - or --; see entwine help",
                              "'%s' does not take the argument '%.60s'", command->name,
                              word);
    settings->words[settings->num_words++] = word;
    return CLI_EXIT_OK;
}

cli_exit cli_options_parse(const cli_command *command, int argc, char **argv,
                           cli_settings *settings_out)
{
    struct option longs[NUM_OPTIONS + 1];
    char letters[2 * NUM_OPTIONS + 2];
    cli_settings settings;
    cli_settings_init(&settings);
    build_getopt(command, longs, letters);
    opterr = 0;
    optind = 1;
    for (;;) {
        int looked_at = optind;
        int got = getopt_long(argc, argv, letters, longs, NULL);
        if (got == -1)
            break;
        if (got == ':' || got == '?') {
            /* getopt may have permuted words; the one it refused is just behind it,
             * unless it is inside a cluster of letters. */
            const char *word = optind > looked_at ? argv[optind - 1] : argv[optind];
            return fail_getopt(command, got, word);
        }
        const cli_option *option = find_option(command, got);
        cli_exit failed = cli_option_take(&settings, option, optarg);
        if (failed)
            return failed;
    }
    cli_exit failed = CLI_EXIT_OK;
    while (optind < argc && !settings.help && !failed)
        failed = take_word(command, argv[optind++], &settings);
    if (!settings.help && !failed)
        failed = cli_settings_check(command, &settings);
    if (!failed)
        *settings_out = settings;
    return failed;
}

/* Prints `text` from HELP_COLUMN on, broken at blanks before HELP_WIDTH. */
static void print_wrapped(FILE *stream, const char *text)
{
    int column = HELP_COLUMN;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + length > HELP_WIDTH) {
            fprintf(stream, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            fputc(' ', stream);
            column++;
        }
        fprintf(stream, "%.*s", length, text);
        column += length;
        text += length;
        text += *text == ' ';
    }
    fputc('\n', stream);
}

void cli_options_help(const cli_command *command, FILE *stream)
{
    fprintf(stream, "usage: entwine %s%s%s [options]\n\n%s\n", command->name,
            command->words ? " " : "", command->words ? command->words : "", command->text);
    for (int row = 0; row < NUM_OPTIONS; row++) {
        const cli_option *option = &option_table[row];
        char left[48], letter[5] = "    ";
        if (!option->help || !belongs(option, command))
            continue;
        if (option->letter)
            snprintf(letter, sizeof letter, "-%c, ", option->letter);
        snprintf(left, sizeof left, "  %s--%s%s%s", letter, option->name,
                 option->argument ? " " : "", option->argument ? option->argument : "");
        fprintf(stream, "%-*s", HELP_COLUMN - 1, left);
        if (strlen(left) >= HELP_COLUMN)
            fprintf(stream, "\n%*s", HELP_COLUMN - 1, "");
        fputc(' ', stream);
        print_wrapped(stream, option->help);
    }
    if (command->bit & (MEASURE | CLI_TUNE))
        fputs("\nNumbers: 8192, 8K, 1M.  bench and tune also take lists 8192,16384 and\n"
              "ranges 1024-8192*2 and 1024-4096+512, and run their cartesian product.\n",
              stream);
    fprintf(stream, "\nexamples:\n%s", command->examples);
}
