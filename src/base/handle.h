/* What the objects behind the public handles begin with: a word that says what they are.
 * So a handle that was destroyed, or is of another kind, is refused in most cases.  It is
 * no proof: the memory of a destroyed object may have been given to someone else, or back
 * to the system. */
#ifndef EWX_BASE_HANDLE_H
#define EWX_BASE_HANDLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "entwine/entwine.h"

typedef enum ewx_kind {
    EWX_KIND_WORLD = 1,
    EWX_KIND_PLAN = 2,
    EWX_KIND_WEIGHT = 3
} ewx_kind;

typedef struct ewx_handle {
    uint64_t margin[4]; /* unused: free() writes its links into the first bytes */
    uint64_t word;      /* ewx_handle_word(), or with EWX_HANDLE_GONE in it */
} ewx_handle;

#define EWX_HANDLE_GONE ((uint64_t)0x80)

static inline uint64_t ewx_handle_word(ewx_kind kind)
{
    return 0x656e7477696e6500 + (uint64_t)kind; /* "entwine" */
}

static inline void ewx_handle_begin(ewx_handle *handle, ewx_kind kind)
{
    handle->word = ewx_handle_word(kind);
}

/* Just before the object is freed; volatile, or compilers leave the store out. */
static inline void ewx_handle_end(ewx_handle *handle)
{
    *(volatile uint64_t *)&handle->word |= EWX_HANDLE_GONE;
}

static inline uint64_t ewx_handle_read(const void *object)
{
    uint64_t word;
    memcpy(&word, (const char *)object + offsetof(ewx_handle, word), sizeof word);
    return word;
}

/* Not for NULL. */
static inline bool ewx_handle_is(const void *object, ewx_kind kind)
{
    return ewx_handle_read(object) == ewx_handle_word(kind);
}

/* EW_OK for an object of this kind; else EW_ERR_ARGUMENT, which says what was given to the
 * function. */
ew_status ewx_handle_refuse(const void *object, ewx_kind kind, const char *function);
static inline ew_status ewx_handle_check(const void *object, ewx_kind kind,
                                         const char *function)
{
    return object && ewx_handle_is(object, kind)
               ? EW_OK
               : ewx_handle_refuse(object, kind, function);
}

#endif
