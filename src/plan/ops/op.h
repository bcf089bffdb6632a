/* An operation as a value: what crosses between the ranks, who waits for whom, and which
 * rows of A and C a rank has.  One file of this folder describes each; everything above and
 * below asks it instead of hard-coding one operation.  Pure: no memory, no backend. */
#ifndef EWX_PLAN_OPS_OP_H
#define EWX_PLAN_OPS_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "entwine/entwine.h"

/* Consecutive rows of a matrix. */
typedef struct ewx_rows {
    int64_t first, count;
} ewx_rows;

typedef struct ewx_exact_cache ewx_exact_cache;

/* A call with the inputs of exact.h, on one rank. */
typedef struct ewx_exact_call {
    uint32_t seed;
    int num_ranks, rank;
    int64_t m;
    ewx_exact_cache *cache; /* for the expected rows of this call */
} ewx_exact_call;

typedef struct ewx_op {
    ew_op id;
    const char *name;     /* in tuning keys, messages and documents: "gemm-rs" */
    const char *function; /* in messages about calls: "ew_gemm_rs" */

    /* Which of the m rows of A, and of C, lie on a rank. */
    ewx_rows (*rows_a)(int64_t m, int num_ranks, int rank);
    ewx_rows (*rows_c)(int64_t m, int num_ranks, int rank);

    /* The matrix that crosses has max_m rows and this many columns; its rows are cut into
     * parts.  Every rank's heap holds its contributions to all parts or, where the GEMM
     * waits, its own part. */
    int64_t (*exchanged_cols)(const ew_problem *problem);
    int (*num_parts)(int num_ranks);

    /* Who waits for whom.  The kernel that is waited for is launched first and must always
     * find room. */
    bool gemm_waits; /* for what crosses; else what crosses waits for the GEMM */

    /* Bytes that a rank gets from all others in a call of m rows. */
    double (*remote_bytes)(const ew_problem *problem, int64_t m, int num_ranks);

    /* Row `row` of the whole C. */
    void (*expect_row)(const ew_problem *problem, const ewx_exact_call *call, int64_t row,
                       int32_t *sums_out);
} ewx_op;

extern const ewx_op ewx_op_gemm_rs, ewx_op_gemm_ar, ewx_op_ag_gemm;

/* NULL: there is no such operation. */
const ewx_op *ewx_op_find(ew_op id);
/* The operation of a problem that has been checked. */
static inline const ewx_op *ewx_op_of(const ew_problem *problem)
{
    return ewx_op_find(problem->op);
}

/* Whether the ranks of a host may sum first, for another one: where a tile has one owner,
 * whatever m is. */
static inline bool ewx_op_has_levels(const ewx_op *op, int num_ranks)
{
    return !op->gemm_waits && op->num_parts(num_ranks) > 1;
}

/* ---- What several operations have in common ---- */

/* Rows dealt out evenly: the first m mod W ranks have one more. */
ewx_rows ewx_rows_dealt(int64_t m, int num_ranks, int rank);
/* Every rank has all of them. */
ewx_rows ewx_rows_all(int64_t m, int num_ranks, int rank);
int64_t ewx_cols_n(const ew_problem *problem);
/* Of about so many bytes; NULL: no memory.  free() releases it. */
ewx_exact_cache *ewx_exact_cache_create(const ew_problem *problem, int num_ranks,
                                        int64_t bytes);
/* A row of the sum over all ranks of A * B^T. */
void ewx_expect_sum(const ew_problem *problem, const ewx_exact_call *call, int64_t row,
                    int32_t *sums_out);
/* Adds a row of the A of rank `a`, multiplied with the B of rank `b`. */
void ewx_expect_add(const ew_problem *problem, const ewx_exact_call *call, int a,
                    int64_t row, int b, int32_t *sums);

#endif
