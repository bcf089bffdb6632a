/* What a report is made of, inside the report: inputs read and checked, and the problems
 * that they measured with every number that the page shows. */
#ifndef ENTWINE_CLI_REPORT_INPUTS_H
#define ENTWINE_CLI_REPORT_INPUTS_H

#include "report/report.h"
#include "output/derived.h"
#include "output/result_file.h"

/* In the order in which the page has them. */
typedef enum report_value {
    REPORT_TIME,
    REPORT_GEMM,
    REPORT_TAIL,
    REPORT_CV,
    REPORT_SPEEDUP,
    REPORT_EFFICIENCY,
    REPORT_REQUIRED,
    REPORT_ACHIEVED,
    REPORT_RELATIVE,      /* time, the baseline's being 1 */
    REPORT_RELATIVE_GEMM, /* the same up to the end of the GEMM window */
    REPORT_LOW,           /* of the speedup, 95 % */
    REPORT_HIGH,
    REPORT_NUM_VALUES
} report_value;

typedef struct report_row {
    const cli_measured *measured;
    const char *config;
    const char *error;                /* NULL: it ran */
    double values[REPORT_NUM_VALUES]; /* NAN: none */
} report_row;

/* One input: a result document, a run of a collection, or a trace. */
typedef struct report_source {
    int number;               /* its place among all sources */
    const char *name;         /* of the input */
    int run;                  /* of a collection, from 1; 0: of none */
    cli_result_file results;  /* of a result document */
    json_t *trace;            /* the document of a trace; owned */
    const json_t *context;    /* the document's */
    const json_t *network;    /* of a run between emulated hosts; NULL: none */
    const json_t *collection; /* the first run's: what its runs were measured for */
    const char *commit, *version;
    char machine[320];
    int section; /* a number of its machine, commit and version: figures do not mix them */
    int hosts;   /* the first source of its network */
    report_row *rows;
} report_source;

/* One problem of one run, with a row for each method. */
typedef struct report_problem {
    const report_source *source;
    const cli_measured *shape;
    const json_t *params;
    bool is_virtual; /* a virtual node */
    double link_gbs, waves, gain;
    const char *lead;     /* ahead, level or behind all other methods; NULL: unknown */
    const char *baseline; /* what its speedups are relative to; NULL: none */
    report_row *rows;
    int num_rows;
    int group; /* problems that share a figure have the same, from 0 */
} report_problem;

struct cli_report {
    report_source **sources;
    int num_sources;
    report_problem *problems;
    int num_problems, num_groups;
    json_t *collections; /* documents that sources point into */
    json_t *settings;    /* what the problems of a group share, and its number */
    json_t *sections;    /* the same of sections */
};

/* What has the same text has the same number, counted from 0 in the order of appearance:
 * finding its like takes no longer among many.  `known` keeps the numbers. */
int report_number_of(json_t *known, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A number of the document; NAN: it has none there, or one that no measurement has. */
double report_number(const json_t *object, const char *key);
const char *report_string(const json_t *object, const char *key, const char *otherwise);

/* The row of a method that ran, or NULL. */
const report_row *report_find_row(const report_problem *problem, const char *method);

/* The page's data, in report_model.c: all that its script draws, as one JSON object.  NULL:
 * no memory. */
json_t *report_model(const cli_report *report);

#endif
