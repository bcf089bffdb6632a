/* A new world of those who are left after a fault.
 *
 * The old world's control block outlives any rank, and its words decide together: every
 * word below is set once in an attempt, by whoever comes first, so all ranks read the same.
 *
 *   verdict   of each rank, whether it is a member.  A rank that comes votes for itself;
 *             one that has died or left, or is too late, is voted out by the others.
 *   card_in   of each member: its hello lies in its mailbox.  Members meet by these as the
 *             ranks of any new world do.
 *   built     of each member: it has its part of the new world.
 *   outcome   of the attempt: all members have built, or one could not and is named.
 *
 * All words hold the number of the attempt, so that the next one finds them undecided. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/status.h"
#include "world/shrink.h"

/* How long the others wait for the rank that the fault names, which may have woken up. */
#define CULPRIT_NS 500000000
/* How much later than a hang-up the death itself may become known. */
#define DEATH_NS 100000000

typedef struct shrinking {
    ew_world *world; /* the old one */
    uint32_t attempt;
    int num_members;
    int members[EWX_MAX_RANKS]; /* their ranks in the old world */
    int rank;                   /* this one's place among them */
} shrinking;

/* ---- Words that are set once ---- */

typedef enum verdict { OUT = 0, IN = 1 } verdict;
typedef enum outcome { ALL_HAVE_BUILT = 1, ONE_HAS_NOT = 2 } outcome;

