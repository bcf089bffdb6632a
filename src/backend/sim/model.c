#include "backend/sim/model.h"

#include <math.h>

#include "backend/sim/ops/sim_op.h"
#include "base/status.h"
#include "plan/link.h"
#include "plan/occupancy.h"
#include "plan/policy.h"

enum { MAX_WAVE = 512 /* blocks examined; the rest of a larger wave is assumed alike */ };

static int64_t round_ps(double ps)
{
    return ps < 1e18 ? (int64_t)(ps + 0.5) : (int64_t)1e18;
}

/* ---- Producers ---- */

/* Where the GEMM waits, of rank 0: the others have the same of their own rows. */
static ewx_block block_in_wave(const ewx_spec *spec, const ewx_grid *grid, int64_t position)
{
    return spec->op->gemm_waits ? ewx_gather_block(grid, spec->num_ranks, 0, position)
                                : ewx_order_block(grid, position);
}

/* Rows and columns of A and B, in elements, that a wave touches, per block: what the L2
 * must bring in while the wave computes.  The first wave stands for all; where the GEMM
 * waits, and begins with the few rows of its own rank, one in the middle. */
static double wave_elements(const ewx_spec *spec, const ewx_grid *grid, int slots)
{
    const int64_t num_blocks = ewx_num_blocks(grid);
    const int64_t count = ewx_min64(ewx_min64(slots, MAX_WAVE), num_blocks);
    const int64_t middle = count > 0 ? num_blocks / count / 2 * count : 0;
    const int64_t first = spec->op->gemm_waits && middle + count <= num_blocks ? middle : 0;
    int64_t rows = 0, cols = 0;
    for (int64_t i = first; i < first + count; i++) {
        const ewx_block block = block_in_wave(spec, grid, i);
        bool new_row = true, new_col = true;
        for (int64_t j = first; j < i && (new_row || new_col); j++) {
            const ewx_block other = block_in_wave(spec, grid, j);
            new_row = new_row && (other.part != block.part || other.row != block.row);
            new_col = new_col && other.col != block.col;
        }
        rows += new_row;
        cols += new_col;
    }
    return count > 0 ? (double)(rows * grid->block_rows * EWX_TILE_M +
                                cols * grid->block_cols * EWX_TILE_N) /
                           (double)count
                     : 0;
}

/* The best case, assumed for a BLAS: a wave that covers a square. */
static double square_wave_elements(const ewx_grid *grid, int slots)
{
    const double area = (double)slots * grid->block_rows * grid->block_cols;
    return 2 * EWX_TILE_M * sqrt(area) / slots;
}

/* More workers than cores take turns. */
static double turns(const ewx_sim_profile *profile, const ewx_spec *spec)
{
    const int ranks = ewx_sim_nodes_of(profile, spec->num_ranks).ranks_each;
    return fmax(1, ranks * spec->config.workers / profile->cores);
}

/* A BLAS has no partitions and chooses among blocks of many shapes to fill the GPU.
 * Returns its number of waves, not rounded up, over ours. */
static double blas_waves(const ewx_grid *grid, int slots)
{
    const double height = (double)grid->rows / (grid->block_rows * EWX_TILE_M);
    const double width = (double)grid->cols / (grid->block_cols * EWX_TILE_N);
    const int64_t ours = ewx_div_up(ewx_num_blocks(grid), slots);
    return ours > 0 ? height * width / slots / (double)ours : 1;
}

/* Block time with all slots busy. */
static double block_us(const ewx_sim_profile *profile, const ewx_spec *spec,
                       const ewx_grid *grid, int slots)
{
    const ew_config *config = &spec->config;
    const double depth = (double)spec->problem.k;
    const double tiles = (double)grid->block_rows * grid->block_cols;
    const bool wide = !profile->is_cpu && tiles > 1;
    const double area = wide ? tiles / 2 : tiles;
    double us = area * ewx_sim_curve_at(
                           wide ? &profile->block_us_256 : &profile->block_us_128, depth);
    const bool blas = config->producer == EW_PRODUCER_BLAS;
    if (!profile->is_cpu) {
        const double elements =
            blas ? square_wave_elements(grid, slots) : wave_elements(spec, grid, slots);
        us +=
            elements * depth * (double)spec->elem_bytes * profile->miss_ps_per_byte * 1e-6;
        us += !blas && config->ctas == EW_CTAS_BLOCK ? profile->cta_us : 0;
        us += config->transport == EW_TRANSPORT_ADD ? profile->add_us : 0;
        us *= blas ? blas_waves(grid, slots) : 1;
    }
    us *= (blas ? profile->blas_time : 1) *
          (spec->problem.dtype == EW_BF16 ? profile->bf16_time : 1) / profile->clock;
    if (profile->is_cpu)
        us *= turns(profile, spec);
    return us > 1e-6 ? us : 1e-6;
}

