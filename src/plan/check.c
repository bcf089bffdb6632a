/* Which configs are refused, each with its value and a fix. */
#include <inttypes.h>

#include "base/status.h"
#include "plan/policy.h"

/* Each consumer has a cache line of state; more than there are tiles is of no use. */
#define MAX_BUDGET 65536

static ew_status fail_range(const char *key, int64_t value, const char *fix)
{
    return ewx_fail(EW_ERR_CONFIG, "config %s=%" PRId64 " is not valid\n  fix: %s", key,
                    value, fix);
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
        {"transport", config->transport, EW_TRANSPORT_TMA_ADD,
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
    if (config->producer == EW_PRODUCER_BLAS && config->release != EW_RELEASE_OUTPUT &&
        config->transport != EW_TRANSPORT_COPY)
        return ewx_fail(EW_ERR_CONFIG,
                        "producer=blas computes the whole output in one call\n"
                        "  fix: use release=output, or producer=own");
    if (config->workers < 1 || config->workers > EWX_MAX_WORKERS)
        return fail_range("workers", config->workers, "use 1 to 1024");
    if (config->budget < 1 || config->budget > MAX_BUDGET)
        return fail_range("x", config->budget, "use 1 to 65536");
    if (config->batch < 1)
        return fail_range("b", config->batch, "use at least 1");
    if (config->levels < 0 || config->levels > 2)
        return fail_range("levels", config->levels, "use 1 or 2");
    if ((int)config->epilogue < 0 || config->epilogue > EW_EPILOGUE_SEPARATE)
        return fail_range("epilogue", config->epilogue, "use an EW_EPILOGUE_... value");
    if (config->shots < 0 || config->shots > 2)
        return fail_range("shots", config->shots, "use 1 or 2");
    return EW_OK;
}

/* ---- Checks for the CPU ---- */

enum { ITEM_BYTES = 64 };

/* A key with its value, as in a config's text. */
static const char *item_of(const ew_config *config, const char *key, char *item)
{
    ewx_text text = ewx_text_in(item, ITEM_BYTES);
    ewx_config_print_key(config, key, &text);
    return item;
}

static ew_status refuse_cuda_key(const ew_config *config, const char *key)
{
    char item[ITEM_BYTES];
    return ewx_fail(EW_ERR_CONFIG,
                    "config %s is for the cuda backend\n"
                    "  fix: leave %s out, or use backend=cuda",
                    item_of(config, key, item), key);
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
            "  fix: use more workers than x, or pool=shared",
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

/* Where what no GPU does is done. */
static const char *cpu_instead(const ew_config *config)
{
    const bool simulated = ewx_traits_of(config->backend)->simulated;
    return simulated ? "the profile of a CPU" : "backend=cpu";
}

static ew_status check_cuda_multiple(const char *name, int64_t value,
                                     const ew_config *config)
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
                    "  fix: use %s, or %s",
                    name, value, nearest, cpu_instead(config));
}

/* Tiles of all parts, with what padding to whole ones adds. */
static int64_t cuda_slots(const ew_problem *problem, int num_ranks)
{
    const int64_t tile_rows =
        num_ranks * ewx_div_up(ewx_div_up(problem->max_m, num_ranks), EWX_TILE_M);
    return tile_rows * ewx_div_up(problem->n, EWX_TILE_N);
}

