/* Epilogues: the check of their arguments, and one that runs as a step of its own. */
#ifndef EWX_EPILOGUE_H
#define EWX_EPILOGUE_H

#include <stdbool.h>

#include "entwine/entwine.h"

/* Refuses what cannot be the epilogue of a call into C with so many owned rows.  Parts that
 * hold no rows may be NULL. */
ew_status ewx_epilogue_check(const ew_epilogue *epilogue, const void *C, int64_t rows);

/* Whether ew_gemm_rs_layer fuses the epilogue also where it is faster to let it follow; a
 * GPU keeps its choice. */
void ewx_plan_fuse(ew_plan *plan, bool always);

/* Enqueues an epilogue behind an ew_gemm_rs of m rows into `sum`, both on the rank's own
 * stream: what a fused one is compared with. */
ew_status ewx_plan_finish(ew_plan *plan, int64_t m, void *sum, const ew_epilogue *epilogue);

#endif
