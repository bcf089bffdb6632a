/* Policy: which config a problem gets when the caller leaves fields open, and which
 * configs are refused.  The only place in the tree that chooses. */
#include "plan/spec.h"

#include <inttypes.h>

#include "base/status.h"

/* Each consumer has a cache line of state; more than there are tiles is of no use. */
#define MAX_BUDGET 65536

static ew_status fail_range(const char *key, int64_t value, const char *fix)
{
    return ewx_fail(EW_ERR_CONFIG, "config %s=%" PRId64 " is not valid\n  fix: %s", key,
                    value, fix);
}

/* ---- Choosing for the CPU ---- */

/* The block is one tile high and two wide, as the paper's larger one.  Interleaving keeps
 * one row panel of A per destination in use; when they crowd the cache, a wide block
 * stays longer with one of them (2 to 4 % of the GEMM at W=2, K=512, fp32) and still
 * releases tile by tile. */
#define DEFAULT_BLOCK_M 128
#define DEFAULT_BLOCK_N 256
#define WIDE_BLOCK_N 1024
#define CROWDED_PANELS_BYTES (384 * 1024)
#define BLOCKS_PER_WORKER 4 /* fewer would leave workers idle at the end */

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

static void choose_for_cpu(const ew_problem *problem, int num_ranks, int cores,
                           ew_config *config)
{
    if (!config->release)
        config->release = config->producer == EW_PRODUCER_BLAS ? EW_RELEASE_OUTPUT : 1;
    if (!config->order) /* without early release there is nothing to interleave for */
        config->order =
            config->release == EW_RELEASE_OUTPUT ? EW_ORDER_DEFAULT : EW_ORDER_INTERLEAVED;
    const int fewest = config->pool == EW_POOL_STATIC ? 2 : 1; /* one of them reduces */
    if (!config->workers)
        config->workers = cores / num_ranks > fewest ? cores / num_ranks : fewest;
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
}

/* ---- Choosing for a GPU ---- */

ewx_machine ewx_machine_planned(const ewx_machine *machine)
{
    ewx_machine planned = *machine;
    if (planned.gpu_sms < 1) {
        planned.gpu_sms = 132;
        planned.gpu_arch = 90;
    }
    return planned;
}

/* Row blocks of each destination that are walked together, so that the blocks computed at
 * a time, one per SM, cover an area about as high as wide and share most of their loads:
 * W * group is the root of `wave_tiles`, to the nearest power of two. */
static int32_t choose_group(int num_destinations, int sms, int32_t block_n)
{
    const int64_t wave_tiles = (int64_t)sms * (block_n / EWX_TILE_N);
    int64_t group = 1;
    while (2 * group * group * num_destinations * num_destinations <= wave_tiles)
        group *= 2;
    return (int32_t)group;
}

#define MAX_LAUNCHES 256 /* of reducers in one call */

/* Tiles of the largest partition; of problems that are refused later, something. */
static int64_t most_owned_tiles(const ew_problem *problem, int num_ranks)
{
    const int64_t rows = ewx_div_up(ewx_min64(problem->max_m, INT32_MAX), num_ranks);
    return ewx_div_up(rows, EWX_TILE_M) *
           ewx_div_up(ewx_min64(problem->n, INT32_MAX), EWX_TILE_N);
}

/* As many tiles of a destination as two waves of the producer hold: the smallest group
 * that hides one launch behind the next group's GEMM. */
static int32_t choose_unit(const ew_problem *problem, int num_ranks, int sms,
                           int32_t block_n)
{
    const int64_t waves = ewx_div_up(2 * (int64_t)sms * (block_n / EWX_TILE_N), num_ranks);
    const int64_t least = ewx_div_up(most_owned_tiles(problem, num_ranks), MAX_LAUNCHES);
    return (int32_t)(waves > least ? waves : least);
}

/* The sm90 producer leaves registers for a reducing CTA of 256 threads on each SM; with
 * fewer CTAs, the SMs that have one would lag behind the others.  Beside the sm80 producer
 * a reducer takes the room of a GEMM CTA.  After the GEMM all SMs are free.  SMs of their
 * own hold four of the largest. */
static void choose_reducers(int sms, ew_config *config)
{
    const bool after = config->pool == EW_POOL_AFTER;
    const bool apart = config->pool == EW_POOL_STATIC;
    const bool beside = config->kernel == EW_KERNEL_SM90;
    const int quarter = sms >= 4 ? sms / 4 : 1;
    if (!config->budget)
        config->budget = after ? 2 * sms : apart ? 2 * quarter : beside ? sms : quarter;
    if (!config->batch)
        config->batch = after || apart ? 512 : beside ? 256 : 128;
}

