/* A world is the ranks that work together: who am I, small all-gathers, passing file
 * descriptors, and one abort word that all of them watch.  It counts plans and records
 * their calls, but knows nothing of what they compute, nor of backends. */
#ifndef EWX_WORLD_WORLD_H
#define EWX_WORLD_WORLD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/handle.h"
#include "base/limits.h"
#include "base/wait.h"
#include "entwine/fabric.h"
#include "world/claims.h"
#include "world/faults.h"
#include "world/places.h"
#include "world/recorder.h"

#define EWX_EXIT_NO_WORLD 125     /* of a rank that never began */
#define EWX_SPINS_WITH_A_CORE 200 /* turns of a wait before it yields */
#define EWX_MAILBOX_BYTES 4088    /* with the meeting's word, one control message's body */

/* What one round takes between ranks of one host, where a large gather would otherwise wait
 * for its peers every few kilobytes; all ranks together have 16 MiB at most. */
static inline size_t ewx_parcel_bytes(int num_ranks)
{
    const size_t most = 256 * 1024, share = ((size_t)8 << 20) / (size_t)num_ranks;
    return share < most ? share : most;
}

/* What ranks meet for. */
typedef enum ewx_meeting {
    EWX_MEETING_BARRIER = 1,
    EWX_MEETING_ALLGATHER = 2,
    EWX_MEETING_INNER = 3 /* a step of the library's own, within another collective call */
} ewx_meeting;

/* Kind and size of a collective in one word: equal on all ranks, or they are in different
 * ones. */
static inline uint64_t ewx_meeting_word(ewx_meeting kind, size_t bytes)
{
    return (uint64_t)kind << 56 | (uint64_t)bytes;
}

/* One rank's part of the shared control block. */
typedef struct ewx_mailbox {
    _Alignas(64) _Atomic uint32_t round; /* collectives this rank has entered */
    _Atomic uint32_t present;            /* has connected to all ranks below itself */
    _Atomic uint32_t departed;           /* destroyed its world in good order */
    _Atomic int64_t egress_free_ns;      /* emulated link: when this rank's ... */
    _Atomic int64_t ingress_free_ns;     /* ... two directions are free again */
    uint64_t meeting[2];                 /* ewx_meeting_word(), by round parity */
    /* Used by shrink.c; each holds the number of an attempt. */
    _Atomic uint64_t verdict;
    _Atomic uint32_t card_in, built;
    uint32_t data_bytes[2]; /* from other hosts: as many came, by parity */
    /* From other hosts, by round parity; on one host parcels lie behind the mailboxes. */
    _Alignas(64) unsigned char data[2][EWX_MAILBOX_BYTES];
    ewx_claim claim;
    ewx_place_card place;
    ewx_lane lane;
} ewx_mailbox;

/* Which job a rank is of.  Rank 0 draws it when a world is made; the hellos bring it to all
 * ranks, and every later handshake compares it (sockets.c). */
typedef struct ewx_job_id {
    unsigned char bytes[16];
} ewx_job_id;

/* Identifies the block to other processes. */
typedef struct ewx_control_header {
    char magic[8]; /* "entwine" */
    uint32_t version;
    uint32_t mailbox_bytes;
    int32_t num_ranks;
    int32_t in_threads;
    int64_t started_ns;    /* CLOCK_MONOTONIC */
    int64_t started_ticks; /* the same moment */
    int64_t started_unix;  /* seconds */
    ewx_job_id job;        /* zero: of ranks as threads */
} ewx_control_header;

/* Shared by all ranks, writable by all; everything else has one writer. */
typedef struct ewx_control {
    ewx_control_header header;
    _Atomic uint64_t abort; /* 0, or 1 + the reporting rank; set once */
    _Atomic uint32_t fault_ready;
    _Atomic uint32_t dumped;
    _Atomic uint32_t met;     /* every rank of the host is present (local_ranks.c) */
    _Atomic uint64_t outcome; /* of shrink.c, as the next */
    _Atomic int32_t users;    /* ranks as threads, in a world that was shrunk */
    ewx_fault fault;          /* written by the rank that set abort, then fault_ready */
    ewx_mailbox mailboxes[];
} ewx_control;

/* Who uses a world.  The word lies in a page that a forked child finds zeroed. */
typedef enum ewx_use {
    EWX_USE_ELSEWHERE = 0, /* by the process that this one was forked from */
    EWX_USE_FREE = 1,
    EWX_USE_TAKEN = 2,
    EWX_USE_GONE = 3 /* never in the word: the world has been destroyed */
} ewx_use;

/* What backends keep for as long as the world lives; closed before it ends. */
typedef struct ewx_attachment {
    void *object; /* NULL: none */
    void (*close)(void *object);
} ewx_attachment;

