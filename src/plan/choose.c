/* Which config a problem gets when the caller leaves fields open.  The only place in the
 * tree that chooses. */
#include "plan/policy.h"

#include "entwine/fabric.h"

/* ---- Choosing for the CPU ---- */

/* The block is one tile high and two wide, as the paper's larger one.  Interleaving keeps
 * one row panel of A per part in use; when they crowd the cache, a wide block stays longer
 * with one of them (2 to 4 % of the GEMM at W=2, K=512, fp32) and still releases tile by
 * tile. */
#define DEFAULT_BLOCK_M 128
#define DEFAULT_BLOCK_N 256
#define WIDE_BLOCK_N 1024
#define CROWDED_PANELS_BYTES (384 * 1024)
#define BLOCKS_PER_WORKER 4 /* fewer would leave workers idle at the end */

int ewx_interleaved_panels(const ew_problem *problem, int num_ranks)
{
    const int num_parts = ewx_op_of(problem)->num_parts(num_ranks);
    return (int)ewx_min64(num_parts, problem->max_m);
}

int64_t ewx_interleaved_panels_bytes(const ew_problem *problem, int num_ranks,
                                     const ewx_machine *machine)
{
    const int panels = ewx_interleaved_panels(problem, num_ranks);
    const int64_t rows =
        panels > 0 ? ewx_min64(EWX_TILE_M, 1 + (problem->max_m - 1) / panels) : 0;
    const ew_dtype packed = machine->cpu_packs[problem->dtype];
    const int64_t elem = (int64_t)ew_dtype_bytes(packed ? packed : problem->dtype);
    return panels * rows * problem->k * elem;
}

static int32_t choose_block_n(const ew_problem *problem, int num_ranks,
                              const ewx_machine *machine, int workers)
{
    /* Divided instead of multiplied: M and N are not known to fit a product yet. */
    const int64_t block_rows = ewx_div_up(problem->max_m, EWX_TILE_M);
    const int64_t rows_needed = ewx_div_up(BLOCKS_PER_WORKER * (int64_t)workers,
                                           ewx_div_up(problem->n, WIDE_BLOCK_N));
    const bool crowded =
        ewx_interleaved_panels_bytes(problem, num_ranks, machine) > CROWDED_PANELS_BYTES;
    return crowded && block_rows >= rows_needed ? WIDE_BLOCK_N : DEFAULT_BLOCK_N;
}

/* A large block takes its operands from memory half as often, which a GEMM of several TF/s
 * per core needs; its tiles are released together. */
static bool wants_large_block(const ew_problem *problem, int num_ranks, int workers,
                              int32_t side)
{
    if (side < 1 || problem->n < 1 || problem->max_m / num_ranks < side)
        return false;
    const int64_t needed = BLOCKS_PER_WORKER * (int64_t)workers;
    return ewx_div_up(problem->max_m, side) >=
           ewx_div_up(needed, ewx_div_up(problem->n, side));
}

static void choose_block(const ew_problem *problem, int num_ranks,
                         const ewx_machine *machine, ew_config *config)
{
    const int32_t side = machine->cpu_block[problem->dtype];
    const bool is_open = !config->block_m && !config->block_n;
    if (is_open && wants_large_block(problem, num_ranks, config->workers, side))
        config->block_m = config->block_n = side;
    if (!config->block_m)
        config->block_m = DEFAULT_BLOCK_M;
    if (!config->block_n)
        config->block_n = choose_block_n(problem, num_ranks, machine, config->workers);
}

/* What crosses of a part, at most: tiles, or panels of rows. */
typedef struct released {
    int64_t count, bytes; /* of each */
} released;

static released released_of(const ew_problem *problem, int num_ranks,
                            const ew_config *config)
{
    const int64_t elem = (int64_t)ew_dtype_bytes(problem->dtype);
    if (!ewx_op_of(problem)->gemm_waits)
        return (released){ewx_most_part_tiles(problem, num_ranks),
                          EWX_TILE_M * EWX_TILE_N * elem *
                              ewx_num_pieces(config, num_ranks)};
    return (released){ewx_div_up(ewx_div_up(problem->max_m, num_ranks), EWX_TILE_M),
                      EWX_TILE_M * problem->k * elem};
}

