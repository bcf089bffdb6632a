/* A profile in the making: its numbers, and the calls that tell them.  Every measured
 * number is the one with which the simulator gives its call the time that was measured. */
#ifndef ENTWINE_CLI_CALIBRATE_H
#define ENTWINE_CLI_CALIBRATE_H

#include <stdbool.h>
#include <stdio.h>

#include "entwine/measure.h"

enum {
    CALIBRATE_PROBES = 32,
    CALIBRATE_NUMBERS = 64,
    CALIBRATE_TEXT = 16384, /* bytes of a profile */
    CALIBRATE_SOURCE = 160,
    CALIBRATE_TOLERANCE = 15 /* percent, that the judge's call may be off */
};

/* The range of rates and times that have no bounds of their own: wide enough for every
 * machine, so that a number which ends at one of its ends is wrong. */
static const double calibrate_least = 1e-3, calibrate_most = 1e6;

/* What a number is told by. */
typedef enum calibrate_window { CALIBRATE_GEMM, CALIBRATE_TAIL } calibrate_window;

/* One call: entries of one shape are measured side by side. */
typedef struct calibrate_probe {
    ew_problem problem;
    int num_ranks;
    const char *method, *config; /* the second as text, may be "" */
    bool ran;
    ew_config used; /* measured, from here on */
    double gemm_us, tail_us, time_us;
} calibrate_probe;

typedef struct calibrate_number {
    const char *key;
    double x;                     /* of a curve's point; 0: the number stands alone */
    double value;                 /* assumed, until it is solved for */
    const calibrate_probe *probe; /* NULL: a fact, or an estimate */
    calibrate_window window;
    double least, most;
    char source[CALIBRATE_SOURCE]; /* of one without a probe */
} calibrate_number;

/* What there is to calibrate. */
typedef struct calibrate_machine {
    bool is_gpu;
    int num_ranks;
    int cores;               /* cpu */
    int gpus, sharers, arch; /* gpu: of the node, ranks on one of them */
    int sms;                 /* of a whole GPU */
    int sms_per_rank;
    char device[64]; /* empty: none to name */
} calibrate_machine;

typedef struct calibration {
    calibrate_machine machine;
    calibrate_probe probes[CALIBRATE_PROBES];
    int num_probes;
    calibrate_number numbers[CALIBRATE_NUMBERS];
    int num_numbers;
    calibrate_probe *judge; /* told nothing: how well the profile predicts */
} calibration;

/* The calls and numbers of a machine. */
void calibrate_plan(calibration *c, const calibrate_machine *machine);

/* The blas method turned out to do without NCCL. */
void calibrate_drop_nccl(calibration *c);

/* Solves for every number whose call ran.  EW_OK, or why the simulator refuses. */
ew_status calibrate_solve(calibration *c);

/* What the simulator says of a probe's call with the numbers as they are; NAN: nothing. */
double calibrate_time_us(const calibration *c, const calibrate_probe *probe);

/* Whether the numbers can be trusted: none is at an end of that range, and the judge's call
 * takes as long with them as it was measured to.  If not, `why` says it. */
bool calibrate_check(const calibration *c, char *why, size_t bytes);

/* The profile as text of CALIBRATE_TEXT bytes.  `how` says how numbers were told, e.g.
 * "measured, 2026-11-15". */
void calibrate_print(const calibration *c, const char *how, char *text);

#endif
