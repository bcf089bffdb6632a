/* A job is a list of problems times a list of entries (methods with their configs),
 * measured problem by problem, all entries of a problem interleaved in one run. */
#ifndef ENTWINE_CLI_JOB_H
#define ENTWINE_CLI_JOB_H

#include "entwine/tune.h"
#include "run/gpus.h"
#include "run/mps.h"
#include "run/ranks.h"

enum {
    CLI_LABEL_BYTES = CLI_METHOD_BYTES + CLI_VARIANT_BYTES + 2,
    CLI_NAME_BYTES = 256, /* and a suite's line has no more */
    CLI_MAX_PROBLEMS = 4096
};

typedef struct cli_problem {
    char name[CLI_NAME_BYTES]; /* of a suite's line, else empty */
    ew_problem problem;
    int num_ranks; /* W */
} cli_problem;

typedef struct cli_entry {
    char label[CLI_LABEL_BYTES]; /* the method, or entwine[config text] */
    char method[CLI_METHOD_BYTES];
    ew_config base;       /* what the user has set */
    ew_config config;     /* base until the preflight, then what the method stands for */
    ew_bench_layer layer; /* what follows the call */
    bool symmetric;       /* where its outputs lie */
    bool uses_nccl;       /* blas on a GPU per rank; known after the preflight */
} cli_entry;

typedef struct cli_job {
    cli_problem *problems;
    int num_problems;
    cli_entry entries[CLI_MAX_METHODS];
    int num_entries;
    int baseline; /* the entry that speedups are relative to, or -1 */
    int repeated; /* the entry that is measured twice in every round, or -1: what the two
                     differ by is drift, not a lead */
    ew_bench_options bench;
    cli_ranks ranks;
    const cli_bed *bed;   /* of every entry */
    bool graph;           /* calls are also timed in a graph, whatever m is */
    int num_plans;        /* of an entry that exist at once; 0 means 1 */
    bool tuned;           /* each entry is tuned before its problem is measured ... */
    double tune_budget_s; /* ... in this much time; 0: in as many calls as any other */
    cli_gpus gpus;        /* of the cuda backend; known after the check */
    cli_mps mps;          /* of a virtual node; known after the preparation */
} cli_job;

/* Builds problems and entries from the settings; default_methods is a comma-separated
 * list for when the user names none.  On failure the error has been printed. */
cli_exit cli_job_init(cli_job *job, const cli_settings *settings, cli_launch *launch,
                      const char *default_methods);
void cli_job_fini(cli_job *job);

cli_exit cli_job_add_problem(cli_job *job, const cli_problem *problem);

/* Appends the problems of the settings' suite, given by name (looked up) or by path; the
 * settings' ranks and types replace the suite's.  On failure the error has been printed. */
cli_exit cli_suite_load(const cli_settings *settings, cli_job *job);

/* Checks every problem with every entry before anything runs or prints, and fits the
 * whole into memory.  On failure the error has been printed. */
cli_exit cli_job_check(cli_job *job);

/* Gives the job's ranks what must be there before they start: an MPS daemon where ranks
 * that are processes share a GPU.  cli_job_fini ends it. */
void cli_job_prepare(cli_job *job);

/* The first entry of this method, or -1. */
int cli_job_find(const cli_job *job, const char *method);

/* Whether a problem's ranks share GPUs. */
bool cli_job_is_virtual(const cli_job *job, const cli_problem *problem);

/* What a document says of an entry beside its result. */
typedef struct cli_extra {
    ew_bench_detail detail;
    bool tuned; /* as follows: */
    ew_tune_result tuning;
    ew_tune_effort effort;
    int num_again; /* of the repeated entry: samples of its second turn in each round */
    double again_us[EW_BENCH_MAX_SAMPLES];
} cli_extra;

/* Measures one problem.  results and extras hold CLI_MAX_METHODS entries; extras may be
 * NULL; error CLI_ERROR_BYTES. */
ew_status cli_job_run(const cli_job *job, const cli_problem *problem,
                      ew_bench_result *results, cli_extra *extras, char *error);

#endif
