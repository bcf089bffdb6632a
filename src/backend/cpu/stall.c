/* Whom to blame when a wait runs out.  A rank that has computed anything lately is slow,
 * not stuck; a rank that waits for a third one is not the culprit, and will name it, as
 * long as it looks around: what a stopped rank said last excuses nothing. */
#include "backend/cpu/cpu_engine.h"
#include "base/epoch.h"
#include "base/probe.h"

/* A wait looks around at least this many times before it runs out, and this often, so that
 * a rank is known to wait well before those who wait for it give up, with whatever timeout
 * they do. */
#define LEAST_SLICES 8
#define SLICE_NS 100000000

static int num_slices(const ewx_cpu_engine *engine)
{
    const int64_t slices = engine->call.timeout_ns / SLICE_NS;
    return slices > LEAST_SLICES ? (int)slices : LEAST_SLICES;
}

static ewx_segment_header *header_of(const ewx_cpu_engine *engine, int rank)
{
    return ewx_heap_header(&engine->heap, rank);
}

static uint32_t progress_of(const ewx_cpu_engine *engine, int rank)
{
    return atomic_load_explicit(&header_of(engine, rank)->progress, memory_order_relaxed);
}

static uint32_t looks_of(const ewx_cpu_engine *engine, int rank)
{
    return atomic_load_explicit(&engine->world->mailboxes[rank]->lane.looks,
                                memory_order_relaxed);
}

void ewx_patience_progress(ewx_cpu_engine *engine, ewx_step step, int64_t where)
{
    ewx_recorder_step(engine->world, step, where);
    atomic_fetch_add_explicit(&header_of(engine, engine->world->rank)->progress, 1,
                              memory_order_relaxed);
}

static void tell_waiting(ewx_cpu_engine *engine, uint64_t waiting)
{
    atomic_store_explicit(&header_of(engine, engine->world->rank)->waiting, waiting,
                          memory_order_relaxed);
}

ewx_patience ewx_patience_begin(const ewx_cpu_engine *engine)
{
    ewx_patience patience = {.rank = -1};
    for (int rank = 0; rank < engine->spec->num_ranks; rank++) {
        patience.progress[rank] = progress_of(engine, rank);
        patience.looks[rank] = looks_of(engine, rank);
    }
    return patience;
}

void ewx_patience_end(ewx_cpu_engine *engine)
{
    tell_waiting(engine, 0);
    ewx_recorder_wait(engine->world, -1);
}

ewx_wait ewx_worker_wait(const ewx_cpu_engine *engine)
{
    return ewx_wait_begin(&engine->world->control->abort, EWX_TIMER_NEVER,
                          engine->world->spins);
}

ewx_wait ewx_patience_wait(const ewx_cpu_engine *engine)
{
    ew_world *world = engine->world;
    ewx_wait wait = ewx_wait_begin(
        &world->control->abort, engine->call.timeout_ns / num_slices(engine), world->spins);
    wait.looks = &world->mailboxes[world->rank]->lane.looks;
    return wait;
}

/* A rank never gives up on its own workers: while one of them computes, the others wait,
 * however slow it is.  Peers that wait for this rank judge it by its progress. */
static bool is_computing(const ewx_cpu_engine *engine, int rank)
{
    return rank == engine->world->rank && !ewx_gemm_stage_has_ended(engine);
}

/* Held up by a third rank; or by us, who owe it something of an earlier call.  A rank that
 * waits in a later call than ours has published all of ours: what is missing is lost.  One
 * that waits in another plan's call, before ours, does not say so in this plan's heap. */
static bool is_held_up(const ewx_cpu_engine *engine, int rank)
{
    const uint64_t waiting =
        atomic_load_explicit(&header_of(engine, rank)->waiting, memory_order_relaxed);
    const uint32_t epoch = (uint32_t)(waiting >> 32), ours = engine->call.epoch;
    const uint32_t whom = (uint32_t)waiting; /* 1 + a rank; or nonsense: a peer wrote it */
    if (rank == engine->world->rank || whom > (uint32_t)engine->spec->num_ranks)
        return false;
    if (whom == 0) {
        const int other = ewx_recorder_awaited_behind(engine->world, rank);
        return other >= 0 && other != rank;
    }
    return epoch == ours ? (int)whom - 1 != engine->world->rank
                         : !ewx_epoch_reached(epoch, ours);
}

/* Whether the word has moved since it was last seen. */
static bool has_moved(uint32_t *seen, uint32_t now)
{
    const bool moved = *seen != now;
    *seen = now;
    return moved;
}

static void count_slice(const ewx_cpu_engine *engine, ewx_patience *patience, int rank)
{
    const bool computes = has_moved(&patience->progress[rank], progress_of(engine, rank)) ||
                          is_computing(engine, rank);
    const bool looks = has_moved(&patience->looks[rank], looks_of(engine, rank));
    if (rank != patience->rank)
        patience->quiet_slices = patience->silent_slices = 0;
    patience->rank = rank;
    patience->quiet_slices = computes ? 0 : patience->quiet_slices + 1;
    patience->silent_slices = computes || looks ? 0 : patience->silent_slices + 1;
}

