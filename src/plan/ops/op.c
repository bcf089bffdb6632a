/* All operations there are. */
#include "plan/ops/op.h"

#include <string.h>

#include "entwine/measure.h"
#include "plan/exact.h"

static const ewx_op *const ops[] = {&ewx_op_gemm_rs, &ewx_op_gemm_ar, &ewx_op_ag_gemm};

double ew_problem_remote_bytes(const ew_problem *problem, int64_t m, int num_ranks)
{
    const ewx_op *op = problem ? ewx_op_of(problem) : NULL;
    return op && num_ranks > 0 ? op->remote_bytes(problem, m, num_ranks) : 0;
}

const ewx_op *ewx_op_find(ew_op id)
{
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (ops[i]->id == id)
            return ops[i];
    return NULL;
}

const char *ew_op_name(ew_op op)
{
    const ewx_op *found = ewx_op_find(op);
    return found ? found->name : "unknown";
}

ewx_rows ewx_rows_dealt(int64_t m, int num_ranks, int rank)
{
    const int64_t share = m / num_ranks, extra = m % num_ranks;
    return (ewx_rows){share * rank + (rank < extra ? rank : extra), share + (rank < extra)};
}

ewx_rows ewx_rows_all(int64_t m, int num_ranks, int rank)
{
    (void)num_ranks, (void)rank;
    return (ewx_rows){0, m};
}

int64_t ewx_cols_n(const ew_problem *problem)
{
    return problem->n;
}

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