static ew_status check_cuda_problem(const ew_problem *problem, int num_ranks,
                                    const ew_config *config)
{
    if (problem->dtype == EW_FP32)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "the cuda backend computes in bf16 and fp16, not in fp32\n"
                        "  fix: use bf16 or fp16, or %s",
                        cpu_instead(config));
    EW_TRY(check_cuda_extent("M", problem->max_m));
    EW_TRY(check_cuda_extent("N", problem->n));
    EW_TRY(check_cuda_extent("K", problem->k));
    EW_TRY(check_cuda_multiple("N", problem->n, config));
    EW_TRY(check_cuda_multiple("K", problem->k, config));
    const int64_t slots = cuda_slots(problem, num_ranks);
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
    const bool gathers = ewx_op_of(problem)->gemm_waits;
    if (config->transport != EW_TRANSPORT_PULL && config->producer == EW_PRODUCER_BLAS &&
        !gathers)
        return ewx_fail(EW_ERR_CONFIG,
                        "producer=blas leaves its output where it was computed\n"
                        "  fix: use transport=pull, or producer=own");
    if (config->transport == EW_TRANSPORT_COPY && !gathers &&
        (config->order != EW_ORDER_CONTIGUOUS || config->release != EW_RELEASE_PARTITION ||
         config->pool != EW_POOL_AFTER))
        return ewx_fail(EW_ERR_CONFIG, "transport=copy moves whole partitions\n"
                                       "  fix: leave order, release and pool out");
    const int64_t tiles = ewx_most_part_tiles(problem, num_ranks);
    const int64_t units = ewx_release_units(ewx_release_of(config), tiles);
    if (config->launches == EW_LAUNCHES_UNIT && !gathers && units > EWX_MAX_LAUNCHES)
        return ewx_fail(
            EW_ERR_CONFIG,
            "config launches=unit,release=%d would launch %" PRId64
            " reducers in a call, the most is %d\n  fix: use release=%" PRId64 " or more",
            config->release, units, EWX_MAX_LAUNCHES, ewx_least_unit(config, tiles));
    return EW_OK;
}

/* Sums that grow as contributions come. */
static ew_status check_cuda_adding(const ew_problem *problem, const ew_config *config)
{
    const char *name = ewx_transport_name(config->transport);
    if (problem->op != EW_OP_GEMM_RS)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "transport=%s is for gemm-rs, not for %s\n"
                        "  fix: leave transport out",
                        name, ew_op_name(problem->op));
    if (config->invariant)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "invariant=%d with transport=%s, which adds in any order\n"
                        "  fix: leave invariant or transport out",
                        config->invariant, name);
    if (config->transport == EW_TRANSPORT_TMA_ADD && config->kernel != EW_KERNEL_SM90)
        return ewx_fail(EW_ERR_CONFIG, "config transport=tma-add needs kernel=sm90\n"
                                       "  fix: use transport=add, or kernel=sm90");
    if (config->kernel == EW_KERNEL_SM80 && problem->dtype == EW_BF16)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "transport=add with bf16, which Ampere cannot add atomically\n"
                        "  fix: use fp16, or kernel=sm90");
    return EW_OK;
}

/* What the cuda backend does not do where the GEMM waits for rows. */
static ew_status refuse_for_gather(const ew_problem *problem, const ew_config *config,
                                   const char *key)
{
    char item[ITEM_BYTES];
    return ewx_fail(EW_ERR_UNSUPPORTED,
                    "config %s is not implemented by the cuda backend for %s\n"
                    "  fix: leave %s out",
                    item_of(config, key, item), ew_op_name(problem->op), key);
}

/* Rows that copy engines move. */
static ew_status check_cuda_row_copies(const ew_problem *problem, int num_ranks,
                                       const ew_config *config)
{
    const int64_t panels = ewx_most_panels(problem, num_ranks);
    const int64_t most_chunks = ewx_most_chunks(num_ranks);
    const int64_t chunks = ewx_release_units(ewx_release_of(config), panels);
    if (config->pool != EW_POOL_SHARED || config->budget != 1 || config->batch != 128)
        return ewx_fail(EW_ERR_CONFIG,
                        "transport=copy moves rows by copy engines, which take no SM\n"
                        "  fix: leave pool, x and b out");
    if (config->producer == EW_PRODUCER_BLAS && config->release != EW_RELEASE_PARTITION)
        return ewx_fail(EW_ERR_CONFIG,
                        "producer=blas multiplies a rank's rows when all of them are "
                        "copied\n  fix: use release=partition, or producer=own");
    if (chunks > most_chunks)
        return ewx_fail(EW_ERR_CONFIG,
                        "config release=%d would take %" PRId64
                        " copies in a call, the most is %d\n  fix: use release=%" PRId64
                        " or more, or release=partition",
                        config->release, chunks * (num_ranks - 1), EWX_MAX_COPIES,
                        ewx_div_up(panels, most_chunks));
    return EW_OK;
}

static ew_status check_cuda_gather(const ew_problem *problem, int num_ranks,
                                   const ew_config *config)
{
    if (config->transport == EW_TRANSPORT_COPY)
        EW_TRY(check_cuda_row_copies(problem, num_ranks, config));
    else if (config->transport != EW_TRANSPORT_PUSH)
        return refuse_for_gather(problem, config, "transport");
    if (config->launches != EW_LAUNCHES_ONCE)
        return refuse_for_gather(problem, config, "launches");
    if (config->pool == EW_POOL_STATIC)
        return refuse_for_gather(problem, config, "pool");
    if (config->ctas != EW_CTAS_PERSISTENT) /* they could keep out what they wait for */
        return refuse_for_gather(problem, config, "ctas");
    return EW_OK;
}

