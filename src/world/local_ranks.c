/* How the ranks of a host meet, and how they pass memory to each other.
 *
 * The lowest rank of a host, the owner, makes its control block and gives it to each rank
 * that connects.  A rank that has the block reports faults and learns of them through it,
 * so that all ranks name the same culprit.  It connects to all ranks below itself, without
 * waiting for them to accept, and notes that in the block (`present`).  When all are
 * present the owner notes that, too (`met`), and the others accept the connections that
 * are queued by then.  Until then
 *
 *   - the owner alone judges the others.  It stays until every living rank has the block,
 *     so that none has to guess from the hang-ups of ranks that left before.
 *   - the owner is judged by each of the others.  They give it an eighth of the timeout
 *     more than it gives them: it may be about to name another rank.  A rank that has the
 *     block sees there how often the owner has looked at its clock, and waits for as long
 *     as it does: a starved owner takes its time, and a stopped one shows nothing.
 *
 * tests/model/meeting.pml models this. */
#include "world/local_ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/probe.h"
#include "base/status.h"
#include "base/timer.h"
#include "world/remote_ranks.h"

#define SLICE_MS 20             /* how long a wait for a socket may overlook a fault */
#define LAST_CALL_NS 120000000  /* after a fault: for living ranks to fetch the block */
#define LEAST_MORE_NS 100000000 /* least extra time for the owner */

static int owner_of(const ew_world *world)
{
    return world->locals[0];
}

/* Reports the peers that have died. */
static void look_around(ew_world *world)
{
    for (int i = 0; i < world->num_locals; i++)
        if (world->locals[i] != world->rank &&
            ewx_death_watch_sees(world, world->locals[i]))
            ewx_death_watch_report(world, world->locals[i]);
}

static ew_status give_up_on(ew_world *world, int rank)
{
    ewx_fault fault = {.status = EW_ERR_TIMEOUT,
                       .culprit = rank,
                       .reporter = world->rank,
                       .code = EWX_FAULT_JOINING};
    ewx_fault_add_rank(&fault, rank);
    return ewx_world_raise(world, &fault);
}

/* When a wait for a socket must return, so that it ends with the timer. */
static int64_t end_of_slice_ns(const ewx_timer *timer)
{
    return ewx_now_ns() + (int64_t)ewx_timer_sleep_ms(timer, SLICE_MS) * 1000000;
}

/* Shows the others that this rank waits; for a loop that is not an ewx_wait. */
static void show_look(ew_world *world)
{
    if (world->control)
        atomic_fetch_add_explicit(&world->control->mailboxes[world->rank].lane.looks, 1,
                                  memory_order_relaxed);
}

/* ---- Connections ---- */

/* Other processes may fill the peer's queue; there is room again once it has accepted some.
 * EW_ERR_PEER_DIED, without a text: it is gone. */
static ew_status connect_to(ew_world *world, int rank, const ewx_address *address)
{
    ewx_wait wait = ewx_world_wait(world);
    ew_status status, result;
    wait.spins = 0;
    EWX_AWAIT(status, &wait,
              (result = ewx_sockets_connect(world, rank, address)) != EW_ERR_TIMEOUT ||
                  ewx_death_watch_sees(world, rank));
    if (status == EW_ERR_ABORTED)
        return ewx_world_check(world);
    if (status == EW_ERR_TIMEOUT)
        return give_up_on(world, rank);
    return result == EW_ERR_TIMEOUT ? EW_ERR_PEER_DIED : result;
}

static bool has_connected(const ew_world *world, int rank)
{
    return world->sockets[rank] >= 0;
}

/* Pairs with the release in connect_below. */
static bool is_present(const ew_world *world, int rank)
{
    return atomic_load_explicit(&world->control->mailboxes[rank].present,
                                memory_order_acquire);
}

