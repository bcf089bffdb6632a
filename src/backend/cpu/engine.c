/* One call, from its first ticket to its last tile. */
#include "backend/cpu/engine.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/epoch.h"
#include "base/probe.h"
#include "base/status.h"

void ewx_engine_trace(ewx_cpu_engine *engine, const ew_trace_event *event)
{
    if (!engine->events)
        return;
    const uint64_t place =
        atomic_fetch_add_explicit(&engine->call.num_events, 1, memory_order_relaxed);
    if (place < engine->events_capacity)
        engine->events[place] = *event;
}

void ewx_engine_set_epoch(ewx_cpu_engine *engine, uint32_t epoch)
{
    engine->epoch = epoch;
    for (int rank = 0; rank < engine->spec->num_ranks; rank++) {
        if (rank != engine->world->rank && ewx_world_is_local(engine->world, rank))
            continue; /* does it itself; of others there is a replica */
        atomic_store(&ewx_heap_header(&engine->heap, rank)->done, epoch);
        for (int64_t slot = 0; slot < engine->spec->layout.num_slots; slot++)
            atomic_store(&ewx_heap_flag(&engine->heap, rank, slot)->epoch, epoch);
    }
}

/* ---- Workers ---- */

void ewx_engine_progress(ewx_cpu_engine *engine, int worker)
{
    if (worker == 0)
        engine->farthest->progress(engine);
}

/* Looking at the network costs some microseconds, a tile as few as 60. */
#define PROGRESS_NS 200000

void ewx_engine_glance(ewx_cpu_engine *engine, int worker)
{
    if (worker == 0 && engine->wire.exchange.is_open &&
        ewx_now_ns() - engine->wire.progress_ns > PROGRESS_NS)
        ewx_engine_progress(engine, worker);
}

static bool is_aborted(const ewx_cpu_engine *engine)
{
    return atomic_load_explicit(&engine->world->control->abort, memory_order_relaxed) != 0;
}

static bool take_position(ewx_cpu_engine *engine, int64_t *position_out)
{
    *position_out =
        atomic_fetch_add_explicit(&engine->call.next_position, 1, memory_order_relaxed);
    return *position_out < engine->call.num_positions;
}

/* Reductions first when their inputs are there, else a block, else the tail; at the end an
 * epilogue that was not fused. */
static ew_status work_shared(ewx_cpu_engine *engine, int worker)
{
    for (int64_t position;;) {
        int reduced;
        ewx_engine_glance(engine, worker);
        EW_TRY(ewx_consume_some(engine, worker, &reduced));
        if (is_aborted(engine))
            return EW_ERR_ABORTED;
        if (reduced > 0)
            continue;
        if (!take_position(engine, &position))
            break;
        EW_TRY(ewx_produce_block(engine, worker, position));
    }
    EW_TRY(ewx_consume_rest(engine, worker));
    ewx_layer_follow(engine);
    return EW_OK;
}

/* Waits for the other workers of this rank, who are busy computing. */
static ew_status await_gemm(ewx_cpu_engine *engine)
{
    ewx_patience patience = ewx_patience_begin(engine);
    ew_status status;
    do {
        ewx_wait wait = ewx_patience_wait(engine);
        EWX_AWAIT(status, &wait,
                  atomic_load_explicit(&engine->call.positions_done,
                                       memory_order_relaxed) >= engine->call.num_positions);
    } while (status == EW_ERR_TIMEOUT &&
             ewx_patience_lasts(engine, &patience, engine->world->rank));
    ewx_patience_end(engine);
    return status;
}

/* The last x workers only reduce and keep their core until the GEMM has ended; the
 * others only compute. */
static ew_status work_static(ewx_cpu_engine *engine, int worker)
{
    const int num_producers = engine->spec->config.workers - engine->spec->config.budget;
    if (worker < num_producers) {
        for (int64_t position; take_position(engine, &position);) {
            if (is_aborted(engine))
                return EW_ERR_ABORTED;
            EW_TRY(ewx_produce_block(engine, worker, position));
        }
        return worker == 0 && engine->wire.exchange.is_open
                   ? ewx_consume_watch(engine, worker)
                   : EW_OK;
    }
    EW_TRY(ewx_consume_rest(engine, worker));
    return await_gemm(engine);
}

static ew_status work(void *context, int worker)
{
    ewx_cpu_engine *engine = context;
    if (engine->call.B && engine->spec->config.producer == EW_PRODUCER_OWN)
        EW_TRY(ewx_produce_weight(engine));
    return engine->spec->config.pool == EW_POOL_STATIC ? work_static(engine, worker)
                                                       : work_shared(engine, worker);
}

/* ---- A call ---- */

static uint32_t done_of(const ewx_cpu_engine *engine, int rank)
{
    /* Acquire: pairs with the release in finish_call; that rank's reads lie before. */
    return atomic_load_explicit(&ewx_heap_header(&engine->heap, rank)->done,
                                memory_order_acquire);
}

