/* What exact inputs must give.  The sanitizers leave this file out (CMakeLists.txt): it
 * runs for every element of every result that is checked. */
#include <stdlib.h>
#include <string.h>

#include "plan/exact.h"
#include "plan/ops/op.h"

/* Rows of B^T, by rank and k: many rows of A meet the same ones, and to work one out takes
 * far longer than to add it.  Where not all have room, several share a place. */
struct ewx_exact_cache {
    int64_t num_places;
    int8_t *values, *sums; /* of every place; of a row of A */
    int64_t held[];        /* which row a place has, from 1 on; 0: none */
};

_Static_assert(EWX_MOST_ENTRIES <= INT8_MAX, "a byte holds the sum of a row's entries");

ewx_exact_cache *ewx_exact_cache_create(const ew_problem *problem, int num_ranks,
                                        int64_t bytes)
{
    const int64_t n = problem->n, wanted = num_ranks * problem->k;
    const int64_t room = bytes / n > 0 ? bytes / n : 1;
    const int64_t places = wanted < room ? wanted : room;
    ewx_exact_cache *cache = calloc(
        1, sizeof *cache + (size_t)places * (sizeof *cache->held + (size_t)n) + (size_t)n);
    if (cache) {
        cache->num_places = places;
        cache->values = (int8_t *)(cache->held + places);
        cache->sums = cache->values + places * n;
    }
    return cache;
}

static const int8_t *row_of_b(const ew_problem *problem, const ewx_exact_call *call, int b,
                              int64_t k)
{
    ewx_exact_cache *cache = call->cache;
    const int64_t row = b * problem->k + k, place = row % cache->num_places;
    int8_t *values = cache->values + place * problem->n;
    if (cache->held[place] != row + 1) {
        const uint32_t salt = ewx_exact_salt(call->seed, b);
        const uint32_t k_hash = ewx_exact_k_hash(k);
        for (int64_t n = 0; n < problem->n; n++)
            values[n] = (int8_t)ewx_exact_b(salt, (uint32_t)n, k_hash);
        cache->held[place] = row + 1;
    }
    return values;
}

static void add(int8_t *restrict sums, const int8_t *restrict values, int sign,
                int64_t count)
{
    for (int64_t n = 0; n < count; n++)
        sums[n] = (int8_t)(sign > 0 ? sums[n] + values[n] : sums[n] - values[n]);
}

void ewx_expect_add(const ew_problem *problem, const ewx_exact_call *call, int a,
                    int64_t row, int b, int32_t *sums)
{
    const uint32_t salt_a = ewx_exact_salt(call->seed, a);
    int8_t *const part = call->cache->sums;
    memset(part, 0, (size_t)problem->n);
    for (int s = 0; s < ewx_exact_entries(call->num_ranks); s++) {
        const ewx_exact_entry e = ewx_exact_a(salt_a, row, s, problem->k);
        add(part, row_of_b(problem, call, b, e.k), e.sign, problem->n);
    }
    for (int64_t n = 0; n < problem->n; n++)
        sums[n] += part[n];
}

void ewx_expect_sum(const ew_problem *problem, const ewx_exact_call *call, int64_t row,
                    int32_t *sums_out)
{
    memset(sums_out, 0, (size_t)problem->n * sizeof *sums_out);
    for (int rank = 0; rank < call->num_ranks; rank++)
        ewx_expect_add(problem, call, rank, row, rank, sums_out);
}
