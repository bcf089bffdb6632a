/* The world object: collectives over the shared control block, the abort word and the
 * story it tells. */
#include "world/world.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/status.h"
#include "base/text.h"
#include "base/versioned.h"
#include "plan/epoch.h"
#include "world/hosts.h"

#define DEFAULT_TIMEOUT_MS 30000
#define SPINS_WHEN_CORES_SUFFICE 200

static ew_status timeout_from_environment(int64_t *timeout_ms_out)
{
    const char *text = getenv("ENTWINE_TIMEOUT_MS");
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
    int64_t timeout_ms = given.timeout_ms;
    if (timeout_ms == 0)
        EW_TRY(timeout_from_environment(&timeout_ms));
    world->rank = rank;
    world->num_ranks = num_ranks;
    world->timeout_ns = timeout_ms * 1000000;
    world->link_gbps = given.link_gbps;
    world->link_latency_ns = (int64_t)(given.link_latency_us * 1e3);
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
    world->spins = ewx_usable_cores() >= world->num_locals ? SPINS_WHEN_CORES_SUFFICE : 0;
}

int ew_world_rank(const ew_world *world)
{
    return world ? world->rank : -1;
}

int ew_world_size(const ew_world *world)
{
    return world ? world->num_ranks : 0;
}

ew_status ew_world_traffic(const ew_world *world, ew_traffic *traffic_out)
{
    if (!world || !traffic_out)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_world_traffic needs a world and a place for its answer");
    *traffic_out = world->traffic;
    traffic_out->num_hosts = world->num_hosts;
    traffic_out->host = world->hosts[world->rank];
    traffic_out->ranks_here = world->num_locals;
    return EW_OK;
}

ewx_wait ewx_world_wait(const ew_world *world)
{
    return ewx_wait_begin(&world->control->abort, world->timeout_ns, world->spins);
}

bool ewx_world_departed(const ew_world *world, int rank)
{
    return atomic_load_explicit(&world->posts[rank]->departed, memory_order_acquire);
}

/* ---- Faults ---- */

static ew_status tell_tile(const ew_world *world, const ewx_fault *f)
{
    return ewx_fail(f->status,
                    "rank %d waited %.3g s for tile (%" PRId64 ",%" PRId64
                    ") of rank %d (saw epoch %" PRIu32 ", wanted %" PRIu32 ")\n"
                    "  fix: see why rank %d makes no progress, or raise the timeout",
                    f->reporter, (double)world->timeout_ns * 1e-9, f->detail[0],
                    f->detail[1], f->culprit, (uint32_t)f->detail[3],
                    (uint32_t)f->detail[2], f->culprit);
}

static const char *deed_name(int64_t kind)
{
    return kind == EWX_RECORD_PLAN ? "created a plan" : "called ew_gemm_rs";
}

/* Two ranks that do not make the same calls in the same order. */
static ew_status tell_deed(const ewx_fault *f)
{
    static const char *const names[] = {
        [EWX_DEED_M] = "m", [EWX_DEED_N] = "N", [EWX_DEED_K] = "K"};
    const int64_t mine = f->detail[1], theirs = f->detail[2];
    if (f->detail[0] == EWX_DEED_KIND)
        return ewx_fail(f->status,
                        "ranks disagree: rank %d %s, rank %d %s (operation %" PRId64 ")\n"
                        "  fix: make the same calls in the same order on all ranks",
                        f->reporter, deed_name(mine), f->culprit, deed_name(theirs),
                        f->detail[3]);
    if (f->detail[0] < EWX_DEED_M || f->detail[0] > EWX_DEED_K)
        return ewx_fail(f->status,
                        "ranks disagree: rank %d has config %016" PRIx64
                        ", rank %d has config %016" PRIx64 " (operation %" PRId64 ")\n"
                        "  fix: use the plans in the same order on all ranks",
                        f->reporter, (uint64_t)mine, f->culprit, (uint64_t)theirs,
                        f->detail[3]);
    return ewx_fail(f->status,
                    "ranks disagree: rank %d has %s=%" PRId64 ", rank %d has %s=%" PRId64
                    " (operation %" PRId64 ")\n"
                    "  fix: make the same calls in the same order on all ranks",
                    f->reporter, names[f->detail[0]], mine, f->culprit, names[f->detail[0]],
                    theirs, f->detail[3]);
}