/* Tiles or panels released together.  Between hosts each release is a message: large enough
 * to be worth the trouble, and enough of them to hide most behind the GEMM. */
#define MESSAGES_PER_OWNER 16
static int32_t choose_release(const ew_problem *problem, int num_ranks,
                              const ewx_machine *machine, const ew_config *config)
{
    if (config->producer == EW_PRODUCER_BLAS)
        return EW_RELEASE_OUTPUT;
    /* Tiles of one part have different owners, so each is a message anyway. */
    if (machine->hosts < 2 || ewx_op_of(problem)->num_parts(num_ranks) == 1)
        return 1;
    const released all = released_of(problem, num_ranks, config);
    const int64_t release =
        ewx_min64(EW_MESSAGE_BYTES / all.bytes, all.count / MESSAGES_PER_OWNER);
    return release > 1 ? (int32_t)release : 1;
}

/* A host with one rank has nothing to add. */
static int32_t choose_levels(const ew_problem *problem, int num_ranks,
                             const ewx_machine *machine)
{
    const bool adds = num_ranks > machine->hosts;
    return adds && ewx_op_has_levels(ewx_op_of(problem), num_ranks) ? 2 : 1;
}

static void choose_for_cpu(const ew_problem *problem, int num_ranks,
                           const ewx_machine *machine, ew_config *config)
{
    const int share = ewx_cores_each(machine, num_ranks);
    if (!config->release)
        config->release = choose_release(problem, num_ranks, machine, config);
    if (!config->order) /* without early release there is nothing to interleave for */
        config->order =
            config->release == EW_RELEASE_OUTPUT ? EW_ORDER_DEFAULT : EW_ORDER_INTERLEAVED;
    const int fewest = config->pool == EW_POOL_STATIC ? 2 : 1; /* one of them reduces */
    if (!config->workers)
        config->workers = share > fewest ? share : fewest;
    choose_block(problem, num_ranks, machine, config);
    if (!config->group)
        config->group = 1;
    if (!config->pool)
        config->pool = EW_POOL_SHARED;
    if (!config->budget)
        config->budget = config->pool == EW_POOL_STATIC ? 1 : config->workers;
    if (!config->batch)
        config->batch = 1;
    if (!config->levels && machine->hosts > 1)
        config->levels = config->invariant ? 1 : choose_levels(problem, num_ranks, machine);
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

/* Row blocks of each part that are walked together, so that the blocks computed at
 * a time, one per SM, cover an area about as high as wide and share most of their loads:
 * parts * group is the root of `wave_tiles`, to the nearest power of two. */
static int32_t choose_group(int num_parts, int sms, int32_t block_n)
{
    const int64_t wave_tiles = (int64_t)sms * (block_n / EWX_TILE_N);
    int64_t group = 1;
    while (2 * group * group * num_parts * num_parts <= wave_tiles)
        group *= 2;
    return (int32_t)group;
}

/* Panels that arrive, and are multiplied, side by side.  Where a wave holds several whole
 * panels, the output is so narrow that the link is the limit: then as many as a wave holds,
 * since the last ones to arrive are multiplied while they do; an even number, as two CTAs
 * share a column of B (4096 x 1280 x 8192 on 16 SMs: 1077 us with 2, 1391 with 3).  Those
 * of a chunk that is copied arrive together, and wait for no others. */
static int32_t choose_gather_group(const ew_problem *problem, int sms,
                                   const ew_config *config)
{
    const int64_t sm_cols = 2 * EWX_TILE_N; /* of one wide block, or of two narrow ones */
    const int64_t across = ewx_div_up(problem->n, sm_cols); /* N is not checked yet */
    const int64_t panels = across > 0 ? sms / across : 1;
    const int32_t group =
        panels < 2 ? choose_group(1, sms, config->block_n) : (int32_t)(panels - panels % 2);
    const bool in_chunks = config->transport == EW_TRANSPORT_COPY && config->release > 0;
    return in_chunks && config->release < group ? config->release : group;
}

/* As many tiles of a part as two waves of the producer hold: the smallest group that hides
 * one launch behind the next group's GEMM.  Where tiles of the only part are dealt out to
 * all ranks, whole rounds of them. */
static int32_t choose_unit(const ew_problem *problem, int num_ranks, int sms,
                           const ew_config *config)
{
    const int num_parts = ewx_op_of(problem)->num_parts(num_ranks);
    const int64_t waves =
        ewx_div_up(2 * (int64_t)sms * (config->block_n / EWX_TILE_N), num_parts);
    const int64_t least = ewx_least_unit(config, ewx_most_part_tiles(problem, num_ranks));
    const int64_t round = num_parts == 1 ? num_ranks : 1;
    return (int32_t)(ewx_div_up(waves > least ? waves : least, round) * round);
}

/* Panels that a copy engine takes at a time: a quarter of a rank's, so that their GEMM can
 * begin early. */
static int32_t choose_chunk(const ew_problem *problem, int num_ranks)
{
    const int64_t panels = ewx_most_panels(problem, num_ranks);
    const int64_t most = ewx_most_chunks(num_ranks);
    const int64_t chunk = ewx_div_up(panels, ewx_min64(most, 4));
    return chunk > 1 ? (int32_t)chunk : 1;
}

static int32_t choose_gpu_release(const ew_problem *problem, int num_ranks, int sms,
                                  const ew_config *config)
{
    const bool is_blas = config->producer == EW_PRODUCER_BLAS;
    if (config->transport == EW_TRANSPORT_COPY)
        return ewx_op_of(problem)->gemm_waits && !is_blas ? choose_chunk(problem, num_ranks)
                                                          : EW_RELEASE_PARTITION;
    if (is_blas)
        return EW_RELEASE_OUTPUT;
    return config->launches == EW_LAUNCHES_UNIT
               ? choose_unit(problem, num_ranks, sms, config)
               : 1;
}

/* Whether tiles of the largest call span owners and follow the rows as they come.  Nothing
 * but reducers is left to be chosen. */
static bool follows_spanning_rows(const ew_problem *problem, int num_ranks,
                                  const ewx_machine *machine, const ew_config *config)
{
    const ewx_spec spec = {.problem = *problem,
                           .op = ewx_op_of(problem),
                           .config = *config,
                           .num_ranks = num_ranks,
                           .num_hosts = machine->hosts > 1 ? machine->hosts : 1};
    return spec.op->gemm_waits && ewx_spans_owners(&spec, problem->max_m) &&
           !ewx_gathers_at_once(problem->max_m, num_ranks);
}

/* The sm90 producer leaves registers for a reducing CTA of 256 threads on each SM; with
 * fewer CTAs, the SMs that have one would lag behind the others.  Beside the sm80 producer
 * a reducer takes the room of a GEMM CTA.  After the GEMM all SMs are free.  SMs of their
 * own hold four of the largest.  The AllReduce's, and a mover's loads in flight, are too
 * much for the registers of 512 threads, but four of 256 fit on an SM.  Movers only copy:
 * on every other SM they keep a link busy, and the GEMM takes its blocks as it can.  Where
 * they push a rank's few rows for tiles that span owners, units are small, and one on every
 * SM is faster (1152 x 7168 x 8192 on 16 SMs: 1583 us, 1777 with half as many).  Copy
 * engines need none: the two keys have a value all the same. */
static void choose_reducers(const ew_problem *problem, int num_ranks,
                            const ewx_machine *machine, int sms, ew_config *config)
{
    const ew_op op = problem->op;
    const bool none = ewx_copies_rows(ewx_op_of(problem), config);
    const bool after = config->pool == EW_POOL_AFTER;
    const bool apart = config->pool == EW_POOL_STATIC;
    const bool beside = config->kernel == EW_KERNEL_SM90;
    const bool to_all = op != EW_OP_GEMM_RS;
    const int quarter = sms >= 4 ? sms / 4 : 1;
    const bool many = follows_spanning_rows(problem, num_ranks, machine, config);
    const int movers = sms >= 2 && !many ? sms / 2 : sms;
    if (!config->budget)
        config->budget = none     ? 1
                         : after  ? (to_all ? 4 : 2) * sms
                         : apart  ? 2 * quarter
                         : beside ? (op == EW_OP_AG_GEMM ? movers : sms)
                                  : quarter;
    if (!config->batch)
        config->batch = none             ? 128
                        : after || apart ? (to_all ? 256 : 512)
                        : beside         ? 256
                                         : 128;
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
    const bool gathers = ewx_op_of(problem)->gemm_waits;
    if (!config->ctas) /* a GEMM that waits leaves room for what it waits for */
        config->ctas = sm90 || gathers || config->pool == EW_POOL_STATIC
                           ? EW_CTAS_PERSISTENT
                           : EW_CTAS_BLOCK;
    if (!config->cluster)
        config->cluster = sm90 && config->block_n == 256 ? 2 : 1;
    const bool copies = config->transport == EW_TRANSPORT_COPY;
    if (!config->order) /* also when nothing is released early: it is the fastest GEMM */
        config->order = copies                                 ? EW_ORDER_CONTIGUOUS
                        : config->producer == EW_PRODUCER_BLAS ? EW_ORDER_DEFAULT
                                                               : EW_ORDER_INTERLEAVED;
    if (!config->launches)
        config->launches = EW_LAUNCHES_ONCE;
    if (!config->release)
        config->release = choose_gpu_release(problem, num_ranks, gpu.gpu_sms, config);
    if (!config->group)
        config->group = gathers
                            ? choose_gather_group(problem, gpu.gpu_sms, config)
                            : choose_group(config->order == EW_ORDER_CONTIGUOUS
                                               ? 1
                                               : ewx_op_of(problem)->num_parts(num_ranks),
                                           gpu.gpu_sms, config->block_n);
    if (!config->pool) /* reducers that can only wait would be in the GEMM's way */
        config->pool = copies ? (gathers ? EW_POOL_SHARED : EW_POOL_AFTER)
                       : config->release == EW_RELEASE_OUTPUT ? EW_POOL_AFTER
                                                              : EW_POOL_SHARED;
    choose_reducers(problem, num_ranks, machine, gpu.gpu_sms, config);
    if (!config->workers)
        config->workers = 1;
}

/* ---- Choosing call by call ---- */

/* A reducer that fuses normalises rows while later ones are being summed.  Where there are
 * none to speak of it only delays the last tile; then a kernel that follows at once is
 * faster (docs/DESIGN.md). */
static bool fusing_pays_on_gpu(const ewx_epilogue_facts *facts)
{
    enum { LEAST_TILE_ROWS = 4 };
    return !facts->has_norm || facts->tile_rows >= LEAST_TILE_ROWS;
}

/* Between tiles it takes the GEMM's cache.  That pays where workers have time while tiles
 * are on their way, as those that only reduce always do (docs/EVALUATION.md, layer). */
static bool fusing_pays_on_cpu(const ew_config *config, const ewx_epilogue_facts *facts)
{
    return facts->tiles_travel || config->pool == EW_POOL_STATIC;
}

bool ewx_epilogue_fuses(const ew_config *config, const ewx_epilogue_facts *facts)
{
    if (config->epilogue)
        return config->epilogue == EW_EPILOGUE_FUSED;
    return ewx_traits_of(config->backend)->is_gpu ? fusing_pays_on_gpu(facts)
                                                  : fusing_pays_on_cpu(config, facts);
}

bool ewx_one_shot_is_smaller(const ewx_spec *spec)
{
    return spec->num_ranks * spec->layout.num_pieces <= spec->layout.num_pieces + 1;
}

/* In one shot a rank reads W times the output instead of twice, but does not wait a second
 * time.  On an H200 the second wait takes 13 us (m=16, N=8192, W=8); what a GPU may read
 * more instead, NVLink brings in half of that. */
#define ONE_SHOT_BYTES 65536
#define ONE_SHOT_MORE_BYTES (2688 * 1024)
static int64_t most_one_shot_bytes(const ewx_spec *spec)
{
    const int64_t W = spec->num_ranks;
    const bool is_gpu = spec->config.kernel != 0;
    return is_gpu && W > 2 ? ONE_SHOT_MORE_BYTES * W / ((W - 1) * (W - 2)) : ONE_SHOT_BYTES;
}

int ewx_allreduce_shots(const ewx_spec *spec, int64_t m)
{
    const int64_t row_bytes =
        spec->problem.n * (int64_t)spec->elem_bytes * spec->layout.num_pieces;
    if (spec->config.shots)
        return spec->config.shots;
    return ewx_one_shot_is_smaller(spec) || m <= most_one_shot_bytes(spec) / row_bytes ? 1
                                                                                       : 2;
}

/* A profile gives a kernel to simulated ranks that are GPUs. */
static bool ranks_are_gpus(const ew_config *config)
{
    const ewx_traits *traits = ewx_traits_of(config->backend);
    return traits->is_gpu || (traits->simulated && config->kernel != 0);
}

/* What tiles with several owners need: every rank's reducer pulls its rows of each, one
 * contribution of every rank, and a unit of several tiles would be one owner's, unless it
 * is the whole output. */
static bool can_span_owners(const ewx_spec *spec)
{
    const ew_config *config = &spec->config;
    const bool crosses_apart =
        spec->op->gemm_waits
            ? !ewx_copies_rows(spec->op, config)
            : spec->problem.op == EW_OP_GEMM_RS && config->transport == EW_TRANSPORT_PULL;
    return ranks_are_gpus(config) && crosses_apart && spec->num_ranks > 1 &&
           spec->num_hosts == 1 && config->producer == EW_PRODUCER_OWN &&
           config->order == EW_ORDER_INTERLEAVED &&
           (config->release == 1 || config->release == EW_RELEASE_OUTPUT) &&
           config->launches == EW_LAUNCHES_ONCE &&
           ewx_num_pieces(config, spec->num_ranks) == 1;
}

/* Rows of tiles that are walked together, so that the owners of all rows are served in
 * turn: twice what the parts' groups hold. */
static int64_t most_spanning_rows(const ewx_spec *spec)
{
    return 2 * (int64_t)spec->num_ranks * spec->config.group;
}

/* A block of the GEMM costs nearly the same whether its tiles are full or not, since it
 * loads all their columns of the weight.  Padding each owner's rows may cost as much as the
 * walk gains by it, a fifth; beyond, and where one row of tiles holds everything, tiles
 * span owners. */
bool ewx_spans_owners(const ewx_spec *spec, int64_t m)
{
    if (m < 1 || !can_span_owners(spec))
        return false;
    const int64_t W = spec->num_ranks, large = m % W;
    const int64_t padded = large * ewx_div_up(m / W + 1, EWX_TILE_M) +
                           (W - large) * ewx_div_up(m / W, EWX_TILE_M);
    const int64_t together = ewx_div_up(m, EWX_TILE_M);
    return together == 1 ||
           (together <= most_spanning_rows(spec) && 5 * together <= 4 * padded);
}

/* Where blocks have the size that is chosen for them, not one that the caller may want to
 * see, and a CTA takes as many as there are. */
bool ewx_has_decode_kernel(const ewx_spec *spec)
{
    const ew_config *config = &spec->config;
    return config->kernel == EW_KERNEL_SM90 && !spec->op->gemm_waits &&
           config->producer == EW_PRODUCER_OWN && config->transport == EW_TRANSPORT_PULL &&
           config->block_n == DEFAULT_BLOCK_N && config->ctas == EW_CTAS_PERSISTENT &&
           ewx_num_pieces(config, spec->num_ranks) == 1;
}

/* As the kernel for few rows takes them, if there is one: tiles, column by column. */
static void set_decode_blocks(const ewx_spec *spec, int64_t m, ew_config *config)
{
    if (m > EWX_DECODE_ROWS || !ewx_has_decode_kernel(spec))
        return;
    config->block_n = EWX_TILE_N;
    const int64_t tile_rows = ewx_div_up(m, EWX_TILE_M);
    if (config->group < tile_rows)
        config->group = (int32_t)tile_rows;
}

static ewx_grid spanning_grid(const ewx_spec *spec, int64_t m, int64_t n)
{
    ew_config config = spec->config;
    if (!spec->op->gemm_waits || ewx_gathers_at_once(m, spec->num_ranks))
        config.group = (int32_t)ewx_min64(most_spanning_rows(spec), INT32_MAX);
    set_decode_blocks(spec, m, &config);
    return ewx_grid_build(m, n, 1, &config);
}

ewx_grid ewx_spec_grid(const ewx_spec *spec, int64_t m)
{
    if (!spec->op->gemm_waits && ewx_spans_owners(spec, m))
        return spanning_grid(spec, m, spec->problem.n);
    const int num_parts = spec->op->num_parts(spec->num_ranks);
    ew_config config = spec->config;
    if (num_parts == 1)
        set_decode_blocks(spec, m, &config);
    return ewx_grid_build(m, spec->problem.n, num_parts, &config);
}

ewx_grid ewx_gathered_grid(const ewx_spec *spec, const ewx_grid *by_ranks)
{
    return ewx_spans_owners(spec, by_ranks->rows)
               ? spanning_grid(spec, by_ranks->rows, by_ranks->cols)
               : *by_ranks;
}

ewx_ownership ewx_spec_ownership(const ewx_spec *spec, int64_t m)
{
    if (spec->op->gemm_waits)
        return EWX_OWNS_NOTHING;
    if (spec->problem.op != EW_OP_GEMM_AR)
        return ewx_spans_owners(spec, m) ? EWX_OWNS_ROWS : EWX_OWNS_PART;
    return ewx_allreduce_shots(spec, m) == 1 ? EWX_OWNS_ALL : EWX_OWNS_TILES;
}

double ewx_spec_remote_bytes(const ewx_spec *spec, int64_t m)
{
    const bool all = ewx_spec_ownership(spec, m) == EWX_OWNS_ALL;
    const double contributions = (double)(spec->num_ranks - 1) /
                                 (all ? 1 : spec->num_ranks) * (double)m *
                                 (double)spec->problem.n * (double)spec->elem_bytes;
    return (all ? contributions
                : spec->op->remote_bytes(&spec->problem, m, spec->num_ranks)) +
           contributions * (spec->layout.num_pieces - 1);
}

ewx_share ewx_spec_share(const ewx_spec *spec, int64_t m, int rank)
{
    const ewx_grid grid = ewx_spec_grid(spec, m);
    return ewx_share_of(&grid, ewx_spec_ownership(spec, m), spec->num_ranks, rank);
}

/* ---- All together ---- */

void ewx_config_fill(const ew_problem *problem, int num_ranks, const ewx_machine *machine,
                     ew_config *config)
{
    if (!config->backend)
        config->backend = ewx_traits_of(config->backend)->id;
    if (!config->producer)
        config->producer = EW_PRODUCER_OWN;
    const bool is_gpu = ewx_is_gpu(config, machine);
    if (!config->transport) /* rows are pushed by the ranks that have them */
        config->transport = is_gpu && ewx_op_of(problem)->gemm_waits ? EW_TRANSPORT_PUSH
                                                                     : EW_TRANSPORT_PULL;
    if (is_gpu)
        choose_for_cuda(problem, num_ranks, machine, config);
    else
        choose_for_cpu(problem, num_ranks, machine, config);
}
