/* GEMM, then AllReduce.  A rank's tasks are sums first: of every tile (one shot), or of
 * each W-th (two shots).  Then, in two shots, it copies the other ranks' results into its
 * output, each as soon as it is there: a CPU's workers and a GPU's CTAs between their sums.
 * On a CPU a result stays with its owner, and other
 * hosts get it as a message; a GPU's owner writes it into the memory of every rank, over
 * the contributions that it has just read. */
#include "backend/sim/ops/sim_op.h"
#include "backend/sim/ops/sim_sums.h"
#include "backend/sim/resources.h"
#include "backend/sim/sim_engines.h"
#include "backend/sim/sim_units.h"
#include "plan/policy.h"

/* ---- Tasks ---- */

static ewx_share share_of(const ewx_sim *sim, int rank)
{
    return ewx_share_of(&sim->model.grid, sim->ownership, sim->num_ranks, rank);
}

/* Every tile is summed or copied. */
static int64_t num_tasks(const ewx_sim *sim, int rank)
{
    (void)rank;
    return ewx_part_tiles(&sim->model.grid, 0);
}

/* Where a tile that another rank sums comes among a rank's tasks: behind its own sums, in
 * the order of the walk. */
static int64_t copy_of(const ewx_sim *sim, int rank, int64_t place)
{
    const int64_t own_before = place > rank ? ewx_div_up(place - rank, sim->num_ranks) : 0;
    return share_of(sim, rank).count + place - own_before;
}

/* The place of a task's tile in the walk. */
static int64_t place_of(const ewx_sim *sim, int rank, int64_t task)
{
    const ewx_share share = share_of(sim, rank);
    if (task < share.count)
        return share.first + task * share.step;
    const int peers = sim->num_ranks - 1;
    const int64_t copy = task - share.count, within = copy % peers;
    return copy / peers * sim->num_ranks + within + (within >= rank);
}

static ewx_tile tile_of(const ewx_sim *sim, int64_t place)
{
    return ewx_task_tile(&sim->model.grid, 0, place);
}

static int64_t bytes_of(const ewx_sim *sim, int64_t place)
{
    return ewx_sim_tile_bytes(sim, 0, tile_of(sim, place));
}

/* A unit is a task, and its contribution or result a message. */
static int64_t message_bytes(const ewx_sim *sim, int dst, int64_t unit)
{
    return bytes_of(sim, place_of(sim, dst, unit - sim->first_unit[dst]));
}

static bool is_message(const ewx_sim *sim, int src, int dst)
{
    return sim->request->profile->is_cpu && !ewx_sim_share_node(sim, src, dst);
}

static ew_trace_event event(const ewx_sim *sim, int rank, int64_t task)
{
    const int64_t place = place_of(sim, rank, task);
    const ewx_tile tile = tile_of(sim, place);
    const bool sums = task < share_of(sim, rank).count;
    return (ew_trace_event){.kind = sums ? EW_TRACE_REDUCE : EW_TRACE_COLLECT,
                            .dst = sums ? rank : (int)(place % sim->num_ranks),
                            .row = (int32_t)tile.row,
                            .col = (int32_t)tile.col,
                            .position = sums ? task : place / sim->num_ranks};
}

/* ---- A GPU's CTAs ---- */

/* Every CTA has some rounds: of each one sum, if one of its tiles is the rank's, and the
 * copies of the others. */
static int64_t share_tasks(const ewx_sim *sim)
{
    return sim->ownership == EWX_OWNS_ALL ? 1 : sim->num_ranks;
}

static int64_t round_of(const ewx_sim *sim, int rank, int64_t task)
{
    const int64_t sums = share_of(sim, rank).count;
    return task < sums ? task : (task - sums) / (sim->num_ranks - 1);
}

static int cta_of(const ewx_sim *sim, int rank, int64_t task)
{
    const ewx_sim_rank *r = &sim->ranks[rank];
    const int64_t round = round_of(sim, rank, task);
    return round < r->first_share || round >= r->end_share
               ? -1
               : (int)((round - r->first_share) % r->budget);
}

/* The first copy of a round, and the one behind its last. */
typedef struct copy_range {
    int64_t first, end;
} copy_range;

static copy_range copies_of(const ewx_sim *sim, int rank, int64_t round)
{
    const int64_t sums = share_of(sim, rank).count, peers = sim->num_ranks - 1;
    const int64_t all = sim->ownership == EWX_OWNS_ALL ? sums : num_tasks(sim, rank);
    return (copy_range){ewx_min64(sums + round * peers, all),
                        ewx_min64(sums + (round + 1) * peers, all)};
}

static bool are_there(const ewx_sim *sim, int rank, copy_range c)
{
    for (int64_t task = c.first; task < c.end; task++) {
        int64_t ready_ps;
        if (!ewx_sim_is_ready(sim, rank, task, &ready_ps) || ready_ps > sim->now_ps)
            return false;
    }
    return true;
}

