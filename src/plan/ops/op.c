/* All operations there are. */
#include "plan/ops/op.h"

#include "entwine/measure.h"

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