static uint32_t attempt_of(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

/* Sets the word unless this attempt, or a later one, has set it.  Returns what stands. */
static uint64_t decide(_Atomic uint64_t *word, uint32_t attempt, uint32_t value)
{
    uint64_t seen = atomic_load(word);
    const uint64_t mine = (uint64_t)attempt << 32 | value;
    while (attempt_of(seen) < attempt)
        if (atomic_compare_exchange_weak(word, &seen, mine))
            return mine;
    return seen;
}

static bool is_decided(const shrinking *s, const _Atomic uint64_t *word)
{
    return attempt_of(atomic_load(word)) >= s->attempt;
}

static _Atomic uint64_t *verdict_on(const shrinking *s, int rank)
{
    return &s->world->control->mailboxes[rank].verdict;
}

static uint32_t code_of(ew_status status, int culprit)
{
    return (uint32_t)ONE_HAS_NOT | (uint32_t)-status << 8 | (uint32_t)culprit << 16;
}

static void fail_attempt(const shrinking *s, ew_status status, int culprit)
{
    decide(&s->world->control->outcome, s->attempt, code_of(status, culprit));
}

static bool has_failed(const shrinking *s)
{
    const uint64_t word = atomic_load(&s->world->control->outcome);
    return attempt_of(word) >= s->attempt &&
           (attempt_of(word) > s->attempt || (uint32_t)word != ALL_HAVE_BUILT);
}

/* ---- Who is left ---- */

static bool is_gone(const ew_world *world, int rank)
{
    return ewx_world_departed(world, rank) ||
           (!world->in_threads && rank != world->rank && ewx_death_watch_sees(world, rank));
}

static bool all_are_judged(const shrinking *s)
{
    bool all = true;
    for (int rank = 0; rank < s->world->num_ranks; rank++) {
        if (!is_decided(s, verdict_on(s, rank)) && is_gone(s->world, rank))
            decide(verdict_on(s, rank), s->attempt, OUT);
        all = all && is_decided(s, verdict_on(s, rank));
    }
    return all;
}

/* Waits up to limit_ns, then votes out the ranks that have not come: all, or `only` one. */
static void muster_for(const shrinking *s, int64_t limit_ns, int only)
{
    ewx_wait wait = ewx_wait_begin(NULL, limit_ns, s->world->spins);
    ew_status status;
    EWX_AWAIT(status, &wait, all_are_judged(s));
    for (int rank = 0; status != EW_OK && rank < s->world->num_ranks; rank++)
        if (only < 0 || rank == only)
            decide(verdict_on(s, rank), s->attempt, OUT);
}

static bool is_member(const shrinking *s, int rank)
{
    return atomic_load(verdict_on(s, rank)) == ((uint64_t)s->attempt << 32 | IN);
}

/* The rank that the fault names; -1: its reporter died before it could say. */
static int find_culprit(ew_world *world)
{
    (void)ewx_world_check(world); /* which waits for the fault */
    return ewx_world_culprit(world);
}

static ew_status fail_late(const shrinking *s)
{
    return ewx_fail(EW_ERR_TIMEOUT,
                    "rank %d came to ew_world_shrink when the others had given it up\n"
                    "  fix: make all ranks call it as soon as they have their error",
                    s->world->rank);
}

static ew_status muster(shrinking *s)
{
    ew_world *world = s->world;
    const int culprit = find_culprit(world);
    decide(verdict_on(s, world->rank), s->attempt, IN);
    if (culprit >= 0)
        muster_for(s, world->timeout_ns < CULPRIT_NS ? world->timeout_ns : CULPRIT_NS,
                   culprit);
    muster_for(s, world->timeout_ns, -1);
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (is_member(s, rank)) {
            if (rank == world->rank)
                s->rank = s->num_members;
            s->members[s->num_members++] = rank;
        }
    return is_member(s, world->rank) ? EW_OK : fail_late(s);
}

/* ---- The members meet ---- */

static ewx_mailbox *mailbox_of(const shrinking *s, int member)
{
    return &s->world->control->mailboxes[s->members[member]];
}

static bool lacks(const shrinking *s, int member, bool built)
{
    ewx_mailbox *mailbox = mailbox_of(s, member);
    /* Acquire: pairs with the release in post_card and in settle. */
    return atomic_load_explicit(built ? &mailbox->built : &mailbox->card_in,
                                memory_order_acquire) < s->attempt;
}

/* The first member that has no card or has not built; num_members: none. */
static int find_lacking(const shrinking *s, bool built)
{
    int member = 0;
    while (member < s->num_members && !lacks(s, member, built))
        member++;
    return member;
}

static bool is_settled(const shrinking *s, bool built)
{
    for (int member = 0; member < s->num_members; member++)
        if (lacks(s, member, built) && is_gone(s->world, s->members[member]))
            fail_attempt(s, EW_ERR_PEER_DIED, s->members[member]);
    return has_failed(s) || find_lacking(s, built) == s->num_members;
}

/* Whether all members have a card, or have built.  When all cards are in, all members
 * meet, even if the attempt has failed meanwhile: no member waits there for one that
 * stays away. */
static bool await_all(const shrinking *s, bool built)
{
    ewx_wait wait = ewx_wait_begin(NULL, s->world->timeout_ns, s->world->spins);
    ew_status status;
    EWX_AWAIT(status, &wait, is_settled(s, built));
    const int lacking = find_lacking(s, built);
    if (status != EW_OK && lacking < s->num_members)
        fail_attempt(s, status, s->members[lacking]);
    return lacking == s->num_members;
}

static unsigned char *card_of(const shrinking *s, int member)
{
    return mailbox_of(s, member)->data[s->attempt & 1];
}

static void post_card(const shrinking *s, const void *mine, size_t bytes)
{
    memcpy(card_of(s, s->rank), mine, bytes);
    atomic_store_explicit(&mailbox_of(s, s->rank)->card_in, s->attempt,
                          memory_order_release);
}

/* An ew_allgather among the members, through the old control block. */
static int gather_members(void *context, const void *mine, void *all, size_t bytes)
{
    const shrinking *s = context;
    if (bytes > EWX_MAILBOX_BYTES)
        return ewx_fail(EW_ERR_SYSTEM, "a hello of %zu bytes is too long", bytes);
    post_card(s, mine, bytes);
    if (!await_all(s, false))
        return ewx_fail(EW_ERR_ABORTED, "the members of a new world have not met");
    for (int member = 0; member < s->num_members; member++)
        memcpy((char *)all + (size_t)member * bytes, card_of(s, member), bytes);
    return EW_OK;
}

static ew_world_options options_of(const ew_world *world)
{
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = (uint32_t)(world->timeout_ns / 1000000);
    options.grace_ms = (uint32_t)(world->grace_ns / 1000000);
    options.link_gbps = world->link_gbps;
    options.link_latency_us = (double)world->link_latency_ns * 1e-3;
    options.link_header_bytes = world->link_header_bytes;
    return options;
}

/* ---- Ranks as threads ---- */

/* The first member's card.  Should a thread leave before it has taken its part, the block
 * stays until the process ends. */
typedef struct thread_card {
    ewx_control *control; /* NULL: there is no memory for it */
    int control_fd;
} thread_card;

static thread_card open_control(int num_ranks)
{
    thread_card card = {.control_fd = -1};
    if (ewx_control_create(num_ranks, true, &card.control_fd) == EW_OK &&
        ewx_control_map(card.control_fd, num_ranks, &card.control) != EW_OK)
        close(card.control_fd);
    if (card.control)
        atomic_store(&card.control->users, num_ranks);
    return card;
}

void ewx_control_release(ewx_control *control, int control_fd, int num_ranks)
{
    if (atomic_fetch_sub(&control->users, 1) > 1)
        return;
    munmap(control, ewx_control_bytes(num_ranks));
    close(control_fd);
}

static ew_status build_of_threads(const shrinking *s, ew_world **world_out)
{
    const ew_world_options options = options_of(s->world);
    thread_card card = {0};
    if (s->rank == 0)
        card = open_control(s->num_members);
    post_card(s, &card, sizeof card);
    if (!await_all(s, false))
        return EW_ERR_ABORTED;
    memcpy(&card, card_of(s, 0), sizeof card);
    if (!card.control)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a new world");
    EW_TRY(ewx_world_create_threads(s->rank, s->num_members, &options, card.control,
                                    card.control_fd, world_out));
    (*world_out)->shares_control = true;
    return EW_OK;
}

/* ---- The new world ---- */

static ew_status build(shrinking *s, int *culprit_out, ew_world **world_out)
{
    *culprit_out = -1;
    if (s->world->in_threads)
        return build_of_threads(s, world_out);
    const ew_world_options options = options_of(s->world);
    return ewx_world_create(s->rank, s->num_members, gather_members, s, &options,
                            culprit_out, world_out);
}

static bool one_is_gone(const shrinking *s)
{
    for (int member = 0; member < s->num_members; member++)
        if (is_gone(s->world, s->members[member]))
            fail_attempt(s, EW_ERR_PEER_DIED, s->members[member]);
    return has_failed(s);
}

/* This member could not build, because of `culprit` unless that is none of them.  A member
 * that has lost a peer learns a little later which one. */
static void report_failure(const shrinking *s, ew_status status, int culprit)
{
    ewx_wait wait = ewx_wait_begin(NULL, DEATH_NS, s->world->spins);
    ew_status waited = EW_OK;
    if (status != EW_ERR_MEMORY)
        EWX_AWAIT(waited, &wait, one_is_gone(s));
    (void)waited;
#if EW_MUTANT == 94 /* planted bug: whoever reports a failed attempt names itself */
    culprit = -1;
#endif
    const bool is_known = culprit >= 0 && culprit < s->num_members; /* a peer wrote it */
    fail_attempt(s, status, s->members[is_known ? culprit : s->rank]);
}

static ew_status explain_failure(const shrinking *s, ew_status mine)
{
    const uint64_t word = atomic_load(&s->world->control->outcome);
    const ew_status status = (ew_status) - (int)(word >> 8 & 0xff);
    const int culprit = (int)(word >> 16 & 0xffff);
#if EW_MUTANT != 93 /* planted bug: a later attempt's outcome is taken for this one's */
    if (attempt_of(word) > s->attempt) /* which the others have made without this rank */
        return fail_late(s);
#endif
    if (culprit == s->world->rank && mine != EW_OK)
        return mine; /* with its own text */
    return ewx_fail(status,
                    "rank %d %s while the ranks that are left made a new world\n"
                    "  fix: call ew_world_shrink again",
                    culprit,
                    status == EW_ERR_PEER_DIED ? "died or left"
                    : status == EW_ERR_TIMEOUT ? "made no progress"
                                               : "failed");
}

/* What the launcher needs to know, so that it spares the members. */
static void inherit(const shrinking *s, ew_world *made)
{
    const ew_world *world = s->world;
    ewx_shrunk_note note = {.magic = EWX_SHRUNK_MAGIC};
    made->launcher_fd = world->launcher_fd;
    for (int member = 0; member < s->num_members; member++) {
        const int origin = world->origins[s->members[member]];
        made->origins[member] = origin;
        note.members[origin / 8] |= (unsigned char)(1 << origin % 8);
    }
    if (made->launcher_fd >= 0)
        send(made->launcher_fd, &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ew_status settle(shrinking *s, ew_world **world_out)
{
    ew_world *made = NULL;
    int culprit;
    const ew_status mine = build(s, &culprit, &made);
    if (mine != EW_OK)
        report_failure(s, mine, culprit);
    else
        atomic_store_explicit(&mailbox_of(s, s->rank)->built, s->attempt,
                              memory_order_release);
    if (mine == EW_OK && await_all(s, true))
        decide(&s->world->control->outcome, s->attempt, ALL_HAVE_BUILT);
    if (has_failed(s)) {
        ew_world_destroy(made);
        return explain_failure(s, mine);
    }
    inherit(s, made);
    *world_out = made;
    return EW_OK;
}

/* Whether an earlier attempt succeeded, without this rank or with it. */
static ew_status check_world(const ew_world *world)
{
    const uint64_t word = atomic_load(&world->control->outcome);
    if (world->num_hosts > 1)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "a world of ranks on %d hosts cannot be shrunk\n"
                        "  fix: restart the job without the rank that failed",
                        world->num_hosts);
    if (atomic_load(&world->control->abort) == 0)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "the world has no fault, so there is nothing to shrink\n"
                        "  fix: call ew_world_shrink after an error, or ew_world_abort "
                        "before it");
    if (word != 0 && (uint32_t)word == ALL_HAVE_BUILT)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "the world was shrunk already, and the others have gone on\n"
                        "  fix: use the new world; a rank that is not in it can only end");
    return EW_OK;
}

static ew_status shrink(ew_world *world, ew_world **world_out)
{
    EW_TRY(check_world(world));
    shrinking s = {.world = world, .attempt = ++world->shrinks};
    EW_TRY(muster(&s));
    return settle(&s, world_out);
}

ew_status ew_world_shrink(ew_world *world, ew_world **world_out)
{
    if (!world || !world_out)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_world_shrink needs a world and a place for the new one");
    EW_TRY(ewx_handle_check(world, EWX_KIND_WORLD, "ew_world_shrink"));
    EW_TRY(ewx_world_enter(world));
    const ew_status status = shrink(world, world_out);
    ewx_world_leave(world);
    return status;
}
