#include "backend/cpu/cpu_weight.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/cpu_workers.h"
#include "base/status.h"

#define HUGE_PAGE ((size_t)2 << 20)
#define LEAST_SHARED_BYTES ((size_t)1 << 20) /* packed in less time than threads start */

static size_t unit_of(size_t bytes)
{
    return bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
}

static size_t rounded(size_t bytes)
{
    const size_t unit = unit_of(bytes);
    return bytes > 0 ? (bytes + unit - 1) / unit * unit : unit;
}

static ew_status reserve(size_t bytes, const char *what, void **buffer_out)
{
    const size_t unit = unit_of(bytes);
    void *buffer = aligned_alloc(unit, rounded(bytes));
    if (!buffer)
        return ewx_fail(EW_ERR_MEMORY,
                        "no memory for %s of %zu bytes\n"
                        "  fix: free memory, or use a smaller shape",
                        what, bytes);
    if (unit == HUGE_PAGE)
        madvise(buffer, rounded(bytes), MADV_HUGEPAGE);
    *buffer_out = buffer;
    return EW_OK;
}

ew_status ewx_buffer_allocate(size_t bytes, const char *what, void **buffer_out)
{
    EW_TRY(reserve(bytes, what, buffer_out));
    memset(*buffer_out, 0, rounded(bytes));
    return EW_OK;
}

ewx_weight_form ewx_weight_form_build(const ewx_spec *spec, int64_t n)
{
    const ew_problem *problem = &spec->problem;
    ewx_weight_form form = {0};
    if (spec->config.producer == EW_PRODUCER_BLAS) {
        form.panel_bytes = (size_t)(n * problem->k) * spec->elem_bytes;
        form.bytes = form.panel_bytes;
        return form;
    }
    form.gemm = ewx_gemm_build(ewx_kernel_select(problem->dtype, NULL), problem->dtype,
                               problem->k / spec->layout.num_pieces);
    form.piece_bytes = ewx_packed_b_bytes(&form.gemm, ewx_min64(EWX_TILE_N, n));
    form.panel_bytes = form.piece_bytes * (size_t)spec->layout.num_pieces;
    form.num_panels = ewx_div_up(n, EWX_TILE_N);
    form.bytes = form.panel_bytes * (size_t)form.num_panels;
    return form;
}

/* ---- Packing ---- */

void ewx_packing_begin(ewx_packing *packing, const ewx_spec *spec, int64_t n, const void *B,
                       void *packed)
{
    packing->spec = spec;
    packing->form = ewx_weight_form_build(spec, n);
    packing->n = n;
    packing->B = B;
    packing->packed = packed;
    atomic_store_explicit(&packing->next_panel, 0, memory_order_relaxed);
    atomic_store_explicit(&packing->panels_done, 0, memory_order_relaxed);
}

static void pack_panel(const ewx_packing *packing, int64_t tile_col)
{
    const ew_problem *problem = &packing->spec->problem;
    const bool nk = problem->weight_layout == EW_WEIGHT_NK;
    const int64_t col = tile_col * EWX_TILE_N;
    const int64_t stride = nk ? problem->k : 1, k_stride = nk ? 1 : packing->n;
    const ewx_weight_form *form = &packing->form;
    for (int piece = 0; piece < packing->spec->layout.num_pieces; piece++) {
        const int64_t first = col * stride + piece * form->gemm.depth * k_stride;
        ewx_pack_b(&form->gemm, packing->B + (size_t)first * packing->spec->elem_bytes,
                   stride, k_stride, ewx_min64(EWX_TILE_N, packing->n - col),
                   packing->packed + (size_t)tile_col * form->panel_bytes +
                       (size_t)piece * form->piece_bytes);
    }
}

void ewx_packing_work(ewx_packing *packing)
{
    for (;;) {
        const int64_t panel =
            atomic_fetch_add_explicit(&packing->next_panel, 1, memory_order_relaxed);
        if (panel >= packing->form.num_panels)
            return;
        pack_panel(packing, panel);
        atomic_fetch_add_explicit(&packing->panels_done, 1, memory_order_release);
    }
}

bool ewx_packing_is_done(const ewx_packing *packing)
{
    return atomic_load_explicit(&packing->panels_done, memory_order_acquire) ==
           packing->form.num_panels;
}

/* ---- Weights of their own ---- */

/* Piece by piece, so that ranks that want memory meanwhile count no byte twice. */
static void touch(ew_world *world, unsigned char *buffer, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += HUGE_PAGE) {
        const size_t piece = bytes - at < HUGE_PAGE ? bytes - at : HUGE_PAGE;
        memset(buffer + at, 0, piece);
        ewx_claim_settle(world, piece);
    }
}

ew_status ewx_weight_room_open(ew_world *world, size_t bytes, void **room_out)
{
    bytes = rounded(bytes);
    EW_TRY(ewx_claim_memory(world, bytes, false, "a packed weight"));
    const ew_status status = reserve(bytes, "a packed weight", room_out);
    ewx_home home;
    ewx_place_home(world, &home);
    const ewx_stay stay = ewx_home_enter(&home);
    if (status == EW_OK)
        touch(world, *room_out, bytes);
    else
        ewx_claim_settle(world, bytes);
    ewx_home_leave(&stay);
    return status;
}

ew_status ewx_cpu_weight_open(ew_world *world, const ewx_spec *spec, void **packed_out)
{
    return ewx_weight_room_open(world, ewx_weight_form_build(spec, spec->problem.n).bytes,
                                packed_out);
}

static ew_status work(void *context, int worker)
{
    (void)worker;
    ewx_packing_work(context);
    return EW_OK;
}

ew_status ewx_cpu_weight_pack(ew_world *world, const ewx_spec *spec, void *packed,
                              const void *B)
{
    ewx_packing packing;
    ewx_packing_begin(&packing, spec, spec->problem.n, B, packed);
    if (spec->config.producer == EW_PRODUCER_BLAS) {
        memcpy(packed, B, packing.form.bytes);
        return EW_OK;
    }
    const int workers = packing.form.bytes < LEAST_SHARED_BYTES ? 1 : spec->config.workers;
    EW_TRY(ewx_workers_start(world, workers));
    return ewx_workers_run(world, workers, work, &packing);
}

void ewx_cpu_weight_close(ew_world *world, void *packed)
{
    (void)world;
    free(packed);
}
