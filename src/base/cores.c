/* Affinity masks, the CPU quotas of cgroup v1 and v2, and SMT siblings from /sys. */
#include "base/cores.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/limits.h"

/* ---- One process ---- */

static bool read_quota(const ewx_cgroup *group, ewx_cpu_quota *quota_out)
{
    enum { MOST_CORES = 1 << 20 };
    uint64_t quota = 0, period = 0;
    const bool is_known =
        group->is_v2 ? ewx_cgroup_numbers(group, "cpu.max", &quota, &period)
                     : ewx_cgroup_number(group, "cpu.cfs_quota_us", NULL, &quota) &&
                           ewx_cgroup_number(group, "cpu.cfs_period_us", NULL, &period);
    if (!is_known || quota == 0 || period == 0 || quota / period >= MOST_CORES ||
        period > UINT64_MAX / 1000)
        return false;
    *quota_out = (ewx_cpu_quota){.group = ewx_cgroup_id(group),
                                 .millicores = quota / period * 1000 +
                                               quota % period * 1000 / period};
    return true;
}

/* None where the mask cannot be read, as under some seccomp filters. */
static ewx_cpus masked_cpus(void)
{
    ewx_cpus cpus = {0};
    if (sched_getaffinity(0, sizeof cpus, (cpu_set_t *)(void *)&cpus) != 0)
        return (ewx_cpus){0};
    return cpus;
}

void ewx_cpu_share_read(ewx_cpu_share *share_out)
{
    ewx_cgroup group;
    *share_out = (ewx_cpu_share){.cpus = masked_cpus()};
    for (bool is_group = ewx_cgroup_find("cpu", &group);
         is_group && share_out->num_quotas < EWX_MAX_CPU_QUOTAS;
         is_group = ewx_cgroup_ascend(&group))
        share_out->num_quotas +=
            read_quota(&group, &share_out->quotas[share_out->num_quotas]);
}

/* ---- Ranks of a host ---- */

static bool read_line(const char *path, char *line, size_t bytes)
{
    FILE *file = ewx_system_open(path);
    const bool is_read = file && fgets(line, (int)bytes, file);
    if (file)
        fclose(file);
    return is_read;
}

/* The hardware threads of the CPU's core; itself where Linux does not say. */
static ewx_cpus siblings_of(int cpu)
{
    static const char *const names[] = {"core_cpus_list", "thread_siblings_list"};
    char path[96], line[256];
    ewx_cpus siblings;
    for (size_t at = 0; at < sizeof names / sizeof names[0]; at++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu,
                 names[at]);
        if (read_line(path, line, sizeof line) && ewx_cpus_parse(line, &siblings) &&
            ewx_cpus_has(&siblings, cpu))
            return siblings;
    }
    siblings = (ewx_cpus){0};
    ewx_cpus_add(&siblings, cpu);
    return siblings;
}

static bool has_smt(void)
{
    char line[8];
    return !read_line("/sys/devices/system/cpu/smt/active", line, sizeof line) ||
           line[0] != '0';
}

static ewx_cpus online_cpus(void)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    ewx_cpus cpus = {0};
    for (int cpu = 0; cpu < EWX_MAX_CPUS && (cpu == 0 || cpu < online); cpu++)
        ewx_cpus_add(&cpus, cpu);
    return cpus;
}

static const ewx_cpus *cpus_of(const ewx_cpu_share *share, const ewx_cpus *unknown)
{
    static const ewx_cpus none;
    return ewx_cpus_equal(&share->cpus, &none) ? unknown : &share->cpus;
}

/* Gives each rank its part of the core. */
static void share_core(const ewx_cpu_share *shares, int count, const ewx_cpus *core,
                       const ewx_cpus *unknown, double *cores)
{
    int users = 0;
    for (int rank = 0; rank < count; rank++)
        users += ewx_cpus_meet(cpus_of(&shares[rank], unknown), core);
    for (int rank = 0; rank < count; rank++)
        if (ewx_cpus_meet(cpus_of(&shares[rank], unknown), core))
            cores[rank] += 1.0 / users;
}

static void share_cores(const ewx_cpu_share *shares, int count, double *cores)
{
    const ewx_cpus unknown = online_cpus();
    const bool smt = has_smt();
    ewx_cpus all = {0}, seen = {0};
    for (int rank = 0; rank < count; rank++)
        ewx_cpus_join(&all, cpus_of(&shares[rank], &unknown));
    for (int cpu = 0; cpu < EWX_MAX_CPUS; cpu++) {
        if (!ewx_cpus_has(&all, cpu) || ewx_cpus_has(&seen, cpu))
            continue;
        ewx_cpus core = {0};
        if (smt)
            core = siblings_of(cpu);
        ewx_cpus_add(&core, cpu);
        ewx_cpus_join(&seen, &core);
        share_core(shares, count, &core, &unknown, cores);
    }
}

static bool is_under(const ewx_cpu_share *share, uint64_t group)
{
    for (uint64_t at = 0; at < share->num_quotas; at++)
        if (share->quotas[at].group == group)
            return true;
    return false;
}

/* The rank's part of its tightest quota, in whole cores and as it is. */
static void share_quotas(const ewx_cpu_share *shares, int count, int rank, double *whole,
                         double *exact)
{
    for (uint64_t at = 0; at < shares[rank].num_quotas; at++) {
        const ewx_cpu_quota *quota = &shares[rank].quotas[at];
        int users = 0;
        for (int other = 0; other < count; other++)
            users += is_under(&shares[other], quota->group);
        *whole = fmin(*whole, (double)((quota->millicores + 999) / 1000) / users);
        *exact = fmin(*exact, (double)quota->millicores / 1000 / users);
    }
}

ewx_provision ewx_cpu_provide(const ewx_cpu_share *shares, int count)
{
    const double almost = 1e-6; /* three thirds of a core may be a little less */
    double cores[EWX_MAX_RANKS] = {0}, least_whole = EWX_MAX_CPUS, least = EWX_MAX_CPUS;
    double all = 0;
    share_cores(shares, count, cores);
    for (int rank = 0; rank < count; rank++) {
        double whole = cores[rank], exact = cores[rank];
        share_quotas(shares, count, rank, &whole, &exact);
        least_whole = fmin(least_whole, whole);
        least = fmin(least, exact);
        all += whole;
    }
    return (ewx_provision){.cores = (int)fmax(all + almost, 1),
                           .each = (int)fmax(least_whole + almost, 1),
                           .is_enough = least + almost >= 1};
}

int ewx_usable_cores(void)
{
    ewx_cpu_share share;
    ewx_cpu_share_read(&share);
    return ewx_cpu_provide(&share, 1).each;
}

/* ---- The processor ---- */

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