/* The K next to this one that is a multiple of `unit`, as "K=.. or K=..". */
static const char *nearest_k(const ew_problem *problem, int64_t unit, char *nearest)
{
    const int64_t below = problem->k / unit * unit;
    ewx_text text = ewx_text_in(nearest, ITEM_BYTES);
    if (below > 0)
        ewx_text_add(&text, "K=%" PRId64 " or ", below);
    ewx_text_add(&text, "K=%" PRId64, below + unit);
    return nearest;
}

static ew_status check_cuda_pieces(const ew_problem *problem, int num_ranks,
                                   const ew_config *config)
{
    const int pieces = ewx_num_pieces(config, num_ranks);
    const int64_t piece_k = problem->k / pieces;
    const int64_t slots = cuda_slots(problem, num_ranks) * pieces;
    char nearest[ITEM_BYTES];
    if (config->invariant > EWX_CUDA_MAX_SOURCES)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "invariant=%d, and the cuda backend adds at most %d pieces of K\n"
                        "  fix: use at most %d, such as 8, or %s",
                        config->invariant, EWX_CUDA_MAX_SOURCES, EWX_CUDA_MAX_SOURCES,
                        cpu_instead(config));
    if (piece_k % CUDA_ALIGN)
        return ewx_fail(
            EW_ERR_SHAPE,
            "invariant=%d cuts the K=%" PRId64 " of %s%d rank%s into pieces of %" PRId64
            ", and the cuda backend needs a multiple of 8\n"
            "  fix: use %s, a smaller invariant, or %s",
            config->invariant, problem->k, num_ranks > 1 ? "each of " : "", num_ranks,
            ewx_text_plural(num_ranks), piece_k,
            nearest_k(problem, (int64_t)pieces * CUDA_ALIGN, nearest), cpu_instead(config));
    if (slots > CUDA_MAX_SLOTS)
        return ewx_fail(EW_ERR_SHAPE,
                        "M=%" PRId64 " with N=%" PRId64 " and invariant=%d has %" PRId64
                        " contributions of 128x128 on a rank, and the cuda backend counts "
                        "up to %d\n  fix: make M, N or invariant smaller",
                        problem->max_m, problem->n, config->invariant, slots,
                        CUDA_MAX_SLOTS);
    return EW_OK;
}

static ew_status check_for_cuda(const ew_problem *problem, int num_ranks,
                                const ew_config *config)
{
    EW_TRY(check_cuda_problem(problem, num_ranks, config));
    EW_TRY(check_cuda_producer(config));
    EW_TRY(check_cuda_transport(problem, num_ranks, config));
    if (ewx_transport_adds(config->transport))
        EW_TRY(check_cuda_adding(problem, config));
    if (problem->op == EW_OP_GEMM_AR && config->transport != EW_TRANSPORT_PULL)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "transport=%s with gemm-ar on GPUs, where a tile may have several "
                        "readers\n  fix: use transport=pull",
                        ewx_transport_name(config->transport));
    if (ewx_op_of(problem)->gemm_waits)
        EW_TRY(check_cuda_gather(problem, num_ranks, config));
    if (config->pool == EW_POOL_STATIC && config->ctas != EW_CTAS_PERSISTENT)
        return ewx_fail(EW_ERR_CONFIG,
                        "pool=static keeps SMs free of producers, and one CTA per block "
                        "would take them all\n  fix: use ctas=persistent, or pool=shared");
    if (config->producer == EW_PRODUCER_BLAS && config->pool != EW_POOL_AFTER &&
        config->transport != EW_TRANSPORT_COPY)
        return ewx_fail(EW_ERR_CONFIG,
                        "producer=blas leaves no room for reducers beside its GEMM\n"
                        "  fix: use pool=after, or producer=own");
    if (config->batch != 128 && config->batch != 256 && config->batch != 512)
        return fail_range("b", config->batch, "use 128, 256 or 512 threads");
    return config->invariant ? check_cuda_pieces(problem, num_ranks, config) : EW_OK;
}

