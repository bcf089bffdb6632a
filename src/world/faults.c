/* Raising a fault, learning of one, and saying what happened. */
#include "base/status.h"
#include "base/text.h"
#include "world/remote_ranks.h"

static void name_meeting(uint64_t word, ewx_text *text)
{
    const unsigned long long bytes = word & (((uint64_t)1 << 56) - 1);
    switch (word >> 56) {
    case EWX_MEETING_BARRIER:
        ewx_text_add(text, "called ew_world_barrier");
        break;
    case EWX_MEETING_ALLGATHER:
        ewx_text_add(text, "called ew_world_allgather of %llu bytes", bytes);
        break;
    default:
        ewx_text_add(text,
                     "creates or calls a plan, or allocates or imports memory (a step of "
                     "%llu bytes)",
                     bytes);
    }
}

/* Two ranks in different collectives, or one that did not come. */
static ew_status explain_meeting(const ewx_fault *f, double timeout_s)
{
    char mine[128], theirs[128];
    ewx_text my_text = ewx_text_in(mine, sizeof mine);
    ewx_text their_text = ewx_text_in(theirs, sizeof theirs);
    if (f->status == EW_ERR_TIMEOUT)
        return ewx_fail(
            f->status,
            "rank %d waited %.3g s for rank %d at a collective call\n"
            "  fix: make the same calls in the same order on all ranks, or raise the "
            "timeout",
            f->reporter, timeout_s, f->culprit);
    name_meeting((uint64_t)f->detail[0], &my_text);
    name_meeting((uint64_t)f->detail[1], &their_text);
    return ewx_fail(f->status,
                    "ranks disagree: rank %d %s, rank %d %s\n"
                    "  fix: make the same calls, with the same sizes, in the same order on "
                    "all ranks",
                    f->reporter, mine, f->culprit, theirs);
}

_Static_assert(EWX_MAX_RANKS <= 4 * 64, "a bit of a fault's detail for every rank");

/* Some ranks never came. */
static ew_status explain_joining(const ew_world *world, const ewx_fault *f)
{
    char missing[256];
    ewx_text text = ewx_text_in(missing, sizeof missing);
    for (int rank = 0; rank < world->num_ranks; rank++)
        if ((uint64_t)f->detail[rank / 64] >> rank % 64 & 1)
            ewx_text_add(&text, " %d", rank);
    return ewx_fail(f->status,
                    "rank %d waited %.3g s for rank%s to join the world\n"
                    "  fix: see whether all ranks started, or raise the timeout",
                    f->reporter, (double)world->timeout_ns * 1e-9, missing);
}

/* PEER_DIED with a code: the rank left in good order while others waited for it. */
static ew_status explain_absence(const ewx_fault *f)
{
    if (f->code != EWX_FAULT_NONE)
        return ewx_fail(EW_ERR_PEER_DIED,
                        "rank %d left the world while rank %d waited for it\n"
                        "  fix: make the same calls in the same order on all ranks",
                        f->culprit, f->reporter);
    return ewx_fail(EW_ERR_PEER_DIED,
                    "rank %d died (noticed by rank %d)\n"
                    "  fix: check that rank's output above, and the kernel log (out of "
                    "memory?)",
                    f->culprit, f->reporter);
}

const ewx_fault_text *ewx_fault_text_find(int32_t code)
{
    for (size_t i = 0; i < ewx_terms_above.num_faults; i++)
        if (ewx_terms_above.faults[i].code == code)
            return &ewx_terms_above.faults[i];
    return NULL;
}

