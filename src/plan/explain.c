/* Why a spec is what it is, in words.  Says what choose.c did; decides nothing. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "plan/policy.h"

/* "key=value: given", or the reason why it was chosen. */
__attribute__((format(printf, 5, 6))) static void explain_key(const ew_config *config,
                                                              const char *key, bool asked,
                                                              ewx_text *text,
                                                              const char *reason, ...)
{
    char why[160] = "given";
    va_list args;
    va_start(args, reason);
    if (!asked)
        ewx_text_print(why, sizeof why, reason, args);
    va_end(args);
    ewx_config_print_key(config, key, text);
    ewx_text_add(text, ": %s\n", why);
}

static const char *why_order(const ewx_spec *spec)
{
    const ew_config *config = &spec->config;
    if (ewx_copies_rows(spec->op, config))
        return "one rank's rows after the other's, as they are copied, own ones first";
    if (spec->op->gemm_waits)
        return "other ranks' rows take turns as they arrive, own ones come in between";
    if (config->transport == EW_TRANSPORT_COPY)
        return "one destination's part after the other, as they are copied";
    if (config->producer == EW_PRODUCER_BLAS)
        return "one BLAS call computes all";
    if (config->order == EW_ORDER_DEFAULT)
        return "nothing is released early, so no destination needs to come early";
    if (spec->layout.num_parts == 1)
        return "the output is one part, walked from top to bottom";
    return config->release == EW_RELEASE_OUTPUT || config->pool == EW_POOL_AFTER
               ? "destinations take turns: they share columns of B, the fastest GEMM"
               : "destinations take turns, so that every owner can reduce early";
}

static const char *why_levels(const ewx_spec *spec)
{
    if (spec->config.levels == 2)
        return "a host sends one sum, not one tile per rank";
    if (spec->op->gemm_waits)
        return "nothing is summed";
    if (spec->config.invariant)
        return "sums of hosts would depend on W";
    return ewx_op_has_levels(spec->op, spec->num_ranks) ? "hosts have one rank each"
                                                        : "every rank gets the whole sum";
}

static const char *why_release(const ewx_spec *spec)
{
    const ew_config *config = &spec->config;
    if (ewx_copies_rows(spec->op, config))
        return config->producer == EW_PRODUCER_BLAS
                   ? "a rank's rows are one copy"
                   : "a quarter of a rank's rows is one copy";
    if (spec->op->gemm_waits)
        return "a block is computed as soon as its rows are there";
    if (config->transport == EW_TRANSPORT_COPY)
        return "a destination's part is one copy";
    if (config->producer == EW_PRODUCER_BLAS)
        return "one BLAS call computes all";
    if (config->launches == EW_LAUNCHES_UNIT)
        return "so many tiles hide the launch that sums them behind the GEMM";
    if (config->levels && config->release > 1)
        return "one message between hosts, of about 256 KiB";
    return config->pool == EW_POOL_AFTER
               ? "a tile waits for its own contributions only"
               : "a tile is reduced as soon as every rank has computed it";
}

/* ---- CPU ---- */

static void explain_block(const ewx_spec *spec, bool asked, const ewx_machine *machine,
                          ewx_text *text)
{
    const int panels = ewx_interleaved_panels(&spec->problem, spec->num_ranks);
    const int64_t panels_kib =
        ewx_interleaved_panels_bytes(&spec->problem, spec->num_ranks, machine) / 1024;
    if (spec->config.block_m > EWX_TILE_M) {
        explain_key(&spec->config, "block", asked, text,
                    "its tiles share rows and columns while these are in L2");
        return;
    }
    const int64_t tiles = spec->config.block_n / EWX_TILE_N;
    explain_key(&spec->config, "block", asked, text,
                "%sinterleaving %s %d row panel%s, %" PRId64 " KiB%s",
                tiles == 2 ? "two tiles wide; " : "",
                spec->config.order == EW_ORDER_INTERLEAVED ? "uses" : "would use", panels,
                ewx_text_plural(panels), panels_kib,
                tiles > 2 ? "; a wide block stays longer with one" : "");
}

static void explain_domains(const ewx_machine *machine, ewx_text *text)
{
    if (machine->unplaced)
        ewx_text_add(text,
                     "numa: several domains, but %s: ranks and memory lie where Linux puts "
                     "them, slower\n",
                     machine->unplaced);
    else if (machine->domains == 1)
        ewx_text_add(text, "numa: every rank stays in one domain, with its memory\n");
    else if (machine->domains > 1)
        ewx_text_add(text,
                     "numa: a rank straddles %d domains, slower; a rank per domain is "
                     "best\n",
                     machine->domains);
}

static void explain_cpu_reducers(const ew_config *config, const ew_config *asked,
                                 ewx_text *text)
{
    explain_key(config, "x", asked->budget, text,
                config->pool == EW_POOL_STATIC ? "one reducer set apart"
                                               : "every worker may reduce");
    explain_key(config, "b", asked->batch, text, "one tile, then look for a block again");
}