/* ---- Release units of other sizes ---- */

static ew_status check_release_ends(const ew_problem *problem, const ewx_machine *machine,
                                    const ew_config *config)
{
    char item[ITEM_BYTES];
    const char *key = config->release_first ? "first" : "last";
    if (config->release_first < 0)
        return fail_range("first", config->release_first, "use a count of tiles from 1");
    if (config->release_last < 0)
        return fail_range("last", config->release_last, "use a count of tiles from 1");
    if (config->release < 2)
        return ewx_fail(EW_ERR_CONFIG,
                        "config %s is the size of a unit of tiles, and release does not "
                        "count them\n  fix: use release=2 or more, or leave %s out",
                        item_of(config, key, item), key);
    if (ewx_op_of(problem)->gemm_waits || machine->hosts > 1)
        return ewx_fail(
            EW_ERR_UNSUPPORTED, "config %s is not supported with %s\n  fix: leave %s out",
            item_of(config, key, item),
            machine->hosts > 1 ? "several hosts" : ew_op_name(problem->op), key);
    return EW_OK;
}

/* ---- The same bits at every W ---- */

/* `unit`: elements of which the backend needs whole ones in a piece. */
static ew_status fail_pieces_of_k(const ew_problem *problem, int num_ranks, int pieces,
                                  int unit, const ew_config *config)
{
    char nearest[ITEM_BYTES];
    return ewx_fail(EW_ERR_SHAPE,
                    "invariant=%d cuts the K=%" PRId64
                    " of %s%d rank%s into %d equal pieces, and %d does not divide it\n"
                    "  fix: use %s, or a smaller invariant",
                    config->invariant, problem->k, num_ranks > 1 ? "each of " : "",
                    num_ranks, ewx_text_plural(num_ranks), pieces, pieces,
                    nearest_k(problem, (int64_t)pieces * unit, nearest));
}

static ew_status check_invariant(const ew_problem *problem, int num_ranks,
                                 const ewx_machine *machine, const ew_config *config)
{
    if (config->invariant < 0 || config->invariant > EWX_MAX_RANKS)
        return fail_range("invariant", config->invariant,
                          "use 1 to 256 pieces of K, such as 8, or 0");
    if (ewx_op_of(problem)->gemm_waits)
        return ewx_fail(
            EW_ERR_CONFIG,
            "invariant=%d with %s, which adds up nothing: its bits are the same "
            "at every W\n  fix: leave invariant out",
            config->invariant, ew_op_name(problem->op));
    if (config->producer == EW_PRODUCER_BLAS)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "invariant=%d with producer=blas, whose order of summation is its "
                        "own\n  fix: use producer=own, or leave invariant out",
                        config->invariant);
    if (config->levels == 2)
        return ewx_fail(EW_ERR_CONFIG,
                        "invariant=%d with levels=2, which sums the ranks of a host first\n"
                        "  fix: use levels=1, or leave invariant out",
                        config->invariant);
    if (config->invariant % num_ranks)
        return ewx_fail(EW_ERR_CONFIG,
                        "invariant=%d is not a multiple of W=%d, so ranks would have "
                        "different numbers of pieces of K\n"
                        "  fix: use a W that divides it, or a multiple of W, the same in "
                        "all runs whose bits must agree",
                        config->invariant, num_ranks);
    const int pieces = ewx_num_pieces(config, num_ranks);
    const int unit = ewx_is_gpu(config, machine) ? CUDA_ALIGN : 1;
    return problem->k % pieces ? fail_pieces_of_k(problem, num_ranks, pieces, unit, config)
                               : EW_OK;
}

ew_status ewx_config_check(const ew_problem *problem, int num_ranks,
                           const ewx_machine *machine, const ew_config *config)
{
    EW_TRY(check_common(config));
    if (config->shots && problem->op != EW_OP_GEMM_AR)
        return ewx_fail(
            EW_ERR_CONFIG,
            "config shots=%d is for gemm-ar, not for %s\n  fix: leave shots out",
            config->shots, ew_op_name(problem->op));
    if (config->release_first || config->release_last)
        EW_TRY(check_release_ends(problem, machine, config));
    if (config->invariant)
        EW_TRY(check_invariant(problem, num_ranks, machine, config));
    return ewx_is_gpu(config, machine) ? check_for_cuda(problem, num_ranks, config)
                                       : check_for_cpu(config);
}
