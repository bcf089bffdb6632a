/* A program of its release: it is compiled with the headers that its release had, which lie
 * beside it, and must go on working with every later library.  It gives the library every
 * struct that has a struct_size, and looks behind those that are written for it.
 *
 * Structs without one (results of measure.h, tune.h and sim.h) may change with a minor
 * version: they get more room than they need, and only a call's status is looked at. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entwine/fabric.h"
#include "entwine/sim.h"
#include "entwine/tune.h"

enum { ROWS = 64, COLS = 96, DEPTH = 32, RANKS = 2, ROOM = 1 << 17, GUARD = 64 };

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, \
                    ew_last_error());                                          \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

/* ---- Structs that the library writes ---- */

typedef struct guarded {
    ew_config config;
    unsigned char behind[GUARD];
} guarded;

static guarded guarded_config(uint32_t struct_size)
{
    guarded g;
    memset(&g, 0xa5, sizeof g);
    g.config = (ew_config)EW_CONFIG_INIT;
    g.config.struct_size = struct_size;
    return g;
}

static void check_guard(const guarded *g)
{
    for (int at = 0; at < GUARD; at++)
        CHECK(g->behind[at] == 0xa5);
}

static void write_configs(ew_plan *plan)
{
    static const uint32_t sizes[] = {sizeof(ew_config), 0,
                                     0xa5a5a5a5}; /* not initialised */
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        guarded parsed = guarded_config(sizes[at]), chosen = parsed, method = parsed;
        CHECK(ew_config_parse("block=128x256,levels=1", &parsed.config) == EW_OK);
        CHECK(parsed.config.block_n == 256 && parsed.config.levels == 1);
        CHECK(ew_plan_config(plan, &chosen.config) == EW_OK);
        CHECK(chosen.config.backend == EW_BACKEND_CPU && chosen.config.block_m > 0);
        CHECK(ew_method_config("sequential", &parsed.config, &method.config) == EW_OK);
        CHECK(method.config.release == EW_RELEASE_OUTPUT && method.config.block_n == 256);
        check_guard(&parsed);
        check_guard(&chosen);
        check_guard(&method);
    }
}

/* ---- Calls ---- */

static void call(ew_world *world, ew_plan *plan, const ew_problem *problem)
{
    const int rank = ew_world_rank(world), size = ew_world_size(world);
    int64_t first, count;
    float *A = malloc(sizeof *A * ROWS * DEPTH), *B = malloc(sizeof *B * COLS * DEPTH);
    float *C = malloc(sizeof *C * ROWS * COLS), *h = calloc(ROWS * COLS, sizeof *h);
    ew_epilogue epilogue = EW_EPILOGUE_INIT;
    ew_check check;
    CHECK(A && B && C && h);
    CHECK(ew_owned_rows(ROWS, size, rank, &first, &count) == EW_OK);
    CHECK(ew_exact_fill_a(EW_FP32, 1, rank, size, ROWS, DEPTH, A) == EW_OK);
    CHECK(ew_exact_fill_b(EW_FP32, 1, rank, EW_WEIGHT_NK, COLS, DEPTH, B) == EW_OK);
    CHECK(ew_gemm_rs(plan, ROWS, A, B, C, NULL) == EW_OK);
    CHECK(ew_plan_wait(plan) == EW_OK);
    CHECK(ew_exact_verify(problem, 1, rank, size, ROWS, C, &check) == EW_OK);
    CHECK(check.wrong == 0);
    epilogue.residual = h;
    CHECK(ew_gemm_rs_layer(plan, ROWS, A, B, NULL, &epilogue, NULL) == EW_OK);
    CHECK(ew_plan_wait(plan) == EW_OK);
    CHECK(memcmp(h, C, sizeof *h * (size_t)count * COLS) == 0);
    free(A);
    free(B);
    free(C);
    free(h);
}

static void *room(void)
{
    void *memory = calloc(1, ROOM);
    CHECK(memory);
    return memory;
}

static void measure(ew_world *world, const ew_problem *problem)
{
    ew_bench_options bench = EW_BENCH_OPTIONS_INIT;
    ew_tune_options tune = EW_TUNE_OPTIONS_INIT;
    ew_sim_options sim = EW_SIM_OPTIONS_INIT;
    const ew_config config = EW_CONFIG_INIT;
    char text[EW_EXPLAIN_BYTES], key[EW_TUNING_KEY_BYTES];
    void *entries = room(), *results = room();
    bench.warmup = 0;
    bench.iters = 1;
    tune.budget_s = 0.01;
    tune.samples = 1;
    tune.store = 0;
    sim.profile = "cpu";
    CHECK(ew_forecast_build(problem, RANKS, &config, results) == EW_OK);
    CHECK(ew_forecast_explain(problem, RANKS, &config, text, sizeof text) == EW_OK);
    CHECK(ew_config_print(&config, text, sizeof text) == EW_OK && !*text);
    CHECK(ew_tuning_key(problem, RANKS, EW_BACKEND_CPU, key, sizeof key) == EW_OK);
    CHECK(ew_sim_call(problem, RANKS, &config, &sim, results) == EW_OK);
    CHECK(ew_bench_run(world, problem, &bench, entries, 1, results) == EW_OK);
    CHECK(ew_tune(world, problem, &config, &tune, results) == EW_OK);
    free(entries);
    free(results);
}

static int be_rank(ew_world *world, void *argument)
{
    const ew_problem problem = EW_PROBLEM(ROWS, COLS, DEPTH, EW_FP32);
    ew_config config = EW_CONFIG_INIT;
    ew_plan *plan;
    (void)argument;
    config.backend = EW_BACKEND_CPU;
    CHECK(ew_plan_create(world, &problem, &config, &plan) == EW_OK);
    call(world, plan, &problem);
    write_configs(plan);
    ew_plan_destroy(plan);
    measure(world, &problem);
    return 0;
}

/* ---- A fabric of one rank, which sends nothing ---- */

static int gather_alone(void *context, const void *mine, void *all, size_t bytes)
{
    (void)context;
    memcpy(all, mine, bytes);
    return 0;
}

static int receive_nothing(void *context, int *src_out, void *letter, size_t *bytes_out)
{
    (void)context;
    (void)letter;
    *src_out = -1;
    *bytes_out = 0;
    return 0;
}

static int count_nothing(void *context, size_t *count_out)
{
    (void)context;
    *count_out = 0;
    return 0;
}

static void join_alone(void)
{
    ew_fabric *fabric = calloc(1, sizeof *fabric);
    ew_world *world;
    CHECK(fabric);
    *fabric = (ew_fabric){.struct_size = sizeof *fabric,
                          .num_ranks = 1,
                          .name = "nothing",
                          .allgather = gather_alone,
                          .receive_letter = receive_nothing,
                          .unsent_letters = count_nothing};
    CHECK(ew_world_join(fabric, NULL, &world) == EW_OK);
    CHECK(ew_world_barrier(world) == EW_OK);
    ew_world_destroy(world);
    free(fabric);
}

int main(void)
{
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    int exits[RANKS] = {-1, -1};
    options.timeout_ms = 20000;
    CHECK(ew_run_ranks(EW_RANKS_AS_PROCESSES, RANKS, &options, be_rank, NULL, exits) ==
          EW_OK);
    CHECK(exits[0] == 0 && exits[1] == 0);
    join_alone();
    printf("a program of %d.%d.%d works with Entwine %s\n", EW_VERSION_MAJOR,
           EW_VERSION_MINOR, EW_VERSION_PATCH, ew_version());
    return 0;
}
