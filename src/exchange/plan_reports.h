/* What plans write into the world's faults and records.  src/api/fault_texts.c puts it into
 * words. */
#ifndef EWX_EXCHANGE_PLAN_REPORTS_H
#define EWX_EXCHANGE_PLAN_REPORTS_H

#include <stdbool.h>

#include "world/faults.h"

typedef enum ewx_plan_fault {
    /* detail: tile row, tile column, epoch wanted, epoch seen */
    EWX_FAULT_TILE = EWX_FAULT_FIRST_ABOVE,
    EWX_FAULT_READERS, /* detail: epoch wanted, epoch seen */
    EWX_FAULT_ROWS,    /* detail: reporter's m, culprit's m, epoch */
    EWX_FAULT_ORDER,   /* detail: reporter's number of the call, culprit's, the plan's */
    EWX_FAULT_FORM,    /* detail: reporter's form, culprit's form, epoch */
    EWX_FAULT_RESULT,  /* as EWX_FAULT_TILE, of the tile's sum or norm */
    EWX_FAULT_PANEL    /* detail: the culprit's row, 0, epoch wanted, epoch seen */
} ewx_plan_fault;

/* The form of a call, which all ranks must have alike: an ewx_ownership and, of an
 * AllReduce, the steps behind the sum.  A rank without rows of its own may have a residual
 * or not. */
enum {
    EWX_FORM_OWNERSHIP = 0xff,
    EWX_FORM_BIAS = 1 << 8,
    EWX_FORM_RESIDUAL = 1 << 9,
    EWX_FORM_NO_RESIDUAL = 1 << 10,
    EWX_FORM_NORM = 1 << 11
};

static inline bool ewx_forms_agree(int32_t a, int32_t b)
{
    const int32_t residual = EWX_FORM_RESIDUAL | EWX_FORM_NO_RESIDUAL;
    return ((a ^ b) & ~residual) == 0 && ((a | b) & residual) != residual;
}

/* What ewx_recorder_step counts. */
typedef enum ewx_step {
    EWX_STEP_BLOCK = 1, /* computed; where: its position in the walk */
    EWX_STEP_TILE = 2   /* reduced or copied; where: its task */
} ewx_step;

#endif