/* ---- The GEMM of few rows ---- */

/* A CTA takes the tiles of all rows in a column together. */
static ewx_grid columns_of_tiles(const ewx_grid *grid, const ew_config *given)
{
    ew_config config = *given;
    config.block_m = (int32_t)ewx_div_up(grid->rows, EWX_TILE_M) * EWX_TILE_M;
    config.block_n = EWX_TILE_N;
    config.group = 1;
    return ewx_grid_build(grid->rows, grid->cols, 1, &config);
}

static int64_t padded_rows(int64_t rows)
{
    static const int sizes[] = EWX_DECODE_SIZES;
    size_t at = 0;
    while (at + 1 < sizeof sizes / sizeof sizes[0] && sizes[at] < rows)
        at++;
    return sizes[at];
}

/* It multiplies as many rows as it must.  Its operands come once, in the memory's time
 * (wave_memory_us).  That it begins and ends costs about what a CTA for each block does. */
static double column_us(const ewx_sim_profile *profile, const ewx_spec *spec, int64_t rows)
{
    const double tile_us =
        ewx_sim_curve_at(&profile->block_us_256, (double)spec->problem.k) *
        profile->split_time;
    return (tile_us * (double)padded_rows(rows) / EWX_TILE_M + profile->cta_us) *
           (spec->problem.dtype == EW_BF16 ? profile->bf16_time : 1) / profile->clock;
}

/* How long the memory needs for what a wave of blocks loads, which all ranks on the GPU
 * read at the same time: every operand once in a GEMM. */
