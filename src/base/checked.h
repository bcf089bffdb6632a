/* Sizes that cannot overflow silently.  All layout arithmetic goes through here. */
#ifndef EWX_BASE_CHECKED_H
#define EWX_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Products and sums that remember an overflow: test `ok` once, at the end. */
typedef struct ewx_size {
    size_t value;
    bool ok;
} ewx_size;

static inline ewx_size ewx_size_of(int64_t value)
{
    return (ewx_size){(size_t)value, value >= 0};
}

static inline ewx_size ewx_size_mul(ewx_size a, ewx_size b)
{
    ewx_size product = {0, a.ok && b.ok};
    if (__builtin_mul_overflow(a.value, b.value, &product.value) ||
        product.value > (size_t)INT64_MAX)
        product.ok = false;
    return product;
}

static inline ewx_size ewx_size_add(ewx_size a, ewx_size b)
{
    ewx_size sum = {0, a.ok && b.ok};
    if (__builtin_add_overflow(a.value, b.value, &sum.value) ||
        sum.value > (size_t)INT64_MAX)
        sum.ok = false;
    return sum;
}

/* Rounded up to a multiple of `unit`, a power of two. */
static inline ewx_size ewx_size_round_up(ewx_size a, size_t unit)
{
    const ewx_size padded = ewx_size_add(a, (ewx_size){unit - 1, true});
    return (ewx_size){padded.value & ~(unit - 1), padded.ok};
}

#endif
