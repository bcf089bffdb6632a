/* Exact inputs through the public API, on every rank. */
#include "trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTE 0xa5
#define POISON_BYTE 0xff

guarded guarded_create(size_t bytes, size_t elem_bytes)
{
    guarded buffer = {.bytes = bytes};
    buffer.base = aligned_alloc(64, (2 * GUARD_BYTES + bytes + elem_bytes + 63) / 64 * 64);
    if (!buffer.base)
        abort();
    buffer.data = buffer.base + GUARD_BYTES + elem_bytes;
    memset(buffer.base, GUARD_BYTE, GUARD_BYTES + elem_bytes);
    memset((unsigned char *)buffer.data + bytes, GUARD_BYTE, GUARD_BYTES);
    return buffer;
}

void guarded_poison(const guarded *buffer)
{
    memset(buffer->data, POISON_BYTE, buffer->bytes);
}

bool guarded_intact(const guarded *buffer)
{
    const unsigned char *data = buffer->data;
    for (const unsigned char *at = buffer->base; at < data; at++)
        if (*at != GUARD_BYTE)
            return false;
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (data[buffer->bytes + i] != GUARD_BYTE)
            return false;
    return true;
}

void guarded_destroy(guarded *buffer)
{
    free(buffer->base);
    *buffer = (guarded){0};
}

/* ---- A rank ---- */

typedef struct buffers {
    guarded A, B, C;
} buffers;

static int fill(ew_world *world, const trial *t, uint32_t seed, const buffers *b)
{
    const ew_problem *p = &t->problem;
    const int rank = ew_world_rank(world), W = ew_world_size(world);
    RANK_OK(ew_exact_fill_a(p->dtype, seed, rank, W, p->max_m, p->k, b->A.data));
    RANK_OK(ew_exact_fill_b(p->dtype, seed, rank, p->weight_layout, p->n, p->k, b->B.data));
    return 0;
}

static int call(ew_world *world, const trial *t, ew_plan *plan, int number, buffers *b)
{
    const ew_problem *p = &t->problem;
    const int rank = ew_world_rank(world), W = ew_world_size(world);
    const uint32_t seed = t->seed + (t->weight_per_call ? (uint32_t)number : 0);
    const int64_t m = t->rows[number];
    int64_t first, count;
    RANK_OK(ew_owned_rows(m, W, rank, &first, &count));
    if (t->weight_per_call)
        RANK_TRY(fill(world, t, seed, b));
    guarded C = guarded_create((size_t)(count * p->n) * ew_dtype_bytes(p->dtype),
                               ew_dtype_bytes(p->dtype));
    guarded_poison(&C);
    RANK_OK(ew_gemm_rs(plan, m, b->A.data, t->weight_per_call ? b->B.data : NULL, C.data,
                       NULL));
    ew_check check;
    RANK_OK(ew_exact_verify(p, seed, rank, W, m, C.data, &check));
    RANK_CHECK(check.wrong == 0, "call %d, m=%lld: %lld wrong of %lld, max error %g",
               number, (long long)m, (long long)check.wrong, (long long)(count * p->n),
               check.max_abs_err);
    RANK_CHECK(guarded_intact(&C), "call %d, m=%lld: written outside C", number,
               (long long)m);
    guarded_destroy(&C);
    return 0;
}

int trial_body(ew_world *world, void *argument)
{
    const trial *t = argument;
    const ew_problem *p = &t->problem;
    const size_t elem = ew_dtype_bytes(p->dtype);
    buffers b = {.A = guarded_create((size_t)(p->max_m * p->k) * elem, elem),
                 .B = guarded_create((size_t)(p->n * p->k) * elem, elem)};
    ew_plan *plan;
    RANK_OK(ew_plan_create(world, p, &t->config, &plan));
    RANK_TRY(fill(world, t, t->seed, &b));
    if (!t->weight_per_call) {
        RANK_OK(ew_plan_set_weight(plan, b.B.data));
        guarded_poison(&b.B);
    }
    for (int number = 0; number < t->num_calls; number++)
        RANK_TRY(call(world, t, plan, number, &b));
    RANK_OK(ew_plan_wait(plan));
    RANK_CHECK(guarded_intact(&b.A) && guarded_intact(&b.B), "written outside A or B");
    ew_plan_destroy(plan);
    guarded_destroy(&b.A);
    guarded_destroy(&b.B);
    return 0;
}

/* ---- The parent ---- */

static void describe(const trial *t)
{
    char config[EW_CONFIG_TEXT_BYTES] = "?", rows[128] = "";
    const ew_problem *p = &t->problem;
    ew_config_print(&t->config, config, sizeof config);
    for (int number = 0; number < t->num_calls; number++) {
        const size_t used = strlen(rows);
        snprintf(rows + used, sizeof rows - used, " %lld", (long long)t->rows[number]);
    }
    harness_context(
        "W=%d %s %s max_m=%lld N=%lld K=%lld weight=%s %s seed=%u m:%s config=%s",
        t->num_ranks, t->kind == EW_RANKS_AS_THREADS ? "threads" : "processes",
        ew_dtype_name(p->dtype), (long long)p->max_m, (long long)p->n, (long long)p->k,
        p->weight_layout == EW_WEIGHT_NK ? "nk" : "kn",
        t->weight_per_call ? "per call" : "bound", t->seed, rows, config);
}

void trial_run(const trial *t)
{
    trial copy = *t;
    describe(t);
    harness_run_with(t->kind, t->num_ranks, t->options, trial_body, &copy);
    harness_context("%s", "");
}