static double wave_memory_us(const ewx_sim_profile *profile, const ewx_spec *spec,
                             const ewx_sim_model *model)
{
    const ewx_grid *grid = &model->grid;
    const int64_t num_blocks = ewx_num_blocks(grid);
    const double bytes = (double)(grid->rows + grid->cols) * (double)spec->problem.k *
                         (double)spec->elem_bytes * model->sharers;
    if (profile->is_cpu || !(profile->mem_gbs > 0) || num_blocks == 0)
        return 0;
    return bytes / profile->mem_gbs * 1e-3 * model->slots / (double)num_blocks;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

/* Whether a block's output fills the upper half of its tiles only. */
static bool is_half(const ewx_grid *grid, ewx_block block)
{
    return ewx_part_rows(grid, block.part) - block.row * EWX_TILE_M <= EWX_TILE_M / 2;
}

/* Of the time of a whole block, what one takes that fills half its tiles.  The two CTAs of
 * a cluster load B for each other, so it cannot go at its own pace beside a whole block,
 * nor where the rows of each come at a time of their own. */
static double filled_time(const ewx_sim_model *model, ewx_taken taken, ewx_block block)
{
    const ewx_grid *grid = &model->grid;
    const int64_t beside = taken.position ^ 1;
    if (!(model->half_time < 1) || !is_half(grid, block))
        return 1;
    const bool held_up = model->waits || (beside < ewx_num_blocks(grid) &&
                                          !is_half(grid, ewx_order_block(grid, beside)));
    return model->loads_in_pairs && held_up ? (model->half_time + 1) / 2 : model->half_time;
}

/* Loads run ahead of the tensor cores by a few steps of K only.  Where both take about as
 * long, each waits for the other now and then: two fifths more if they are equal, nothing
 * if one takes a quarter of the other's time.  Half of that in the GEMM of few rows, which
 * has more steps on their way. */
static double together_ps(const ewx_sim_model *model, double compute_ps, double memory_ps)
{
    const double longer = fmax(compute_ps, memory_ps);
    const double ratio = longer > 0 ? fmin(compute_ps, memory_ps) / longer : 0;
    const double close = fmax(0, (ratio - 0.25) / 0.75);
    return longer * (1 + (model->streams ? 0.2 : 0.4) * close * close);
}

int64_t ewx_sim_block_ps(const ewx_sim_model *model, int rank, ewx_taken taken,
                         ewx_block block, int64_t wave)
{
    const bool whole = taken.tile < 0;
    const double share = (double)wave / model->slots;
    const double compute_ps = (double)(whole ? model->block_ps : model->tile_ps) *
                              filled_time(model, taken, block) *
                              (1 - model->crowd_time * (1 - share));
    const double memory_ps = model->memory_ps * share / (whole ? 1 : 2);
    const int64_t block_ps = round_ps(together_ps(model, compute_ps, memory_ps));
    if (!(model->jitter > 0))
        return block_ps;
    const uint64_t hash =
        mix((uint64_t)rank << 40 ^ (uint64_t)taken.position ^ 0x5bd1e995u);
    const double unit = (double)(hash >> 11) * 0x1p-53; /* 0 to 1 */
    return round_ps((double)block_ps * (1 + model->jitter * (2 * unit - 1)));
}

/* ---- All together ---- */

static void place_ctas(const ewx_sim_profile *profile, const ew_config *config,
                       ewx_sim_model *model)
{
    const ewx_sm_resources sm = {(int)profile->sm_registers, (int)profile->sm_shared_bytes,
                                 (int)profile->sm_threads, (int)profile->sm_ctas};
    const ewx_sm_resources nothing = {0};
    const ewx_sm_resources gemm = ewx_cta_resources(
        ewx_gemm_needs(config->kernel, config->block_n), EWX_RESERVED_SHARED);
    const ewx_sm_resources reducer =
        ewx_cta_resources(ewx_reducer_needs(config->batch), EWX_RESERVED_SHARED);
    model->producers_per_sm = ewx_fits(&sm, &nothing, 0, &gemm);
    if (model->producers_per_sm > EWX_SIM_MAX_PRODUCERS)
        model->producers_per_sm = EWX_SIM_MAX_PRODUCERS;
    for (int count = 0; count <= model->producers_per_sm; count++)
        model->reducers_beside[count] = ewx_fits(&sm, &gemm, count, &reducer);
}

/* So many SMs, and those too few for a cluster. */
static void set_apart(const ew_config *config, int count, ewx_sim_model *model)
{
    const int computing = (model->sms - count) / config->cluster * config->cluster;
    model->set_apart = model->sms - (computing > 0 ? computing : 0);
}

/* pool=static: the SMs that x reducers fill. */
static void set_reducers_apart(const ew_config *config, ewx_sim_model *model)
{
    const int per_sm = model->reducers_beside[0];
    if (config->pool == EW_POOL_STATIC && per_sm > 0)
        set_apart(config, (config->budget + per_sm - 1) / per_sm, model);
}

/* As the cuda backend does it. */
static ew_status check_budget(const ewx_sim_profile *profile, const ew_config *config,
                              const ewx_sim_model *model)
{
    const int beside = model->reducers_beside[model->producers_per_sm];
    const int alone = model->reducers_beside[0];
    int most = ewx_most_waiters(beside, model->sms, config->cluster);
    if (config->pool == EW_POOL_STATIC)
        most = alone * (model->sms - config->cluster);
    if (most < 1)
        most = 1;
    if (config->pool == EW_POOL_AFTER || config->budget <= most)
        return EW_OK;
    return ewx_fail(EW_ERR_CONFIG,
                    "x=%d reducing CTAs of b=%d threads could keep the producer off the %d "
                    "SMs of profile %s for ever\n  fix: use x=%d or fewer%s",
                    config->budget, config->batch, model->sms, profile->name, most,
                    config->batch > 128 ? ", or a smaller b" : "");
}

/* The simulated cpu engine refuses what the real one refuses. */
static ew_status check_cpu(const ewx_sim_profile *profile, const ew_config *config,
                           int num_nodes)
{
    if (num_nodes > 1 && config->producer == EW_PRODUCER_BLAS)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "producer=blas with ranks on %d hosts is not supported\n"
                        "  fix: use producer=own",
                        num_nodes);
    if (config->transport == EW_TRANSPORT_PULL && config->launches != EW_LAUNCHES_UNIT &&
        config->pool != EW_POOL_AFTER &&
        !(config->pool == EW_POOL_STATIC && config->budget >= config->workers))
        return EW_OK;
    return ewx_fail(
        EW_ERR_UNSUPPORTED,
        "profile %s is a CPU's, whose engine only pulls, launches nothing and "
        "keeps a worker for the GEMM\n  fix: leave transport, launches and pool "
        "out, or use the profile of a GPU",
        profile->name);
}

/* What needs a part of the sum for every rank. */
static ew_status check_one_level(const ewx_spec *spec)
{
    const ew_config *config = &spec->config;
    const bool copies = config->transport == EW_TRANSPORT_COPY;
    if (!copies && config->levels < 2)
        return EW_OK;
    return ewx_fail(EW_ERR_UNSUPPORTED,
                    "%s is simulated for one level, and not for transport=copy\n"
                    "  fix: leave %s out",
                    spec->op->name, copies ? "transport" : "levels");
}