enum { EWX_ATTACHED_DEVICE, EWX_ATTACHED_WORKERS, EWX_NUM_ATTACHMENTS };

struct ew_world {
    ewx_handle handle;
    _Atomic uint32_t *use; /* ewx_use; NULL in a world that is not built yet */
    int rank;
    int num_ranks;
    bool in_threads; /* ranks share this address space */
    int64_t timeout_ns;
    int64_t grace_ns;           /* of ew_run_ranks */
    const volatile int *cancel; /* of the options; NULL once the world exists */
    int32_t spins;              /* 0 when ranks share cores */
    double link_gbps;           /* emulated link, 0: off */
    int64_t link_latency_ns;
    double link_header_bytes;
    ewx_control *control; /* this host's */
    int control_fd;
    ewx_mailbox
        *mailboxes[EWX_MAX_RANKS]; /* in the control block, or this process's replica */
    uint32_t round;
    uint32_t num_plans; /* ever created: the newest one's number */
    uint64_t sequence;  /* of this rank's newest record */
    uint64_t drained;   /* ... of the newest that is known to have ended */
    ewx_attachment attachments[EWX_NUM_ATTACHMENTS];
    /* Ranks as processes only: */
    ewx_job_id job;
    int sockets[EWX_MAX_RANKS];   /* to each peer, -1 for oneself */
    pid_t pids[EWX_MAX_RANKS];    /* 0: not known (yet) */
    int death_fds[EWX_MAX_RANKS]; /* pidfds; -1: none */
    pthread_t watcher;
    bool watching;
    int stop_fd;
    /* Hosts are numbered by their lowest ranks; locals are the ranks of this one. */
    int num_hosts;
    int hosts[EWX_MAX_RANKS]; /* of each rank */
    int num_locals;
    int locals[EWX_MAX_RANKS];
    int local_index; /* of this rank */
    /* Used by shrink.c. */
    uint32_t shrinks;           /* attempts */
    bool shares_control;        /* with the threads of a world that was shrunk */
    int launcher_fd;            /* -1: none */
    int origins[EWX_MAX_RANKS]; /* ranks as the launcher numbers them */
    int blamed;                 /* by a rank without a control block; -1: none */
    /* Several hosts only (remote_ranks.c): */
    const ew_fabric *fabric;  /* NULL: one host */
    ew_fabric fabric_table;   /* what it points to: the caller's may be of another size */
    bool takes_device_memory; /* the fabric does, and it is not forbidden */
    uint64_t stamp;           /* in its control messages: the job's id's first bytes */
    bool fabric_failed;
    bool fault_passed_on;
    ewx_mailbox *replicas;
    struct ewx_listener *listeners;
    ew_traffic traffic;
};

static inline bool ewx_world_is_local(const ew_world *world, int rank)
{
    return world->hosts[rank] == world->hosts[world->rank];
}

/* Whether it is another rank of this host. */
static inline bool ewx_is_peer(const ew_world *world, int rank)
{
    return rank != world->rank && ewx_world_is_local(world, rank);
}

/* Every public function that needs a world, or a plan of it, for itself alone enters and
 * leaves it.  A second user, another thread or a signal handler, is refused with
 * EW_ERR_ARGUMENT, and so is a process that was forked from the world's, and a plan or a
 * weight whose world is gone. */
ew_status ewx_world_refuse(uint32_t use);
static inline ew_status ewx_world_enter(const ew_world *world)
{
    uint32_t use = EWX_USE_FREE;
    if (!ewx_handle_is(world, EWX_KIND_WORLD))
        return ewx_world_refuse(EWX_USE_GONE);
    /* Acquire: pairs with the release in ewx_world_leave, of the thread that was here
     * before. */
    return atomic_compare_exchange_strong_explicit(
               world->use, &use, EWX_USE_TAKEN, memory_order_acquire, memory_order_relaxed)
               ? EW_OK
               : ewx_world_refuse(use);
}
static inline void ewx_world_leave(const ew_world *world)
{
    atomic_store_explicit(world->use, EWX_USE_FREE, memory_order_release);
}
/* Whether this process was forked from the one that created the world. */
static inline bool ewx_world_is_elsewhere(const ew_world *world)
{
    return ewx_handle_is(world, EWX_KIND_WORLD) && world->use &&
           atomic_load_explicit(world->use, memory_order_relaxed) == 0;
}

/* A wait that watches this world's abort word, if there is one yet, and what may cancel its
 * creation; with the world's timeout, or another. */
ewx_wait ewx_world_wait(const ew_world *world);
ewx_wait ewx_world_wait_for(const ew_world *world, int64_t timeout_ns);

/* Reports a fault to all ranks unless one was reported already, and returns the status that
 * stands, with its text set.  A rank that has no control block yet fails alone. */
ew_status ewx_world_raise(ew_world *world, const ewx_fault *fault);

