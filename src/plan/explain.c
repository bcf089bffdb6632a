/* Why a spec is what it is, in words.  Says what spec.c did; decides nothing. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "plan/spec.h"

/* "key=value: asked for", or the reason why it was chosen. */
__attribute__((format(printf, 5, 6))) static void explain_key(const ew_config *config,
                                                              const char *key, bool asked,
                                                              ewx_text *text,
                                                              const char *reason, ...)
{
    char why[160] = "asked for";
    va_list args;
    va_start(args, reason);
    if (!asked)
        vsnprintf(why, sizeof why, reason, args);
    va_end(args);
    ewx_config_print_key(config, key, text);
    ewx_text_add(text, ": %s\n", why);
}

static void explain_block(const ewx_spec *spec, bool asked, ewx_text *text)
{
    const int64_t panels_kib =
        ewx_interleaved_panels_bytes(&spec->problem, spec->num_ranks) / 1024;
    explain_key(&spec->config, "block", asked, text,
                spec->config.block_n > 2 * EWX_TILE_N
                    ? "interleaving uses %d row panels, %" PRId64
                      " KiB; a wide block stays longer with one"
                    : "two tiles wide; interleaving uses %d row panels, %" PRId64 " KiB",
                spec->num_ranks, panels_kib);
}

static void explain_config(const ewx_spec *spec, const ew_config *asked, int cores,
                           ewx_text *text)
{
    const ew_config *config = &spec->config;
    const bool blas = config->producer == EW_PRODUCER_BLAS;
    explain_key(config, "order", asked->order, text,
                blas ? "one BLAS call computes all"
                     : "destinations take turns, so that every owner can reduce early");
    explain_key(config, "release", asked->release, text,
                blas ? "one BLAS call computes all"
                     : "a tile is reduced as soon as every rank has computed it");
    if (!blas)
        explain_block(spec, asked->block_m && asked->block_n, text);
    explain_key(config, "workers", asked->workers, text, "%d usable cores for %d ranks",
                cores, spec->num_ranks);
    explain_key(config, "x", asked->budget, text,
                config->pool == EW_POOL_STATIC ? "one reducer set apart"
                                               : "every worker may reduce");
    explain_key(config, "b", asked->batch, text, "one tile, then look for a block again");
}

void ewx_spec_explain(const ewx_spec *spec, const ew_config *request, int cores,
                      ewx_text *text)
{
    const ew_config none = EW_CONFIG_INIT, *asked = request ? request : &none;
    const ewx_grid grid = ewx_grid_build(spec->problem.max_m, spec->problem.n,
                                         spec->num_ranks, &spec->config);
    char config[EW_CONFIG_TEXT_BYTES];
    ew_config_print(&spec->config, config, sizeof config);
    ewx_text_add(text, "config: %s\n", config);
    explain_config(spec, asked, cores, text);
    ewx_text_add(text,
                 "grid: %" PRId64 " blocks per rank, %" PRId64
                 " tiles of 128x128 owned by rank 0\n",
                 ewx_num_blocks(&grid), ewx_partition_tiles(&grid, 0));
    ewx_text_add(text, "heap: %zu bytes per rank, two slices by epoch, %" PRId64 " flags\n",
                 spec->layout.segment_bytes, spec->layout.num_slots);
}
