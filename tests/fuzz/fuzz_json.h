/* JSON for the targets that read it.  With malloc under AddressSanitizer most of their time
 * would go into jansson's many small allocations, so these come from one block, which every
 * input begins anew.  What is not allocated in it is poisoned: reading or writing beyond a
 * string, or after its end, is caught as it is with malloc, and so is what nobody frees. */
#ifndef TESTS_FUZZ_JSON_H
#define TESTS_FUZZ_JSON_H

#include "fuzz.h"

#include <jansson.h>
#include <sanitizer/asan_interface.h>

enum {
    FUZZ_BLOCK_BYTES = 64 << 20, /* far more than jansson makes of an input's 8 KiB */
    FUZZ_GAP_BYTES = 16          /* before each allocation; begins with its size */
};

static struct {
    size_t used, num_live;
    _Alignas(FUZZ_GAP_BYTES) unsigned char block[FUZZ_BLOCK_BYTES];
} fuzz_memory;

/* Sizes lie where nobody may read; and the fuzzer need not learn from these functions. */
#define FUZZ_UNSEEN __attribute__((no_sanitize("address", "undefined", "coverage")))

FUZZ_UNSEEN static size_t *fuzz_size_of(void *allocated)
{
    return (size_t *)(void *)((unsigned char *)allocated - FUZZ_GAP_BYTES);
}

FUZZ_UNSEEN static void *fuzz_allocate(size_t bytes)
{
    const size_t gap = FUZZ_GAP_BYTES, rounded = (bytes + gap - 1) / gap * gap;
    FUZZ_DEMAND(rounded + gap <= FUZZ_BLOCK_BYTES - fuzz_memory.used);
    void *allocated = fuzz_memory.block + fuzz_memory.used + gap;
    fuzz_memory.used += gap + rounded;
    fuzz_memory.num_live++;
    *fuzz_size_of(allocated) = bytes;
    ASAN_UNPOISON_MEMORY_REGION(allocated, bytes);
    return allocated;
}

FUZZ_UNSEEN static void fuzz_free(void *allocated)
{
    if (!allocated)
        return;
    FUZZ_DEMAND(!__asan_address_is_poisoned(allocated)); /* freed twice */
    ASAN_POISON_MEMORY_REGION(allocated, *fuzz_size_of(allocated));
    fuzz_memory.num_live--;
}

/* The input as JSON, or NULL. */
static inline json_t *fuzz_json(const uint8_t *data, size_t bytes)
{
    json_error_t error;
    json_set_alloc_funcs(fuzz_allocate, fuzz_free);
    ASAN_POISON_MEMORY_REGION(fuzz_memory.block,
                              fuzz_memory.used ? fuzz_memory.used : FUZZ_BLOCK_BYTES);
    fuzz_memory.used = 0;
    return json_loadb((const char *)data, bytes, JSON_REJECT_DUPLICATES, &error);
}

/* The end of an input; documents have been freed. */
static inline void fuzz_json_end(void)
{
    FUZZ_DEMAND(fuzz_memory.num_live == 0);
}

#endif