/* Sets the text that belongs to a fault and returns its status. */
static ew_status tell(const ew_world *world, const ewx_fault *f)
{
    if (f->status == EW_ERR_PEER_DIED && f->place != EWX_FAULT_NOWHERE)
        return ewx_fail(EW_ERR_PEER_DIED,
                        "rank %d left the world while rank %d waited for it\n"
                        "  fix: make the same calls in the same order on all ranks",
                        f->culprit, f->reporter);
    if (f->status == EW_ERR_PEER_DIED)
        return ewx_fail(EW_ERR_PEER_DIED,
                        "rank %d died (noticed by rank %d)\n"
                        "  fix: look for its last words above, or for a kill by the system",
                        f->culprit, f->reporter);
    if (f->place == EWX_FAULT_TILE)
        return tell_tile(world, f);
    if (f->place == EWX_FAULT_READERS)
        return ewx_fail(f->status,
                        "rank %d waited %.3g s for rank %d to finish reading call %" PRIu32
                        " (it is at %" PRIu32 ")\n"
                        "  fix: see why rank %d makes no progress, or raise the timeout",
                        f->reporter, (double)world->timeout_ns * 1e-9, f->culprit,
                        (uint32_t)f->detail[0], (uint32_t)f->detail[1], f->culprit);
    if (f->place == EWX_FAULT_ROWS)
        return ewx_fail(f->status,
                        "ranks disagree: rank %d has m=%" PRId64 ", rank %d has m=%" PRId64
                        " (call %" PRIu32 ")\n  fix: pass the same m on all ranks",
                        f->reporter, f->detail[0], f->culprit, f->detail[1],
                        (uint32_t)f->detail[2]);
    if (f->place == EWX_FAULT_DEED)
        return tell_deed(f);
    if (f->place == EWX_FAULT_MEETING)
        return ewx_fail(
            f->status,
            "rank %d waited %.3g s for rank %d at a collective call\n"
            "  fix: make the same calls in the same order on all ranks, or raise the "
            "timeout",
            f->reporter, (double)world->timeout_ns * 1e-9, f->culprit);
    if (f->place == EWX_FAULT_FABRIC)
        return ewx_fail(f->status,
                        "rank %d cannot reach other hosts any more: %s failed\n"
                        "  fix: look for its message above, and at the network",
                        f->culprit, world->fabric ? world->fabric->name : "the network");
    if (f->place == EWX_FAULT_LETTER)
        return ewx_fail(f->status,
                        "what rank %d sent to rank %d cannot be right\n"
                        "  fix: make the same calls on all ranks; if they are, look at the "
                        "network and at the library on its host",
                        f->culprit, f->reporter);
    return ewx_fail(EW_ERR_ABORTED, "rank %d aborted the world", f->culprit);
}

ew_status ewx_world_check(ew_world *world)
{
    ewx_control *control = world->control;
    const uint64_t word = atomic_load_explicit(&control->abort, memory_order_acquire);
    if (word == 0)
        return EW_OK;
    /* Pairs with the release store in ewx_world_raise.  The story is written right after
     * the word; a reporter that died in between leaves only its number. */
    ewx_wait wait = ewx_wait_begin(NULL, 100000000, world->spins);
    ew_status told;
    EWX_AWAIT(told, &wait,
              atomic_load_explicit(&control->fault_ready, memory_order_acquire));
    if (told != EW_OK)
        return ewx_fail(EW_ERR_ABORTED, "rank %d stopped the world", (int)(word - 1));
    const ewx_fault fault = control->fault;
    ewx_recorder_dump_once(world);
    return tell(world, &fault);
}

/* The first CAS wins and only the winner writes the story. */
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
    ewx_world_raise_quietly(world, fault);
    return ewx_world_check(world);
}

void ew_world_abort(ew_world *world)
{
    if (!world)
        return;
    ewx_world_raise_quietly(world, &(ewx_fault){.status = EW_ERR_ABORTED,
                                                .culprit = world->rank,
                                                .reporter = world->rank});
}

/* ---- Collectives ---- */

static bool has_entered(const ew_world *world, int rank, uint32_t round)
{
    return ewx_epoch_reached(
        atomic_load_explicit(&world->posts[rank]->round, memory_order_acquire), round);
}

