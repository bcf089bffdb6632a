/* Whom to blame when a wait runs out.  A rank that has computed anything lately is slow,
 * not stuck; a rank that waits for a third one is not the culprit, and will name it. */
#include "backend/cpu/engine.h"
#include "base/epoch.h"

/* A wait looks around this many times before it runs out, so that a rank is known to
 * wait well before those who wait for it give up. */
#define SLICES 4

static ewx_segment_header *header_of(const ewx_cpu_engine *engine, int rank)
{
    return ewx_heap_header(&engine->heap, rank);
}

static uint32_t progress_of(const ewx_cpu_engine *engine, int rank)
{
    return atomic_load_explicit(&header_of(engine, rank)->progress, memory_order_relaxed);
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
    for (int rank = 0; rank < engine->spec->num_ranks; rank++)
        patience.progress[rank] = progress_of(engine, rank);
    return patience;
}

void ewx_patience_end(ewx_cpu_engine *engine)
{
    tell_waiting(engine, 0);
    ewx_recorder_wait(engine->world, -1);
}

ewx_wait ewx_patience_wait(const ewx_cpu_engine *engine)
{
    ewx_wait wait = ewx_world_wait(engine->world);
    wait.timeout_ns /= SLICES;
    return wait;
}

/* Held up by a third rank; or by us, who owe it something of an earlier call.  A rank that
 * waits in a later call than ours has published all of ours: what is missing is lost. */
static bool is_held_up(const ewx_cpu_engine *engine, int rank)
{
    const uint64_t waiting =
        atomic_load_explicit(&header_of(engine, rank)->waiting, memory_order_relaxed);
    const uint32_t epoch = (uint32_t)(waiting >> 32), ours = engine->call.epoch;
    const uint32_t whom = (uint32_t)waiting; /* 1 + a rank; or nonsense: a peer wrote it */
    if (whom == 0 || whom > (uint32_t)engine->spec->num_ranks ||
        rank == engine->world->rank)
        return false;
    return epoch == ours ? (int)whom - 1 != engine->world->rank
                         : !ewx_epoch_reached(epoch, ours);
}

bool ewx_patience_lasts(ewx_cpu_engine *engine, ewx_patience *patience, int rank)
{
    const uint32_t progress = progress_of(engine, rank);
    const bool moved = progress != patience->progress[rank];
    patience->progress[rank] = progress;
    patience->quiet_slices =
        moved || rank != patience->rank ? !moved : patience->quiet_slices + 1;
    patience->rank = rank;
    tell_waiting(engine, ewx_waiting_for(rank, engine->call.epoch));
    ewx_recorder_wait(engine->world, rank);
    if (patience->quiet_slices < SLICES)
        return true;
    /* Bounded: should all wait in a circle, somebody has to speak. */
    return is_held_up(engine, rank) &&
           patience->extensions++ < SLICES * engine->spec->num_ranks;
}
