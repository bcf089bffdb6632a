/* AllGather, then GEMM, as GPUs run it.  A rank's tasks are chunks of its panels, each
 * pushed to one rank by a mover, in the order of plan/walk.h.  Its GEMM takes blocks in an
 * order of its own and multiplies a panel of another rank as its chunks arrive. */
#include "backend/sim/ops/sim_gather.h"
#include "backend/sim/ops/sim_op.h"
#include "backend/sim/ops/sim_sums.h"
#include "backend/sim/resources.h"
#include "backend/sim/sim_engines.h"

/* ---- Chunks ---- */

static int64_t num_chunks(const ewx_sim *sim)
{
    return ewx_div_up(sim->spec->problem.k, EWX_CHUNK_COLS);
}

/* Tiles of the GEMM have rows of several ranks. */
static bool spans_owners(const ewx_sim *sim)
{
    return sim->model.grid.num_parts < sim->num_ranks;
}

/* cuBLAS reads all rows in one place, and so do tiles that span owners: a rank pushes to
 * itself, too. */
static bool keeps_own(const ewx_sim *sim)
{
    return sim->spec->config.producer == EW_PRODUCER_BLAS || spans_owners(sim);
}

static int pushes_per_panel(const ewx_sim *sim)
{
    return sim->num_ranks - !keeps_own(sim);
}

static int64_t num_tasks(const ewx_sim *sim, int rank)
{
    return ewx_part_tile_rows(&sim->model.crossing, rank) * pushes_per_panel(sim) *
           num_chunks(sim);
}

static ewx_push chunk_of(const ewx_sim *sim, int rank, int64_t task)
{
    const ewx_grid *grid = &sim->model.crossing;
    const int chunks = (int)num_chunks(sim);
    return spans_owners(sim)
               ? ewx_gather_push_spanning(grid, rank, chunks, task)
               : ewx_gather_push(grid, rank, pushes_per_panel(sim), chunks, task);
}

static int64_t chunk_bytes(const ewx_sim *sim, int rank, const ewx_push *c)
{
    const int64_t cols = sim->spec->problem.k - c->chunk * EWX_CHUNK_COLS;
    return ewx_tile_height(&sim->model.crossing, rank, (ewx_tile){c->row, 0}) *
           ewx_min64(cols, EWX_CHUNK_COLS) * (int64_t)sim->spec->elem_bytes;
}

/* When dst sees the chunks of a panel of src: one time for each, from the first on. */
static int64_t *seen_ps(const ewx_sim *sim, int src, int64_t panel, int dst)
{
    const int64_t chunks = num_chunks(sim);
    const int64_t first_panel = sim->first_unit[src] / (pushes_per_panel(sim) * chunks);
    return sim->shared_ps + ((first_panel + panel) * sim->num_ranks + dst) * chunks;
}

static bool set_up(ewx_sim *sim)
{
    const int times = pushes_per_panel(sim);
    const int64_t count =
        times > 0 ? sim->first_unit[sim->num_ranks] / times * sim->num_ranks : 0;
    bool enough = true;
    sim->shared_ps = ewx_sim_allocate((size_t)count, sizeof *sim->shared_ps, &enough);
    for (int64_t i = 0; enough && i < count; i++)
        sim->shared_ps[i] = EWX_SIM_LAST_PS;
    for (int rank = 0; rank < sim->num_ranks && times > 0; rank++) {
        const int64_t own = keeps_own(sim) ? 0 : num_tasks(sim, rank);
        sim->ranks[rank].chunks_left = (sim->first_unit[sim->num_ranks] - own) / times;
    }
    return enough;
}

static ewx_sim_span send_task(ewx_sim *sim, int rank, int64_t task)
{
    const ewx_push c = chunk_of(sim, rank, task);
    return c.dst == rank ? (ewx_sim_span){sim->now_ps, sim->now_ps}
                         : ewx_sim_book_way_out(sim, sim->now_ps, rank, c.dst,
                                                chunk_bytes(sim, rank, &c));
}

static int64_t deliver_task(ewx_sim *sim, int rank, int64_t task, ewx_sim_span sent)
{
    const ewx_push c = chunk_of(sim, rank, task);
    return c.dst == rank
               ? sent.end_ps
               : ewx_sim_book_way_in(sim, sent, rank, c.dst, chunk_bytes(sim, rank, &c));
}

/* A mover stores a chunk into the receiver's memory.  The link that a virtual node emulates
 * then makes it wait until the bytes would have arrived; a real one takes them meanwhile.
 */
static int64_t book_task(ewx_sim *sim, int rank, int64_t task, bool shares_sm)
{
    const ewx_push c = chunk_of(sim, rank, task);
    const int64_t bytes = chunk_bytes(sim, rank, &c);
    const int64_t stored = ewx_sim_book_push(sim, rank, bytes, shares_sm);
    if (sim->model.sharers > 1 || c.dst == rank)
        return stored;
    return ewx_sim_later(stored, ewx_sim_book_send(sim, sim->now_ps, rank, c.dst, bytes));
}

