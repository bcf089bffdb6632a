/* The world object, and its collectives over the shared control block. */
#include "world/world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/epoch.h"
#include "base/probe.h"
#include "base/status.h"
#include "base/versioned.h"
#include "plan/link.h"
#include "world/remote_ranks.h"
#include "world/shrink.h"

#define DEFAULT_TIMEOUT_MS 30000
#define DEFAULT_GRACE_MS 2000
#define REPORT_PARTS 8 /* of a timeout, while another rank's report is awaited */

static ew_status timeout_from_environment(int64_t *timeout_ms_out)
{
    const char *text = secure_getenv("ENTWINE_TIMEOUT_MS");
    *timeout_ms_out = DEFAULT_TIMEOUT_MS;
    if (!text || !*text)
        return EW_OK;
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno || *end || value < 1 || value > UINT32_MAX)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ENTWINE_TIMEOUT_MS=%s is not a time\n"
                        "  fix: set it to milliseconds, 1 or more, or unset it",
                        text);
    *timeout_ms_out = value;
    return EW_OK;
}

ew_status ewx_world_init(ew_world *world, int rank, int num_ranks,
                         const ew_world_options *options)
{
    ew_world_options given;
    EW_TRY(ewx_world_options_take(&given, options));
    if (!(given.link_gbps == 0.0 || (given.link_gbps >= 1e-3 && given.link_gbps <= 1e6)) ||
        !(given.link_latency_us >= 0.0 && given.link_latency_us <= 1e6))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "emulated link of %g Gb/s with %g us is out of range\n"
                        "  fix: use 0 (off) or 0.001 to 1e6 Gb/s, and 0 to 1e6 us",
                        given.link_gbps, given.link_latency_us);
    if (!(given.link_header_bytes >= 0.0 &&
          given.link_header_bytes <= EWX_MAX_HEADER_BYTES))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "emulated link with headers of %g bytes is out of range\n"
                        "  fix: use 0 (none) to %g bytes",
                        given.link_header_bytes, EWX_MAX_HEADER_BYTES);
    int64_t timeout_ms = given.timeout_ms;
    if (timeout_ms == 0)
        EW_TRY(timeout_from_environment(&timeout_ms));
    world->rank = rank;
    world->num_ranks = num_ranks;
    world->timeout_ns = timeout_ms * 1000000;
    world->grace_ns =
        (int64_t)(given.grace_ms ? given.grace_ms : DEFAULT_GRACE_MS) * 1000000;
    world->cancel = given.cancel;
    world->link_gbps = given.link_gbps;
    world->link_latency_ns = (int64_t)(given.link_latency_us * 1e3);
    world->link_header_bytes = given.link_header_bytes;
    world->launcher_fd = -1;
    for (int origin = 0; origin < num_ranks; origin++)
        world->origins[origin] = origin;
    ewx_world_settle(world, (const int[EWX_MAX_RANKS]){0});
    return EW_OK;
}

void ewx_world_settle(ew_world *world, const int *hosts)
{
    world->num_hosts = world->num_locals = 0;
    for (int rank = 0; rank < world->num_ranks; rank++) {
        int lowest = 0;
        while (hosts[lowest] != hosts[rank])
            lowest++;
        world->hosts[rank] = lowest == rank ? world->num_hosts++ : world->hosts[lowest];
    }
    for (int rank = 0; rank < world->num_ranks; rank++) {
        if (!ewx_world_is_local(world, rank))
            continue;
        if (rank == world->rank)
            world->local_index = world->num_locals;
        world->locals[world->num_locals++] = rank;
    }
    /* Until the ranks know each other's cores (places.h). */
    world->spins = ewx_usable_cores() >= world->num_locals ? EWX_SPINS_WITH_A_CORE : 0;
}

int ew_world_rank(const ew_world *world)
{
    return !world || ewx_handle_check(world, EWX_KIND_WORLD, "ew_world_rank") != EW_OK
               ? -1
               : world->rank;
}

int ew_world_size(const ew_world *world)
{
    return !world || ewx_handle_check(world, EWX_KIND_WORLD, "ew_world_size") != EW_OK
               ? 0
               : world->num_ranks;
}

