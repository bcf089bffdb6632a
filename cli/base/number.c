/* Parsers for numbers, lists and ranges, with checked 64-bit arithmetic throughout. */
#include "base/number.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ITEM = 64 };

__attribute__((format(printf, 2, 3))) static int refuse(char *why, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, CLI_WHY_BYTES, format, arguments);
    va_end(arguments);
    return -1;
}

static int64_t unit_factor(char unit)
{
    static const char units[] = "KMG";
    const char *found = unit ? strchr(units, toupper((unsigned char)unit)) : NULL;
    return found ? INT64_C(1) << 10 * (found - units + 1) : 0;
}

int cli_number_parse(const char *text, cli_bounds bounds, int64_t *value_out, char *why)
{
    int64_t value = 0;
    const char *at = text;
    int overflow = 0;
    int negative = *at == '-';
    at += negative;
    if (!isdigit((unsigned char)*at))
        return refuse(why, *text ? "'%.60s' is not a number" : "no number given", text);
    for (; isdigit((unsigned char)*at); at++)
        overflow |= __builtin_mul_overflow(value, 10, &value) ||
                    __builtin_add_overflow(value, *at - '0', &value);
    if (*at && unit_factor(*at))
        overflow |= __builtin_mul_overflow(value, unit_factor(*at++), &value);
    if (*at)
        return refuse(why, "'%.60s' is not a number (stray '%.20s')", text, at);
    if (overflow)
        return refuse(why, "'%.60s' does not fit in 64 bits", text);
    value = negative ? -value : value;
    if (value < bounds.least || value > bounds.most) {
        bool low = value < bounds.least;
        return refuse(why, "'%.60s' is %s than %" PRId64, text, low ? "less" : "more",
                      low ? bounds.least : bounds.most);
    }
    *value_out = value;
    return 0;
}

cli_values cli_values_or(const cli_values *given, int64_t value)
{
    return given->count ? *given : (cli_values){.at = {value}, .count = 1};
}

static int append(cli_values *values, int64_t value, char *why)
{
    if (values->count == CLI_MAX_VALUES)
        return refuse(why, "more than %d values", CLI_MAX_VALUES);
    values->at[values->count++] = value;
    return 0;
}

/* first-last*factor or first-last+step; `text` is a private copy. */
static int append_range(char *text, cli_bounds bounds, cli_values *values, char *why)
{
    char whole[MAX_ITEM];
    char *dash = strchr(text, '-');
    char *step_at = strpbrk(dash, "*+");
    int64_t first, last, step;
    snprintf(whole, sizeof whole, "%s", text);
    if (!step_at)
        return refuse(why, "range '%s' has no step", whole);
    int multiply = *step_at == '*';
    *dash = *step_at = '\0';
    cli_bounds step_bounds = {multiply ? 2 : 1, INT64_MAX};
    if (cli_number_parse(text, bounds, &first, why) ||
        cli_number_parse(dash + 1, bounds, &last, why) ||
        cli_number_parse(step_at + 1, step_bounds, &step, why))
        return -1;
    if (first > last || (multiply && first == 0))
        return refuse(why, "range '%s' holds no value", whole);
    for (int64_t value = first; value <= last;) {
        if (append(values, value, why))
            return -1;
        if (multiply ? __builtin_mul_overflow(value, step, &value)
                     : __builtin_add_overflow(value, step, &value))
            break;
    }
    return 0;
}

static int append_item(char *item, cli_bounds bounds, cli_values *values, char *why)
{
    int64_t value;
    if (*item == '\0')
        return refuse(why, "the list has an empty entry");
    if (strchr(item + 1, '-'))
        return append_range(item, bounds, values, why);
    if (cli_number_parse(item, bounds, &value, why))
        return -1;
    return append(values, value, why);
}

int cli_values_parse(const char *text, cli_bounds bounds, cli_values *values_out, char *why)
{
    cli_values values = {.count = 0};
    for (;;) {
        char item[MAX_ITEM];
        size_t length = strcspn(text, ",");
        if (length >= sizeof item)
            return refuse(why, "'%.40s...' is not a number", text);
        memcpy(item, text, length);
        item[length] = '\0';
        if (append_item(item, bounds, &values, why))
            return -1;
        if (text[length] == '\0')
            break;
        text += length + 1;
    }
    *values_out = values;
    return 0;
}

int cli_real_parse(const char *text, double least, double most, double *value_out,
                   char *why)
{
    char *end;
    /* strtod would take leading blanks, "inf", "nan" and hexadecimal. */
    if (strspn(text, "0123456789.eE+-") != strlen(text) || !*text)
        return refuse(why, *text ? "'%.60s' is not a number" : "no number given", text);
    errno = 0;
    double value = strtod(text, &end);
    if (*end || end == text)
        return refuse(why, "'%.60s' is not a number", text);
    if (errno == ERANGE || !isfinite(value) || value < least || value > most)
        return refuse(why, "'%.60s' is outside %g..%g", text, least, most);
    *value_out = value;
    return 0;
}
