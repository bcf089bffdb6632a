/* One call, from its first ticket to its last tile. */
#include "backend/cpu/cpu_engine.h"

#include <stdlib.h>

#include "backend/cpu/cpu_workers.h"
#include "base/clock.h"
#include "base/epoch.h"
#include "base/probe.h"
#include "base/status.h"

void ewx_engine_trace(ewx_cpu_engine *engine, const ew_trace_event *event)
{
    if (!engine->trace.events)
        return;
    const uint64_t place =
        atomic_fetch_add_explicit(&engine->trace.count, 1, memory_order_relaxed);
    if (place < engine->trace.capacity)
        engine->trace.events[place] = *event;
}

void ewx_engine_set_epoch(ewx_cpu_engine *engine, uint32_t epoch)
{
    engine->epoch = epoch;
    for (int rank = 0; rank < engine->spec->num_ranks; rank++) {
        if (rank != engine->world->rank && ewx_world_is_local(engine->world, rank))
            continue; /* local ranks do this themselves; others have a replica here */
        atomic_store(&ewx_heap_header(&engine->heap, rank)->done, epoch);
        for (int64_t slot = 0; slot < engine->spec->layout.num_slots; slot++) {
            ewx_flag *flag = ewx_heap_flag(&engine->heap, rank, slot);
            atomic_store(&flag->epoch, epoch);
            atomic_store(&flag->result, epoch);
        }
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

/* Some of the most urgent work there is for these roles. */
static ew_status do_some(ewx_cpu_engine *engine, int worker, unsigned roles, int *done)
{
    const ewx_cpu_call *call = &engine->call;
    ew_status status = EW_OK;
    *done = 0;
    for (int i = 0; i < call->num_work && *done == 0 && status == EW_OK; i++)
        if (call->work[i]->role & roles)
            status = call->work[i]->some(engine, worker, done);
    return status;
}

/* Whether nothing is left for this worker to do or to wait for: all workers wait for
 * reductions, only computing ones for blocks, and worker 0 also for what is to be sent. */
static bool is_finished(ewx_cpu_engine *engine, int worker, unsigned roles)
{
    const ewx_cpu_call *call = &engine->call;
    for (int i = 0; i < call->num_work; i++)
        if ((call->work[i]->role & (roles | EWX_ROLE_REDUCE)) &&
            !call->work[i]->is_done(engine))
            return false;
    return worker > 0 || ewx_exchange_is_idle(&engine->wire.exchange);
}

/* Waits until this worker has done something or nothing is left. */
static ew_status await_work(ewx_cpu_engine *engine, int worker, unsigned roles,
                            ewx_patience *patience)
{
    ewx_wait wait = ewx_patience_wait(engine);
    ew_status waited, doing = EW_OK;
    int done = 0;
    EWX_AWAIT(waited, &wait,
              (ewx_engine_progress(engine, worker), false) ||
                  (doing = do_some(engine, worker, roles, &done)) || done > 0 ||
                  is_finished(engine, worker, roles));
    if (doing != EW_OK)
        return doing;
    return waited == EW_ERR_TIMEOUT ? ewx_stall_judge(engine, worker, patience) : waited;
}

/* Returns when all of this rank's work is done, and, on worker 0, everything it owes other
 * hosts has arrived; or with the world's fault. */
static ew_status await_end(ewx_cpu_engine *engine, int worker, unsigned roles)
{
    if (is_finished(engine, worker, roles))
        return EW_OK;
    ewx_patience patience = ewx_patience_begin(engine);
    ew_status status = EW_OK;
    while (status == EW_OK && !is_finished(engine, worker, roles))
        status = await_work(engine, worker, roles, &patience);
    ewx_patience_end(engine);
    return status;
}

static ew_status work_shared(ewx_cpu_engine *engine, int worker)
{
    int done;
    do {
        ewx_engine_glance(engine, worker);
        EW_TRY(do_some(engine, worker, EWX_EVERY_ROLE, &done));
        if (ewx_engine_is_aborted(engine))
            return EW_ERR_ABORTED;
    } while (done > 0);
    return await_end(engine, worker, EWX_EVERY_ROLE);
}

/* Waits for the other workers of this rank, who are busy computing. */
static ew_status await_gemm(ewx_cpu_engine *engine)
{
    ewx_wait wait = ewx_worker_wait(engine);
    ew_status status;
    EWX_AWAIT(status, &wait, ewx_gemm_stage_has_ended(engine));
    return status;
}

/* The last x workers only reduce and keep their core until the GEMM has ended; the
 * others only compute. */
static ew_status work_static(ewx_cpu_engine *engine, int worker)
{
    const int num_producers = engine->spec->config.workers - engine->spec->config.budget;
    if (worker < num_producers) {
        int done;
        do
            EW_TRY(do_some(engine, worker, EWX_ROLE_COMPUTE, &done));
        while (done > 0);
        const bool sends = worker == 0 && engine->wire.exchange.is_open;
        return sends || engine->spec->op->gemm_waits
                   ? await_end(engine, worker, EWX_ROLE_COMPUTE)
                   : EW_OK;
    }
    EW_TRY(await_end(engine, worker, EWX_ROLE_REDUCE));
    return await_gemm(engine);
}

static ew_status work_together(ewx_cpu_engine *engine, int worker)
{
    EW_TRY(ewx_gemm_stage_pack(engine));
    return engine->spec->config.pool == EW_POOL_STATIC ? work_static(engine, worker)
                                                       : work_shared(engine, worker);
}

static ew_status work(void *context, int worker)
{
    ewx_cpu_engine *engine = context;
    const ew_status status = work_together(engine, worker);
    if (status != EW_OK && !ewx_engine_is_aborted(engine))
        /* A BLAS that refused: others wait for its blocks. */
        ewx_world_give_up(engine->world, EW_ERR_SYSTEM);
    return status;
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
        return ewx_stall_report(engine, EW_ERR_TIMEOUT, rank, EWX_FAULT_READERS,
                                (const int64_t[4]){want, done_of(engine, rank)});
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

static int32_t form_of(const ewx_cpu_engine *engine, const ewx_call *asked)
{
    const ewx_cpu_call *call = &engine->call;
    const ew_epilogue *epilogue = asked->epilogue;
    int32_t form = (int32_t)call->share.ownership;
    if (!engine->op->shares_steps)
        return form;
    const bool has_rows =
        (epilogue && epilogue->residual_rows == EW_RESIDUAL_ALL) ||
        ewx_share_rows(&call->grid, engine->spec->num_ranks, engine->world->rank).num_rows >
            0;
    form |= epilogue && epilogue->bias ? EWX_FORM_BIAS : 0;
    form |= epilogue && epilogue->norm_weight ? EWX_FORM_NORM : 0;
    if (has_rows)
        form |= epilogue && epilogue->residual ? EWX_FORM_RESIDUAL : EWX_FORM_NO_RESIDUAL;
    return form;
}

static void announce_call(ewx_cpu_engine *engine)
{
    ewx_call_record *record =
        &ewx_heap_header(&engine->heap, engine->world->rank)->calls[engine->call.epoch & 1];
    record->rows = engine->call.grid.rows;
    record->form = engine->call.form;
    /* Release: pairs with the acquire in reduce_stage.c:ewx_peer_in_call. */
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
        atomic_load_explicit(&engine->gemm.end_ns, memory_order_relaxed);
    if (engine->spec->op->gemm_waits) /* what came before the first block was no GEMM */
        engine->timing.gemm_end_ns -=
            atomic_load_explicit(&engine->gemm.begin_ns, memory_order_relaxed) -
            engine->timing.start_ns;
}

/* Between hosts the control messages about another plan's call come before the tiles that
 * belong to it, but a worker may have reduced such a tile without looking at the abort word
 * in between.  On one host the call ends before its first block. */
static bool was_misled(const ewx_cpu_engine *engine)
{
    return engine->wire.exchange.is_open && ewx_engine_is_aborted(engine);
}

ew_status ewx_engine_run(ewx_cpu_engine *engine, const ewx_call *asked)
{
    ewx_cpu_call *call = &engine->call;
    EW_TRY(ewx_world_check(engine->world));
    engine->timing.start_ns = ewx_now_ns();
    call->epoch = ++engine->epoch;
    call->plan = asked->plan;
    call->timeout_ns = asked->timeout_ns;
    call->grid = ewx_grid_build(asked->m, ewx_gemm_stage_cols(engine->spec, asked),
                                engine->spec->op->num_parts(engine->spec->num_ranks),
                                &engine->spec->config);
    call->share = ewx_share_of(&call->grid, engine->op->ownership(engine->spec, asked),
                               engine->spec->num_ranks, engine->world->rank);
    call->form = form_of(engine, asked);
    atomic_store_explicit(&engine->trace.count, 0, memory_order_relaxed);
    EW_TRY(await_readers(engine));
    ewx_exchange_begin(&engine->wire.exchange, &call->grid, call->share.ownership,
                       call->epoch);
    call->num_work = 0;
    for (int i = 0; i < engine->op->num_work; i++)
        if (engine->op->work[i]->prepare(engine, asked))
            call->work[call->num_work++] = engine->op->work[i];
    announce_call(engine);
    /* Every fault in a worker was reported to the world; its text is set here, in the
     * caller's thread. */
    if (ewx_workers_run(engine->world, engine->spec->config.workers, work, engine) !=
            EW_OK ||
        was_misled(engine)) {
        ewx_engine_progress(engine, 0); /* other hosts may not know yet */
        return ewx_world_check(engine->world);
    }
    finish_call(engine);
    return EW_OK;
}
