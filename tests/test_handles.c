/* Handles that are none: destroyed, destroyed twice, of another kind, or any memory.  Every
 * function that is given one refuses it and says what it is. */
#include "harness.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/fabric.h"
#include "entwine/measure.h"
#include "entwine/tune.h"

/* AddressSanitizer ends the program where the library looks at what was freed, as it does
 * for any program that uses such a handle. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SKIP_WHERE_FREED_MEMORY_IS_WATCHED() skip()
#else
#define SKIP_WHERE_FREED_MEMORY_IS_WATCHED() (void)0
#endif

enum { M = 16, N = 16, K = 16 };
static float A[M * K], B[N * K], C[M * N];
static const ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);

typedef struct trio {
    ew_world *world;
    ew_plan *plan;
    ew_weight *weight;
} trio;

static trio make(void)
{
    trio t;
    assert_int_equal(ew_world_create(0, 1, NULL, NULL, NULL, &t.world), EW_OK);
    assert_int_equal(ew_plan_create(t.world, &problem, NULL, &t.plan), EW_OK);
    assert_int_equal(ew_weight_create(t.world, &problem, NULL, B, &t.weight), EW_OK);
    return t;
}

static void destroy(trio *t)
{
    ew_plan_destroy(t->plan);
    ew_weight_destroy(t->weight);
    ew_world_destroy(t->world);
}

static void refused(ew_status status, const char *what)
{
    harness_expect_error(status, EW_ERR_ARGUMENT, what, what);
}

/* Functions that return no status leave their text alone. */
static void said(const char *what)
{
    if (!strstr(ew_last_error(), what))
        fail_msg("\"%s\" does not say \"%s\"", ew_last_error(), what);
}

static void use_as_plan(void *not_a_plan, const char *what)
{
    ew_plan *plan = not_a_plan;
    ew_epilogue epilogue = EW_EPILOGUE_INIT;
    ew_config config = EW_CONFIG_INIT;
    ew_timing timing;
    char text[EW_EXPLAIN_BYTES];
    size_t count;
    refused(ew_gemm_rs(plan, 1, A, B, C, NULL), what);
    refused(ew_gemm_rs_layer(plan, 1, A, B, C, &epilogue, NULL), what);
    refused(ew_plan_wait(plan), what);
    refused(ew_plan_set_weight(plan, B), what);
    refused(ew_plan_bind_weight(plan, NULL), what);
    refused(ew_plan_set_timeout(plan, 1.0), what);
    refused(ew_plan_config(plan, &config), what);
    refused(ew_plan_explain(plan, text, sizeof text), what);
    refused(ew_plan_timing(plan, &timing), what);
    refused(ew_plan_trace_enable(plan), what);
    refused(ew_plan_trace(plan, NULL, 0, &count), what);
    refused(ew_plan_start_together(plan), what);
    (void)ew_status_name(ew_plan_wait(NULL)); /* another text */
    ew_plan_destroy(plan);
    said(what);
}

static void use_as_weight(ew_plan *plan, void *not_a_weight, const char *what)
{
    ew_weight *weight = not_a_weight;
    refused(ew_weight_update(weight, B), what);
    if (plan)
        refused(ew_plan_bind_weight(plan, weight), what);
    assert_int_equal(ew_weight_bytes(weight), 0);
    said(what);
    (void)ew_plan_wait(NULL);
    ew_weight_destroy(weight);
    said(what);
}

static void use_as_world(void *not_a_world, const char *what)
{
    ew_world *world = not_a_world;
    int word = 1, words[1];
    ew_plan *plan = NULL;
    ew_weight *weight = NULL;
    ew_world *survivors = NULL;
    ew_traffic traffic;
    void *memory = NULL;
    ew_bench_entry entry;
    ew_bench_result result;
    ew_tune_result tuned;
    memset(&entry, 0, sizeof entry);
    refused(ew_world_barrier(world), what);
    refused(ew_world_allgather(world, &word, words, sizeof word), what);
    refused(ew_world_traffic(world, &traffic), what);
    refused(ew_world_dump(world, "/dev/null/never"), what);
    refused(ew_world_shrink(world, &survivors), what);
    refused(ew_plan_create(world, &problem, NULL, &plan), what);
    refused(ew_weight_create(world, &problem, NULL, B, &weight), what);
    refused(ew_memory_alloc(world, EW_BACKEND_CPU, 8, &memory), what);
    refused(ew_memory_copy(world, EW_BACKEND_CPU, C, A, 8), what);
    refused(ew_alloc(world, EW_BACKEND_CPU, 8, &memory), what);
    refused(ew_import(world, EW_BACKEND_CPU, &memory, 8), what);
    refused(ew_free(world, EW_BACKEND_CPU, C), what);
    refused(ew_memory_fill(world, EW_BACKEND_CPU, C, 0, 8), what);
    refused(ew_bench_run(world, &problem, NULL, &entry, 1, &result), what);
    refused(ew_tune(world, &problem, NULL, NULL, &tuned), what);
    assert_int_equal(ew_world_rank(world), -1);
    assert_int_equal(ew_world_size(world), 0);
    said(what);
    (void)ew_plan_wait(NULL);
    assert_int_equal(ew_world_gpu(world), -1);
    said(what);
    (void)ew_plan_wait(NULL);
    ew_world_abort(world);
    ew_memory_free(world, EW_BACKEND_CPU, C);
    (void)ew_plan_wait(NULL);
    ew_world_destroy(world);
    said(what);
    assert_true(!plan && !weight && !memory);
}

