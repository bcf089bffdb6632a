/* What exact inputs must give.  The sanitizers leave this file out (CMakeLists.txt): it
 * runs for every element of every result that is checked. */
#include <string.h>

#include "plan/exact.h"
#include "plan/ops/op.h"

void ewx_expect_add(const ew_problem *problem, const ewx_exact_call *call, int a,
                    int64_t row, int b, int32_t *sums)
{
    const uint32_t salt_a = ewx_exact_salt(call->seed, a);
    const uint32_t salt_b = ewx_exact_salt(call->seed, b);
    for (int s = 0; s < ewx_exact_entries(call->num_ranks); s++) {
        const ewx_exact_entry e = ewx_exact_a(salt_a, row, s, problem->k);
        const uint32_t k_hash = ewx_exact_k_hash(e.k);
        for (int64_t n = 0; n < problem->n; n++)
            sums[n] += e.sign * ewx_exact_b(salt_b, (uint32_t)n, k_hash);
    }
}

void ewx_expect_sum(const ew_problem *problem, const ewx_exact_call *call, int64_t row,
                    int32_t *sums_out)
{
    memset(sums_out, 0, (size_t)problem->n * sizeof *sums_out);
    for (int rank = 0; rank < call->num_ranks; rank++)
        ewx_expect_add(problem, call, rank, row, rank, sums_out);
}