static void choose_for_cuda(const ew_problem *problem, int num_ranks,
                            const ewx_machine *machine, ew_config *config)
{
    const ewx_machine gpu = ewx_machine_planned(machine);
    if (!config->kernel) /* wgmma exists on 9.0 alone */
        config->kernel =
            gpu.gpu_arch >= 90 && gpu.gpu_arch < 100 ? EW_KERNEL_SM90 : EW_KERNEL_SM80;
    const bool sm90 = config->kernel == EW_KERNEL_SM90;
    if (!config->block_m)
        config->block_m = EWX_TILE_M;
    if (!config->block_n)
        config->block_n = sm90 ? 256 : 128;
    if (!config->ctas)
        config->ctas =
            sm90 || config->pool == EW_POOL_STATIC ? EW_CTAS_PERSISTENT : EW_CTAS_BLOCK;
    if (!config->cluster)
        config->cluster = sm90 && config->block_n == 256 ? 2 : 1;
    const bool copies = config->transport == EW_TRANSPORT_COPY;
    if (!config->order) /* also when nothing is released early: it is the fastest GEMM */
        config->order = config->producer == EW_PRODUCER_BLAS ? EW_ORDER_DEFAULT
                        : copies                             ? EW_ORDER_CONTIGUOUS
                                                             : EW_ORDER_INTERLEAVED;
    if (!config->group)
        config->group = choose_group(config->order == EW_ORDER_CONTIGUOUS ? 1 : num_ranks,
                                     gpu.gpu_sms, config->block_n);
    if (!config->launches)
        config->launches = EW_LAUNCHES_ONCE;
    if (!config->release)
        config->release =
            config->producer == EW_PRODUCER_BLAS ? EW_RELEASE_OUTPUT
            : copies                             ? EW_RELEASE_PARTITION
            : config->launches == EW_LAUNCHES_UNIT
                ? choose_unit(problem, num_ranks, gpu.gpu_sms, config->block_n)
                : 1;
    if (!config->pool) /* reducers that can only wait would be in the GEMM's way */
        config->pool =
            config->release == EW_RELEASE_OUTPUT || copies ? EW_POOL_AFTER : EW_POOL_SHARED;
    choose_reducers(gpu.gpu_sms, config);
    if (!config->workers)
        config->workers = 1;
}

/* A simulated rank is what its profile says: the survey has filled the machine in. */
static bool simulates_gpu(const ew_config *config, const ewx_machine *machine)
{
    return config->backend == EW_BACKEND_SIM && machine->gpu_sms > 0;
}

static void choose_open_fields(const ew_problem *problem, int num_ranks,
                               const ewx_machine *machine, ew_config *config)
{
    if (!config->backend)
        config->backend = EW_BACKEND_CPU;
    if (!config->producer)
        config->producer = EW_PRODUCER_OWN;
    if (!config->transport)
        config->transport = EW_TRANSPORT_PULL;
    if (config->backend == EW_BACKEND_CUDA || simulates_gpu(config, machine))
        choose_for_cuda(problem, num_ranks, machine, config);
    else
        choose_for_cpu(problem, num_ranks, machine->cores, config);
}

/* ---- Checks of every config ---- */

typedef struct name_range {
    const char *key;
    int64_t value, last;
    const char *fix;
} name_range;

/* Enum fields of a C caller may hold any number; they count from 1. */
static ew_status check_names(const name_range *fields, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (fields[i].value < 1 || fields[i].value > fields[i].last)
            return fail_range(fields[i].key, fields[i].value, fields[i].fix);
    return EW_OK;
}

static ew_status check_common_names(const ew_config *config)
{
    const name_range fields[] = {
        {"backend", config->backend, EW_BACKEND_SIM, "use an EW_BACKEND_... value"},
        {"producer", config->producer, EW_PRODUCER_BLAS, "use an EW_PRODUCER_... value"},
        {"order", config->order, EW_ORDER_CONTIGUOUS, "use an EW_ORDER_... value"},
        {"pool", config->pool, EW_POOL_AFTER, "use an EW_POOL_... value"},
        {"transport", config->transport, EW_TRANSPORT_COPY,
         "use an EW_TRANSPORT_... value"},
    };
    return check_names(fields, sizeof fields / sizeof fields[0]);
}

static ew_status check_common(const ew_config *config)
{
    EW_TRY(check_common_names(config));
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
    return EW_OK;
}

/* ---- Checks for the CPU ---- */