bool ewx_patience_lasts(ewx_cpu_engine *engine, ewx_patience *patience, int rank)
{
    const int slices = num_slices(engine);
    count_slice(engine, patience, rank);
    tell_waiting(engine, ewx_waiting_for(rank, engine->call.epoch));
    ewx_recorder_wait(engine->world, rank);
    (void)EWX_PROBE(EWX_PROBE_WAITING, engine->world->rank, rank);
    if (patience->quiet_slices < slices)
        return true;
    /* A rank that waits and is starved still looks at its clock now and then; one that has
     * not for a whole timeout is stopped.  Bounded: if all wait in a circle, one rank must
     * report. */
    const bool excused = patience->silent_slices < slices && is_held_up(engine, rank) &&
                         patience->extensions++ < slices * engine->spec->num_ranks;
    if (excused)
        (void)EWX_PROBE(EWX_PROBE_EXCUSE, engine->world->rank, rank);
    return excused;
}

ew_status ewx_stall_report(ewx_cpu_engine *engine, ew_status status, int culprit, int code,
                           const int64_t *detail)
{
    const ewx_fault fault = {.status = status,
                             .culprit = culprit,
                             .reporter = engine->world->rank,
                             .code = code,
                             .detail = {detail[0], detail[1], detail[2], detail[3]},
                             .timeout_ms = ewx_timeout_ms(engine->call.timeout_ns),
                             .plan = engine->call.plan};
    return ewx_world_raise(engine->world, &fault);
}

/* ---- What is missing at the end of a call ---- */

typedef struct missing_input {
    ewx_plan_fault code;
    int src;
    ewx_tile tile;
    uint32_t seen;
} missing_input;

/* The first contribution that its rank still owes; false when all are there and only the
 * link or another worker is busy with them. */
static bool find_missing(ewx_cpu_engine *engine, missing_input *missing_out)
{
    const ewx_share *share = &engine->call.share;
    for (int64_t task = 0; task < share->count; task++)
        for (int src = 0; src < engine->spec->num_ranks; src++) {
            const ewx_tile tile = ewx_share_tile(&engine->call.grid, share, task);
            const int64_t slot = ewx_layout_slot(&engine->spec->layout, share->part, tile);
            if (!ewx_exchange_sends(&engine->wire.exchange, src, slot) ||
                (ewx_heap_ready(engine, src, slot) && ewx_peer_has_come(engine, src)))
                continue;
            const uint32_t seen = atomic_load_explicit(
                &ewx_heap_flag(&engine->heap, src, slot)->epoch, memory_order_relaxed);
            *missing_out = (missing_input){EWX_FAULT_TILE, src, tile, seen};
            return true;
        }
    *missing_out = (missing_input){.code = EWX_FAULT_PANEL, .seen = engine->call.epoch - 1};
    if (ewx_gather_stage_missing(engine, &missing_out->src, &missing_out->tile))
        return true;
    missing_out->code = EWX_FAULT_RESULT;
    if (ewx_collect_stage_missing(engine, &missing_out->src, &missing_out->tile))
        return true;
    missing_out->code = EWX_FAULT_TILE;
    return ewx_host_sum_missing(engine, &missing_out->src, &missing_out->tile);
}

/* A slice of the timeout is over: go on waiting, or name the rank that owes us a tile. */
static ew_status judge_missing(ewx_cpu_engine *engine, ewx_patience *patience,
                               const missing_input *missing)
{
    const bool left = ewx_world_departed(engine->world, missing->src);
    missing_input still;
    if (!left && ewx_patience_lasts(engine, patience, missing->src))
        return EW_OK;
    /* It may have published between our look and its leaving. */
    if (left && !(find_missing(engine, &still) && still.src == missing->src))
        return EW_OK;
    const int64_t where = missing->code == EWX_FAULT_PANEL ? missing->tile.row * EWX_TILE_M
                                                           : missing->tile.row;
    return ewx_stall_report(
        engine, left ? EW_ERR_PEER_DIED : EW_ERR_TIMEOUT, missing->src, missing->code,
        (const int64_t[4]){where, missing->tile.col, engine->call.epoch, missing->seen});
}

/* ... or the one that does not take ours. */
static ew_status judge_unsent(ewx_cpu_engine *engine, ewx_patience *patience)
{
    const int dst = engine->wire.exchange.unsent_to;
    if (dst == engine->world->rank) /* not computed yet; its reader will name us */
        return EW_OK;
    if (ewx_patience_lasts(engine, patience, dst))
        return EW_OK;
    return ewx_stall_report(
        engine, EW_ERR_TIMEOUT, dst, EWX_FAULT_READERS,
        (const int64_t[4]){engine->call.epoch, atomic_load(&header_of(engine, dst)->done)});
}

ew_status ewx_stall_judge(ewx_cpu_engine *engine, int worker, ewx_patience *patience)
{
    missing_input missing;
    if (find_missing(engine, &missing))
        return judge_missing(engine, patience, &missing);
    if (worker == 0 && engine->wire.exchange.unsent > 0)
        return judge_unsent(engine, patience);
    return EW_OK;
}