static bool has_read(ewx_cpu_engine *engine, int rank, uint32_t want)
{
    ewx_engine_progress(engine, 0);
    return ewx_epoch_reached(done_of(engine, rank), want) ||
           ewx_world_departed(engine->world, rank);
}

static ew_status await_reader(ewx_cpu_engine *engine, int rank, uint32_t want)
{
    ew_world *world = engine->world;
    if (ewx_epoch_reached(done_of(engine, rank), want))
        return EW_OK;
    ewx_patience patience = ewx_patience_begin(engine);
    ew_status status;
    do {
        ewx_wait wait = ewx_patience_wait(engine);
        EWX_AWAIT(status, &wait, has_read(engine, rank, want));
    } while (status == EW_ERR_TIMEOUT && ewx_patience_lasts(engine, &patience, rank));
    ewx_patience_end(engine);
    if (status == EW_ERR_TIMEOUT)
        return ewx_world_raise(world,
                               &(ewx_fault){.status = EW_ERR_TIMEOUT,
                                            .culprit = rank,
                                            .reporter = world->rank,
                                            .code = EWX_FAULT_READERS,
                                            .detail = {want, done_of(engine, rank)}});
    return status == EW_OK ? EW_OK : ewx_world_check(world);
}

/* The slice we are about to overwrite was read in call e-2: every owner must be done
 * with it.  Mostly true already, since our own call e-1 needed their contributions; a
 * rank that owns no rows could otherwise run ahead without end. */
static ew_status await_readers(ewx_cpu_engine *engine)
{
#if EW_MUTANT == 2 /* planted bug: overwrite what peers may still read */
    return EW_OK;
#endif
    const uint32_t want = engine->call.epoch - 2;
    for (int rank = 0; rank < engine->spec->num_ranks; rank++)
        EW_TRY(await_reader(engine, rank, want));
    return EW_OK;
}

static void announce_call(ewx_cpu_engine *engine)
{
    ewx_call_record *record =
        &ewx_heap_header(&engine->heap, engine->world->rank)->calls[engine->call.epoch & 1];
    record->rows = engine->call.grid.rows;
    /* Release: pairs with the acquire in consume.c:peer_in_call. */
    atomic_store_explicit(&record->epoch, engine->call.epoch, memory_order_release);
    ewx_wire_announce(engine);
}

static void finish_call(ewx_cpu_engine *engine)
{
    (void)EWX_PROBE(EWX_PROBE_DONE, engine->world->rank, engine->call.epoch);
    /* Release: our reads of the peers' slices come before; pairs with done_of. */
    atomic_store_explicit(&ewx_heap_header(&engine->heap, engine->world->rank)->done,
                          engine->call.epoch, memory_order_release);
    ewx_wire_finish(engine);
#if EW_MUTANT == 20 /* planted bug: a few bytes of every call are kept */
    static void *volatile kept;
    kept = malloc(4);
    (void)kept;
#endif
    engine->timing.end_ns = ewx_now_ns();
    engine->timing.gemm_end_ns =
        atomic_load_explicit(&engine->call.gemm_end_ns, memory_order_relaxed);
}

/* Between hosts the control messages about another plan's call come before the tiles that
 * belong to it, but a worker may have reduced such a tile without looking at the abort word
 * in between.  On one host the call ends before its first block. */
static bool was_misled(const ewx_cpu_engine *engine)
{
    return engine->wire.exchange.is_open && is_aborted(engine);
}

ew_status ewx_engine_run(ewx_cpu_engine *engine, int64_t m, const void *A, const void *B,
                         const void *packed, void *C, const ew_epilogue *epilogue)
{
    ewx_cpu_call *call = &engine->call;
    const ewx_spec *spec = engine->spec;
    EW_TRY(ewx_world_check(engine->world));
    engine->timing.start_ns = ewx_now_ns();
    call->epoch = ++engine->epoch;
    call->grid = ewx_spec_grid(spec, m);
    call->A = A;
    call->B = B;
    call->packed = B ? engine->passing_weight : packed;
    atomic_store_explicit(&call->gemm_end_ns, engine->timing.start_ns,
                          memory_order_relaxed);
    atomic_store_explicit(&call->num_events, 0, memory_order_relaxed);
    EW_TRY(await_readers(engine));
    ewx_produce_prepare(engine);
    ewx_consume_prepare(engine);
    ewx_layer_prepare(engine, C, epilogue);
    ewx_exchange_begin(&engine->wire.exchange, &call->grid, call->epoch);
    ewx_combine_prepare(engine);
    announce_call(engine);
    /* Every fault in a worker was reported to the world; its text is set here, in the
     * caller's thread. */
    if (ewx_team_run(&engine->team, work, engine) != EW_OK || was_misled(engine)) {
        const ew_status status = ewx_world_check(engine->world);
        if (status == EW_OK) /* a BLAS that refused: nobody else knows yet */
            ew_world_abort(engine->world);
        ewx_engine_progress(engine, 0); /* other hosts may not know either */
        return ewx_world_check(engine->world);
    }
    finish_call(engine);
    return EW_OK;
}
