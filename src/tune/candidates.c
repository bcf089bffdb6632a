/* The table of knobs, and which of their values are worth a measurement. */
#include "tune/candidates.h"

#include "plan/policy.h"

#define MANY_WAVES 16

typedef struct requests {
    ew_config *at;
    int count;
} requests;

static void add(requests *list, const ew_config *request)
{
    if (list->count < EWX_KNOB_VALUES)
        list->at[list->count++] = *request;
}

static bool on_gpu(const ewx_candidate_space *space)
{
    return space->built_in.kernel != 0;
}

static int num_parts(const ewx_candidate_space *space)
{
    return ewx_op_of(space->problem)->num_parts(space->num_ranks);
}

static int64_t part_tile_rows(const ewx_candidate_space *space)
{
    return ewx_div_up(ewx_div_up(space->problem->max_m, num_parts(space)), EWX_TILE_M);
}

static int64_t part_tiles(const ewx_candidate_space *space)
{
    return part_tile_rows(space) * ewx_div_up(space->problem->n, EWX_TILE_N);
}

static bool has_many_waves(const ewx_candidate_space *space)
{
    const int64_t wide_blocks = num_parts(space) * part_tile_rows(space) *
                                ewx_div_up(space->problem->n, 2 * EWX_TILE_N);
    return wide_blocks >= (int64_t)MANY_WAVES * space->machine.gpu_sms;
}

/* ---- Transport ---- */

static bool reduces_beside(const ewx_candidate_space *space)
{
    const ew_config *c = &space->built_in;
    return on_gpu(space) && space->num_ranks > 1 && !space->fixed.transport &&
           c->pool == EW_POOL_SHARED && c->release == 1 && c->launches == EW_LAUNCHES_ONCE;
}

/* An AllReduce's tiles may have several readers, and are pulled. */
static bool has_transport(const ewx_candidate_space *space)
{
    return reduces_beside(space) && space->problem->op != EW_OP_GEMM_AR;
}

static void vary_transport(const ewx_candidate_space *space, ew_config request,
                           const ew_config *best, requests *list)
{
    (void)space, (void)best;
    request.transport = EW_TRANSPORT_PUSH;
    add(list, &request);
    request.transport = EW_TRANSPORT_PULL;
    add(list, &request);
}

/* ---- Block ---- */

/* A GEMM of ours, not a library's. */
static bool has_gemm(const ewx_candidate_space *space)
{
    return space->built_in.producer == EW_PRODUCER_OWN;
}

static bool has_block(const ewx_candidate_space *space)
{
    const ew_config *fixed = &space->fixed;
    const bool is_set =
        fixed->block_n && (!on_gpu(space) || (fixed->cluster && fixed->ctas));
    return has_gemm(space) && !is_set;
}

static void vary_gpu_block(const ewx_candidate_space *space, ew_config request,
                           requests *list)
{
    static const struct {
        int32_t cols, cluster;
        ew_ctas ctas;
    } blocks[] = {{256, 1, EW_CTAS_PERSISTENT},
                  {256, 2, EW_CTAS_PERSISTENT},
                  {256, 1, EW_CTAS_BLOCK},
                  {128, 1, EW_CTAS_PERSISTENT},
                  {128, 1, EW_CTAS_BLOCK}};
    const ew_config *fixed = &space->fixed;
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        if (blocks[i].cols < 256 && has_many_waves(space))
            continue;
        if (!fixed->block_n)
            request.block_n = blocks[i].cols;
        if (!fixed->cluster)
            request.cluster = blocks[i].cluster;
        if (!fixed->ctas)
            request.ctas = blocks[i].ctas;
        add(list, &request);
    }
}

static void vary_block(const ewx_candidate_space *space, ew_config request,
                       const ew_config *best, requests *list)
{
    (void)best;
    if (on_gpu(space)) {
        vary_gpu_block(space, request, list);
        return;
    }
    for (int32_t cols = 128; cols <= 1024 && !space->fixed.block_n; cols *= 2) {
        request.block_n = cols;
        if (cols - EWX_TILE_N < space->problem->n)
            add(list, &request);
    }
}

/* ---- Group ---- */

