/* Affinity mask, and the CPU quotas of cgroup v1 and v2. */
#include "base/cores.h"

#include <string.h>

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "base/cgroup.h"

/* Cores that fit into a quota, rounded up; 0: no quota. */
static uint64_t quota_of(const ewx_cgroup *group)
{
    uint64_t quota = 0, period = 0;
    const bool is_known =
        group->is_v2 ? ewx_cgroup_numbers(group, "cpu.max", &quota, &period)
                     : ewx_cgroup_number(group, "cpu.cfs_quota_us", NULL, &quota) &&
                           ewx_cgroup_number(group, "cpu.cfs_period_us", NULL, &period);
    if (!is_known || quota == 0 || period == 0)
        return 0;
    return quota / period + (quota % period > 0);
}

/* The kernel keeps a process's mask inside its cpuset.  0: the mask cannot be read, as on a
 * machine with more processors than a cpu_set_t has. */
static int masked_cores(void)
{
    cpu_set_t mask;
    return sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 0;
}

int ewx_usable_cores(void)
{
    const int masked = masked_cores();
    const long online = masked > 0 ? masked : sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t cores = online < 1 ? 1 : (uint64_t)online;
    ewx_cgroup group;
    for (bool is_group = ewx_cgroup_find("cpu", &group); is_group;
         is_group = ewx_cgroup_ascend(&group)) {
        const uint64_t quota = quota_of(&group);
        if (quota > 0 && quota < cores)
            cores = quota;
    }
    return (int)cores;
}

/* The value behind "name\t: " in a line of /proc/cpuinfo, or NULL. */
static char *value_of(char *line, const char *name)
{
    char *colon = strchr(line, ':');
    if (!colon || strncmp(line, name, strlen(name)) != 0)
        return NULL;
    line[strcspn(line, "\n")] = '\0';
    return colon[1] == ' ' ? colon + 2 : colon + 1;
}

void ewx_cpu_model(ewx_text *text)
{
    char line[512], *value;
    FILE *file = ewx_system_open("/proc/cpuinfo");
    const size_t before = text->used;
    /* The first processor's: x86 has a name, ARM an implementer and a part. */
    while (file && fgets(line, sizeof line, file) && line[0] != '\n') {
        if ((value = value_of(line, "model name")))
            ewx_text_add(text, "%s", value);
        else if ((value = value_of(line, "CPU implementer")) ||
                 (value = value_of(line, "CPU part")))
            ewx_text_add(text, "%s%s", text->used > before ? "-" : "arm-", value);
    }
    if (file)
        fclose(file);
    if (text->used == before)
        ewx_text_add(text, "unknown");
}