static void handles_of_another_kind(void **state)
{
    (void)state;
    trio t = make();
    uint64_t nothing[16] = {0};
    memset(C, 0, sizeof C);
    use_as_plan(t.world, "was given a world where it needs a plan");
    use_as_plan(t.weight, "was given a weight where it needs a plan");
    use_as_plan(nothing, "was given something else where it needs a plan");
    use_as_weight(t.plan, t.world, "was given a world where it needs a weight");
    use_as_weight(t.plan, t.plan, "was given a plan where it needs a weight");
    use_as_weight(t.plan, nothing, "was given something else where it needs a weight");
    use_as_world(t.plan, "was given a plan where it needs a world");
    use_as_world(t.weight, "was given a weight where it needs a world");
    use_as_world(nothing, "was given something else where it needs a world");
    /* None of that did any harm. */
    assert_int_equal(ew_plan_bind_weight(t.plan, t.weight), EW_OK);
    assert_int_equal(ew_gemm_rs(t.plan, M, A, NULL, C, NULL), EW_OK);
    destroy(&t);
}

static void no_handle(void **state)
{
    (void)state;
    assert_int_equal(ew_plan_wait(NULL), EW_ERR_ARGUMENT);
    said("ew_plan_wait needs a plan");
    assert_int_equal(ew_world_barrier(NULL), EW_ERR_ARGUMENT);
    said("ew_world_barrier needs a world");
    ew_plan_destroy(NULL);
    ew_weight_destroy(NULL);
    ew_world_destroy(NULL);
    ew_world_abort(NULL);
    assert_int_equal(ew_world_rank(NULL), -1);
    assert_int_equal(ew_world_gpu(NULL), -1);
    assert_int_equal(ew_weight_bytes(NULL), 0);
    said("ew_world_barrier needs a world"); /* what is allowed leaves the text alone */
}

static void destroyed_handles(void **state)
{
    (void)state;
    SKIP_WHERE_FREED_MEMORY_IS_WATCHED();
    trio t = make();
    ew_weight_destroy(t.weight);
    use_as_weight(t.plan, t.weight, "a weight that has been destroyed");
    ew_plan_destroy(t.plan);
    use_as_plan(t.plan, "a plan that has been destroyed");
    ew_world_destroy(t.world);
    use_as_world(t.world, "a world that has been destroyed");
}

/* In the wrong order: plan and weight are refused from then on, and leak. */
static void a_world_destroyed_before_its_plans(void **state)
{
    (void)state;
    SKIP_WHERE_FREED_MEMORY_IS_WATCHED();
    static const char gone[] = "the world of this plan or weight has been destroyed";
    trio t = make();
    ew_world_destroy(t.world);
    refused(ew_gemm_rs(t.plan, 1, A, B, C, NULL), gone);
    refused(ew_plan_wait(t.plan), gone);
    refused(ew_weight_update(t.weight, B), gone);
    ew_plan_destroy(t.plan);
    said(gone);
    ew_weight_destroy(t.weight);
    said(gone);
}

/* A rank destroys the world that the launcher gave it and will destroy again. */
static int destroy_early(ew_world *world, void *argument)
{
    (void)argument;
    ew_world_destroy(world);
    return 0;
}

static void a_world_destroyed_by_the_rank(void **state)
{
    (void)state;
    SKIP_WHERE_FREED_MEMORY_IS_WATCHED();
    harness_run(EW_RANKS_AS_PROCESSES, 2, destroy_early, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_handle),
        cmocka_unit_test(handles_of_another_kind),
        cmocka_unit_test(destroyed_handles),
        cmocka_unit_test(a_world_destroyed_before_its_plans),
        cmocka_unit_test(a_world_destroyed_by_the_rank),
    };
    mallopt(M_TRIM_THRESHOLD, 1 << 30); /* what was freed stays readable */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