static void explain_cpu(const ewx_spec *spec, const ew_config *asked,
                        const ewx_machine *machine, ewx_text *text)
{
    const ew_config *config = &spec->config;
    explain_key(config, "order", asked->order, text, "%s", why_order(spec));
    explain_key(config, "release", asked->release, text, "%s", why_release(spec));
    if (config->producer != EW_PRODUCER_BLAS)
        explain_block(spec, asked->block_m && asked->block_n, machine, text);
    explain_key(
        config, "workers", asked->workers, text, "%d usable core%s for %d rank%s%s%s",
        machine->cores, ewx_text_plural(machine->cores), spec->num_ranks,
        ewx_text_plural(spec->num_ranks),
        machine->cores < spec->num_ranks ? ", which share them: slower" : "",
        config->pool == EW_POOL_STATIC ? "; one of a rank's workers only reduces" : "");
    explain_domains(machine, text);
    if (!spec->op->gemm_waits)
        explain_cpu_reducers(config, asked, text);
    if (config->levels)
        explain_key(config, "levels", asked->levels, text, "%s", why_levels(spec));
}

/* ---- CUDA ---- */

static void explain_gpu(const ewx_machine *machine, ewx_text *text)
{
    if (machine->gpu_sms < 1)
        ewx_text_add(text, "gpu: none here, so chosen as for %d SMs of an H200\n",
                     ewx_machine_planned(machine).gpu_sms);
    else if (machine->gpu_sharers > 1)
        ewx_text_add(text, "virtual node: %d ranks share this GPU, %d SMs each\n",
                     machine->gpu_sharers, machine->gpu_sms);
}

static void explain_cuda_producer(const ewx_spec *spec, const ew_config *asked,
                                  const ewx_machine *gpu, ewx_text *text)
{
    const ew_config *config = &spec->config;
    const bool sm90 = config->kernel == EW_KERNEL_SM90;
    explain_key(config, "kernel", asked->kernel, text,
                sm90 ? "compute capability %d.%d has wgmma and TMA"
                     : "compute capability %d.%d, and wgmma exists on 9.0 only",
                gpu->gpu_arch / 10, gpu->gpu_arch % 10);
    explain_key(config, "block", asked->block_m && asked->block_n, text, "%s",
                config->block_n == 256
                    ? "two tiles that share their rows of A: less L2 traffic"
                    : "one tile, which leaves room for reducers");
    explain_key(config, "ctas", asked->ctas, text, "%s",
                config->ctas == EW_CTAS_PERSISTENT
                    ? "a CTA stores and publishes a block while it computes the next"
                    : "a CTA per block, so that reducers find room whenever one ends");
    explain_key(config, "cluster", asked->cluster, text, "%s",
                config->cluster == 2 ? "a column of B is loaded once for two CTAs"
                                     : "every CTA loads its own columns of B");
    const int parts = config->order == EW_ORDER_CONTIGUOUS ? 1 : spec->layout.num_parts;
    if (spec->op->gemm_waits)
        explain_key(config, "group", asked->group, text,
                    "panels that arrive side by side, for %d SMs to multiply at a time",
                    gpu->gpu_sms);
    else
        explain_key(config, "group", asked->group, text,
                    "with %d part%s in turn, what %d SMs compute at a time is about square",
                    parts, ewx_text_plural(parts), gpu->gpu_sms);
}

/* Where the GEMM waits, the CTAs beside it push rows instead of summing tiles. */
static const char *why_pool(const ewx_spec *spec)
{
    const bool after = spec->config.pool == EW_POOL_AFTER;
    if (spec->config.transport == EW_TRANSPORT_COPY)
        return "parts are copied beside the GEMM and summed when it has ended";
    if (spec->op->gemm_waits)
        return after ? "the GEMM begins when all rows are there"
                     : "rows are pushed on the SMs that multiply those that have come";
    return after ? "nothing is released before the GEMM has ended"
                 : "tiles are reduced on the SMs that compute the next ones";
}

/* A format for the number of SMs. */
static const char *why_budget(const ewx_spec *spec, const ewx_machine *gpu)
{
    const ew_config *config = &spec->config;
    const bool gathers = spec->op->gemm_waits;
    if (config->pool == EW_POOL_STATIC)
        return "CTAs that fill an eighth of %d SMs, which do nothing else";
    if (config->pool == EW_POOL_AFTER)
        return gathers ? "four CTAs on each of %d SMs, which the GEMM needs later"
               : spec->problem.op == EW_OP_GEMM_AR
                   ? "four CTAs on each of %d SMs, which are free by then"
                   : "two CTAs on each of %d SMs, which are free by then";
    if (config->kernel != EW_KERNEL_SM90)
        return "a quarter of %d SMs, the GEMM keeps the others";
    return config->budget < gpu->gpu_sms
               ? "one CTA beside the GEMM on every other of %d SMs"
               : "one CTA beside the GEMM on each of %d SMs";
}