/* Sets the text that belongs to a fault and returns its status. */
static ew_status explain(const ew_world *world, const ewx_fault *f)
{
    const ewx_fault_text *text = ewx_fault_text_find(f->code);
    const double timeout_s =
        f->timeout_ms > 0 ? (double)f->timeout_ms * 1e-3 : (double)world->timeout_ns * 1e-9;
    if (f->status == EW_ERR_PEER_DIED)
        return explain_absence(f);
    if (text)
        return text->explain(f, timeout_s);
    if (f->code == EWX_FAULT_MEETING)
        return explain_meeting(f, timeout_s);
    if (f->code == EWX_FAULT_JOINING)
        return explain_joining(world, f);
    if (f->code == EWX_FAULT_GAVE_UP)
        return ewx_fail(f->status,
                        "rank %d could not do its part (%s)\n"
                        "  fix: see what that rank itself says",
                        f->culprit, ew_status_text((ew_status)f->status));
    if (f->code == EWX_FAULT_CANCELLED)
        return ewx_fail(f->status,
                        "rank %d gave up while the world was created: its program "
                        "cancelled that (ew_world_options.cancel)",
                        f->culprit);
    if (f->code == EWX_FAULT_FABRIC)
        return ewx_fail(f->status,
                        "rank %d cannot reach other hosts any more: %s failed\n"
                        "  fix: look for its message above, and at the network",
                        f->culprit, world->fabric ? world->fabric->name : "the network");
    if (f->code == EWX_FAULT_MESSAGE)
        return ewx_fail(f->status,
                        "rank %d sent rank %d a malformed message\n"
                        "  fix: make the same calls on all ranks; if they are, look at the "
                        "network and at the library on its host",
                        f->culprit, f->reporter);
    return ewx_fail(EW_ERR_ABORTED, "rank %d aborted the world", f->culprit);
}

static ew_status check_fault(ew_world *world)
{
    ewx_control *control = world->control;
    const uint64_t word =
        control ? atomic_load_explicit(&control->abort, memory_order_acquire) : 0;
    if (word == 0)
        return EW_OK;
    /* Pairs with the release store in ewx_world_raise_quietly.  The fault is written right
     * after the word; a reporter that died in between leaves only its number. */
    ewx_wait wait = ewx_wait_begin(NULL, 100000000, world->spins);
    ew_status told;
    EWX_AWAIT(told, &wait,
              atomic_load_explicit(&control->fault_ready, memory_order_acquire));
    if (told != EW_OK)
        return ewx_fail(EW_ERR_ABORTED, "rank %d stopped the world", (int)(word - 1));
    const ewx_fault fault = control->fault;
    ewx_recorder_dump_once(world);
    return explain(world, &fault);
}

/* The first CAS wins, and only the winner writes the fault. */
void ewx_world_raise_quietly(ew_world *world, const ewx_fault *fault)
{
    ewx_control *control = world->control;
    uint64_t none = 0;
    if (!atomic_compare_exchange_strong_explicit(
            &control->abort, &none, 1 + (uint64_t)world->rank, memory_order_acq_rel,
            memory_order_acquire))
        return;
    control->fault = *fault;
    atomic_store_explicit(&control->fault_ready, 1, memory_order_release);
}

ew_status ewx_world_raise(ew_world *world, const ewx_fault *fault)
{
    if (!world->control) {
        world->blamed = fault->culprit;
        ewx_remotes_tell(world, fault);
        return explain(world, fault);
    }
    ewx_world_raise_quietly(world, fault);
    return check_fault(world);
}

ew_status ewx_world_check(ew_world *world)
{
    if (ewx_is_cancelled(world->cancel))
        return ewx_world_raise(world, &(ewx_fault){.status = EW_ERR_ABORTED,
                                                   .culprit = world->rank,
                                                   .reporter = world->rank,
                                                   .code = EWX_FAULT_CANCELLED});
    return check_fault(world);
}

int ewx_world_culprit(const ew_world *world)
{
    const ewx_control *control = world->control;
    if (!control)
        return world->blamed;
    return atomic_load_explicit(&control->fault_ready, memory_order_acquire)
               ? control->fault.culprit
               : -1;
}

void ewx_world_give_up(ew_world *world, ew_status status)
{
    const ewx_fault fault = {.status = status,
                             .culprit = world->rank,
                             .reporter = world->rank,
                             .code = EWX_FAULT_GAVE_UP};
    if (world->control)
        ewx_world_raise_quietly(world, &fault);
    else
        ewx_remotes_tell(world, &fault);
}

void ew_world_abort(ew_world *world)
{
    if (!world || !ewx_handle_is(world, EWX_KIND_WORLD) || ewx_world_is_elsewhere(world))
        return;
    ewx_world_raise_quietly(world, &(ewx_fault){.status = EW_ERR_ABORTED,
                                                .culprit = world->rank,
                                                .reporter = world->rank});
}