static ew_status refuse_cuda_key(const ew_config *config, const char *key)
{
    char item[64];
    ewx_text text = ewx_text_in(item, sizeof item);
    ewx_config_print_key(config, key, &text);
    return ewx_fail(EW_ERR_CONFIG,
                    "config %s is for the cuda backend\n"
                    "  fix: leave %s out, or use backend=cuda",
                    item, key);
}

static ew_status check_for_cpu(const ew_config *config)
{
    if (config->kernel)
        return refuse_cuda_key(config, "kernel");
    if (config->ctas)
        return refuse_cuda_key(config, "ctas");
    if (config->cluster)
        return refuse_cuda_key(config, "cluster");
    if (config->launches)
        return refuse_cuda_key(config, "launches");
    if (config->pool == EW_POOL_AFTER)
        return refuse_cuda_key(config, "pool");
    if (config->pool == EW_POOL_STATIC && config->budget >= config->workers)
        return ewx_fail(
            EW_ERR_CONFIG,
            "pool=static with x=%d reducers leaves no worker of %d for the GEMM\n"
            "  fix: use x below workers, or pool=shared",
            config->budget, config->workers);
    return EW_OK;
}

/* ---- Checks for a GPU: what none can do.  What this one can, its backend knows. ---- */

#define CUDA_ALIGN 8 /* elements: TMA and vector loads take rows of whole 16 bytes */
/* Rows of both slices are the coordinates of one tensor map, and those are int32_t. */
#define CUDA_MAX_SLOTS (INT32_MAX / (2 * EWX_TILE_M))

static ew_status check_cuda_extent(const char *name, int64_t value)
{
    if (value > INT32_MAX)
        return ewx_fail(EW_ERR_SHAPE,
                        "%s=%" PRId64 " is too large for the cuda backend\n"
                        "  fix: make %s smaller than 2147483648",
                        name, value, name);
    return EW_OK;
}

static ew_status check_cuda_multiple(const char *name, int64_t value)
{
    const int64_t below = value / CUDA_ALIGN * CUDA_ALIGN, above = below + CUDA_ALIGN;
    if (value == below)
        return EW_OK;
    char nearest[64];
    ewx_text text = ewx_text_in(nearest, sizeof nearest);
    if (below > 0)
        ewx_text_add(&text, "%s=%" PRId64 " or ", name, below);
    ewx_text_add(&text, "%s=%" PRId64, name, above);
    return ewx_fail(EW_ERR_SHAPE,
                    "%s=%" PRId64 " is not a multiple of 8, as the cuda backend needs it\n"
                    "  fix: use %s, or backend=cpu",
                    name, value, nearest);
}

static ew_status check_cuda_problem(const ew_problem *problem, int num_ranks)
{
    if (problem->dtype == EW_FP32)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "the cuda backend computes in bf16 and fp16, not in fp32\n"
                        "  fix: use bf16 or fp16, or backend=cpu");
    EW_TRY(check_cuda_extent("M", problem->max_m));
    EW_TRY(check_cuda_extent("N", problem->n));
    EW_TRY(check_cuda_extent("K", problem->k));
    EW_TRY(check_cuda_multiple("N", problem->n));
    EW_TRY(check_cuda_multiple("K", problem->k));
    const int64_t tile_rows =
        num_ranks * ewx_div_up(ewx_div_up(problem->max_m, num_ranks), EWX_TILE_M);
    const int64_t slots = tile_rows * ewx_div_up(problem->n, EWX_TILE_N);
    if (slots > CUDA_MAX_SLOTS)
        return ewx_fail(EW_ERR_SHAPE,
                        "M=%" PRId64 " with N=%" PRId64 " has %" PRId64
                        " tiles of 128x128, and the cuda backend counts up to %d\n"
                        "  fix: make M or N smaller",
                        problem->max_m, problem->n, slots, CUDA_MAX_SLOTS);
    return EW_OK;
}

static ew_status check_cuda_producer(const ew_config *config)
{
    const name_range fields[] = {
        {"kernel", config->kernel, EW_KERNEL_SM90, "use an EW_KERNEL_... value"},
        {"ctas", config->ctas, EW_CTAS_BLOCK, "use an EW_CTAS_... value"},
        {"launches", config->launches, EW_LAUNCHES_UNIT, "use an EW_LAUNCHES_... value"},
    };
    EW_TRY(check_names(fields, sizeof fields / sizeof fields[0]));
    if (config->block_m != 128 || (config->block_n != 128 && config->block_n != 256))
        return ewx_fail(EW_ERR_CONFIG,
                        "config block=%dx%d has no kernel in the cuda backend\n"
                        "  fix: use block=128x128 or block=128x256",
                        config->block_m, config->block_n);
    if (config->cluster < 1 || config->cluster > 2)
        return fail_range("cluster", config->cluster, "use 1 or 2");
    if (config->cluster == 2 && config->kernel != EW_KERNEL_SM90)
        return ewx_fail(EW_ERR_CONFIG, "config cluster=2 needs kernel=sm90\n"
                                       "  fix: use cluster=1, or kernel=sm90");
    return EW_OK;
}

