/* All operations there are. */
#include "plan/ops/op.h"

static const ewx_op *const ops[] = {&ewx_op_gemm_rs};

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
