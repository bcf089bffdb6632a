/* Affinity mask and cgroup v2 quota. */
#include "base/cores.h"

#include <string.h>

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
    FILE *file = fopen("/proc/cpuinfo", "r");
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