ew_status ew_world_traffic(const ew_world *world, ew_traffic *traffic_out)
{
    if (!world || !traffic_out)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_world_traffic needs a world and a place for its answer");
    EW_TRY(ewx_handle_check(world, EWX_KIND_WORLD, "ew_world_traffic"));
    EW_TRY(ewx_world_enter(world));
    *traffic_out = world->traffic;
    ewx_world_leave(world);
    traffic_out->num_hosts = world->num_hosts;
    traffic_out->host = world->hosts[world->rank];
    traffic_out->ranks_here = world->num_locals;
    return EW_OK;
}

ewx_wait ewx_world_wait_for(const ew_world *world, int64_t timeout_ns)
{
    ewx_wait wait = ewx_wait_begin(world->control ? &world->control->abort : NULL,
                                   timeout_ns, world->spins);
    wait.cancel = world->cancel;
    return wait;
}

ewx_wait ewx_world_wait(const ew_world *world)
{
    return ewx_world_wait_for(world, world->timeout_ns);
}

bool ewx_world_departed(const ew_world *world, int rank)
{
    return atomic_load_explicit(&world->mailboxes[rank]->departed, memory_order_acquire);
}

/* ---- Collectives ---- */

static bool has_entered(const ew_world *world, int rank, uint32_t round)
{
    return ewx_epoch_reached(
        atomic_load_explicit(&world->mailboxes[rank]->round, memory_order_acquire), round);
}

/* The wait for a rank at a collective is over. */
static bool is_met(ew_world *world, int rank)
{
    ewx_remotes_progress(world);
    return has_entered(world, rank, world->round) || ewx_world_departed(world, rank);
}

/* Between hosts a rank may be missing because it waits for another one, which has sent us
 * what it has not sent there. */
static bool may_wait_itself(const ew_world *world, int rank)
{
    bool others = false;
    for (int other = 0; other < world->num_ranks; other++)
        others |= other != rank && !has_entered(world, other, world->round);
    return others && world->num_hosts > 1;
}

/* A rank that waits for a third one in a call names it when its own time is up, which can
 * be later than ours: it may have begun to wait later, and looks at its clock less often.
 * Relaxed: an old answer does no harm, since it is asked for again.  What a stopped rank
 * said last counts for one timeout: its looks at the clock show that it still waits. */
static bool waits_for_third(const ew_world *world, int rank)
{
    const uint64_t whom =
        atomic_load_explicit(&world->mailboxes[rank]->lane.waiting, memory_order_relaxed);
    return whom != 0 && whom != 1 + (uint64_t)world->rank && whom != 1 + (uint64_t)rank;
}

/* is_met(), and notes it when the rank has looked at its clock. */
static bool is_met_noting_looks(ew_world *world, int rank, const ewx_wait *wait,
                                ewx_last_look *last)
{
    ewx_last_look_note(last, world->mailboxes[rank], wait);
    return is_met(world, rank);
}

/* Our time is up, and `parts` extra parts of it, and the rank has not come.  Bounded: if
 * all wait in a circle, one rank must report. */
static bool is_excused(const ew_world *world, int rank, int parts, int64_t silent_ns)
{
    const bool waits = silent_ns < world->timeout_ns && waits_for_third(world, rank);
    const bool excused =
        parts < REPORT_PARTS && (waits || (parts == 0 && may_wait_itself(world, rank)));
    if (excused)
        (void)EWX_PROBE(EWX_PROBE_EXCUSE, world->rank, rank);
    return excused;
}

static ew_status await_round(ew_world *world, int rank)
{
    ewx_wait wait = ewx_world_wait(world);
    ewx_last_look last = ewx_last_look_of(world->mailboxes[rank]);
    ew_status status;
    for (int parts = 0;; parts++) {
        EWX_AWAIT(status, &wait, is_met_noting_looks(world, rank, &wait, &last));
        if (status != EW_ERR_TIMEOUT ||
            !is_excused(world, rank, parts, wait.timer.used_ns - last.at_ns))
            break;
        wait.timer.limit_ns += world->timeout_ns / REPORT_PARTS;
    }
    if (status == EW_OK && has_entered(world, rank, world->round))
        return EW_OK;
    if (status == EW_ERR_ABORTED)
        return ewx_world_check(world);
    return ewx_world_raise(
        world, &(ewx_fault){.status = status == EW_OK ? EW_ERR_PEER_DIED : status,
                            .culprit = rank,
                            .reporter = world->rank,
                            .code = EWX_FAULT_MEETING});
}

