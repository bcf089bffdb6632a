/* What stress runs need of the tests: counts that they raise, and figures that they
 * collect.  scripts/stress sets the one and reads the other. */
#ifndef TESTS_STRESS_H
#define TESTS_STRESS_H

#include <stddef.h>
#include <stdint.h>

/* The number in the environment variable `name`, or the usual one. */
int64_t stress_count(const char *name, int64_t usual);

/* Times that are collected one by one. */
typedef struct stress_times {
    int64_t *ns;
    size_t count, room;
} stress_times;

void stress_time(stress_times *times, int64_t ns);
/* One value of the figure to come: how many times, median, 99th percentile and longest. */
void stress_tell_times(const char *name, stress_times *times);
__attribute__((format(printf, 2, 3))) void stress_tell(const char *name, const char *format,
                                                       ...);
/* Prints what was told since the last figure as one line, `figure NAME {JSON}`. */
void stress_figure(const char *name);

#endif
