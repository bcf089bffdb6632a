/* What each operation consists of on the CPU: one file of this folder lists its kinds of
 * work, most urgent first, and the engine's loop walks the list. */
#ifndef EWX_CPU_OPS_H
#define EWX_CPU_OPS_H

#include "backend/cpu/call.h"

typedef struct ewx_cpu_op {
    ew_op id;
    /* Who sums what in a call. */
    ewx_ownership (*ownership)(const ewx_spec *spec, const ewx_call *asked);
    bool shares_steps; /* all ranks must pass the same epilogue */
    int num_work;
    const ewx_work *work[EWX_MAX_WORK];
} ewx_cpu_op;

extern const ewx_cpu_op ewx_cpu_gemm_rs, ewx_cpu_gemm_ar, ewx_cpu_ag_gemm;

/* NULL: the CPU engine does not have it. */
const ewx_cpu_op *ewx_cpu_op_find(ew_op id);

#endif
