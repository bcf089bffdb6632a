/* Writing records, and comparing them with what the others wrote. */
#include "world/recorder.h"

#include "base/clock.h"
#include "base/status.h"
#include "world/remote_ranks.h"

static ewx_lane *own_lane(const ew_world *world)
{
    return &world->control->mailboxes[world->rank].lane;
}

static ewx_record *record_of(ewx_lane *lane, uint64_t sequence)
{
    return &lane->records[sequence % EWX_RECORDS];
}

#define PUT(field, value) atomic_store_explicit(&(field), value, memory_order_relaxed)
#define GET(field) atomic_load_explicit(&(field), memory_order_relaxed)

/* ---- Agreement ---- */

static ew_status refuse(ew_world *world, int peer, uint64_t sequence,
                        ewx_operation_field field, int64_t mine, int64_t theirs)
{
    return ewx_world_raise(
        world, &(ewx_fault){.status = EW_ERR_MISMATCH,
                            .culprit = peer,
                            .reporter = world->rank,
                            .code = EWX_FAULT_OPERATION,
                            .detail = {field, mine, theirs, (int64_t)sequence}});
}

/* Compares once per peer and call.  A peer that has not come this far will compare itself
 * with us. */
static ew_status compare(ew_world *world, int peer, uint64_t sequence,
                         const ewx_operation *mine)
{
    ewx_record *record = record_of(&world->mailboxes[peer]->lane, sequence);
    /* Sequentially consistent, as the store in ewx_recorder_begin: of two ranks at least
     * one sees the other. */
    if (atomic_load(&record->sequence) != sequence)
        return EW_OK;
    const uint32_t what = ewx_outcome_what(GET(record->outcome));
    const int64_t size = GET(record->shape[0]);
    const uint64_t plan = GET(record->plan);
    const bool same_kind = ewx_what_kind(what) == mine->kind;
    if (same_kind && plan == mine->plan && size == mine->shape[0])
        return EW_OK;
    if (atomic_load(&record->sequence) != sequence) /* it was being replaced */
        return EW_OK;
    if (!same_kind)
        return refuse(world, peer, sequence, EWX_OPERATION_WHAT,
                      ewx_what(mine->op, mine->kind), what);
    if (mine->kind == EWX_RECORD_PLAN) /* whose fields are compared one by one elsewhere */
        return EW_OK;
    /* All have agreed on everything that follows from the plan. */
    if (plan != mine->plan)
        return refuse(world, peer, sequence, EWX_OPERATION_PLAN,
                      (int64_t)(mine->plan >> 32), (int64_t)(plan >> 32));
    return refuse(world, peer, sequence, EWX_OPERATION_SHAPE, mine->shape[0], size);
}

/* ---- Records ---- */

/* Whether a peer has begun, and so compared, what our new record would replace. */
static bool is_replaceable(ew_world *world, int peer, uint64_t sequence)
{
    const ewx_record *theirs = record_of(&world->mailboxes[peer]->lane, sequence);
    return atomic_load_explicit(&theirs->sequence, memory_order_relaxed) + EWX_RECORDS >=
           sequence;
}

static bool may_go_on(ew_world *world, int peer, uint64_t sequence)
{
    ewx_remotes_progress(world);
    return is_replaceable(world, peer, sequence) || ewx_world_departed(world, peer);
}

/* As long as the peer makes progress, however slow, it is waited for. */
static ew_status await_peer(ew_world *world, int peer, uint64_t sequence,
                            int64_t timeout_ns)
{
    const ewx_lane *lane = &world->mailboxes[peer]->lane;
    uint64_t seen, now;
    ew_status status;
    do {
        ewx_wait wait = ewx_wait_begin(&world->control->abort, timeout_ns, world->spins);
        seen = GET(lane->sequence) + GET(lane->steps);
        EWX_AWAIT(status, &wait, may_go_on(world, peer, sequence));
        now = GET(lane->sequence) + GET(lane->steps);
    } while (status == EW_ERR_TIMEOUT && now != seen);
    if (status == EW_ERR_TIMEOUT)
        return ewx_world_raise(world,
                               &(ewx_fault){.status = EW_ERR_TIMEOUT,
                                            .culprit = peer,
                                            .reporter = world->rank,
                                            .code = EWX_FAULT_MEETING,
                                            .timeout_ms = ewx_timeout_ms(timeout_ns)});
    return status == EW_OK ? EW_OK : ewx_world_check(world);
}

/* A rank that waits for no other may be many plans' calls ahead, but never so far that it
 * overwrites a record that a peer has yet to compare. */
static ew_status await_comparisons(ew_world *world, uint64_t sequence, int64_t timeout_ns)
{
    for (int peer = 0; peer < world->num_ranks; peer++)
        if (peer != world->rank && !is_replaceable(world, peer, sequence))
            EW_TRY(await_peer(world, peer, sequence, timeout_ns));
    return EW_OK;
}

