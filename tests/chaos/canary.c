/* The delays lie in rings of buckets of 8 ms each, which cover some minutes. */
#include "canary.h"

#include <sched.h>
#include <signal.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness.h"

#define BUCKET_NS 8000000
enum { NUM_BUCKETS = 1 << 15, MOST_CANARIES = 16 };

typedef struct bucket {
    _Atomic int64_t number, late_ns;
} bucket;

typedef bucket ring[NUM_BUCKETS];

static ring *rings; /* one for each canary */
static pid_t canaries[MOST_CANARIES];
static int num_canaries;

static void note(bucket *buckets, int64_t began_ns, int64_t late_ns)
{
    /* A delay counts wherever it lies, as it may have begun long before. */
    for (int64_t at = began_ns / BUCKET_NS; at <= ewx_now_ns() / BUCKET_NS; at++) {
        bucket *b = &buckets[at % NUM_BUCKETS];
        if (atomic_load(&b->number) != at)
            atomic_store(&b->late_ns, 0);
        atomic_store(&b->number, at);
        if (late_ns > atomic_load(&b->late_ns))
            atomic_store(&b->late_ns, late_ns);
    }
}

static void wake(bucket *buckets)
{
    const int64_t began_ns = ewx_now_ns();
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    note(buckets, began_ns, ewx_now_ns() - began_ns - 1000000);
}

static void fork_once(bucket *buckets)
{
    const int64_t began_ns = ewx_now_ns();
    const pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    note(buckets, began_ns, ewx_now_ns() - began_ns);
}

/* On one CPU, or on any if that is -1. */
static void start_one(int cpu)
{
    const pid_t parent = getpid();
    bucket *const buckets = rings[num_canaries];
    const pid_t canary = fork();
    if (canary != 0) {
        canaries[num_canaries++] = canary;
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    cpu_set_t here;
    CPU_ZERO(&here);
    if (cpu >= 0) {
        CPU_SET(cpu, &here);
        sched_setaffinity(0, sizeof here, &here);
    }
    while (getppid() == parent) {
        for (int i = 0; i < 10; i++)
            wake(buckets);
        fork_once(buckets);
    }
    _exit(0);
}

void canary_start(void)
{
    cpu_set_t all;
    rings = harness_share(MOST_CANARIES * sizeof *rings);
    const bool is_known = sched_getaffinity(0, sizeof all, &all) == 0;
    for (int cpu = 0; is_known && cpu < CPU_SETSIZE && num_canaries < MOST_CANARIES; cpu++)
        if (CPU_ISSET(cpu, &all))
            start_one(cpu);
    if (num_canaries == 0)
        start_one(-1);
}

int canary_count(void)
{
    return num_canaries;
}

/* Until a canary has noted that bucket: on a CPU that was taken away for a while, what is
 * judged may have run again before it.  Gives up on one that is gone. */
static void await_note(const bucket *buckets, int64_t at)
{
    for (int tries = 0; tries < 2000; tries++) {
        if (atomic_load(&buckets[at % NUM_BUCKETS].number) >= at)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

int64_t canary_late_ns(int64_t from_ns, int64_t to_ns)
{
    int64_t most = 0;
    for (int i = 0; i < num_canaries; i++) {
        await_note(rings[i], to_ns / BUCKET_NS);
        for (int64_t at = from_ns / BUCKET_NS; at <= to_ns / BUCKET_NS; at++) {
            bucket *b = &rings[i][at % NUM_BUCKETS];
            if (atomic_load(&b->number) == at && atomic_load(&b->late_ns) > most)
                most = atomic_load(&b->late_ns);
        }
    }
    return most;
}

void canary_stop(void)
{
    for (int i = 0; i < num_canaries; i++) {
        kill(canaries[i], SIGKILL);
        waitpid(canaries[i], NULL, 0);
    }
    num_canaries = 0;
    harness_unshare(rings, MOST_CANARIES * sizeof *rings);
}

int64_t queued_ns(pid_t pid)
{
    char path[64];
    int64_t ran_ns, waited_ns = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/schedstat", (int)pid, (int)pid);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%" SCNd64 " %" SCNd64, &ran_ns, &waited_ns) != 2)
        waited_ns = 0;
    if (file)
        fclose(file);
    return waited_ns;
}
