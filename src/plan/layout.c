/* The heap's layout: header, flags, two slices of contributions.  One formula; backends
 * differ in the sizes it is given. */
#include "base/checked.h"
#include "base/status.h"
#include "plan/backend_traits.h"
#include "plan/spec.h"

/* What the layout is made from. */
typedef struct request {
    const ew_problem *problem;
    const ew_config *config;
    const ewx_op *op;
    const ewx_heap_rules *rules;
    int num_ranks;
    int num_parts;
    int64_t most_rows; /* of a part */
    int64_t cols;      /* of what crosses */
} request;

/* An AllReduce on GPUs, where owners give their sums to all others. */
static bool has_results(const request *r)
{
    return r->rules->flags_at_owner && r->problem->op == EW_OP_GEMM_AR;
}

/* Whether a rank's segment holds only its own of the rows to be gathered; otherwise every
 * rank has room for all of them. */
static bool keeps_own(const request *r)
{
    return r->op->gemm_waits && !r->rules->gathers_all;
}

/* ---- Slots ---- */

/* Slots that a layer of an AllReduce on GPUs needs, which may cut the grid differently. */
static ewx_size layer_slots(const request *r)
{
    const int64_t max_m = r->problem->max_m;
    const int num_parts = ewx_layer_num_parts(r->config, r->num_ranks, max_m);
    const int64_t tile_rows = ewx_div_up(ewx_div_up(max_m, num_parts), EWX_TILE_M);
    return ewx_size_mul(ewx_size_mul(ewx_size_of(tile_rows), ewx_size_of(num_parts)),
                        ewx_size_of(ewx_div_up(r->problem->n, EWX_TILE_N)));
}

static ewx_size slots_per_part(const ewx_layout *layout)
{
    return ewx_size_mul(ewx_size_of(layout->max_tile_rows), ewx_size_of(layout->tile_cols));
}

/* Rows of A are published in panels as high as a tile. */
static ewx_size num_slots(const request *r, const ewx_layout *layout)
{
    if (has_results(r))
        return layer_slots(r);
    return ewx_size_mul(r->op->gemm_waits ? ewx_size_of(layout->max_tile_rows)
                                          : slots_per_part(layout),
                        ewx_size_of(keeps_own(r) ? 1 : r->num_parts));
}

/* Also says how large slots are. */
static ewx_size slice_bytes(const request *r, ewx_layout *layout)
{
    const bool whole = r->rules->whole_tiles;
    const int64_t slot_rows = whole ? EWX_TILE_M : ewx_min64(EWX_TILE_M, r->most_rows);
    const int64_t slot_cols = whole ? EWX_TILE_N : ewx_min64(EWX_TILE_N, r->cols);
    const ewx_size elem = {ew_dtype_bytes(r->problem->dtype), true};
    const ewx_size piece = ewx_size_round_up(
        ewx_size_mul(ewx_size_of(slot_rows), ewx_size_mul(ewx_size_of(slot_cols), elem)),
        EWX_FLAG_BYTES);
    const ewx_size slot = ewx_size_mul(piece, ewx_size_of(layout->num_pieces));
    const int64_t rows = keeps_own(r) ? r->most_rows : r->problem->max_m;
    const ewx_size matrix =
        ewx_size_mul(ewx_size_mul(ewx_size_of(rows), ewx_size_of(r->cols)), elem);
    layout->tile_stride = layout->row_major ? r->cols : slot_cols;
    layout->piece_bytes = piece.value;
    layout->slot_bytes = slot.value;
    return ewx_size_round_up(layout->row_major ? matrix
                                               : ewx_size_mul(num_slots(r, layout), slot),
                             r->rules->unit_bytes);
}

/* ---- Flags ---- */

/* At an owner: as many as the output has tiles, since where they span owners a part's may
 * be any of them. */
static ewx_size owned_units(const request *r, const ewx_layout *layout)
{
    return ewx_size_mul(slots_per_part(layout), ewx_size_of(r->num_parts));
}

