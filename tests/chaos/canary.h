/* How busy the machine is: a process that sleeps, wakes and forks all the time, and notes
 * how much later than on an idle machine it is done.  What ranks are late by for want of a
 * core is no fault of theirs. */
#ifndef TESTS_CHAOS_CANARY_H
#define TESTS_CHAOS_CANARY_H

#include <stdint.h>
#include <sys/types.h>

void canary_start(void);
/* The longest delay that it suffered in that time. */
int64_t canary_late_ns(int64_t from_ns, int64_t to_ns);
void canary_stop(void);

/* How long the first thread of a process has been ready to run without a core, so far; 0 if
 * the kernel does not tell. */
int64_t queued_ns(pid_t pid);

#endif
