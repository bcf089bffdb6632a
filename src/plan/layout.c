/* The heap's layout: header, flags, two slices of contributions.  One formula; backends
 * differ in the sizes it is given. */
#include "base/checked.h"
#include "base/status.h"
#include "plan/backend_traits.h"
#include "plan/spec.h"

/* Of an AllReduce on GPUs, whose layers may cut the grid in another way. */
static ewx_size layer_slots(const ew_problem *problem, int num_ranks,
                            const ew_config *config)
{
    const int num_parts = ewx_layer_num_parts(config, num_ranks, problem->max_m);
    const int64_t rows = ewx_div_up(problem->max_m, num_parts);
    return ewx_size_mul(
        ewx_size_mul(ewx_size_of(ewx_div_up(rows, EWX_TILE_M)), ewx_size_of(num_parts)),
        ewx_size_of(ewx_div_up(problem->n, EWX_TILE_N)));
}

ew_status ewx_layout_build(const ew_problem *problem, int num_ranks,
                           const ew_config *config, ewx_layout *layout_out)
{
    const ewx_op *op = ewx_op_of(problem);
    const int num_parts = op->num_parts(num_ranks);
    const int64_t cols = op->exchanged_cols(problem);
    const int64_t most_rows = ewx_div_up(problem->max_m, num_parts);
    const ewx_traits *traits = ewx_traits_of(config->backend);
    const ewx_heap_rules rules = traits->heap;
    const int64_t slot_rows =
        rules.whole_tiles ? EWX_TILE_M : ewx_min64(EWX_TILE_M, most_rows);
    const int64_t slot_cols = rules.whole_tiles ? EWX_TILE_N : ewx_min64(EWX_TILE_N, cols);
    ewx_layout layout = {.row_major =
                             op->gemm_waits || config->producer == EW_PRODUCER_BLAS,
                         .num_parts = num_parts,
                         .num_pieces = ewx_num_pieces(config, num_ranks)};
    layout.max_tile_rows = ewx_div_up(most_rows, EWX_TILE_M);
    layout.tile_cols = ewx_div_up(problem->n, EWX_TILE_N);

    const ewx_size elem = {ew_dtype_bytes(problem->dtype), true};
    const ewx_size slots_per_part =
        ewx_size_mul(ewx_size_of(layout.max_tile_rows), ewx_size_of(layout.tile_cols));
    /* Rows of A are published in panels as high as a tile. */
    const bool has_results = rules.flags_at_owner && problem->op == EW_OP_GEMM_AR;
    const ewx_size num_slots = op->gemm_waits ? ewx_size_of(layout.max_tile_rows)
                               : has_results
                                   ? layer_slots(problem, num_ranks, config)
                                   : ewx_size_mul(slots_per_part, ewx_size_of(num_parts));
    const int64_t kept_rows = op->gemm_waits ? most_rows : problem->max_m;
    const ewx_size slot =
        ewx_size_mul(ewx_size_of(slot_rows), ewx_size_mul(ewx_size_of(slot_cols), elem));
    const ewx_size piece_bytes = ewx_size_round_up(slot, EWX_FLAG_BYTES);
    const ewx_size slot_bytes = ewx_size_mul(piece_bytes, ewx_size_of(layout.num_pieces));
    const ewx_size contributions =
        layout.row_major
            ? ewx_size_mul(ewx_size_mul(ewx_size_of(kept_rows), ewx_size_of(cols)), elem)
            : ewx_size_mul(num_slots, slot_bytes);
    const ewx_size slice = ewx_size_round_up(contributions, rules.unit_bytes);
    const ewx_size contribution_flags =
        ewx_size_mul(rules.flags_at_owner && !op->gemm_waits
                         ? ewx_size_mul(slots_per_part, ewx_size_of(num_ranks))
                         : num_slots,
                     (ewx_size){rules.flag_bytes, true});
    const ewx_size flag_bytes = {has_results ? rules.flag_bytes : 0, true};
    const ewx_size result_flags = ewx_size_mul(slots_per_part, flag_bytes);
    layout.rows_per_rank = ewx_div_up(problem->max_m, num_ranks);
    const ewx_size row_flags = ewx_size_mul(
        ewx_size_mul(ewx_size_of(layout.rows_per_rank), ewx_size_of(num_ranks)),
        flag_bytes);
    const ewx_size flags =
        ewx_size_add(contribution_flags, ewx_size_add(result_flags, row_flags));
    const ewx_size first = ewx_size_round_up(
        ewx_size_add((ewx_size){rules.header_bytes, true}, flags), rules.unit_bytes);
    /* cuBLAS and copy engines are told where to write by the host, which does not count
     * the calls. */
    const bool one_slice =
        traits->enqueues && (layout.row_major || config->transport == EW_TRANSPORT_COPY);
    const ewx_size second = one_slice ? first : ewx_size_add(first, slice);
    const ewx_size total = ewx_size_add(second, slice);
    const char name = op->gemm_waits ? 'K' : 'N';
    if (!total.ok)
        return ewx_fail(EW_ERR_SHAPE,
                        "M=%lld with %c=%lld needs more bytes than 64 bits can count\n"
                        "  fix: make M or %c smaller",
                        (long long)problem->max_m, name, (long long)cols, name);

    layout.slots_per_part = (int64_t)slots_per_part.value;
    layout.num_slots = (int64_t)num_slots.value;
    layout.tile_stride = layout.row_major ? cols : slot_cols;
    layout.piece_bytes = piece_bytes.value;
    layout.slot_bytes = slot_bytes.value;
    layout.flags_offset = rules.header_bytes;
    layout.results_offset = has_results ? rules.header_bytes + contribution_flags.value : 0;
    layout.row_results_offset =
        has_results ? layout.results_offset + result_flags.value : 0;
    layout.slice_offset[0] = first.value;
    layout.slice_offset[1] = second.value;
    layout.segment_bytes = total.value;
    *layout_out = layout;
    return EW_OK;
}
