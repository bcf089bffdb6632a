/* /proc/meminfo, and the memory controller of cgroup v1 and v2. */
#include "base/memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/cgroup.h"
#include "base/status.h"
#include "base/text.h"

/* v1 writes "no limit" as the largest number of whole pages. */
#define NO_LIMIT ((uint64_t)1 << 60)

/* The end of a long path says more than its beginning. */
static void name_group(ewx_memory_limit *limit, const char *path)
{
    const size_t room = sizeof limit->name - sizeof "cgroup ...";
    const size_t length = strlen(path);
    ewx_text text = ewx_text_in(limit->name, sizeof limit->name);
    ewx_text_add(&text, "cgroup %s%s", length > room ? "..." : "",
                 length > room ? path + length - room : path);
}

static bool read_machine(ewx_memory_limit *limit)
{
    FILE *file = ewx_system_open("/proc/meminfo");
    char line[128];
    unsigned long long total = 0, available = 0;
    bool is_known = false;
    while (file && !is_known && fgets(line, sizeof line, file)) {
        sscanf(line, "MemTotal: %llu kB", &total);
        is_known = sscanf(line, "MemAvailable: %llu kB", &available) == 1;
    }
    if (file)
        fclose(file);
    *limit = (ewx_memory_limit){.limit_bytes = (size_t)total * 1024,
                                .free_bytes = (size_t)available * 1024,
                                .name = "the machine"};
    return is_known;
}

/* Cached files count as used but are dropped for whoever needs the memory; those that were
 * read twice are not counted on. */
static bool read_group(const ewx_cgroup *group, ewx_memory_limit *limit)
{
    uint64_t most = 0, used = 0, cached = 0;
    const bool is_v2 = group->is_v2;
    if (!ewx_cgroup_number(group, is_v2 ? "memory.max" : "memory.limit_in_bytes", NULL,
                           &most) ||
        most >= NO_LIMIT ||
        !ewx_cgroup_number(group, is_v2 ? "memory.current" : "memory.usage_in_bytes", NULL,
                           &used))
        return false;
    (void)ewx_cgroup_number(group, "memory.stat",
                            is_v2 ? "inactive_file" : "total_inactive_file", &cached);
    used -= cached < used ? cached : used;
    *limit = (ewx_memory_limit){.id = ewx_cgroup_id(group),
                                .limit_bytes = (size_t)most,
                                .free_bytes = (size_t)(most > used ? most - used : 0)};
    name_group(limit, group->folder);
    return true;
}

void ewx_memory_limits_read(ewx_memory_limits *limits_out)
{
    ewx_memory_limits limits = {.count = 0};
    ewx_cgroup group;
    limits.count += read_machine(&limits.at[0]);
    bool is_group = ewx_cgroup_find("memory", &group);
    while (is_group && limits.count < EWX_MAX_MEMORY_LIMITS) {
        limits.count += read_group(&group, &limits.at[limits.count]);
        is_group = ewx_cgroup_ascend(&group);
    }
    *limits_out = limits;
}

ew_status ewx_memory_check_shared(const char *what, size_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        bytes <= limit.rlim_cur)
        return EW_OK;
    return ewx_fail(EW_ERR_SYSTEM,
                    "%s takes %zu bytes of shared memory, and a file may have %llu\n"
                    "  fix: raise the limit of file sizes (ulimit -f)",
                    what, bytes, (unsigned long long)limit.rlim_cur);
}