/* A rank that has entered our round must be in the same collective: every rank compares
 * itself with every other before it returns, so none reads data that was not meant for
 * it. */
static ew_status check_meeting(ew_world *world, int rank, uint64_t meeting)
{
    const uint64_t theirs = world->mailboxes[rank]->meeting[world->round & 1];
    if (theirs == meeting)
        return EW_OK;
    return ewx_world_raise(world,
                           &(ewx_fault){.status = EW_ERR_MISMATCH,
                                        .culprit = rank,
                                        .reporter = world->rank,
                                        .code = EWX_FAULT_MEETING,
                                        .detail = {(int64_t)meeting, (int64_t)theirs}});
}

/* One round: write, wait for all, read all.  Two buffers suffice: a rank enters round
 * s+2 only after every rank has entered s+1, that is, has read round s. */
static ew_status gather_round(ew_world *world, uint64_t meeting, const void *mine,
                              void *all, size_t bytes, size_t stride)
{
    ewx_mailbox *own = world->mailboxes[world->rank];
    const uint32_t round = ++world->round;
    own->meeting[round & 1] = meeting;
    if (bytes > 0)
        memcpy(ewx_world_parcel(world, world->rank, round), mine, bytes);
    atomic_store_explicit(&own->round, round, memory_order_release);
    ewx_remotes_enter_round(world, round, meeting, mine, bytes);
    for (int rank = 0; rank < world->num_ranks; rank++) {
        EW_TRY(await_round(world, rank));
        EW_TRY(check_meeting(world, rank, meeting));
        EW_TRY(ewx_remotes_check_round(world, rank, bytes));
        if (bytes > 0)
            memcpy((char *)all + (size_t)rank * stride,
                   ewx_world_parcel(world, rank, round), bytes);
    }
    return EW_OK;
}

/* At least one round, so that ranks meet also when they have nothing to say. */
static ew_status gather_rounds(ew_world *world, uint64_t meeting, const void *mine,
                               void *all, size_t bytes)
{
    const size_t most =
        world->num_hosts > 1 ? EWX_MAILBOX_BYTES : ewx_parcel_bytes(world->num_ranks);
    size_t done = 0;
    do {
        const size_t part = bytes - done < most ? bytes - done : most;
        const char *from = bytes > 0 ? (const char *)mine + done : NULL;
        char *to = bytes > 0 ? (char *)all + done : NULL;
        EW_TRY(gather_round(world, meeting, from, to, part, bytes));
        done += part;
    } while (done < bytes);
    return EW_OK;
}

static ew_status meet(ew_world *world, ewx_meeting kind, const void *mine, void *all,
                      size_t bytes)
{
    EW_TRY(ewx_world_check(world));
    const ew_status status =
        gather_rounds(world, ewx_meeting_word(kind, bytes), mine, all, bytes);
    if (status == EW_OK)
        ewx_remotes_see_off(world);
#if EW_MUTANT != 98 /* planted bug: other hosts hear of it with the next call */
    else
        ewx_remotes_progress(world); /* they may not know yet */
#endif
    return status;
}

static ew_status enter_and_meet(ew_world *world, ewx_meeting kind, const void *mine,
                                void *all, size_t bytes)
{
    EW_TRY(ewx_world_enter(world));
    const ew_status status = meet(world, kind, mine, all, bytes);
    ewx_world_leave(world);
    return status;
}

ew_status ew_world_allgather(ew_world *world, const void *mine, void *all, size_t bytes)
{
    if (!world || (bytes > 0 && (!mine || !all)))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_world_allgather needs a world and two buffers");
    EW_TRY(ewx_handle_check(world, EWX_KIND_WORLD, "ew_world_allgather"));
    return enter_and_meet(world, EWX_MEETING_ALLGATHER, mine, all, bytes);
}