/* Reports that this rank has failed in a collective step, so that the others do not wait
 * for it.  Its own text stays; nothing happens when a fault was reported already. */
void ewx_world_give_up(ew_world *world, ew_status status);

/* EW_OK, or the standing fault's status with its text set.  A cancelled creation becomes a
 * fault here. */
ew_status ewx_world_check(ew_world *world);

/* Whom the standing fault names; -1: nobody, or there is none. */
int ewx_world_culprit(const ew_world *world);

/* Collective: ew_world_allgather and ew_world_barrier for those who have entered the world.
 */
ew_status ewx_world_allgather(ew_world *world, const void *mine, void *all, size_t bytes);
ew_status ewx_world_barrier(ew_world *world);

/* Collective: EW_OK when every rank came with EW_OK.  A rank that failed keeps its own
 * status and text; the others learn which rank could not do `what`. */
ew_status ewx_world_agree(ew_world *world, ew_status mine, const char *what);

bool ewx_world_departed(const ew_world *world, int rank);

/* Collective: hands my_fd to every peer of this host; fds_out[r] is a new descriptor of
 * rank r's (mine included; -1 on another host), to be closed by the caller.  Ranks as
 * processes only. */
ew_status ewx_world_exchange_fds(ew_world *world, int my_fd, int *fds_out);

/* ---- inside src/world ---- */

/* The last look at the clock of a rank that is waited for: its number, and when it was, in
 * the time of that wait.  A rank that waits, even a starved one, still looks now and then;
 * one that is stopped does not. */
typedef struct ewx_last_look {
    uint32_t number;
    int64_t at_ns;
} ewx_last_look;

static inline ewx_last_look ewx_last_look_of(const ewx_mailbox *mailbox)
{
    return (ewx_last_look){
        .number = atomic_load_explicit(&mailbox->lane.looks, memory_order_relaxed)};
}

static inline void ewx_last_look_note(ewx_last_look *last, const ewx_mailbox *mailbox,
                                      const ewx_wait *wait)
{
    const ewx_last_look now = ewx_last_look_of(mailbox);
    if (now.number != last->number)
        *last = (ewx_last_look){now.number, wait->timer.used_ns};
}

size_t ewx_control_bytes(int num_ranks);
/* Where `rank` leaves its data of a round. */
void *ewx_world_parcel(const ew_world *world, int rank, uint32_t round);
uint32_t ewx_library_version(void);
/* A new control block in memory that has no name and cannot change its size. */
ew_status ewx_control_create(int num_ranks, bool in_threads, int *fd_out);
ew_status ewx_control_map(int fd, int num_ranks, ewx_control **control_out);
ew_status ewx_world_init(ew_world *world, int rank, int num_ranks,
                         const ew_world_options *options);
ew_status ewx_use_open(ew_world *world);
void ewx_use_close(ew_world *world); /* not open is fine */
/* `hosts` has a number for each rank; ranks with equal numbers share a host. */
void ewx_world_settle(ew_world *world, const int *hosts);
/* As ewx_world_raise, without a text.  Async-signal-safe. */
void ewx_world_raise_quietly(ew_world *world, const ewx_fault *fault);
/* ew_world_create, which names the rank that made it fail; -1: none is known. */
ew_status ewx_world_create(int rank, int num_ranks, ew_allgather allgather, void *context,
                           const ew_world_options *options, int *culprit_out,
                           ew_world **world_out);
ew_status ewx_world_create_threads(int rank, int num_ranks, const ew_world_options *options,
                                   ewx_control *control, int control_fd,
                                   ew_world **world_out);
/* Death watch.  _open finds what can be watched of the peers whose pids are known; _sees
 * says whether a peer's process has ended; _report raises that.  _lost: its socket has hung
 * up, so it has died or, alive, given up its place.  Ranks meet with these; then _start
 * watches over them with a thread. */
void ewx_death_watch_open(ew_world *world);
bool ewx_death_watch_sees(const ew_world *world, int rank);
ew_status ewx_death_watch_report(ew_world *world, int rank);
ew_status ewx_death_watch_lost(ew_world *world, int rank);
ew_status ewx_death_watch_start(ew_world *world);
void ewx_death_watch_stop(ew_world *world);
/* Both find EWX_EXIT_NO_WORLD in `exits`, and replace it for the ranks that run. */
ew_status ewx_run_processes(int num_ranks, const ew_world_options *options,
                            ew_rank_main rank_main, void *argument, int *exits,
                            int *culprit_out);
ew_status ewx_run_threads(int num_ranks, const ew_world_options *options,
                          ew_rank_main rank_main, void *argument, int *exits,
                          int *culprit_out);
int ewx_rank_body(ew_world *world, ew_rank_main rank_main, void *argument);

#endif