/* Finds the living ranks above this one for which `has` is false. */
static bool find_absent(const ew_world *world, bool (*has)(const ew_world *, int),
                        ewx_fault *absence_out)
{
    ewx_fault absence = {.status = EW_ERR_TIMEOUT,
                         .culprit = -1,
                         .reporter = world->rank,
                         .code = EWX_FAULT_JOINING};
    for (int rank = world->num_ranks - 1; rank > world->rank; rank--)
        if (ewx_is_peer(world, rank) && !has(world, rank) &&
            !ewx_death_watch_sees(world, rank)) {
            ewx_fault_add_rank(&absence, rank);
            absence.culprit = rank;
        }
    *absence_out = absence;
    return absence.culprit >= 0;
}

/* Takes the connections of the ranks above; the owner gives each of them the control block.
 * It goes on doing so when there is a fault, and they learn of it from the block. */
static ew_status receive_ranks(ew_world *world, int listener, const ewx_address *mine)
{
    const bool owns = world->rank == owner_of(world);
    ewx_timer timer = ewx_timer_begin(world->timeout_ns);
    for (;;) {
        ewx_fault absence;
        int rank;
        show_look(world);
        look_around(world);
        const ew_status standing = ewx_world_check(world);
        if (!find_absent(world, has_connected, &absence) || (standing != EW_OK && !owns))
            return standing;
        /* A rank that is stopped must not hold up the others. */
        if (standing != EW_OK && timer.limit_ns > LAST_CALL_NS)
            timer = ewx_timer_begin(LAST_CALL_NS);
        if (ewx_timer_is_over(&timer))
            return ewx_world_raise(world, &absence);
        const ew_status status =
            ewx_sockets_accept(world, listener, mine, end_of_slice_ns(&timer), &rank);
        if (status != EW_ERR_TIMEOUT)
            EW_TRY(status);
        /* A rank that dies now is found by the next look_around. */
        if (rank >= 0 && owns &&
            ewx_sockets_send_fd(world, rank, world->control_fd) == EW_ERR_SYSTEM)
            return EW_ERR_SYSTEM;
    }
}

/* ---- The control block ---- */

/* Reports a rank that lives and has hung up, without the block: there it would have said
 * why. */
static void look_for_hang_ups(ew_world *world)
{
    for (int i = 0; i < world->num_locals; i++)
        if (ewx_sockets_hung_up(world, world->locals[i]) && ewx_world_check(world) == EW_OK)
            ewx_death_watch_lost(world, world->locals[i]);
}

static bool all_are_present(ew_world *world, ewx_fault *absence_out)
{
    look_around(world);
    look_for_hang_ups(world);
    return !find_absent(world, is_present, absence_out);
}

static ew_status await_present(ew_world *world)
{
    ewx_fault absence;
    ewx_wait wait = ewx_world_wait(world);
    ew_status status;
    wait.looks = &world->control->mailboxes[world->rank].lane.looks;
    EWX_AWAIT(status, &wait, all_are_present(world, &absence));
    return status == EW_ERR_TIMEOUT ? ewx_world_raise(world, &absence)
                                    : ewx_world_check(world);
}

/* Where the hellos do not tell, as without /proc, the kernel knows who listens.  The others
 * learn the owner's pid when they connect to it. */
static ew_status find_pids(ew_world *world, const ewx_address *addresses)
{
#if EW_MUTANT == 99 /* planted bug: only the hellos tell */
    return EW_OK;
#endif
    for (int rank = 0; rank < world->num_ranks; rank++) {
        if (!ewx_is_peer(world, rank) || world->pids[rank] > 0)
            continue;
        const ew_status status = ewx_sockets_find_pid(world, rank, &addresses[rank]);
        if (status == EW_ERR_PEER_DIED)
            ewx_death_watch_lost(world, rank);
        else if (status != EW_ERR_TIMEOUT) /* strangers fill its queue */
            EW_TRY(status);
    }
    ewx_death_watch_open(world);
    return EW_OK;
}

