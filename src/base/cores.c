/* Affinity mask and cgroup v2 quota. */
#include "base/cores.h"

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

static int quota_cores(void)
{
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!file)
        return 0;
    long long quota = 0, period = 0;
    const int fields = fscanf(file, "%lld %lld", &quota, &period);
    fclose(file);
    if (fields != 2 || quota <= 0 || period <= 0)
        return 0;
    return (int)((quota + period - 1) / period);
}

int ewx_usable_cores(void)
{
    cpu_set_t mask;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof mask, &mask) == 0)
        cores = CPU_COUNT(&mask);
    const int quota = quota_cores();
    if (quota > 0 && quota < cores)
        cores = quota;
    return cores < 1 ? 1 : (int)cores;
}
