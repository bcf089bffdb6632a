/* Building short texts in fixed buffers without losing count, numbers as text: with a
 * decimal point, whatever the program's locale; and which characters a terminal obeys. */
#ifndef EWX_BASE_TEXT_H
#define EWX_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ewx_text {
    char *data;
    size_t bytes;
    size_t used;
    bool truncated;
} ewx_text;

static inline ewx_text ewx_text_in(char *data, size_t bytes)
{
    if (bytes > 0)
        data[0] = '\0';
    return (ewx_text){data, bytes, 0, bytes == 0};
}

/* vsnprintf and strtod. */
__attribute__((format(printf, 3, 0))) int ewx_text_print(char *data, size_t bytes,
                                                         const char *format, va_list args);
double ewx_text_number(const char *text, char **end_out);

/* The UTF-8 character at `text` and its length; 0: malformed. */
size_t ewx_text_decode(const char *text, uint32_t *character_out);

/* Whether a character steers what shows it instead of being shown: C0 but for newline and
 * tab, DEL, C1, and those that change the direction of writing. */
bool ewx_text_steers(uint32_t character);

/* Replaces such characters, and what is not UTF-8, by question marks; also line breaks but
 * for those before an indented line, the fix of a message: others are of what it quotes. */
void ewx_text_disarm(char *text);

/* The same of a text that is one line: without line breaks and tabs. */
void ewx_text_disarm_line(char *text);

/* The ending of a noun: 1 rank, 2 ranks. */
static inline const char *ewx_text_plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

/* FNV-1a. */
uint64_t ewx_text_hash(const char *text);

__attribute__((format(printf, 2, 3))) void ewx_text_add(ewx_text *text, const char *format,
                                                        ...);

#endif
