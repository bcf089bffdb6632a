/* What the fuzz targets share.  A target is one LLVMFuzzerTestOneInput that hands the
 * input to a parser; what the parser accepts must also survive being printed and read
 * back.  A broken promise ends in abort(), which the fuzzer reports like a crash. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define FUZZ_DEMAND(condition) \
    do {                       \
        if (!(condition))      \
            abort();           \
    } while (0)

/* The input as text in memory of just its size, so that reading on is caught; free() it. */
static inline char *fuzz_text(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1);
    FUZZ_DEMAND(text);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    return text;
}

#endif