ew_status ewx_sim_check(const ewx_sim_profile *profile, const ewx_spec *spec)
{
    ewx_sim_model model = {0};
    if (!ewx_sim_op_of(spec, profile->is_cpu))
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "the simulator does not have the operation %s\n"
                        "  fix: use gemm-rs or gemm-ar, or backend=cpu",
                        spec->op->name);
    EW_TRY(ewx_sim_share(profile, spec->num_ranks, &model.sms, &model.sharers));
    if (!ewx_op_has_levels(spec->op, spec->num_ranks) && spec->num_ranks > 1)
        EW_TRY(check_one_level(spec));
    if (profile->is_cpu)
        return check_cpu(profile, &spec->config,
                         ewx_sim_nodes_of(profile, spec->num_ranks).count);
    if (spec->config.levels > 1 && spec->config.transport != EW_TRANSPORT_PULL)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "levels=2 is simulated for tiles that are pulled\n"
                        "  fix: use levels=1%s",
                        spec->op->gemm_waits ? "" : ", or transport=pull");
    if (!spec->config.kernel) /* chosen before the profile was known */
        return EW_OK;
    place_ctas(profile, &spec->config, &model);
    if (model.producers_per_sm < 1)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "the producer does not fit on an SM of profile %s\n"
                        "  fix: use kernel=sm80 or block=128x128",
                        profile->name);
    return check_budget(profile, &spec->config, &model);
}

/* What is left for data of a link that is given. */
static double data_gbs(const ewx_sim_request *request)
{
    return request->link_gbs / ewx_link_sent_per_byte(request->link_header_bytes);
}

static void set_link(const ewx_sim_request *request, ewx_sim_model *model)
{
    const ewx_sim_profile *profile = request->profile;
    const bool given = request->link_gbs > 0;
    const double gbs = given ? request->link_gbs : profile->link_gbs;
    const double byte_ps = gbs > 0 ? 1e3 / gbs : 0;
    const double header_bytes = given ? request->link_header_bytes : 0;
    model->link_ps = byte_ps * ewx_link_sent_per_byte(header_bytes);
    model->asked_ps = byte_ps * ewx_link_asked_per_byte(header_bytes);
    model->link_latency_ps = round_ps(1e6 * (given ? request->link_us : profile->link_us));
    const double nic_gbs = ewx_sim_nic_gbs(request);
    model->nic_ps = nic_gbs > 0 ? 1e3 / nic_gbs : 0;
    model->nic_latency_ps = round_ps(1e6 * profile->nic_us);
    model->nic_shared = ewx_sim_nic_is_shared(request);
    model->nic_cpu_ps = profile->nic_cpu_ps_per_byte;
    if (profile->is_cpu)
        model->nic_cpu_ps *= turns(profile, request->spec);
}

static void set_nodes(const ewx_sim_request *request, ewx_sim_model *model)
{
    const ewx_spec *spec = request->spec;
    const ewx_sim_nodes nodes = ewx_sim_nodes_of(request->profile, spec->num_ranks);
    model->ranks_per_node = nodes.ranks_each;
    model->num_nodes = nodes.count;
    model->sums_in_nodes =
        spec->config.levels == 2 && nodes.count > 1 && nodes.ranks_each > 1;
}

/* FlashOverlap's form, where the profile says how its authors run it: a group of tiles is
 * exchanged by a call of the vendor's.  The engine's own kernels do that otherwise.  With
 * one group nothing runs beside the GEMM, and the GEMM has all SMs. */
static void set_calls(const ewx_sim_request *request, ewx_sim_model *model)
{
    const ewx_spec *spec = request->spec;
    const ew_config *config = &spec->config;
    const int sms = (int)request->profile->nccl_sms;
    model->calls_nccl = sms > 0 && spec->op->id == EW_OP_GEMM_RS && config->release > 0 &&
                        config->launches == EW_LAUNCHES_UNIT &&
                        config->pool == EW_POOL_SHARED &&
                        config->transport == EW_TRANSPORT_PULL && config->levels < 2 &&
                        ewx_spec_ownership(spec, request->rows) == EWX_OWNS_PART;
    if (model->calls_nccl &&
        ewx_release_units(ewx_release_of(config), ewx_part_tiles(&model->grid, 0)) > 1)
        set_apart(config, (int)ewx_min64(sms, model->sms - config->cluster), model);
}