static void explain_cuda_reducers(const ewx_spec *spec, const ew_config *asked,
                                  const ewx_machine *gpu, ewx_text *text)
{
    const ew_config *config = &spec->config;
    const bool alone = config->pool != EW_POOL_SHARED;
    const bool beside = config->kernel == EW_KERNEL_SM90;
    explain_key(config, "pool", asked->pool, text, "%s", why_pool(spec));
    explain_key(config, "x", asked->budget, text, why_budget(spec, gpu), gpu->gpu_sms);
    explain_key(config, "b", asked->batch, text, "%s",
                alone    ? "threads of a CTA, as many as hide the loads"
                : beside ? "threads of a CTA, what the GEMM's registers leave"
                         : "threads of a CTA, small enough to fit beside the GEMM");
}

static void explain_cuda(const ewx_spec *spec, const ew_config *asked,
                         const ewx_machine *machine, ewx_text *text)
{
    const ew_config *config = &spec->config;
    const ewx_machine gpu = ewx_machine_planned(machine);
    const bool copies = ewx_copies_rows(spec->op, config);
    explain_gpu(machine, text);
    explain_key(config, "order", asked->order, text, "%s", why_order(spec));
    explain_key(config, "release", asked->release, text, "%s", why_release(spec));
    if (config->producer != EW_PRODUCER_BLAS)
        explain_cuda_producer(spec, asked, &gpu, text);
    else if (copies)
        ewx_text_add(text, "GEMM: one of cuBLAS for each rank's rows\n");
    else if (spec->op->gemm_waits)
        ewx_text_add(text, "all-gather: Entwine's, on all SMs\n");
    else
        ewx_text_add(text, "reduce-scatter: %s\n",
                     gpu.has_nccl ? "NCCL when m divides by W, else Entwine's"
                                  : "Entwine's, on all SMs (NCCL wants a GPU per rank)");
    if (copies)
        ewx_text_add(text, "all-gather: by copy engines, to one rank after the other\n");
    else
        explain_cuda_reducers(spec, asked, &gpu, text);
}

/* ---- All together ---- */

static void explain_shots(const ewx_spec *spec, bool asked, ewx_text *text)
{
    const int shots = ewx_allreduce_shots(spec, spec->problem.max_m);
    ewx_text_add(text, "shots=%d: %s\n", shots,
                 asked        ? "given"
                 : shots == 2 ? "each rank sums its share, the others copy it; fewer bytes"
                 : spec->num_ranks == 2 && ewx_one_shot_is_smaller(spec)
                     ? "every rank sums all tiles; between two ranks two shots save no byte"
                     : "every rank sums all tiles; so few bytes need no second wait");
}

static void explain_invariant(const ewx_spec *spec, ewx_text *text)
{
    const int pieces = spec->layout.num_pieces;
    ewx_text_add(text,
                 "invariant=%d: K of all ranks is summed in %d pieces, %d on each, so the "
                 "bits are those of every W that divides %d; ",
                 spec->config.invariant, spec->config.invariant, pieces,
                 spec->config.invariant);
    if (pieces > 1)
        ewx_text_add(text, "contributions take %d times the memory and link bytes\n",
                     pieces);
    else
        ewx_text_add(text, "with W=%d this costs nothing\n", spec->num_ranks);
}

static void explain_grid(const ewx_spec *spec, const ewx_grid *grid, ewx_text *text)
{
    const bool gathers = spec->op->gemm_waits;
    const int64_t num_blocks = ewx_num_blocks(grid);
    const int64_t count = gathers ? ewx_part_tile_rows(grid, 0)
                                  : ewx_spec_share(spec, spec->problem.max_m, 0).count;
    ewx_text_add(text, "grid: %" PRId64 " block%s per rank, %" PRId64 " %s%s of %s\n",
                 num_blocks, ewx_text_plural(num_blocks), count, gathers ? "panel" : "tile",
                 ewx_text_plural(count),
                 gathers ? "128 rows published by rank 0" : "128x128 summed by rank 0");
}

void ewx_spec_explain(const ewx_spec *spec, const ew_config *request,
                      const ewx_machine *machine, ewx_text *text)
{
    const bool gpu = ewx_is_gpu(&spec->config, machine);
    const ew_config none = EW_CONFIG_INIT, *asked = request ? request : &none;
    const ewx_grid grid = ewx_spec_grid(spec, spec->problem.max_m);
    char config[EW_CONFIG_TEXT_BYTES];
    ew_config_print(&spec->config, config, sizeof config);
    ewx_text_add(text, "config: %s\n", config);
    if (*machine->profile)
        ewx_text_add(text, "profile: chosen for %s, SIMULATED\n", machine->profile);
    if (gpu)
        explain_cuda(spec, asked, machine, text);
    else
        explain_cpu(spec, asked, machine, text);
    if (spec->problem.op == EW_OP_GEMM_AR)
        explain_shots(spec, asked->shots, text);
    if (spec->config.invariant)
        explain_invariant(spec, text);
    if (asked->epilogue)
        explain_key(&spec->config, "epilogue", true, text, "%s", "");
    explain_grid(spec, &grid, text);
    ewx_text_add(text, "%s: %zu bytes per rank, two slices by epoch, %" PRId64 " flag%s\n",
                 gpu ? "GPU heap" : "heap", spec->layout.segment_bytes,
                 spec->layout.num_slots, ewx_text_plural(spec->layout.num_slots));
}
