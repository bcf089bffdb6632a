/* Exact inputs through the public API, on every rank. */
#include "trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTE 0xa5
#define POISON_BYTE 0xff
#define GPU_ALIGNMENT 16

/* ---- Buffers with guards ---- */

/* Host memory of the very size, not the backend's: AddressSanitizer then sees a read past
 * the end too. */
static ew_status allocate(ew_world *world, ew_backend backend, size_t bytes,
                          void **memory_out)
{
    if (backend != EW_BACKEND_CPU)
        return ew_memory_alloc(world, backend, bytes, memory_out);
    *memory_out = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!*memory_out)
        abort();
    return EW_OK;
}

static unsigned char *end_of(const guarded *buffer)
{
    return (unsigned char *)buffer->data + buffer->bytes;
}

int guarded_create(guarded *buffer, ew_world *world, ew_backend backend, size_t bytes,
                   size_t elem_bytes)
{
    const size_t lead =
        GUARD_BYTES + (backend == EW_BACKEND_CPU ? elem_bytes : GPU_ALIGNMENT);
    void *base;
    *buffer = (guarded){.world = world, .backend = backend, .bytes = bytes};
    RANK_OK(allocate(world, backend, lead + bytes + GUARD_BYTES, &base));
    buffer->base = base;
    buffer->data = buffer->base + lead;
    RANK_OK(ew_memory_fill(world, backend, buffer->base, GUARD_BYTE, lead));
    RANK_OK(ew_memory_fill(world, backend, end_of(buffer), GUARD_BYTE, GUARD_BYTES));
    return 0;
}

int guarded_write(const guarded *buffer, const void *from)
{
    ew_world *world = buffer->world;
    RANK_OK(ew_memory_copy(world, buffer->backend, buffer->data, from, buffer->bytes));
    return 0;
}

int guarded_read(const guarded *buffer, void *to)
{
    ew_world *world = buffer->world;
    RANK_OK(ew_memory_copy(world, buffer->backend, to, buffer->data, buffer->bytes));
    return 0;
}

int guarded_poison(const guarded *buffer)
{
    ew_world *world = buffer->world;
    RANK_OK(
        ew_memory_fill(world, buffer->backend, buffer->data, POISON_BYTE, buffer->bytes));
    return 0;
}

static int check_edge(const guarded *buffer, const void *edge, size_t bytes,
                      const char *name)
{
    ew_world *world = buffer->world;
    unsigned char copy[2 * GUARD_BYTES];
    RANK_OK(ew_memory_copy(world, buffer->backend, copy, edge, bytes));
    for (size_t i = 0; i < bytes; i++)
        RANK_CHECK(copy[i] == GUARD_BYTE, "written outside %s", name);
    return 0;
}

int guarded_check(const guarded *buffer, const char *name)
{
    const size_t lead = (size_t)((unsigned char *)buffer->data - buffer->base);
    RANK_TRY(check_edge(buffer, buffer->base, lead, name));
    return check_edge(buffer, end_of(buffer), GUARD_BYTES, name);
}

void guarded_destroy(guarded *buffer)
{
    if (buffer->backend == EW_BACKEND_CPU)
        free(buffer->base);
    else if (buffer->base)
        ew_memory_free(buffer->world, buffer->backend, buffer->base);
    *buffer = (guarded){0};
}

/* ---- A rank ---- */

typedef struct stand {
    ew_world *world;
    const trial *trial;
    ew_backend backend;
    ew_plan *plan;
    ew_weight *weight;
    guarded A, B, C;
    void *staging; /* host memory as large as the largest of them */
} stand;

static size_t matrix_bytes(const stand *s, int64_t rows, int64_t cols)
{
    return (size_t)(rows * cols) * ew_dtype_bytes(s->trial->problem.dtype);
}

static int create(stand *s, guarded *buffer, int64_t rows, int64_t cols)
{
    return guarded_create(buffer, s->world, s->backend, matrix_bytes(s, rows, cols),
                          ew_dtype_bytes(s->trial->problem.dtype));
}

static int fill(stand *s, uint32_t seed)
{
    ew_world *world = s->world;
    const ew_problem *p = &s->trial->problem;
    const int rank = ew_world_rank(world), W = ew_world_size(world);
    RANK_OK(ew_exact_fill_a(p->dtype, seed, rank, W, p->max_m, p->k, s->staging));
    RANK_TRY(guarded_write(&s->A, s->staging));
    RANK_OK(
        ew_exact_fill_b(p->dtype, seed, rank, p->weight_layout, p->n, p->k, s->staging));
    return guarded_write(&s->B, s->staging);
}

/* Made before the plan, of a problem and a config that have only the needful in common. */
static int make_weight(stand *s)
{
    ew_world *world = s->world;
    ew_problem problem = s->trial->problem;
    ew_config config = EW_CONFIG_INIT;
    problem.max_m = -1;
    config.backend = s->trial->config.backend;
    config.producer = s->trial->config.producer;
    config.invariant = s->trial->config.invariant;
    RANK_OK(ew_weight_create(world, &problem, &config, s->B.data, &s->weight));
    return guarded_poison(&s->B);
}

/* The inputs of a call; a bound weight keeps its values for two. */
static int renew(stand *s, int number, uint32_t *seed_out)
{
    ew_world *world = s->world;
    const trial *t = s->trial;
    const bool is_due = t->weight_per_call || (t->weight_bound && number % 2 == 0);
    *seed_out = t->seed;
    if (t->weight_per_call)
        *seed_out += (uint32_t)number;
    else if (t->weight_bound)
        *seed_out += (uint32_t)number / 2;
    if (is_due && number > 0)
        RANK_TRY(fill(s, *seed_out));
    if (is_due && number > 0 && t->weight_bound) {
        RANK_OK(ew_weight_update(s->weight, s->B.data));
        RANK_TRY(guarded_poison(&s->B));
    }
    if (t->weight_bound)
        RANK_OK(ew_plan_bind_weight(s->plan, s->weight));
    return 0;
}

