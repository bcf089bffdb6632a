/* The cases of the conformance suite: every pair of option values meets in at least one
 * trial, and random combinations beyond.  One suite, a bed of options per backend; whoever
 * asks for the trials runs them.  Knows no test framework. */
#ifndef TESTS_CONFORMANCE_H
#define TESTS_CONFORMANCE_H

#include "trial.h"

typedef struct conformance_bed conformance_bed;
extern const conformance_bed conformance_cpu;
extern const conformance_bed conformance_cuda; /* leaves the kind of ranks to the caller */

typedef void (*conformance_use)(void *context, const trial *trial);

/* Returns how many trials cover every pair; fails the test should one be left out. */
int conformance_every_pair(const conformance_bed *bed, conformance_use use, void *context);

/* Trials of random options and random shapes, one per seed from 1 to num_seeds. */
void conformance_random(const conformance_bed *bed, uint32_t num_seeds, conformance_use use,
                        void *context);

#endif