static bool has_group(const ewx_candidate_space *space)
{
    return has_gemm(space) && space->built_in.order != EW_ORDER_DEFAULT &&
           !space->fixed.group;
}

static void vary_group(const ewx_candidate_space *space, ew_config request,
                       const ew_config *best, requests *list)
{
    const int64_t block_rows =
        ewx_div_up(part_tile_rows(space), best->block_m / EWX_TILE_M);
    const int32_t least = best->group > 1 ? best->group / 2 : 1;
    for (int64_t group = least; group <= 4 * (int64_t)best->group; group *= 2) {
        request.group = (int32_t)group;
        if (group <= block_rows)
            add(list, &request);
    }
}

/* ---- Release ---- */

static bool has_release(const ewx_candidate_space *space)
{
    const ew_config *c = &space->built_in;
    const bool in_chunks = ewx_copies_rows(ewx_op_of(space->problem), c) && c->release > 0;
    return !space->fixed.release &&
           (c->release > 1 || c->launches == EW_LAUNCHES_UNIT || in_chunks);
}

static void vary_release(const ewx_candidate_space *space, ew_config request,
                         const ew_config *best, requests *list)
{
    const bool gathers = ewx_op_of(space->problem)->gemm_waits; /* in panels, one too */
    const int64_t most = gathers ? part_tile_rows(space) : part_tiles(space);
    const int32_t fewest = gathers ? 1 : 2;
    const int32_t least = best->release > 2 ? best->release / 2 : fewest;
    for (int64_t release = least; release <= 16 * (int64_t)best->release; release *= 2) {
        request.release = (int32_t)release;
        if (release <= most)
            add(list, &request);
    }
}

/* ---- Ends ---- */

/* Without launches of their own, small groups everywhere cost nothing. */
static bool has_ends(const ewx_candidate_space *space)
{
    return has_release(space) && space->built_in.launches == EW_LAUNCHES_UNIT &&
           !space->fixed.release_first && !space->fixed.release_last;
}

/* As FlashOverlap prunes its search: a small first group lets the link begin, a small last
 * one is all that is left when the GEMM has ended; between them groups are alike.  0 is
 * the size of those. */
static void vary_ends(const ewx_candidate_space *space, ew_config request,
                      const ew_config *best, requests *list)
{
    static const int parts[] = {0, 2, 4, 8}; /* of a group */
    (void)space;
    for (int first = 0; first < 4; first++)
        for (int last = 0; last < 4; last++) {
            request.release_first = first ? best->release / parts[first] : 0;
            request.release_last = last ? best->release / parts[last] : 0;
            if ((!first || request.release_first > 0) &&
                (!last || request.release_last > 0))
                add(list, &request);
        }
}

/* ---- Budget ---- */

static bool has_budget(const ewx_candidate_space *space)
{
    const bool nccl = space->built_in.producer == EW_PRODUCER_BLAS &&
                      space->machine.has_nccl &&
                      space->problem->max_m % space->num_ranks == 0;
    const ewx_op *op = ewx_op_of(space->problem);
    /* On a CPU every worker publishes rows; copy engines take no CTAs. */
    const bool matters =
        on_gpu(space) ? !ewx_copies_rows(op, &space->built_in) : !op->gemm_waits;
    return space->num_ranks > 1 && matters && !nccl &&
           !(space->fixed.budget && space->fixed.batch);
}

static void add_budget(const ewx_candidate_space *space, ew_config request, int64_t budget,
                       int32_t batch, requests *list)
{
    if (budget < 1 || budget > part_tiles(space))
        return;
    if (!space->fixed.budget)
        request.budget = (int32_t)budget;
    if (!space->fixed.batch)
        request.batch = batch;
    add(list, &request);
}

/* Reducers beside the GEMM: about one per SM, or fewer, larger ones.  On SMs of their own:
 * four of the largest fill one, so that is a count of SMs.  After the GEMM: enough to hide
 * the latency of their loads. */