/* The wait for a rank at a collective is over. */
static bool is_met(ew_world *world, int rank)
{
    ewx_hosts_progress(world);
    return has_entered(world, rank, world->round) || ewx_world_departed(world, rank);
}

static ew_status await_round(ew_world *world, int rank)
{
    ewx_wait wait = ewx_world_wait(world);
    ew_status status;
    EWX_AWAIT(status, &wait, is_met(world, rank));
    if (status == EW_OK && has_entered(world, rank, world->round))
        return EW_OK;
    if (status == EW_ERR_ABORTED)
        return ewx_world_check(world);
    return ewx_world_raise(
        world, &(ewx_fault){.status = status == EW_OK ? EW_ERR_PEER_DIED : status,
                            .culprit = rank,
                            .reporter = world->rank,
                            .place = EWX_FAULT_MEETING});
}

/* One round: post, wait for all, read all.  Two buffers suffice: a rank enters round
 * s+2 only after every rank has entered s+1, that is, has read round s. */
static ew_status gather_round(ew_world *world, const void *mine, void *all, size_t bytes,
                              size_t stride)
{
    ewx_post *own = world->posts[world->rank];
    const uint32_t round = ++world->round;
    if (bytes > 0)
        memcpy(own->data[round & 1], mine, bytes);
    atomic_store_explicit(&own->round, round, memory_order_release);
    ewx_hosts_enter_round(world, round, mine, bytes);
    for (int rank = 0; rank < world->num_ranks; rank++) {
        EW_TRY(await_round(world, rank));
        EW_TRY(ewx_hosts_check_round(world, rank, bytes));
        if (bytes > 0)
            memcpy((char *)all + (size_t)rank * stride, world->posts[rank]->data[round & 1],
                   bytes);
    }
    return EW_OK;
}

ew_status ew_world_allgather(ew_world *world, const void *mine, void *all, size_t bytes)
{
    if (!world || (bytes > 0 && (!mine || !all)))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_world_allgather needs a world and two buffers");
    EW_TRY(ewx_world_check(world));
    for (size_t done = 0; done < bytes; done += EWX_POST_BYTES) {
        const size_t part = bytes - done < EWX_POST_BYTES ? bytes - done : EWX_POST_BYTES;
        EW_TRY(gather_round(world, (const char *)mine + done, (char *)all + done, part,
                            bytes));
    }
    return EW_OK;
}

ew_status ewx_world_agree(ew_world *world, ew_status mine, const char *what)
{
    char why[1024] = "";
    ewx_text text = ewx_text_in(why, sizeof why);
    if (mine != EW_OK)
        ewx_text_add(&text, "%s", ew_last_error());
    const int32_t outcome = mine;
    int32_t outcomes[EWX_MAX_RANKS];
    const ew_status met = ew_world_allgather(world, &outcome, outcomes, sizeof outcome);
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
    if (!world)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_world_barrier needs a world");
    EW_TRY(ewx_world_check(world));
    return gather_round(world, NULL, NULL, 0, 0);
}

void ew_world_destroy(ew_world *world)
{
    if (!world)
        return;
    if (world->close_companion)
        world->close_companion(world->companion);
    ewx_hosts_close(world);
    if (world->control)
        atomic_store_explicit(&world->control->posts[world->rank].departed, 1,
                              memory_order_release);
    if (!world->in_threads) {
        ewx_watch_stop(world);
        for (int rank = 0; rank < world->num_ranks; rank++)
            if (world->sockets[rank] >= 0)
                close(world->sockets[rank]);
        if (world->control)
            munmap(world->control, ewx_control_bytes(world->num_ranks));
        if (world->control_fd >= 0)
            close(world->control_fd);
    }
    free(world);
}

ew_status ewx_world_create_threads(int rank, int num_ranks, const ew_world_options *options,
                                   ewx_control *control, int control_fd,
                                   ew_world **world_out)
{
    ew_world *world = calloc(1, sizeof *world);
    if (!world)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a world");
    const ew_status status = ewx_world_init(world, rank, num_ranks, options);
    if (status != EW_OK) {
        free(world);
        return status;
    }
    world->in_threads = true;
    world->control = control;
    world->control_fd = control_fd;
    for (int peer = 0; peer < num_ranks; peer++)
        world->posts[peer] = &control->posts[peer];
    atomic_store(&control->posts[rank].lane.pid, (int32_t)getpid());
    *world_out = world;
    return EW_OK;
}