/* Also says where they are. */
static ewx_size flags_end(const request *r, ewx_layout *layout)
{
    const ewx_size flag = {r->rules->flag_bytes, true};
    const ewx_size result_flag = {has_results(r) ? r->rules->flag_bytes : 0, true};
    const ewx_size ranks = ewx_size_of(r->num_ranks);
    const ewx_size chunks = ewx_size_of(layout->num_chunks);
    const bool at_owner = r->rules->flags_at_owner && !r->op->gemm_waits;
    layout->rows_per_rank = ewx_div_up(r->problem->max_m, r->num_ranks);
    layout->flags_offset = r->rules->header_bytes;
    const ewx_size results =
        ewx_size_add((ewx_size){r->rules->header_bytes, true},
                     ewx_size_mul(at_owner ? ewx_size_mul(owned_units(r, layout), ranks)
                                           : ewx_size_mul(num_slots(r, layout), chunks),
                                  flag));
    const ewx_size row_results =
        ewx_size_add(results, ewx_size_mul(slots_per_part(layout), result_flag));
    layout->results_offset = has_results(r) ? results.value : 0;
    layout->row_results_offset = has_results(r) ? row_results.value : 0;
    return ewx_size_add(
        row_results,
        ewx_size_mul(ewx_size_mul(ewx_size_of(layout->rows_per_rank), ranks), result_flag));
}

ew_status ewx_layout_build(const ew_problem *problem, int num_ranks,
                           const ew_config *config, ewx_layout *layout_out)
{
    const ewx_op *op = ewx_op_of(problem);
    const ewx_traits *traits = ewx_traits_of(config->backend);
    const int num_parts = op->num_parts(num_ranks);
    const request r = {.problem = problem,
                       .config = config,
                       .op = op,
                       .rules = &traits->heap,
                       .num_ranks = num_ranks,
                       .num_parts = num_parts,
                       .most_rows = ewx_div_up(problem->max_m, num_parts),
                       .cols = op->exchanged_cols(problem)};
    ewx_layout layout = {.row_major =
                             op->gemm_waits || config->producer == EW_PRODUCER_BLAS,
                         .num_parts = num_parts,
                         .num_pieces = ewx_num_pieces(config, num_ranks),
                         .num_chunks = op->gemm_waits && traits->heap.gathers_all
                                           ? ewx_div_up(r.cols, EWX_CHUNK_COLS)
                                           : 1,
                         .max_tile_rows = ewx_div_up(r.most_rows, EWX_TILE_M),
                         .tile_cols = ewx_div_up(problem->n, EWX_TILE_N)};
    const ewx_size slice = slice_bytes(&r, &layout);
    const ewx_size first = ewx_size_round_up(flags_end(&r, &layout), r.rules->unit_bytes);
    /* cuBLAS and copy engines are told where to write by the host, which does not count
     * the calls. */
    const bool one_slice = traits->enqueues && (config->producer == EW_PRODUCER_BLAS ||
                                                config->transport == EW_TRANSPORT_COPY);
    const ewx_size second = one_slice ? first : ewx_size_add(first, slice);
    const ewx_size total = ewx_size_add(second, slice);
    const char name = op->gemm_waits ? 'K' : 'N';
    if (!total.ok)
        return ewx_fail(EW_ERR_SHAPE,
                        "M=%lld with %c=%lld needs more bytes than 64 bits can count\n"
                        "  fix: make M or %c smaller",
                        (long long)problem->max_m, name, (long long)r.cols, name);
    layout.slots_per_part = (int64_t)slots_per_part(&layout).value;
    layout.num_slots = (int64_t)num_slots(&r, &layout).value;
    layout.slice_offset[0] = first.value;
    layout.slice_offset[1] = second.value;
    layout.segment_bytes = total.value;
    *layout_out = layout;
    return EW_OK;
}
