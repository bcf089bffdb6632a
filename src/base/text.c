/* Bounded text building. */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

void ewx_text_add(ewx_text *text, const char *format, ...)
{
    if (text->truncated)
        return;
    va_list args;
    va_start(args, format);
    const int length =
        vsnprintf(text->data + text->used, text->bytes - text->used, format, args);
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
