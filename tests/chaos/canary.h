/* How busy the machine is: a process on each CPU, up to 16, that sleeps, wakes and forks
 * all the time, and notes how much later than on an idle machine it is done.  What ranks
 * are late by for want of a core is no fault of theirs.  On each, because the host of a
 * virtual machine may take away one CPU alone, and Linux does not move what runs there. */
#ifndef TESTS_CHAOS_CANARY_H
#define TESTS_CHAOS_CANARY_H

#include <stdint.h>
#include <sys/types.h>

void canary_start(void);
int canary_count(void);
/* The longest delay that one of them suffered in that time. */
int64_t canary_late_ns(int64_t from_ns, int64_t to_ns);
void canary_stop(void);

/* How long the first thread of a process has been ready to run without a core, so far; 0 if
 * the kernel does not tell. */
int64_t queued_ns(pid_t pid);

#endif