static ew_status own_control(ew_world *world, int listener, const ewx_address *addresses)
{
    EW_TRY(ewx_control_create(world->num_ranks, false, &world->control_fd));
    EW_TRY(ewx_control_map(world->control_fd, world->num_ranks, &world->control));
    world->control->header.job = world->job;
    EW_TRY(find_pids(world, addresses));
    (void)EWX_PROBE(EWX_PROBE_MEETING, world->rank, 1);
    EW_TRY(receive_ranks(world, listener, &addresses[world->rank]));
    (void)EWX_PROBE(EWX_PROBE_MEETING, world->rank, 2);
    EW_TRY(await_present(world));
    atomic_store_explicit(&world->control->met, 1, memory_order_release);
    return EW_OK;
}

/* Before it is mapped: a rank that leaves writes into its control block. */
static ew_status map_control(ew_world *world)
{
    ewx_control_header header;
    const int owner = owner_of(world);
    if (pread(world->control_fd, &header, sizeof header, 0) != sizeof header)
        return ewx_fail(EW_ERR_SYSTEM, "pread of the control block failed: %s",
                        strerror(errno));
    EW_TRY(ewx_sockets_check_job(world, &header.job, owner, world->pids[owner]));
    return ewx_control_map(world->control_fd, world->num_ranks, &world->control);
}

/* How long the owner is waited for. */
static int64_t owner_timeout_ns(const ew_world *world)
{
    const int64_t eighth_ns = world->timeout_ns / 8;
    return world->timeout_ns + (eighth_ns < LEAST_MORE_NS ? LEAST_MORE_NS : eighth_ns);
}

static ew_status receive_control(ew_world *world)
{
    const int owner = owner_of(world);
    ewx_timer timer = ewx_timer_begin(owner_timeout_ns(world));
    ew_status status;
    while ((status = ewx_sockets_receive_fd(world, owner, end_of_slice_ns(&timer),
                                            &world->control_fd)) == EW_ERR_TIMEOUT) {
        /* A last chance to get the block, through which the others would learn of it. */
        if (ewx_is_cancelled(world->cancel) && timer.limit_ns > LAST_CALL_NS)
            timer = ewx_timer_begin(LAST_CALL_NS);
        if (ewx_timer_is_over(&timer)) {
            EW_TRY(ewx_world_check(world));
            return give_up_on(world, owner);
        }
        if (ewx_death_watch_sees(world, owner))
            return ewx_death_watch_report(world, owner);
    }
    if (status == EW_ERR_PEER_DIED)
        return ewx_death_watch_lost(world, owner);
    EW_TRY(status);
    return map_control(world);
}

/* Pairs with the release in own_control. */
static bool have_met(ew_world *world, const ewx_wait *wait, ewx_last_look *last)
{
    const int owner = owner_of(world);
    ewx_last_look_note(last, &world->control->mailboxes[owner], wait);
    if (ewx_death_watch_sees(world, owner))
        ewx_death_watch_report(world, owner);
    return atomic_load_explicit(&world->control->met, memory_order_acquire);
}

/* Bounded by the owner's own waits, which run out while it looks at its clock. */
static ew_status await_others(ew_world *world)
{
    const int64_t patience_ns = owner_timeout_ns(world);
    ewx_last_look last = ewx_last_look_of(&world->control->mailboxes[owner_of(world)]);
    int64_t silent_ns = 0;
    ew_status status;
    do { /* a wait of its own for what is left: extended, it would count longer steps */
        ewx_wait wait = ewx_world_wait_for(world, patience_ns - silent_ns);
        last.at_ns = -silent_ns;
        EWX_AWAIT(status, &wait, have_met(world, &wait, &last));
        silent_ns = wait.timer.used_ns - last.at_ns;
#if EW_MUTANT == 51 /* planted bug: a starved owner is blamed */
        break;
#endif
    } while (status == EW_ERR_TIMEOUT && silent_ns < patience_ns);
    if (status == EW_ERR_TIMEOUT)
        return give_up_on(world, owner_of(world));
    return status == EW_OK ? EW_OK : ewx_world_check(world);
}

