/* What a report is made of, inside the report: inputs read and checked, sorted into the
 * problems they measured, and groups of problems that may share a figure. */
#ifndef ENTWINE_CLI_REPORT_DATA_H
#define ENTWINE_CLI_REPORT_DATA_H

#include "report.h"
#include "output/result_file.h"

enum { REPORT_MAX_METHODS = 64, REPORT_LABEL_BYTES = 160 };

typedef struct report_source report_source;

typedef struct report_row {
    const char *method, *config;
    const char *error;                                          /* NULL: it ran */
    double time_us, gemm_us, tail_us, cv, algbw, breq, speedup; /* NAN: none */
} report_row;

/* One problem of one run, with a row for each method. */
typedef struct report_problem {
    const report_source *source;
    const cli_measured *shape; /* m, n, k, ranks, dtype, weight, link */
    const char *name;          /* of a suite's line; NULL: none */
    double link_gbps;          /* 0: no emulated link */
    bool virtual_node, simulated;
    const char *profile;  /* of the simulator; empty: none */
    int sms_per_rank;     /* 0: not on a GPU */
    const char *baseline; /* what its speedups are relative to; NULL: none */
    const report_row *rows;
    int num_rows;
} report_problem;

/* One input: a result document, or a trace. */
struct report_source {
    const char *name; /* in messages */
    const char
        *title; /* on the page: without folders, where that tells it from the others */
    bool is_trace, complete;
    cli_result_file results;  /* of a result document */
    json_t *trace;            /* the document of a trace; owned */
    json_t *context, *clocks; /* the document's; clocks may be NULL */
    const char *time, *commit, *version, *host;
    char machine[320];
    report_row *rows;
    report_problem *problems;
    int num_problems;
};

struct cli_report {
    report_source **sources;
    int num_sources;
};

cli_exit report_read_results(report_source *source, json_t *document);
cli_exit report_read_trace(report_source *source, json_t *document);

/* No figure holds inputs of which this is false: another machine, commit or version. */
bool report_same_section(const report_source *a, const report_source *b);

/* A number of the document; NAN: it is none, or one that no measurement has. */
double report_number(const json_t *object, const char *key);
const char *report_string(const json_t *object, const char *key, const char *otherwise);

/* The row of a method that ran, or NULL. */
const report_row *report_find_row(const report_problem *problem, const char *method);

/* "x" of "backend=cpu,x=2,..." as a number or text; NULL: not there. */
const char *report_config_value(const char *config, const char *key);

/* ---- Groups ---- */

typedef struct report_group {
    const report_problem **problems;
    int num_problems;
    const char *methods[REPORT_MAX_METHODS];
    int num_methods;
    char (*labels)[REPORT_LABEL_BYTES]; /* of the problems: what tells them apart */
    char common[REPORT_LABEL_BYTES];    /* what they have in common */
} report_group;

/* Says of two problems that they belong into one figure: an equivalence. */
typedef bool report_relation(const report_problem *a, const report_problem *b);

/* The group of problems related to the one at `first` of `from`; false: one before it is
 * related to it already, or there is no memory.  Close either way. */
bool report_group_open(report_group *group, const report_group *from, int first,
                       report_relation *related);
void report_group_close(report_group *group);

/* Every problem of a report. */
bool report_group_open_all(report_group *group, const cli_report *report);

typedef double report_value(const report_problem *problem, const report_row *row);
double report_speedup(const report_problem *problem, const report_row *row);
/* GEMM window of `sequential` / time */
double report_efficiency(const report_problem *problem, const report_row *row);
/* Over the problems that the method ran and that have the value; NAN: none. */
double report_geomean(const report_group *group, const char *method, report_value *value,
                      int *count_out);

report_relation report_same_setting; /* input, link, virtual node, simulator, baseline */

#endif
