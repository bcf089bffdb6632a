/* The words for what plans leave in the world's faults and records. */
#include <inttypes.h>

#include "base/status.h"
#include "base/text.h"
#include "exchange/plan_reports.h"
#include "plan/ops/op.h"
#include "plan/ownership.h"
#include "world/recorder.h"

static ew_status explain_tile(const ewx_fault *f, double timeout_s)
{
    return ewx_fail(
        f->status,
        "rank %d waited %.3g s for %s (%" PRId64 ",%" PRId64 ") of rank %d (plan %" PRIu32
        ", saw epoch %" PRIu32 ", wanted %" PRIu32 ")\n"
        "  fix: see why rank %d makes no progress, or raise the timeout",
        f->reporter, timeout_s, f->code == EWX_FAULT_RESULT ? "the result of tile" : "tile",
        f->detail[0], f->detail[1], f->culprit, f->plan, (uint32_t)f->detail[3],
        (uint32_t)f->detail[2], f->culprit);
}

static ew_status explain_panel(const ewx_fault *f, double timeout_s)
{
    return ewx_fail(
        f->status,
        "rank %d waited %.3g s for the rows of A of rank %d from its row %" PRId64
        " on (plan %" PRIu32 ", saw epoch %" PRIu32 ", wanted %" PRIu32 ")\n"
        "  fix: see why rank %d makes no progress, or raise the timeout",
        f->reporter, timeout_s, f->culprit, f->detail[0], f->plan, (uint32_t)f->detail[3],
        (uint32_t)f->detail[2], f->culprit);
}

static void print_tile(FILE *out, const ewx_fault *f)
{
    if (f->status == EW_ERR_TIMEOUT)
        fprintf(out, ", \"tile\": [%" PRId64 ", %" PRId64 "]", f->detail[0], f->detail[1]);
}

static ew_status explain_readers(const ewx_fault *f, double timeout_s)
{
    return ewx_fail(f->status,
                    "rank %d waited %.3g s for rank %d to finish reading call %" PRIu32
                    " of plan %" PRIu32 " (it is at %" PRIu32 ")\n"
                    "  fix: see why rank %d makes no progress, or raise the timeout",
                    f->reporter, timeout_s, f->culprit, (uint32_t)f->detail[0], f->plan,
                    (uint32_t)f->detail[1], f->culprit);
}

static ew_status explain_rows(const ewx_fault *f, double timeout_s)
{
    (void)timeout_s;
    return ewx_fail(f->status,
                    "ranks disagree: rank %d has m=%" PRId64 ", rank %d has m=%" PRId64
                    " (call %" PRIu32 ")\n  fix: pass the same m on all ranks",
                    f->reporter, f->detail[0], f->culprit, f->detail[1],
                    (uint32_t)f->detail[2]);
}

static void name_form(int64_t form, ewx_text *text)
{
    const bool by_rows = (form & EWX_FORM_OWNERSHIP) == EWX_OWNS_ROWS;
    const char *between = "";
    if (form & EWX_FORM_BIAS) {
        ewx_text_add(text, "a bias");
        between = " and ";
    }
    if (form & EWX_FORM_RESIDUAL) {
        ewx_text_add(text, "%sa residual", between);
        between = " and ";
    }
    if (form & EWX_FORM_NORM)
        ewx_text_add(text, "%sa norm%s", between, by_rows ? " of its own rows" : "");
    if (text->used == 0)
        ewx_text_add(text, "no epilogue");
}

static ew_status explain_form(const ewx_fault *f, double timeout_s)
{
    char mine[80], theirs[80];
    ewx_text my_text = ewx_text_in(mine, sizeof mine);
    ewx_text their_text = ewx_text_in(theirs, sizeof theirs);
    (void)timeout_s;
    name_form(f->detail[0], &my_text);
    name_form(f->detail[1], &their_text);
    return ewx_fail(f->status,
                    "ranks disagree: rank %d passed %s, rank %d %s (call %" PRIu32 ")\n"
                    "  fix: pass the same steps, and residual_rows, on all ranks",
                    f->reporter, mine, f->culprit, theirs, (uint32_t)f->detail[2]);
}

static ew_status explain_order(const ewx_fault *f, double timeout_s)
{
    (void)timeout_s;
    return ewx_fail(f->status,
                    "ranks disagree: rank %d called plan %" PRId64 " as its call %" PRId64
                    ", rank %d as its call %" PRId64 "\n"
                    "  fix: call the plans, which are numbered as they were created, "
                    "in the same order on all ranks",
                    f->reporter, f->detail[2], f->detail[0], f->culprit, f->detail[1]);
}

/* ---- Ranks that do not make the same calls in the same order ---- */

static const char *verb_of(int64_t what)
{
    return ewx_what_kind((uint32_t)what) == EWX_RECORD_PLAN ? "created" : "called";
}

/* The numbers may come from another host: any operation must be answered for. */
static const char *object_of(int64_t what)
{
    if (ewx_what_kind((uint32_t)what) == EWX_RECORD_PLAN)
        return "a plan";
    const ewx_op *op = ewx_op_find((ew_op)ewx_what_op((uint32_t)what));
    return op ? op->function : "an unknown operation";
}

static ew_status explain_operation(const ewx_fault *f, double timeout_s)
{
    (void)timeout_s;
    const int64_t mine = f->detail[1], theirs = f->detail[2];
    if (f->detail[0] == EWX_OPERATION_WHAT)
        return ewx_fail(f->status,
                        "ranks disagree: rank %d %s %s, rank %d %s %s (operation %" PRId64
                        ")\n  fix: make the same calls in the same order on all ranks",
                        f->reporter, verb_of(mine), object_of(mine), f->culprit,
                        verb_of(theirs), object_of(theirs), f->detail[3]);
    if (f->detail[0] == EWX_OPERATION_PLAN)
        return ewx_fail(f->status,
                        "ranks disagree: rank %d called plan %" PRId64
                        ", rank %d called plan %" PRId64 " (operation %" PRId64 ")\n"
                        "  fix: call the plans, which are numbered as they were created, "
                        "in the same order on all ranks",
                        f->reporter, mine, f->culprit, theirs, f->detail[3]);
    return ewx_fail(f->status,
                    "ranks disagree: rank %d has m=%" PRId64 ", rank %d has m=%" PRId64
                    " (operation %" PRId64 ")\n"
                    "  fix: make the same calls in the same order on all ranks",
                    f->reporter, mine, f->culprit, theirs, f->detail[3]);
}

static const ewx_fault_text texts[] = {
    {EWX_FAULT_OPERATION, explain_operation, NULL},
    {EWX_FAULT_TILE, explain_tile, print_tile},
    {EWX_FAULT_RESULT, explain_tile, print_tile},
    {EWX_FAULT_READERS, explain_readers, NULL},
    {EWX_FAULT_ROWS, explain_rows, NULL},
    {EWX_FAULT_ORDER, explain_order, NULL},
    {EWX_FAULT_FORM, explain_form, NULL},
    {EWX_FAULT_PANEL, explain_panel, NULL},
};

const ewx_terms ewx_terms_above = {
    .faults = texts,
    .num_faults = sizeof texts / sizeof *texts,
    .shape = {"m", "n", "k"},
    .steps = {[EWX_STEP_BLOCK] = "block", [EWX_STEP_TILE] = "tile"},
    .awaited = "tile",
};
