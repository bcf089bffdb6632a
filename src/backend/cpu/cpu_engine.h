/* The CPU engine: the stages of an operation, the heap and the routes between them, and the
 * workers who walk the operation's list of work.  cpu.c builds it, cpu_engine.c runs a
 * call; each stage has its own file.  docs/PROTOCOL.md explains the flags. */
#ifndef EWX_CPU_ENGINE_H
#define EWX_CPU_ENGINE_H

#include "backend/cpu/collect_stage.h"
#include "backend/cpu/cpu_heap.h"
#include "backend/cpu/epilogue_stage.h"
#include "backend/cpu/gather_stage.h"
#include "backend/cpu/gemm_stage.h"
#include "backend/cpu/host_sum.h"
#include "backend/cpu/ops/cpu_ops.h"
#include "backend/cpu/reduce_stage.h"
#include "backend/cpu/wire.h"

struct ewx_cpu_engine {
    ew_world *world;
    const ewx_spec *spec;
    const ewx_cpu_op *op;
    ewx_heap heap;
    const ewx_route *to[EWX_MAX_RANKS]; /* each rank */
    const ewx_route *to_all_here;       /* on this host */
    const ewx_route *to_everyone;
    const ewx_route *from[EWX_MAX_RANKS];
    const ewx_route *farthest; /* of them: the one that needs calls to make progress */
    ewx_wire wire;
    ewx_gemm_stage gemm;
    ewx_reduce_stage reduce;
    ewx_collect_stage collect;
    ewx_gather_stage gather;
    ewx_host_sum host_sum;
    ewx_epilogue_stage epilogue;
    uint32_t epoch; /* of the last call */
    ew_timing timing;
    ewx_cpu_trace trace;
    ewx_cpu_call call;
};

/* The only rank that sums the tile, or EWX_EVERYONE. */
static inline int ewx_engine_owner(const ewx_cpu_engine *engine, int part, ewx_tile tile)
{
    const ewx_cpu_call *call = &engine->call;
    return ewx_owner_of(&call->grid, call->share.ownership, engine->spec->num_ranks, part,
                        tile);
}

/* To whoever sums the tile. */
static inline const ewx_route *ewx_engine_route_to(const ewx_cpu_engine *engine, int part,
                                                   ewx_tile tile)
{
    const int owner = ewx_engine_owner(engine, part, tile);
    return owner == EWX_EVERYONE ? engine->to_everyone : engine->to[owner];
}

ew_status ewx_engine_run(ewx_cpu_engine *engine, const ewx_call *asked);

/* Does something on the caller's thread only, which is worker 0. */
void ewx_engine_progress(ewx_cpu_engine *engine, int worker);
/* The same between tiles, where there is other work: not too often. */
void ewx_engine_glance(ewx_cpu_engine *engine, int worker);

static inline bool ewx_engine_is_aborted(const ewx_cpu_engine *engine)
{
    return atomic_load_explicit(&engine->world->control->abort, memory_order_relaxed) != 0;
}

/* The tests' way to reach the wrap of the epoch; all ranks, before the first call. */
void ewx_engine_set_epoch(ewx_cpu_engine *engine, uint32_t epoch);

#endif