/* Behind a task that a CTA has ended, or none yet: the rest of a round of copies. */
static bool goes_on(const ewx_sim *sim, int rank, const ewx_sim_consumer *c)
{
    const int64_t sums = share_of(sim, rank).count;
    return c->phase != EWX_SIM_PENDING && c->task >= sums &&
           c->task + 1 < copies_of(sim, rank, c->collected).end;
}

static void count_round(const ewx_sim *sim, int rank, ewx_sim_consumer *c)
{
    const int budget = sim->ranks[rank].budget;
    if (c->phase == EWX_SIM_PENDING)
        return;
    if (c->task < share_of(sim, rank).count)
        c->round += budget;
    else
        c->collected += budget;
}

/* Behind each sum a CTA copies the rounds before whose sums are all there; when it has no
 * sum left it waits for those that are not. */
static int64_t next_task(const ewx_sim *sim, int rank, ewx_sim_consumer *c)
{
    const ewx_sim_rank *r = &sim->ranks[rank];
    const int64_t sums = ewx_min64(share_of(sim, rank).count, r->end_share);
    if (goes_on(sim, rank, c))
        return c->task + 1;
    count_round(sim, rank, c);
    const bool waits = c->round >= sums;
    const int64_t end = waits ? r->end_share : c->round;
    for (; c->collected < end; c->collected += r->budget) {
        const copy_range round = copies_of(sim, rank, c->collected);
        if (round.first == round.end) /* of the last one, which has no tile of others */
            continue;
        if (waits || are_there(sim, rank, round))
            return round.first;
        break;
    }
    return waits ? -1 : c->round;
}

/* ---- What a unit waits for ---- */

/* Tiles that a rank must complete before they are released together. */
static int64_t num_groups(const ewx_sim *sim)
{
    return ewx_release_units(ewx_release_of(&sim->spec->config), num_tasks(sim, 0));
}

static int64_t group_of(const ewx_sim *sim, int64_t place)
{
    return ewx_release_unit(ewx_release_of(&sim->spec->config), num_tasks(sim, 0), place);
}

static bool set_up(ewx_sim *sim)
{
    bool enough = true;
    for (int rank = 0; rank < sim->num_ranks; rank++) {
        const int64_t sums = share_of(sim, rank).count;
        for (int64_t task = 0; task < num_tasks(sim, rank); task++)
            sim->missing[sim->first_unit[rank] + task] =
                task < sums ? sim->num_simulated : 1;
    }
    if (sim->spec->config.release == 1)
        return true;
    sim->unreleased = ewx_sim_allocate((size_t)(num_groups(sim) * sim->num_simulated),
                                       sizeof *sim->unreleased, &enough);
    for (int64_t place = 0; enough && place < num_tasks(sim, 0); place++)
        for (int at = 0; at < sim->num_simulated; at++)
            sim->unreleased[at * num_groups(sim) + group_of(sim, place)]++;
    return enough;
}

/* ---- A contribution's way to whoever sums it ---- */

static int64_t visible_ps(ewx_sim *sim, int src, int dst, int64_t place)
{
    const bool paced = sim->request->profile->is_cpu && sim->model.link_ps > 0;
    if (src != dst && paced)
        return ewx_sim_book_send(sim, sim->now_ps, src, dst,
                                 bytes_of(sim, place) * sim->spec->layout.num_pieces);
    return sim->now_ps + sim->model.publish_ps;
}

/* Whoever sums a tile: ranks from first up to, not including, end; and as which task. */
typedef struct summers {
    int first, end;
    int64_t task;
} summers;

static summers summers_of(const ewx_sim *sim, int64_t place)
{
    const int owner = (int)(place % sim->num_ranks);
    if (sim->ownership == EWX_OWNS_ALL)
        return (summers){0, sim->num_ranks, place};
    return (summers){owner, owner + 1, place / sim->num_ranks};
}

static void publish_tile(ewx_sim *sim, int src, int64_t place)
{
    const summers to = summers_of(sim, place);
    for (int dst = to.first; dst < to.end; dst++) {
        const int64_t unit = sim->first_unit[dst] + to.task;
        if (is_message(sim, src, dst))
            ewx_sim_contribute(sim, src, dst, unit);
        else
            ewx_sim_publish(sim, dst, unit, visible_ps(sim, src, dst, place));
    }
}

/* A GPU's producer ends behind one fence; NCCL needs none. */
static void end_output(ewx_sim *sim, int src)
{
    const bool fences = !sim->request->profile->is_cpu && !sim->model.uses_nccl;
    sim->ranks[src].gemm_end_ps =
        ewx_sim_stored_ps(sim, src) + (fences ? sim->model.publish_ps : 0);
}