static void finish_task(ewx_sim *sim, int rank, int64_t task)
{
    const ewx_push c = chunk_of(sim, rank, task);
    ewx_sim_rank *to = &sim->ranks[c.dst];
    const int64_t seen = sim->now_ps + sim->model.publish_ps;
    seen_ps(sim, rank, c.row, c.dst)[c.chunk] = seen;
    to->chunks_ps = ewx_sim_later(to->chunks_ps, seen);
    to->chunks_left--;
    if (sim->spec->config.release != EW_RELEASE_OUTPUT)
        ewx_sim_wake_blocks(sim, c.dst, spans_owners(sim) ? EWX_EVERYONE : rank);
    else if (to->chunks_left == 0)
        ewx_sim_wake_blocks(sim, c.dst, EWX_EVERYONE);
}

/* ---- Blocks ---- */

static ewx_block block_at(const ewx_sim *sim, int rank, int64_t position)
{
    return ewx_gather_block(&sim->model.grid, sim->num_ranks, rank, position);
}

/* Ranks whose rows a block may have. */
static int num_sources(const ewx_sim *sim)
{
    return spans_owners(sim) ? sim->num_ranks : 1;
}

/* When a rank sees a chunk of the rows that a block has of one of them. */
static int64_t chunk_seen(const ewx_sim *sim, int rank, ewx_block block, int64_t index,
                          int source)
{
    if (!spans_owners(sim))
        return seen_ps(sim, block.part, block.row, rank)[index];
    const ewx_panels panels =
        ewx_panels_in_tile(&sim->model.grid, sim->num_ranks, source, (int)block.row);
    int64_t last = 0;
    for (int64_t panel = panels.first; panel < panels.end; panel++)
        last = ewx_sim_later(last, seen_ps(sim, source, panel, rank)[index]);
    return last;
}

/* Chunk by chunk, each when it is there and the one before has been multiplied.  A block
 * that still waits goes on from there when it is woken. */
static int64_t multiply_chunks(const ewx_sim *sim, int rank, ewx_sim_producer *p)
{
    const int64_t chunks = num_chunks(sim);
    const int sources = num_sources(sim);
    for (; p->num_awaited < chunks * sources; p->num_awaited++) {
        const int64_t chunk = p->num_awaited / sources;
        const int source = (int)(p->num_awaited % sources);
        const int64_t seen = chunk_seen(sim, rank, p->block, chunk, source);
        if (seen == EWX_SIM_LAST_PS)
            return -1;
        p->awaited_ps = ewx_sim_later(p->awaited_ps, seen);
        if (source == sources - 1)
            p->awaited_ps =
                ewx_sim_after(p->awaited_ps, (double)p->block_ps / (double)chunks);
    }
    return p->awaited_ps;
}

/* When the panels that `release` puts together with the block's can be seen; -1: not all
 * have been pushed.  Goes on as above. */
static int64_t panels_seen(const ewx_sim *sim, int rank, ewx_sim_producer *p)
{
    const int src = p->block.part;
    const int32_t release = sim->spec->config.release;
    const int64_t chunks = num_chunks(sim), all = ewx_part_tile_rows(&sim->model.grid, src);
    const int64_t first = release > 0 ? p->block.row / release * release : 0;
    const int64_t end = release > 0 ? ewx_min64(first + release, all) : all;
    const int64_t count = src != rank || keeps_own(sim) ? (end - first) * chunks : 0;
    for (; p->num_awaited < count; p->num_awaited++) {
        const int64_t at = p->num_awaited;
        const int64_t seen = seen_ps(sim, src, first + at / chunks, rank)[at % chunks];
        if (seen == EWX_SIM_LAST_PS)
            return -1;
        p->awaited_ps = ewx_sim_later(p->awaited_ps, seen);
    }
    return p->awaited_ps;
}

/* When all rows that the block waits for can be seen; -1 as above. */
static int64_t rows_seen(const ewx_sim *sim, int rank, ewx_sim_producer *p)
{
    const ewx_sim_rank *r = &sim->ranks[rank];
    if (sim->spec->config.release != EW_RELEASE_OUTPUT)
        return panels_seen(sim, rank, p);
    return r->chunks_left > 0 ? -1 : ewx_sim_later(p->begin_ps, r->chunks_ps);
}

static int64_t block_end(const ewx_sim *sim, int rank, ewx_sim_producer *p)
{
    if (sim->spec->config.release == 1 && (p->block.part != rank || spans_owners(sim)))
        return multiply_chunks(sim, rank, p);
    const int64_t seen = rows_seen(sim, rank, p);
    return seen < 0 ? -1 : ewx_sim_after(seen, (double)p->block_ps);
}

/* Nobody waits for a tile of C. */
static void complete_tile(ewx_sim *sim, int src, int part, ewx_tile tile)
{
    (void)sim, (void)src, (void)part, (void)tile;
}

const ewx_sim_op ewx_sim_ag_push = {.num_tasks = num_tasks,
                                    .set_up = set_up,
                                    .block_at = block_at,
                                    .block_end = block_end,
                                    .complete_tile = complete_tile,
                                    .book_task = book_task,
                                    .send_task = send_task,
                                    .deliver_task = deliver_task,
                                    .finish_task = finish_task,
                                    .remote_bytes = ewx_sim_gathered_bytes,
                                    .crossed_bytes = ewx_sim_crossed_bytes};