ew_status ewx_world_allgather(ew_world *world, const void *mine, void *all, size_t bytes)
{
    return meet(world, EWX_MEETING_INNER, mine, all, bytes);
}

ew_status ewx_world_agree(ew_world *world, ew_status mine, const char *what)
{
    char why[1024] = "";
    ewx_text text = ewx_text_in(why, sizeof why);
    if (mine != EW_OK)
        ewx_text_add(&text, "%s", ew_last_error());
    const int32_t outcome = mine;
    int32_t outcomes[EWX_MAX_RANKS];
    const ew_status met = ewx_world_allgather(world, &outcome, outcomes, sizeof outcome);
    if (mine != EW_OK)
        return ewx_fail(mine, "%s", why);
    EW_TRY(met);
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (outcomes[rank] != EW_OK)
            return ewx_fail((ew_status)outcomes[rank], "rank %d could not %s (%s)", rank,
                            what, ew_status_text((ew_status)outcomes[rank]));
    return EW_OK;
}

ew_status ew_world_barrier(ew_world *world)
{
    EW_TRY(ewx_handle_check(world, EWX_KIND_WORLD, "ew_world_barrier"));
    return enter_and_meet(world, EWX_MEETING_BARRIER, NULL, NULL, 0);
}

ew_status ewx_world_barrier(ew_world *world)
{
    return meet(world, EWX_MEETING_INNER, NULL, NULL, 0);
}

/* Gives back what this process has of the world; the peers see nothing of it. */
static void free_world(ew_world *world)
{
    if (!world->in_threads) {
        for (int rank = 0; rank < world->num_ranks; rank++) {
            if (world->sockets[rank] >= 0)
                close(world->sockets[rank]);
            if (world->death_fds[rank] >= 0)
                close(world->death_fds[rank]);
        }
        if (world->stop_fd >= 0)
            close(world->stop_fd);
        if (world->control)
            munmap(world->control, ewx_control_bytes(world->num_ranks));
        if (world->control_fd >= 0)
            close(world->control_fd);
    }
    if (world->shares_control)
        ewx_control_release(world->control, world->control_fd, world->num_ranks);
    free(world->replicas);
    ewx_use_close(world);
    ewx_handle_end(&world->handle);
    free(world);
}

/* Announces the departure to the peers. */
static void leave_world(ew_world *world)
{
    for (int i = 0; i < EWX_NUM_ATTACHMENTS; i++)
        if (world->attachments[i].object)
            world->attachments[i].close(world->attachments[i].object);
    ewx_remotes_close(world);
    if (world->control)
        atomic_store_explicit(&world->control->mailboxes[world->rank].departed, 1,
                              memory_order_release);
    if (!world->in_threads)
        ewx_death_watch_stop(world);
}

void ew_world_destroy(ew_world *world)
{
    if (!world || ewx_handle_check(world, EWX_KIND_WORLD, "ew_world_destroy") != EW_OK)
        return;
    /* In a forked child neither the watcher nor a GPU's context exists, and peers, MPI and
     * the control block are the parent's. */
    if (!ewx_world_is_elsewhere(world)) {
        if (world->use && ewx_world_enter(world) != EW_OK)
            return; /* it is still in use: a leak harms less */
        leave_world(world);
    }
    free_world(world);
}

ew_status ewx_world_create_threads(int rank, int num_ranks, const ew_world_options *options,
                                   ewx_control *control, int control_fd,
                                   ew_world **world_out)
{
    ew_world *world = calloc(1, sizeof *world);
    if (!world)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a world");
    ewx_handle_begin(&world->handle, EWX_KIND_WORLD);
    ew_status status = ewx_world_init(world, rank, num_ranks, options);
    if (status == EW_OK)
        status = ewx_use_open(world);
    if (status != EW_OK) {
        free(world);
        return status;
    }
    world->in_threads = true;
    world->cancel = NULL; /* it exists */
    world->control = control;
    world->control_fd = control_fd;
    for (int peer = 0; peer < num_ranks; peer++)
        world->mailboxes[peer] = &control->mailboxes[peer];
    atomic_store(&control->mailboxes[rank].lane.pid, (int32_t)getpid());
    ewx_place_post(world);
    *world_out = world;
    return EW_OK;
}
