/* Bounded text building.  Programs may have chosen a locale whose decimal point is a comma;
 * keys, files and messages are the same in all of them. */
#include "base/text.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

/* The thread's locale until it is given back to uselocale. */
static locale_t enter_plain(void)
{
    /* "C" is part of the C library: nothing is allocated, so that nothing can fail. */
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

int ewx_text_print(char *data, size_t bytes, const char *format, va_list args)
{
    const locale_t before = enter_plain();
    const int length = vsnprintf(data, bytes, format, args);
    uselocale(before);
    return length;
}

double ewx_text_number(const char *text, char **end_out)
{
    const locale_t before = enter_plain();
    const double number = strtod(text, end_out);
    uselocale(before);
    return number;
}

void ewx_text_add(ewx_text *text, const char *format, ...)
{
    if (text->truncated)
        return;
    va_list args;
    va_start(args, format);
    const int length =
        ewx_text_print(text->data + text->used, text->bytes - text->used, format, args);
    va_end(args);
    if (length < 0 || (size_t)length >= text->bytes - text->used)
        text->truncated = true;
    else
        text->used += (size_t)length;
}

uint64_t ewx_text_hash(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}
