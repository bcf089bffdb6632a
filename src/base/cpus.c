#include "base/cpus.h"

#include <stdlib.h>

static bool take_number(const char **at, int *number_out)
{
    char *end;
    if (**at < '0' || **at > '9')
        return false;
    const unsigned long value = strtoul(*at, &end, 10);
    *number_out = (int)value;
    *at = end;
    return value < EWX_MAX_CPUS;
}

bool ewx_cpus_parse(const char *text, ewx_cpus *set_out)
{
    *set_out = (ewx_cpus){0};
    for (const char *at = text;;) {
        int first, last;
        if (!take_number(&at, &first))
            return false;
        last = first;
        if (*at == '-' && (at++, !take_number(&at, &last)))
            return false;
        for (int cpu = first; cpu <= last; cpu++)
            ewx_cpus_add(set_out, cpu);
        if (*at != ',')
            return *at == '\0' || *at == '\n';
        at++;
    }
}
