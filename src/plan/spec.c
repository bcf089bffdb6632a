/* Policy: which config a problem gets when the caller leaves fields open, and which
 * configs are refused.  The only place in the tree that chooses. */
#include "plan/spec.h"

#include <inttypes.h>

#include "base/status.h"

/* The block is one tile high and two wide, as the paper's larger one.  Interleaving keeps
 * one row panel of A per destination in use; when they crowd the cache, a wide block
 * stays longer with one of them (2 to 4 % of the GEMM at W=2, K=512, fp32) and still
 * releases tile by tile. */
#define DEFAULT_BLOCK_M 128
#define DEFAULT_BLOCK_N 256
#define WIDE_BLOCK_N 1024
#define CROWDED_PANELS_BYTES (384 * 1024)
#define BLOCKS_PER_WORKER 4 /* fewer would leave workers idle at the end */
/* Each consumer has a cache line of state; more than there are tiles is of no use. */
#define MAX_BUDGET 65536

static ew_status fail_range(const char *key, int64_t value, const char *fix)
{
    return ewx_fail(EW_ERR_CONFIG, "config %s=%" PRId64 " is not valid\n  fix: %s", key,
                    value, fix);
}

int64_t ewx_interleaved_panels_bytes(const ew_problem *problem, int num_ranks)
{
    const int64_t elem = problem->dtype == EW_BF16 ? 2 : 4; /* as packed */
    return num_ranks * EWX_TILE_M * problem->k * elem;
}

static int32_t choose_block_n(const ew_problem *problem, int num_ranks, int workers)
{
    /* Divided instead of multiplied: M and N are not known to fit a product yet. */
    const int64_t block_rows = ewx_div_up(problem->max_m, EWX_TILE_M);
    const int64_t rows_needed =
        ewx_div_up(BLOCKS_PER_WORKER * workers, ewx_div_up(problem->n, WIDE_BLOCK_N));
    const bool crowded =
        ewx_interleaved_panels_bytes(problem, num_ranks) > CROWDED_PANELS_BYTES;
    return crowded && block_rows >= rows_needed ? WIDE_BLOCK_N : DEFAULT_BLOCK_N;
}

static void choose_open_fields(const ew_problem *problem, int num_ranks, int cores,
                               ew_config *config)
{
    if (!config->backend)
        config->backend = EW_BACKEND_CPU;
    if (!config->producer)
        config->producer = EW_PRODUCER_OWN;
    const bool blas = config->producer == EW_PRODUCER_BLAS;
    if (!config->release)
        config->release = blas ? EW_RELEASE_OUTPUT : 1;
    if (!config->order)
        config->order = blas ? EW_ORDER_DEFAULT : EW_ORDER_INTERLEAVED;
    if (!config->workers)
        config->workers = cores / num_ranks > 1 ? cores / num_ranks : 1;
    if (!config->block_m)
        config->block_m = DEFAULT_BLOCK_M;
    if (!config->block_n)
        config->block_n = choose_block_n(problem, num_ranks, config->workers);
    if (!config->group)
        config->group = 1;
    if (!config->pool)
        config->pool = EW_POOL_SHARED;
    if (!config->budget)
        config->budget = config->pool == EW_POOL_STATIC ? 1 : config->workers;
    if (!config->batch)
        config->batch = 1;
    if (!config->transport)
        config->transport = EW_TRANSPORT_PULL;
}

/* Enum fields of a C caller may hold any number; they count from 1. */
static ew_status check_names(const ew_config *config)
{
    const struct {
        const char *key;
        int64_t value, last;
        const char *fix;
    } fields[] = {
        {"backend", config->backend, EW_BACKEND_SIM, "use an EW_BACKEND_... value"},
        {"producer", config->producer, EW_PRODUCER_BLAS, "use an EW_PRODUCER_... value"},
        {"order", config->order, EW_ORDER_CONTIGUOUS, "use an EW_ORDER_... value"},
        {"pool", config->pool, EW_POOL_STATIC, "use an EW_POOL_... value"},
        {"transport", config->transport, EW_TRANSPORT_PUSH,
         "use an EW_TRANSPORT_... value"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].value < 1 || fields[i].value > fields[i].last)
            return fail_range(fields[i].key, fields[i].value, fields[i].fix);
    return EW_OK;
}

static ew_status check_config(const ew_config *config)
{
    EW_TRY(check_names(config));
    if (config->block_m < EWX_TILE_M || config->block_m % EWX_TILE_M)
        return fail_range("block rows", config->block_m,
                          "use a multiple of 128, such as 128x256");
    if (config->block_n < EWX_TILE_N || config->block_n % EWX_TILE_N)
        return fail_range("block columns", config->block_n,
                          "use a multiple of 128, such as 128x256");
    if (config->group < 1)
        return fail_range("group", config->group, "use at least 1");
    if (config->release < EW_RELEASE_OUTPUT)
        return fail_range("release", config->release,
                          "use tile, a count, partition or output");
    if (config->producer == EW_PRODUCER_BLAS && config->release != EW_RELEASE_OUTPUT)
        return ewx_fail(EW_ERR_CONFIG,
                        "producer=blas computes the whole output in one call\n"
                        "  fix: use release=output, or producer=own");
    if (config->workers < 1 || config->workers > 1024)
        return fail_range("workers", config->workers, "use 1 to 1024");
    if (config->budget < 1 || config->budget > MAX_BUDGET)
        return fail_range("x", config->budget, "use 1 to 65536");
    if (config->batch < 1)
        return fail_range("b", config->batch, "use at least 1");
    if (config->pool == EW_POOL_STATIC && config->budget >= config->workers)
        return ewx_fail(
            EW_ERR_CONFIG,
            "pool=static with x=%d reducers leaves no worker of %d for the GEMM\n"
            "  fix: use x below workers, or pool=shared",
            config->budget, config->workers);
    return EW_OK;
}

ew_status ewx_config_choose(const ew_problem *problem, int num_ranks,
                            const ew_config *request, int cores, ew_config *config_out)
{
    ew_config config = EW_CONFIG_INIT;
    if (request) {
        if (request->struct_size < sizeof *request)
            return ewx_fail(EW_ERR_ARGUMENT, "the config was not initialised\n"
                                             "  fix: initialise it with EW_CONFIG_INIT");
        config = *request;
    }
    choose_open_fields(problem, num_ranks, cores, &config);
    EW_TRY(check_config(&config));
    *config_out = config;
    return EW_OK;
}

ew_status ewx_spec_build(const ew_problem *problem, int num_ranks, const ew_config *request,
                         int cores, ewx_spec *spec_out)
{
    EW_TRY(ewx_problem_check(problem, num_ranks));
    ewx_spec spec = {.problem = *problem,
                     .num_ranks = num_ranks,
                     .elem_bytes = ew_dtype_bytes(problem->dtype)};
    EW_TRY(ewx_config_choose(problem, num_ranks, request, cores, &spec.config));
    EW_TRY(ewx_layout_build(problem, num_ranks, &spec.config, &spec.layout));
    *spec_out = spec;
    return EW_OK;
}