static void set_nccl(const ewx_sim_request *request, ewx_sim_model *model)
{
    const ewx_sim_profile *profile = request->profile;
    const ewx_spec *spec = request->spec;
    if (!(profile->nccl_gbs > 0) || model->sharers > 1 || model->grid.num_large > 0 ||
        spec->op->gemm_waits)
        return;
    const bool across = spec->num_ranks > model->ranks_per_node;
    const double inside = request->link_gbs > 0 ? fmin(profile->nccl_gbs, data_gbs(request))
                                                : profile->nccl_gbs;
    /* Its rings leave a node by every NIC, and each byte of a ring leaves once. */
    const double nics = model->ranks_per_node * ewx_sim_nic_gbs(request);
    model->nccl_ps = 1e6 * profile->nccl_us;
    model->nccl_byte_ps = 1e3 / (across ? fmin(inside, nics) : inside);
    model->uses_nccl = spec->config.producer == EW_PRODUCER_BLAS;
    if (!model->uses_nccl)
        set_calls(request, model);
}

ew_status ewx_sim_model_build(const ewx_sim_request *request, ewx_sim_model *model_out)
{
    const ewx_sim_profile *profile = request->profile;
    const ewx_spec *spec = request->spec;
    const ew_config *config = &spec->config;
    ewx_sim_model model = {.crossing = ewx_spec_grid(spec, request->rows)};
    model.grid =
        spec->op->gemm_waits ? ewx_gathered_grid(spec, &model.crossing) : model.crossing;
    EW_TRY(ewx_sim_check(profile, spec));
    EW_TRY(ewx_sim_share(profile, spec->num_ranks, &model.sms, &model.sharers));
    if (profile->is_cpu)
        model.sms = config->workers;
    else
        place_ctas(profile, config, &model);
    set_reducers_apart(config, &model);
    model.slots = model.sms * (model.producers_per_sm > 0 ? model.producers_per_sm : 1);
    model.streams = !profile->is_cpu && ewx_has_decode_kernel(spec) &&
                    model.grid.num_parts == 1 && request->rows > 0 &&
                    request->rows <= EWX_DECODE_ROWS;
    if (model.streams)
        model.grid = columns_of_tiles(&model.grid, config);
    const double whole_us = model.streams
                                ? column_us(profile, spec, request->rows)
                                : block_us(profile, spec, &model.grid, model.slots);
    model.block_ps = round_ps(1e6 * whole_us);
    model.half_time =
        !profile->is_cpu && config->producer == EW_PRODUCER_OWN && !model.streams
            ? profile->half_time
            : 1;
    model.loads_in_pairs = !profile->is_cpu && config->cluster == 2;
    model.waits = spec->op->gemm_waits;
    model.memory_ps = 1e6 * wave_memory_us(profile, spec, &model);
    if (!profile->is_cpu && ewx_splits_blocks(spec) && model.grid.block_cols == 2)
        model.tile_ps = round_ps((double)model.block_ps * profile->split_time);
    model.crowd_time = profile->crowd_time;
    model.jitter = profile->jitter;
    model.tile_bytes = EWX_TILE_M * EWX_TILE_N * (int64_t)spec->elem_bytes;
    model.steal_ps = profile->steal_ps_per_byte;
    model.mem_ps = profile->mem_gbs > 0 ? 1e3 / profile->mem_gbs : 0;
    model.cta_ps = 1e3 / fmax(1e-3, ewx_sim_curve_at(&profile->reducer_gbs, config->batch));
    if (profile->is_cpu)
        model.cta_ps *= turns(profile, spec);
    model.reducer_ps = round_ps(1e6 * profile->reducer_us);
    model.shared_time = profile->is_cpu ? 1 : fmax(1, profile->shared_time);
    model.copy_ps = profile->copy_gbs > 0 ? 1e3 / profile->copy_gbs : 0;
    model.beside_ps = round_ps(1e6 * profile->beside_us);
    model.command_ps = round_ps(1e6 * profile->command_us * model.sharers);
    model.start_ps = round_ps(1e6 * profile->start_us);
    model.launch_ps = round_ps(1e6 * profile->launch_us);
    /* A vendor's GEMM comes behind a kernel that opens the call. */
    if (!profile->is_cpu && config->producer == EW_PRODUCER_BLAS)
        model.start_ps += model.launch_ps;
    model.publish_ps = round_ps(1e6 * profile->publish_us);
    model.skew_ps = request->together ? 0 : round_ps(1e6 * profile->skew_us);
    model.stagger_ps = model.sharers > 1 ? round_ps(1e6 * profile->skew_us) : 0;
    set_nodes(request, &model);
    set_link(request, &model);
    set_nccl(request, &model);
    *model_out = model;
    return EW_OK;
}
