/* Bounded text building.  Programs may have chosen a locale whose decimal point is a comma;
 * keys, files and messages are the same in all of them. */
#include "base/text.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- What terminals obey ---- */

size_t ewx_text_decode(const char *text, uint32_t *character_out)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char first = (unsigned char)*text;
    const size_t length = first < 0x80   ? 1
                          : first < 0xc0 ? 0
                          : first < 0xe0 ? 2
                          : first < 0xf0 ? 3
                          : first < 0xf8 ? 4
                                         : 0;
    uint32_t character = length < 2 ? first : first & (0x7fu >> length);
    for (size_t at = 1; at < length; at++) {
        if ((text[at] & 0xc0) != 0x80) /* also the end of the text */
            return 0;
        character = character << 6 | (text[at] & 0x3fu);
    }
    *character_out = character;
    return character < least[length] || character > 0x10ffff ? 0 : length;
}

bool ewx_text_steers(uint32_t character)
{
    static const uint32_t ranges[][2] = {
        {0x00, 0x08},     {0x0b, 0x1f},     {0x7f, 0x9f},    {0x61c, 0x61c},
        {0x200e, 0x200f}, {0x202a, 0x202e}, {0x2066, 0x2069}};
    for (size_t at = 0; at < sizeof ranges / sizeof ranges[0]; at++)
        if (character >= ranges[at][0] && character <= ranges[at][1])
            return true;
    return false;
}

void ewx_text_disarm(char *text)
{
    char *to = text;
    while (*text) {
        uint32_t character;
        const size_t length = ewx_text_decode(text, &character);
        if (length == 0 || ewx_text_steers(character) ||
            (character == '\n' && strncmp(text + 1, "  ", 2) != 0)) {
            *to++ = '?';
        } else {
            memmove(to, text, length);
            to += length;
        }
        text += length ? length : 1;
    }
    *to = '\0';
}

void ewx_text_disarm_line(char *text)
{
    ewx_text_disarm(text);
    for (text = strpbrk(text, "\n\t"); text; text = strpbrk(text, "\n\t"))
        *text = '?';
}

uint64_t ewx_text_hash(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}
