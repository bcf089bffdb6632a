/* Counts from the environment, figures to standard output. */
#include "stress.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

int64_t stress_count(const char *name, int64_t usual)
{
    const char *text = getenv(name);
    char *end;
    if (!text)
        return usual;
    const long long count = strtoll(text, &end, 10);
    if (*end || end == text || count < 0)
        harness_fail("%s='%s' is no count", name, text);
    return count;
}

void stress_time(stress_times *times, int64_t ns)
{
    if (times->count == times->room) {
        times->room = times->room ? 2 * times->room : 64;
        times->ns = realloc(times->ns, times->room * sizeof *times->ns);
        if (!times->ns)
            harness_fail("no memory for %zu times", times->room);
    }
    times->ns[times->count++] = ns;
}

static char told[2048];

void stress_tell(const char *name, const char *format, ...)
{
    const size_t used = strlen(told);
    char value[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    snprintf(told + used, sizeof told - used, "%s\"%s\": %s", used ? ", " : "", name,
             value);
}

static int by_size(const void *one, const void *other)
{
    const int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

void stress_tell_times(const char *name, stress_times *times)
{
    const size_t count = times->count;
    if (count > 0) {
        qsort(times->ns, count, sizeof *times->ns, by_size);
        stress_tell(
            name, "{\"count\": %zu, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f}",
            count, (double)times->ns[count / 2] * 1e-6,
            (double)times->ns[count * 99 / 100] * 1e-6,
            (double)times->ns[count - 1] * 1e-6);
    }
    free(times->ns);
    *times = (stress_times){0};
}

void stress_figure(const char *name)
{
    printf("figure %s {%s}\n", name, told);
    fflush(stdout);
    told[0] = '\0';
}