/* `alone`: there is no peer whose record is looked at next. */
static void write_record(ewx_lane *lane, uint64_t sequence, const ewx_operation *operation,
                         bool alone)
{
    ewx_record *record = record_of(lane, sequence);
    PUT(lane->sequence, sequence);
    for (int i = 0; i < 3; i++)
        PUT(record->shape[i], operation->shape[i]);
    PUT(record->plan, operation->plan);
    PUT(record->begin, ewx_ticks());
    PUT(record->end, 0);
    PUT(record->outcome, ewx_outcome(ewx_what(operation->op, operation->kind),
                                     EWX_RECORD_RUNNING, EW_OK, 0));
    if (alone)
        atomic_store_explicit(&record->sequence, sequence, memory_order_release);
    else
        atomic_store(&record->sequence, sequence);
}

void ewx_recorder_receive(ew_world *world, int peer, uint64_t sequence,
                          const ewx_operation *operation)
{
    write_record(&world->mailboxes[peer]->lane, sequence, operation, false);
    /* Either our record came first and found nothing to compare, or it has yet to come. */
    const ewx_record *own = record_of(own_lane(world), sequence);
    if (GET(own->sequence) != sequence || operation->replays)
        return;
    const uint32_t what = ewx_outcome_what(GET(own->outcome));
    const ewx_operation mine = {.op = ewx_what_op(what),
                                .kind = ewx_what_kind(what),
                                .shape = {GET(own->shape[0])},
                                .plan = GET(own->plan)};
    (void)compare(world, peer, sequence, &mine);
}

ew_status ewx_recorder_begin(ew_world *world, const ewx_operation *operation)
{
    ewx_lane *lane = own_lane(world);
    const uint64_t sequence = ++world->sequence;
    const int64_t timeout_ns =
        operation->timeout_ns > 0 ? operation->timeout_ns : world->timeout_ns;
    const ew_status awaited =
        operation->replays ? EW_OK : await_comparisons(world, sequence, timeout_ns);
    PUT(lane->steps_before, GET(lane->steps));
    PUT(lane->last, 0);
    write_record(lane, sequence, operation, world->num_ranks == 1);
    EW_TRY(awaited); /* only now: the caller ends the record */
    ewx_remotes_send_operation(world, sequence, operation);
    for (int peer = 0; peer < world->num_ranks && !operation->replays; peer++)
        if (peer != world->rank) {
            const ew_status status = compare(world, peer, sequence, operation);
            if (status != EW_OK)
                return status;
        }
    return EW_OK;
}

void ewx_recorder_end(ew_world *world, ew_status status, bool enqueued)
{
    ewx_lane *lane = own_lane(world);
    ewx_record *record = record_of(lane, world->sequence);
    const uint32_t what = ewx_outcome_what(GET(record->outcome));
    const uint32_t steps = GET(lane->steps) - GET(lane->steps_before);
    const ewx_record_state state = status != EW_OK ? EWX_RECORD_FAILED
                                   : enqueued      ? EWX_RECORD_ENQUEUED
                                                   : EWX_RECORD_DONE;
    PUT(record->end, ewx_ticks());
    PUT(record->outcome, ewx_outcome(what, state, status, steps));
    if (!enqueued)
        world->drained = world->sequence;
}

void ewx_recorder_drain(ew_world *world, ew_status status)
{
    ewx_lane *lane = own_lane(world);
    uint64_t sequence = world->drained;
    if (world->sequence - sequence > EWX_RECORDS)
        sequence = world->sequence - EWX_RECORDS;
    while (sequence < world->sequence) {
        ewx_record *record = record_of(lane, ++sequence);
        const uint64_t outcome = GET(record->outcome);
        if ((outcome >> 8 & 0xff) != EWX_RECORD_ENQUEUED)
            continue;
        PUT(record->end, ewx_ticks());
        PUT(record->outcome,
            ewx_outcome(ewx_outcome_what(outcome),
                        status == EW_OK ? EWX_RECORD_DONE : EWX_RECORD_FAILED, status,
                        (uint32_t)(outcome >> 32)));
    }
    world->drained = world->sequence;
}

void ewx_recorder_step(ew_world *world, int step, int64_t where)
{
    ewx_lane *lane = own_lane(world);
    atomic_fetch_add_explicit(&lane->steps, 1, memory_order_relaxed);
    PUT(lane->last, (uint64_t)step << 56 | (uint64_t)where);
}

void ewx_recorder_wait(ew_world *world, int rank)
{
    PUT(own_lane(world)->waiting, (uint64_t)(rank + 1));
}

int ewx_recorder_awaited_behind(const ew_world *world, int rank)
{
    const ewx_lane *lane = &world->mailboxes[rank]->lane;
    const uint64_t waiting = GET(lane->waiting); /* or nonsense: a peer wrote it */
    return GET(lane->sequence) < world->sequence && waiting <= (uint64_t)world->num_ranks
               ? (int)waiting - 1
               : -1;
}