static void vary_gpu_budget(const ewx_candidate_space *space, ew_config request,
                            const ew_config *best, requests *list)
{
    const int32_t sms = space->machine.gpu_sms;
    const int32_t few = best->kernel == EW_KERNEL_SM90 ? 512 : 256;
    const int32_t beside[][2] = {{sms, 256},     {sms, 128},     {sms, 512},
                                 {2 * sms, 128}, {sms / 2, 256}, {sms / 4, few}};
    const int32_t apart[][2] = {
        {sms / 8, 512}, {sms / 4, 512}, {sms / 2, 512}, {sms, 512}, {2 * sms, 512}};
    const int32_t after[][2] = {
        {sms, 512}, {2 * sms, 512}, {4 * sms, 512}, {2 * sms, 256}, {4 * sms, 256}};
    const ew_pool pool = request.pool ? request.pool : best->pool;
    const int32_t(*pairs)[2] = pool == EW_POOL_AFTER    ? after
                               : pool == EW_POOL_STATIC ? apart
                                                        : beside;
    const int count = pool == EW_POOL_SHARED ? 6 : 5;
    for (int i = 0; i < count; i++)
        add_budget(space, request, pairs[i][0], pairs[i][1], list);
}

static void vary_budget(const ewx_candidate_space *space, ew_config request,
                        const ew_config *best, requests *list)
{
    if (on_gpu(space)) {
        vary_gpu_budget(space, request, best, list);
        return;
    }
    const int32_t most = best->pool == EW_POOL_STATIC ? best->workers - 1 : best->workers;
    for (int32_t batch = 1; batch <= EWX_TUNED_MOST_BATCH; batch *= 2) {
        for (int32_t budget = 1; budget < most; budget *= 2)
            add_budget(space, request, budget, batch, list);
        add_budget(space, request, most, batch, list);
    }
}

/* ---- Pool ---- */

/* Where there are few waves, a GEMM with fewer SMs may take no more of them; or one that
 * nothing disturbs may save more than overlap hides. */
static bool has_pool(const ewx_candidate_space *space)
{
    return reduces_beside(space) && !space->fixed.pool && !has_many_waves(space);
}

static void vary_pool(const ewx_candidate_space *space, ew_config request,
                      const ew_config *best, requests *list)
{
    ew_config after = request;
    request.pool = EW_POOL_STATIC;
    request.transport = EW_TRANSPORT_PULL;
    vary_gpu_budget(space, request, best, list);
    if (space->fixed.release)
        return;
    after.pool = EW_POOL_AFTER;
    after.release = EW_RELEASE_OUTPUT;
    vary_gpu_budget(space, after, best, list);
}

/* ---- Shots ---- */

static bool has_shots(const ewx_candidate_space *space)
{
    return space->problem->op == EW_OP_GEMM_AR && space->num_ranks > 2 &&
           !space->fixed.shots;
}

static void vary_shots(const ewx_candidate_space *space, ew_config request,
                       const ew_config *best, requests *list)
{
    const ewx_spec chosen = {.problem = *space->problem,
                             .config = *best,
                             .num_ranks = space->num_ranks,
                             .elem_bytes = ew_dtype_bytes(space->problem->dtype),
                             .layout.num_pieces = ewx_num_pieces(best, space->num_ranks)};
    request.shots = 3 - ewx_allreduce_shots(&chosen, space->problem->max_m);
    add(list, &request);
}

/* ---- The table ---- */

static const struct {
    bool (*applies)(const ewx_candidate_space *space);
    void (*vary)(const ewx_candidate_space *space, ew_config request, const ew_config *best,
                 requests *list);
} knobs[] = {
    {has_transport, vary_transport}, {has_block, vary_block}, {has_group, vary_group},
    {has_release, vary_release},     {has_ends, vary_ends},   {has_budget, vary_budget},
    {has_pool, vary_pool},           {has_shots, vary_shots},
};
_Static_assert(sizeof knobs / sizeof knobs[0] == EWX_KNOBS, "one row for each knob");

bool ewx_candidate_applies(const ewx_candidate_space *space, int knob)
{
    return knobs[knob].applies(space);
}

int ewx_candidate_vary(const ewx_candidate_space *space, int knob, const ew_config *request,
                       const ew_config *best, ew_config found[EWX_KNOB_VALUES])
{
    requests list = {.at = found};
    knobs[knob].vary(space, *request, best, &list);
    return list.count;
}