/* Reporting that one of them is gone is the owner's task. */
static ew_status connect_below(ew_world *world, const ewx_address *addresses)
{
    bool complete = true;
    for (int rank = owner_of(world) + 1; rank < world->rank; rank++) {
        if (!ewx_is_peer(world, rank))
            continue;
        const ew_status status = connect_to(world, rank, &addresses[rank]);
        complete &= status == EW_OK;
        if (status != EW_ERR_PEER_DIED)
            EW_TRY(status);
    }
    if (complete)
        atomic_store_explicit(&world->control->mailboxes[world->rank].present, 1,
                              memory_order_release);
    return EW_OK;
}

static ew_status attend(ew_world *world, int listener, const ewx_address *addresses)
{
    const int owner = owner_of(world);
    const ew_status status = connect_to(world, owner, &addresses[owner]);
    if (status == EW_ERR_PEER_DIED)
        return ewx_death_watch_lost(world, owner);
    EW_TRY(status);
    ewx_death_watch_open(world); /* its pid is known now, if it was not */
    EW_TRY(receive_control(world));
    (void)EWX_PROBE(EWX_PROBE_MEETING, world->rank, 1);
    EW_TRY(connect_below(world, addresses));
    (void)EWX_PROBE(EWX_PROBE_MEETING, world->rank, 2);
    EW_TRY(await_others(world));
    return receive_ranks(world, listener, &addresses[world->rank]);
}

ew_status ewx_locals_meet(ew_world *world, int listener, const ewx_address *addresses)
{
    ewx_death_watch_open(world);
    (void)EWX_PROBE(EWX_PROBE_MEETING, world->rank, 0);
    EW_TRY(world->rank == owner_of(world) ? own_control(world, listener, addresses)
                                          : attend(world, listener, addresses));
    ewx_death_watch_open(world); /* now there are sockets, and with them pids */
    return EW_OK;
}

/* ---- Descriptors ---- */

static ew_status send_fds(ew_world *world, int my_fd)
{
    for (int rank = 0; rank < world->num_ranks; rank++) {
        if (!ewx_is_peer(world, rank))
            continue;
        const ew_status status = ewx_sockets_send_fd(world, rank, my_fd);
#if EW_MUTANT != 22 /* planted bug: whoever sees a broken connection has failed itself */
        if (status == EW_ERR_PEER_DIED)
            return ewx_death_watch_lost(world, rank);
#endif
        EW_TRY(status);
    }
    return EW_OK;
}

/* What all have sent lies in our sockets. */
static ew_status receive_fds(ew_world *world, int my_fd, int *fds_out)
{
    fds_out[world->rank] = fcntl(my_fd, F_DUPFD_CLOEXEC, 0);
    if (fds_out[world->rank] < 0)
        return ewx_fail(EW_ERR_SYSTEM,
                        "a descriptor cannot be duplicated: %s\n"
                        "  fix: raise the limit of open files (ulimit -n)",
                        strerror(errno));
    for (int rank = 0; rank < world->num_ranks; rank++) {
        if (!ewx_is_peer(world, rank))
            continue;
        const ew_status status =
            ewx_sockets_receive_fd(world, rank, ewx_now_ns(), &fds_out[rank]);
        if (status == EW_ERR_PEER_DIED || status == EW_ERR_TIMEOUT)
            return ewx_death_watch_lost(world, rank);
        EW_TRY(status);
    }
    return EW_OK;
}

/* Every rank sends before any rank receives, with an ordinary collective in between: that
 * is where ranks wait for each other and notice who is gone. */
ew_status ewx_world_exchange_fds(ew_world *world, int my_fd, int *fds_out)
{
    for (int rank = 0; rank < world->num_ranks; rank++)
        fds_out[rank] = -1;
    ew_status status = send_fds(world, my_fd);
    if (status == EW_OK)
        status = ewx_world_barrier(world);
    if (status == EW_OK)
        status = receive_fds(world, my_fd, fds_out);
    if (status == EW_OK)
        return EW_OK;
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (fds_out[rank] >= 0)
            close(fds_out[rank]);
    ewx_world_give_up(world, status);
    return status;
}