static ew_status check_cuda_transport(const ew_problem *problem, int num_ranks,
                                      const ew_config *config)
{
    if (config->transport != EW_TRANSPORT_PULL && config->producer == EW_PRODUCER_BLAS)
        return ewx_fail(EW_ERR_CONFIG,
                        "producer=blas leaves its output where it was computed\n"
                        "  fix: use transport=pull, or producer=own");
    if (config->transport == EW_TRANSPORT_COPY &&
        (config->order != EW_ORDER_CONTIGUOUS || config->release != EW_RELEASE_PARTITION ||
         config->pool != EW_POOL_AFTER))
        return ewx_fail(EW_ERR_CONFIG, "transport=copy moves whole partitions\n"
                                       "  fix: leave order, release and pool out");
    const int64_t tiles = most_owned_tiles(problem, num_ranks);
    const int64_t units = config->release > 0 ? ewx_div_up(tiles, config->release) : 1;
    if (config->launches == EW_LAUNCHES_UNIT && units > MAX_LAUNCHES)
        return ewx_fail(
            EW_ERR_CONFIG,
            "config launches=unit,release=%d would launch %" PRId64
            " reducers in a call, the most is %d\n  fix: use release=%" PRId64 " or more",
            config->release, units, MAX_LAUNCHES, ewx_div_up(tiles, MAX_LAUNCHES));
    return EW_OK;
}

static ew_status check_for_cuda(const ew_problem *problem, int num_ranks,
                                const ew_config *config)
{
    EW_TRY(check_cuda_problem(problem, num_ranks));
    EW_TRY(check_cuda_producer(config));
    EW_TRY(check_cuda_transport(problem, num_ranks, config));
    if (config->pool == EW_POOL_STATIC && config->ctas != EW_CTAS_PERSISTENT)
        return ewx_fail(EW_ERR_CONFIG,
                        "pool=static keeps SMs free of producers, and one CTA per block "
                        "would take them all\n  fix: use ctas=persistent, or pool=shared");
    if (config->producer == EW_PRODUCER_BLAS && config->pool != EW_POOL_AFTER)
        return ewx_fail(EW_ERR_CONFIG,
                        "producer=blas leaves no room for reducers beside its GEMM\n"
                        "  fix: use pool=after, or producer=own");
    if (config->batch != 128 && config->batch != 256 && config->batch != 512)
        return fail_range("b", config->batch, "use 128, 256 or 512 threads");
    return EW_OK;
}

/* ---- All together ---- */

ew_status ewx_config_choose(const ew_problem *problem, int num_ranks,
                            const ew_config *request, const ewx_machine *machine,
                            ew_config *config_out)
{
    ew_config config = EW_CONFIG_INIT;
    if (request) {
        if (request->struct_size < sizeof *request)
            return ewx_fail(EW_ERR_ARGUMENT, "the config was not initialised\n"
                                             "  fix: initialise it with EW_CONFIG_INIT");
        config = *request;
    }
    choose_open_fields(problem, num_ranks, machine, &config);
    EW_TRY(check_common(&config));
    if (config.backend == EW_BACKEND_CUDA || simulates_gpu(&config, machine))
        EW_TRY(check_for_cuda(problem, num_ranks, &config));
    else if (config.backend !=
             EW_BACKEND_SIM) /* whose profile is not known yet, or a CPU's */
        EW_TRY(check_for_cpu(&config));
    *config_out = config;
    return EW_OK;
}

ew_status ewx_spec_build(const ew_problem *problem, int num_ranks, const ew_config *request,
                         const ewx_machine *machine, ewx_spec *spec_out)
{
    EW_TRY(ewx_problem_check(problem, num_ranks));
    ewx_spec spec = {.problem = *problem,
                     .num_ranks = num_ranks,
                     .elem_bytes = ew_dtype_bytes(problem->dtype)};
    EW_TRY(ewx_config_choose(problem, num_ranks, request, machine, &spec.config));
    EW_TRY(ewx_layout_build(problem, num_ranks, &spec.config, &spec.layout));
    *spec_out = spec;
    return EW_OK;
}
