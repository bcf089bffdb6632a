/* /proc/meminfo and cgroup v2. */
#include "base/memory.h"

#include <stdint.h>
#include <stdio.h>

static size_t available_on_host(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file)
        return SIZE_MAX;
    char line[128];
    unsigned long long kib = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    fclose(file);
    return kib > 0 ? (size_t)kib * 1024 : SIZE_MAX;
}

/* "max" and a missing file both mean no limit. */
static size_t cgroup_value(const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return SIZE_MAX;
    unsigned long long bytes = 0;
    const int fields = fscanf(file, "%llu", &bytes);
    fclose(file);
    return fields == 1 ? (size_t)bytes : SIZE_MAX;
}

size_t ewx_available_memory(void)
{
    const size_t host = available_on_host();
    const size_t limit = cgroup_value("/sys/fs/cgroup/memory.max");
    const size_t used = cgroup_value("/sys/fs/cgroup/memory.current");
    if (limit == SIZE_MAX || used == SIZE_MAX)
        return host;
    const size_t left = limit > used ? limit - used : 0;
    return left < host ? left : host;
}
