/* A vendor's collective in place of reducers: one call behind the GEMM, or one for every
 * group of tiles, in the order of one stream. */
#include "backend/sim/ops/sim_op.h"
#include "backend/sim/resources.h"
#include "backend/sim/sim_engines.h"
#include "backend/sim/sim_units.h"

static int64_t call_end(const ewx_sim *sim, int64_t begin_ps, double remote_bytes)
{
    return ewx_sim_after(begin_ps,
                         sim->model.nccl_ps + remote_bytes * sim->model.nccl_byte_ps);
}

static void end_ranks(ewx_sim *sim, int64_t end_ps)
{
    for (int rank = 0; rank < sim->num_ranks; rank++) {
        ewx_sim_rank *r = &sim->ranks[rank];
        r->end_ps = end_ps;
        r->tasks_left = 0;
        r->remote_bytes = sim->op->remote_bytes(sim, rank);
        r->crossed_bytes = sim->op->crossed_bytes(sim, rank);
    }
}

void ewx_sim_run_nccl(ewx_sim *sim)
{
    int64_t begin_ps = 0;
    for (int rank = 0; rank < sim->num_ranks; rank++)
        begin_ps = ewx_sim_later(begin_ps, sim->ranks[rank].gemm_end_ps);
    const ewx_spec *spec = sim->spec;
    end_ranks(sim, call_end(sim, begin_ps,
                            spec->op->remote_bytes(&spec->problem, sim->request->rows,
                                                   sim->num_ranks)));
}

/* Of every rank's tiles, which all parts have the same number of. */
static int64_t num_groups(const ewx_sim *sim)
{
    return sim->first_unit[1] - sim->first_unit[0];
}

/* A collective begins when all ranks have come to it, and behind the call before. */
void ewx_sim_book_call(ewx_sim *sim)
{
    if (sim->calling || sim->num_calls == num_groups(sim))
        return;
    int64_t begin_ps = sim->now_ps;
    for (int rank = 0; rank < sim->num_ranks; rank++) {
        const int64_t unit = sim->first_unit[rank] + sim->num_calls;
        if (sim->ranks[rank].mirrored)
            continue;
        if (sim->missing[unit] > 0)
            return;
        begin_ps = ewx_sim_later(begin_ps, sim->ready_ps[unit]);
    }
    sim->calling = true;
    ewx_sim_push(&sim->queue, begin_ps, EWX_SIM_CALL, 0, 0);
}

/* Nothing says what it takes from the GEMM beside its SMs: as much as a kernel of ours that
 * sums the same tiles. */
void ewx_sim_begin_call(ewx_sim *sim)
{
    const int64_t bytes = ewx_sim_unit_bytes(sim, 0, sim->first_unit[0] + sim->num_calls);
    for (int rank = 0; rank < sim->num_ranks; rank++) {
        if (sim->ranks[rank].mirrored)
            continue;
        ewx_sim_interrupt_producers(sim, rank);
        ewx_sim_delay_producers(sim, rank, (double)bytes * (sim->num_ranks + 1));
    }
    ewx_sim_push(&sim->queue,
                 call_end(sim, sim->now_ps, (double)bytes * (sim->num_ranks - 1)),
                 EWX_SIM_CALL_END, 0, 0);
}

void ewx_sim_end_call(ewx_sim *sim)
{
    sim->calling = false;
    if (++sim->num_calls == num_groups(sim))
        end_ranks(sim, sim->now_ps);
    ewx_sim_book_call(sim);
}
