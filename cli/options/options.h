/* The command line as data.  One table (options.c) drives parsing, the help text of
 * every command and the suggestions for misspelt options. */
#ifndef ENTWINE_CLI_OPTIONS_H
#define ENTWINE_CLI_OPTIONS_H

#include <stdbool.h>
#include <stdio.h>

#include "base/interrupt.h"
#include "base/message.h"
#include "base/number.h"
#include "entwine/measure.h"
#include "options/bed.h"

enum {
    CLI_MAX_METHODS = 40,     /* methods and variants together */
    CLI_MAX_SIMULATED = 1024, /* ranks of a forecast */
    CLI_MAX_WORDS = 64,       /* arguments of a command that are not options */
    CLI_METHOD_BYTES = 32,
    CLI_VARIANT_BYTES = EW_CONFIG_TEXT_BYTES /* every key once, with the longest value */
};

typedef enum cli_format { CLI_FORMAT_TABLE, CLI_FORMAT_CSV, CLI_FORMAT_JSON } cli_format;

typedef enum cli_command_bit {
    CLI_RUN = 1,
    CLI_BENCH = 2,
    CLI_PLAN = 4,
    CLI_DOCTOR = 8,
    CLI_DEMO = 16,
    CLI_TUNE = 32,
    CLI_CACHE = 64,
    CLI_COMPARE = 128,
    CLI_TRACE = 256,
    CLI_REPORT = 512,
    CLI_SIM = 1024,
    CLI_STATUS = 2048
} cli_command_bit;

/* What the user asked for.  Nothing here depends on the machine. */
typedef struct cli_settings {
    cli_values ranks, rows, cols, depth; /* W, M, N, K per rank */
    cli_values dtypes;                   /* ew_dtype values */
    char methods[CLI_MAX_METHODS][CLI_METHOD_BYTES];
    int num_methods;
    const char *variants[CLI_MAX_METHODS]; /* config texts of further entwine entries */
    ew_config variant_configs[CLI_MAX_METHODS];
    int num_variants;
    const char *baseline_method; /* NULL: sequential, or the first */
    ew_config config;            /* base of every method */
    int64_t iters, warmup;       /* -1: not given */
    double timeout_s;            /* 0: the library's default */
    double link_gbs;             /* GB/s per rank and direction; 0: no emulated link */
    double link_latency_us;      /* -1: not given */
    double link_header_bytes;
    double gate_ms;
    double idle; /* -1: not given */
    double skew_us;
    bool graph;
    double gflops; /* 0: not given */
    ew_ranks_as ranks_as;
    ew_weight_layout weight;
    ew_op op;
    int64_t seed; /* fits 32 bits */
    const char *suite;
    const char *figure; /* its name; NULL: none */
    cli_format format;
    const char *json_path;
    const char *output_path; /* trace, report: NULL: not given; -: stdout */
    const char *words[CLI_MAX_WORDS];
    int num_words;
    bool tuned;           /* bench: tune each entry's open fields before measuring */
    double budget_s;      /* tune: of each problem, bench: of each entry; 0: not given */
    bool dry_run;         /* tune: store nothing */
    const char *profile;  /* of the sim backend; NULL: the library's choice */
    bool merge;           /* trace: recordings are merged, no call is traced */
    bool resume;          /* tune: skip problems that have an entry */
    double older_days;    /* cache prune; -1: not given */
    bool all;             /* cache prune */
    double threshold;     /* compare: 0.05 is five per cent */
    bool across_machines; /* compare */
    bool quiet;
    bool verbose;
    bool help;
} cli_settings;

typedef struct cli_command {
    const char *name;
    cli_command_bit bit;
    const char *summary; /* one line, for the list of commands */
    const char *text;    /* a few lines, for the help of the command */
    const char *examples;
    const char *words; /* arguments as the help shows them; NULL: the command takes none */
    cli_exit (*main)(const cli_settings *settings, int argc, char **argv);
} cli_command;

/* Parses argv[1..] of a command (argv[0] is its name).  On failure the error has been
 * printed and the exit status is returned; otherwise CLI_EXIT_OK. */
cli_exit cli_options_parse(const cli_command *command, int argc, char **argv,
                           cli_settings *settings_out);

void cli_options_help(const cli_command *command, FILE *stream);

bool cli_method_needs_mpi(const char *method);

/* Whether the name of a method ends with "+symmetric": its outputs lie in symmetric memory.
 * Bytes of the name before that, or all of it, go to length_out. */
bool cli_method_symmetric(const char *name, int *length_out);

/* What the name ends with before that, "entwine+fused": how the rest of a layer follows its
 * call.  Bytes of the name before both, or all of it, go to length_out. */
ew_bench_layer cli_method_layer(const char *name, int *length_out);

/* What the job runs on: the config's backend, or the cpu. */
const cli_bed *cli_settings_bed(const cli_settings *settings);

/* A problem with the operation and the layout that were asked for. */
ew_problem cli_settings_problem(const cli_settings *settings, int64_t rows, int64_t cols,
                                int64_t depth, ew_dtype dtype);

/* Fields that `over` leaves open are taken from `base`. */
ew_config cli_config_merge(const ew_config *base, const ew_config *over);

/* The only value of an option that takes one, or `otherwise`. */
int64_t cli_value_or(const cli_values *given, int64_t otherwise);

#endif