static void complete_tile(ewx_sim *sim, int src, int part, ewx_tile tile)
{
    const ewx_release release = ewx_release_of(&sim->spec->config);
    const int64_t place = ewx_tile_task(&sim->model.grid, part, tile);
    if (!sim->unreleased) {
        publish_tile(sim, src, place);
        return;
    }
    const int64_t group = group_of(sim, place);
    if (--sim->unreleased[sim->ranks[src].place * num_groups(sim) + group] > 0)
        return;
    const ewx_task_range tiles = ewx_release_tasks(&sim->model.grid, release, 0, group);
    for (int64_t one = tiles.first; one < tiles.end; one++)
        publish_tile(sim, src, one);
    if (release.size == EW_RELEASE_OUTPUT)
        end_output(sim, src);
}

/* ---- What a task moves ---- */

/* A CPU's owner writes a result once more, into its own segment; a GPU's to every peer. */
static int64_t book_task(ewx_sim *sim, int rank, int64_t task, bool shares_sm)
{
    const int64_t bytes = bytes_of(sim, place_of(sim, rank, task));
    const bool is_cpu = sim->request->profile->is_cpu;
    const int copies = sim->ownership == EWX_OWNS_ALL ? 0 : is_cpu ? 1 : sim->num_ranks - 1;
    if (task < share_of(sim, rank).count)
        return ewx_sim_book_sum(sim, rank, bytes, copies, shares_sm);
    return ewx_sim_book_moves(sim, rank, 2.0 * (double)bytes, sim->now_ps, shares_sm);
}

/* The results of `rank` and of the mirrored ranks behind it, which do as it does. */
static void publish_result(ewx_sim *sim, int rank, int dst, int64_t index, int64_t ps)
{
    for (int owner = rank; owner < sim->num_ranks; owner++) {
        if (owner > rank && !sim->ranks[owner].mirrored)
            return;
        const int64_t place = index * sim->num_ranks + owner;
        if (owner != dst && place < num_tasks(sim, dst))
            ewx_sim_publish(sim, dst, sim->first_unit[dst] + copy_of(sim, dst, place), ps);
    }
}

/* To another host; all ranks of CPUs are simulated. */
static void send_result(ewx_sim *sim, int rank, int dst, int64_t index)
{
    const int64_t place = index * sim->num_ranks + rank;
    ewx_sim_contribute(sim, rank, dst, sim->first_unit[dst] + copy_of(sim, dst, place));
}

static void finish_task(ewx_sim *sim, int rank, int64_t task)
{
    const bool is_cpu = sim->request->profile->is_cpu;
    const bool travels = !is_cpu || sim->model.link_ps > 0;
    if (sim->ownership == EWX_OWNS_ALL || task >= share_of(sim, rank).count)
        return;
    const int64_t bytes = bytes_of(sim, place_of(sim, rank, task));
    int64_t last = sim->now_ps;
    for (int i = 1; i < sim->num_ranks; i++) {
        const int dst = (rank + i) % sim->num_ranks;
        if (is_message(sim, rank, dst)) {
            send_result(sim, rank, dst, task);
            continue;
        }
        const int64_t there =
            travels ? ewx_sim_book_send(sim, sim->now_ps, rank, dst, bytes) : sim->now_ps;
        last = ewx_sim_later(last, there);
        publish_result(sim, rank, dst, task, there + sim->model.publish_ps);
    }
    /* What the mirrored ranks have for this one. */
    publish_result(sim, rank, rank, task, last + sim->model.publish_ps);
}

/* ---- Bytes ---- */

static int64_t all_bytes(const ewx_sim *sim)
{
    return sim->model.grid.rows * sim->model.grid.cols * (int64_t)sim->spec->elem_bytes;
}

static int64_t share_bytes(const ewx_sim *sim, int rank)
{
    int64_t bytes = 0;
    for (int64_t task = 0; task < share_of(sim, rank).count; task++)
        bytes += bytes_of(sim, place_of(sim, rank, task));
    return bytes;
}

/* From `peers` of the others: contributions to what the rank sums, and their results. */
static int64_t bytes_from(const ewx_sim *sim, int rank, int peers)
{
    const int64_t own = share_bytes(sim, rank);
    const int64_t results = sim->ownership == EWX_OWNS_ALL ? 0 : all_bytes(sim) - own;
    return peers * own * sim->spec->layout.num_pieces +
           (peers > 0 ? results * peers / (sim->num_ranks - 1) : 0);
}

static int64_t remote_bytes(const ewx_sim *sim, int rank)
{
    return bytes_from(sim, rank, sim->num_ranks - 1);
}

static int64_t crossed_bytes(const ewx_sim *sim, int rank)
{
    return bytes_from(sim, rank, sim->num_ranks - ewx_sim_ranks_of_node(sim, rank));
}

const ewx_sim_op ewx_sim_gemm_ar = {.num_tasks = num_tasks,
                                    .share_tasks = share_tasks,
                                    .cta_of = cta_of,
                                    .next_task = next_task,
                                    .set_up = set_up,
                                    .complete_tile = complete_tile,
                                    .book_task = book_task,
                                    .message_bytes = message_bytes,
                                    .event = event,
                                    .finish_task = finish_task,
                                    .remote_bytes = remote_bytes,
                                    .crossed_bytes = crossed_bytes};
