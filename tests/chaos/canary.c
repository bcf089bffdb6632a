/* The delays lie in a ring of buckets of 8 ms each, which covers some minutes. */
#include "canary.h"

#include <signal.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness.h"

#define BUCKET_NS 8000000
enum { NUM_BUCKETS = 1 << 15 };

typedef struct bucket {
    _Atomic int64_t number, late_ns;
} bucket;

static bucket *buckets;
static pid_t canary;

static void note(int64_t began_ns, int64_t late_ns)
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

static void wake(void)
{
    const int64_t began_ns = ewx_now_ns();
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    note(began_ns, ewx_now_ns() - began_ns - 1000000);
}

static void fork_once(void)
{
    const int64_t began_ns = ewx_now_ns();
    const pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    note(began_ns, ewx_now_ns() - began_ns);
}

void canary_start(void)
{
    const pid_t parent = getpid();
    buckets = harness_share(NUM_BUCKETS * sizeof *buckets);
    canary = fork();
    if (canary != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == parent) {
        for (int i = 0; i < 10; i++)
            wake();
        fork_once();
    }
    _exit(0);
}

int64_t canary_late_ns(int64_t from_ns, int64_t to_ns)
{
    int64_t most = 0;
    for (int64_t at = from_ns / BUCKET_NS; at <= to_ns / BUCKET_NS; at++) {
        bucket *b = &buckets[at % NUM_BUCKETS];
        if (atomic_load(&b->number) == at && atomic_load(&b->late_ns) > most)
            most = atomic_load(&b->late_ns);
    }
    return most;
}

void canary_stop(void)
{
    kill(canary, SIGKILL);
    waitpid(canary, NULL, 0);
    harness_unshare(buckets, NUM_BUCKETS * sizeof *buckets);
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