static int set_up(stand *s)
{
    ew_world *world = s->world;
    const trial *t = s->trial;
    const ew_problem *p = &t->problem;
    const int64_t rows = p->max_m > p->n ? p->max_m : p->n;
    s->staging = malloc(matrix_bytes(s, rows, p->k > p->n ? p->k : p->n) + 1);
    RANK_CHECK(s->staging, "no memory");
    RANK_TRY(create(s, &s->A, p->max_m, p->k));
    RANK_TRY(create(s, &s->B, p->n, p->k));
    RANK_TRY(fill(s, t->seed));
    if (t->weight_bound)
        RANK_TRY(make_weight(s));
    RANK_OK(ew_plan_create(world, p, &t->config, &s->plan));
    if (t->start_together)
        RANK_OK(ew_plan_start_together(s->plan));
    if (!t->weight_per_call && !t->weight_bound) {
        RANK_OK(ew_plan_set_weight(s->plan, s->B.data));
        RANK_TRY(guarded_poison(&s->B));
    }
    return 0;
}

/* On a GPU a call only starts.  The meeting before it keeps the allocations and copies of
 * a rank that is still preparing, which may wait for the whole GPU, from waiting for a
 * peer's call that waits for this rank. */
static int compute(stand *s, int64_t m)
{
    ew_world *world = s->world;
    const bool is_gpu = s->backend != EW_BACKEND_CPU;
    if (is_gpu)
        RANK_OK(ew_world_barrier(world));
    RANK_OK(harness_call(s->trial->problem.op, s->plan, m, s->A.data,
                         s->trial->weight_per_call ? s->B.data : NULL, s->C.data));
    if (is_gpu)
        RANK_OK(ew_plan_wait(s->plan));
    return 0;
}

static int call(stand *s, int number)
{
    ew_world *world = s->world;
    const trial *t = s->trial;
    const ew_problem *p = &t->problem;
    const int rank = ew_world_rank(world), W = ew_world_size(world);
    const int64_t m = t->rows[number];
    uint32_t seed;
    int64_t first, count;
    ew_check check;
    RANK_OK(ew_owned_rows(m, W, rank, &first, &count));
    if (p->op != EW_OP_GEMM_RS)
        count = m;
    RANK_TRY(renew(s, number, &seed));
    RANK_TRY(create(s, &s->C, count, p->n));
    RANK_TRY(guarded_poison(&s->C));
    RANK_TRY(compute(s, m));
    RANK_TRY(guarded_read(&s->C, s->staging));
    RANK_OK(ew_exact_verify(p, seed, rank, W, m, s->staging, &check));
    RANK_CHECK(check.wrong == 0, "call %d, m=%lld: %lld wrong of %lld, max error %g",
               number, (long long)m, (long long)check.wrong, (long long)(count * p->n),
               check.max_abs_err);
    RANK_TRY(guarded_check(&s->C, "C"));
    guarded_destroy(&s->C);
    return 0;
}

static int run_calls(stand *s)
{
    ew_world *world = s->world;
    for (int number = 0; number < s->trial->num_calls; number++)
        RANK_TRY(call(s, number));
    RANK_OK(ew_plan_wait(s->plan));
    RANK_TRY(guarded_check(&s->A, "A"));
    return guarded_check(&s->B, "B");
}

int trial_body(ew_world *world, void *argument)
{
    const trial *t = argument;
    stand s = {.world = world,
               .trial = t,
               .backend = t->config.backend ? t->config.backend : EW_BACKEND_CPU};
    const int failed = set_up(&s) || run_calls(&s);
    if (failed)
        ew_world_abort(world); /* or peers would wait for this rank's next call */
    if (t->seed % 2)           /* either may go first */
        ew_weight_destroy(s.weight);
    ew_plan_destroy(s.plan);
    if (t->seed % 2 == 0)
        ew_weight_destroy(s.weight);
    guarded_destroy(&s.A);
    guarded_destroy(&s.B);
    guarded_destroy(&s.C);
    free(s.staging);
    return failed;
}

/* ---- The parent ---- */

void trial_describe(const trial *t)
{
    char config[EW_CONFIG_TEXT_BYTES] = "?", rows[128] = "";
    const ew_problem *p = &t->problem;
    ew_config_print(&t->config, config, sizeof config);
    for (int number = 0; number < t->num_calls; number++) {
        const size_t used = strlen(rows);
        snprintf(rows + used, sizeof rows - used, " %lld", (long long)t->rows[number]);
    }
    harness_context(
        "%s W=%d %s %s max_m=%lld N=%lld K=%lld weight=%s %s seed=%u m:%s config=%s",
        ew_op_name(p->op), t->num_ranks,
        t->kind == EW_RANKS_AS_THREADS ? "threads" : "processes", ew_dtype_name(p->dtype),
        (long long)p->max_m, (long long)p->n, (long long)p->k,
        p->weight_layout == EW_WEIGHT_NK ? "nk" : "kn",
        t->weight_per_call ? "per call"
        : t->weight_bound  ? "bound"
                           : "set",
        t->seed, rows, config);
}

void trial_run(const trial *t)
{
    trial copy = *t;
    trial_describe(t);
    harness_run_with(t->kind, t->num_ranks, t->options, trial_body, &copy);
    harness_context("%s", "");
}
