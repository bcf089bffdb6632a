/* What survivors owe: to be out in time, with the right status and culprit, the same on all
 * of them, and to leave nothing behind. */
#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "canary.h"
#include "ordeal.h"

#define DEATH_BOUND_NS 200000000
#define STOP_MARGIN 1.2
#define HOSTS_MARGIN 1.5          /* an eighth is the wait for the report of another host */
#define LEAST_MARGIN_NS 110000000 /* of a short timeout: 100 ms while ranks meet */
#define LAUNCHER_MARGIN_NS 5000000000 /* ranks give a silent launcher so much more */
/* A survivor's way out is a chain of so many wake-ups and bursts of work, each of which can
 * be as late as the canary's latest. */
#define CHAIN 25

const char *const verdict_names[NUM_VERDICTS] = {"good",  "hangs", "late",   "story",
                                                 "wrong", "left",  "starved"};

/* ---- Facts ---- */

static bool was_hit_by(const ordeal *o, int rank, bool by_stop)
{
    for (int i = 0; i < o->fate.num_victims; i++)
        if (o->fate.victims[i] == rank && o->hit[i] &&
            (o->fate.signals[i] == SIGSTOP) == by_stop)
            return true;
    return false;
}

static bool is_victim(const ordeal *o, int rank)
{
    return was_hit_by(o, rank, false) || was_hit_by(o, rank, true);
}

/* The ranks that were killed, or stopped, as bits. */
static uint64_t victims_by(const ordeal *o, bool by_stop)
{
    uint64_t ranks = 0;
    for (int rank = 0; rank < o->fate.num_ranks; rank++)
        if (was_hit_by(o, rank, by_stop))
            ranks |= (uint64_t)1 << rank;
    return ranks;
}

bool judge_was_hit(const ordeal *o)
{
    return o->hit[0] || o->hit[1];
}

static int host_of(const ordeal *o, int rank)
{
    return o->fate.way == WAY_MPI ? rank * o->fate.num_hosts / o->fate.num_ranks : 0;
}

/* While ranks meet, the lowest one of a host notices deaths for all of them; when it is
 * stopped, it is missed itself. */
static bool was_witness_stopped(const ordeal *o)
{
    for (int rank = 0; rank < o->fate.num_ranks; rank++)
        if (was_hit_by(o, rank, true) &&
            (rank == 0 || host_of(o, rank) != host_of(o, rank - 1)))
            return atomic_load(&o->board->seats[rank].step) == STEP_MEET;
    return false;
}

/* Under mpirun ranks learn in a collective of MPI who the others are. */
static bool is_stuck_in_mpi(const ordeal *o)
{
    for (int rank = 0; o->fate.way == WAY_MPI && rank < o->fate.num_ranks; rank++)
        if (!is_victim(o, rank) && atomic_load(&o->board->seats[rank].step) == STEP_MEET)
            return true;
    return false;
}

/* Only a process of the same host sees a death; others wait for the timeout. */
static bool has_witness(const ordeal *o)
{
    if (was_witness_stopped(o) || is_stuck_in_mpi(o))
        return false;
    for (int victim = 0; victim < o->fate.num_ranks; victim++)
        for (int rank = 0; rank < o->fate.num_ranks; rank++)
            if (was_hit_by(o, victim, false) && !is_victim(o, rank) &&
                host_of(o, rank) == host_of(o, victim))
                return true;
    return was_hit_by(o, LAUNCHER, false);
}

bool judge_is_noticed(const ordeal *o)
{
    return (victims_by(o, false) || was_hit_by(o, LAUNCHER, false)) && has_witness(o);
}

/* A victim that was at the end of its work is not needed any more. */
static bool was_needed(const ordeal *o, int rank)
{
    const seat *s = &o->board->seats[rank];
    return !(atomic_load(&s->world) == o->fate.num_worlds - 1 &&
             atomic_load(&s->turn) == o->fate.num_turns - 1 &&
             atomic_load(&s->step) >= STEP_BARRIER);
}

static bool is_somebody_missed(const ordeal *o)
{
    for (int rank = 0; rank < o->fate.num_ranks; rank++)
        if (is_victim(o, rank) && was_needed(o, rank))
            return true;
    return false;
}

/* The ranks that a text blames, as bits: the first that it names, or for a timeout, which
 * begins with the one who waited, the last. */
static uint64_t blamed(ew_status status, const char *text)
{
    char line[TEXT_BYTES];
    snprintf(line, sizeof line, "%.*s", (int)strcspn(text, "\n"), text);
    const char *at = strstr(line, "rank");
    for (const char *next = at; status == EW_ERR_TIMEOUT && next;
         next = strstr(next + 1, "rank"))
        at = next;
    uint64_t ranks = 0;
    for (at = at ? at + strcspn(at, " \n") : ""; *at == ' ' || *at == ','; at++) {
        char *end;
        const long rank = strtol(at + 1, &end, 10);
        if (end == at + 1 || rank < 0 || rank >= MOST_RANKS)
            break;
        ranks |= (uint64_t)1 << rank;
        at = end - 1;
        if (end[0] != ' ' && end[0] != ',')
            break;
    }
    return ranks;
}

/* ---- Time ---- */

static int64_t out_ns(const ordeal *o, int rank)
{
    const seat *s = &o->board->seats[rank];
    return atomic_load(&s->told) ? s->out_ns : o->ranks[rank].ended_ns;
}

int64_t judge_took_ns(const ordeal *o)
{
    int64_t last_ns = o->blow_ns;
    for (int rank = 0; rank < o->fate.num_ranks; rank++)
        if (!is_victim(o, rank) && out_ns(o, rank) > last_ns &&
            !o->board->seats[rank].refused) /* whose time was the harness's own */
            last_ns = out_ns(o, rank);
    /* The launcher waits for a stopped rank, which is released only afterwards. */
    if (o->launcher.ended_ns > last_ns && !victims_by(o, true) && o->fate.way != WAY_MPI &&
        !was_hit_by(o, LAUNCHER, true))
        last_ns = o->launcher.ended_ns;
    return last_ns - o->blow_ns;
}

static int64_t stop_bound_ns(const ordeal *o, int64_t timeout_ns)
{
    const double times =
        o->fate.way == WAY_MPI && o->fate.num_hosts > 1 ? HOSTS_MARGIN : STOP_MARGIN;
    const int64_t margin_ns = (int64_t)((double)timeout_ns * (times - 1));
    return timeout_ns + (margin_ns > LEAST_MARGIN_NS ? margin_ns : LEAST_MARGIN_NS) +
           (was_hit_by(o, LAUNCHER, true) ? LAUNCHER_MARGIN_NS : 0);
}

/* How long a survivor was ready to run and had no core, after the blow. */
static int64_t starved_ns(const ordeal *o, int rank)
{
    const seat *s = &o->board->seats[rank];
    const int64_t ns = s->queued_ns - o->ranks[rank].queued_ns;
    return !is_victim(o, rank) && atomic_load(&s->told) && ns > 0 ? ns : 0;
}

static int64_t most_starved_ns(const ordeal *o)
{
    int64_t most_ns = 0;
    for (int rank = 0; rank < o->fate.num_ranks; rank++)
        if (starved_ns(o, rank) > most_ns)
            most_ns = starved_ns(o, rank);
    return most_ns;
}

static int64_t least(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

/* A timeout counts the time in which a rank runs.  What it was kept from running for is
 * measured: once for the rank that finds out, and once for the last that learns of it. */
static int64_t bound_ns(const ordeal *o)
{
    const int64_t timeout_ns = (int64_t)o->fate.timeout_ms * 1000000;
    const int64_t late_ns =
        CHAIN * canary_late_ns(o->blow_ns, o->blow_ns + judge_took_ns(o));
    const int64_t starved = 2 * most_starved_ns(o);
    /* However busy the machine is, who waits for the whole timeout is found. */
    if (judge_is_noticed(o))
        return least(DEATH_BOUND_NS + (late_ns > starved ? late_ns : starved),
                     timeout_ns * 3 / 4);
    /* Ranks whose launcher is silent wait for much longer than the timeout. */
    const int64_t most_ns =
        3 * timeout_ns + (was_hit_by(o, LAUNCHER, true) ? LAUNCHER_MARGIN_NS : 0);
    const int64_t guessed_ns = least(late_ns, most_ns);
    return stop_bound_ns(o, timeout_ns) + (guessed_ns > starved ? guessed_ns : starved);
}

static verdict judge_time(const ordeal *o, char *why, size_t bytes)
{
    const int64_t took_ns = judge_took_ns(o), allowed_ns = bound_ns(o);
    if (took_ns <= allowed_ns)
        return VERDICT_GOOD;
    snprintf(why, bytes, "the last survivor was out after %.1f ms instead of %.1f",
             (double)took_ns * 1e-6, (double)allowed_ns * 1e-6);
    return VERDICT_LATE;
}

/* ---- What they say ---- */

static ew_status expected_status(const ordeal *o)
{
    return victims_by(o, false) ? EW_ERR_PEER_DIED : EW_ERR_TIMEOUT;
}

/* Whether a survivor may end like this. */
static bool is_right(const ordeal *o, ew_status status, const char *text)
{
    const uint64_t dead = victims_by(o, false), stopped = victims_by(o, true);
    if (was_hit_by(o, LAUNCHER, true)) /* a wait for it, which blames no rank */
        return status == EW_ERR_TIMEOUT;
    if (is_stuck_in_mpi(o)) /* each names whom it waited for, maybe one that waits itself */
        return status == EW_ERR_TIMEOUT || status == expected_status(o);
    if (status == EW_ERR_TIMEOUT && (!dead || !has_witness(o)))
        return (blamed(status, text) & (dead | stopped)) != 0;
    return status == expected_status(o) && (blamed(status, text) & dead) != 0;
}

static verdict judge_seat(const ordeal *o, int rank, char *why, size_t bytes)
{
    const seat *s = &o->board->seats[rank];
    if (!atomic_load(&s->told) || s->refused) /* it never had a world */
        return VERDICT_GOOD;
    if (s->status == EW_OK && !is_somebody_missed(o))
        return VERDICT_GOOD;
    if (is_right(o, s->status, s->text))
        return VERDICT_GOOD;
    snprintf(why, bytes, "rank %d got %s", rank, ew_status_name(s->status));
    return VERDICT_STORY;
}

/* Two that fall at once on two hosts: each host may name its own. */
static bool struck_two_hosts(const ordeal *o)
{
    return o->fate.num_victims == 2 && o->hit[0] && o->hit[1] &&
           host_of(o, o->fate.victims[0]) != host_of(o, o->fate.victims[1]);
}

/* Survivors that got an error all got the same one. */
static verdict judge_agreement(const ordeal *o, char *why, size_t bytes)
{
    const seat *first = NULL;
    if (struck_two_hosts(o) || is_stuck_in_mpi(o))
        return VERDICT_GOOD;
    for (int rank = 0; rank < o->fate.num_ranks; rank++) {
        const seat *s = &o->board->seats[rank];
        if (is_victim(o, rank) || !atomic_load(&s->told) || s->refused ||
            s->status == EW_OK)
            continue;
        if (!first)
            first = s;
        if (s->status == first->status &&
            blamed(s->status, s->text) == blamed(first->status, first->text))
            continue;
        snprintf(why, bytes, "rank %d has another story than rank %d", rank,
                 (int)(first - o->board->seats));
        return VERDICT_STORY;
    }
    return VERDICT_GOOD;
}

/* ew_run_ranks names a rank that died, whether or not others came that far.  One that was
 * about to end may have done so before the signal came. */
static verdict judge_launcher(const ordeal *o, char *why, size_t bytes)
{
    const board *b = o->board;
    uint64_t dead = victims_by(o, false);
    if (dead && !o->fate.wakes) /* those that were stopped were killed in the end */
        dead |= victims_by(o, true);
    if (o->fate.way != WAY_RUN_RANKS || !dead || !atomic_load(&b->launcher_told))
        return VERDICT_GOOD;
    if (b->launcher_status == EW_OK && !is_somebody_missed(o))
        return VERDICT_GOOD;
    if (b->launcher_status == EW_ERR_PEER_DIED &&
        (blamed(b->launcher_status, b->launcher_text) & dead) != 0)
        return VERDICT_GOOD;
    snprintf(why, bytes, "ew_run_ranks returned %s", ew_status_name(b->launcher_status));
    return VERDICT_STORY;
}

/* `entwine run` says it in words. */
static verdict judge_cli(const ordeal *o, char *why, size_t bytes)
{
    const bool exited = WIFEXITED(o->exit_status);
    const int code = exited ? WEXITSTATUS(o->exit_status) : -1;
    if (was_hit_by(o, LAUNCHER, false) || (exited && code == 0))
        return VERDICT_GOOD;
    const uint64_t victims = victims_by(o, false) | victims_by(o, true);
    const char *at = strstr(o->output, "rank");
    for (; exited && code == 3 && at; at = strstr(at + 1, "rank"))
        if (blamed(EW_ERR_PEER_DIED, at) & victims)
            return VERDICT_GOOD;
    if (was_hit_by(o, LAUNCHER, true) && (code == 3 || !o->fate.wakes)) /* then killed */
        return VERDICT_GOOD;
    snprintf(why, bytes, "entwine run exited with %d: %.300s", code, o->output);
    return VERDICT_STORY;
}

static verdict judge_story(const ordeal *o, char *why, size_t bytes)
{
    verdict v = VERDICT_GOOD;
    if (o->fate.way == WAY_CLI)
        return judge_cli(o, why, bytes);
    for (int rank = 0; rank < o->fate.num_ranks && v == VERDICT_GOOD; rank++)
        if (!is_victim(o, rank))
            v = judge_seat(o, rank, why, bytes);
    if (v == VERDICT_GOOD)
        v = judge_agreement(o, why, bytes);
    return v == VERDICT_GOOD ? judge_launcher(o, why, bytes) : v;
}

/* Nobody was hit, or all were frozen: all ranks come through. */
static verdict judge_success(const ordeal *o, char *why, size_t bytes)
{
    if (o->fate.way == WAY_CLI)
        return judge_cli(o, why, bytes);
    for (int rank = 0; rank < o->fate.num_ranks; rank++) {
        const seat *s = &o->board->seats[rank];
        if (atomic_load(&s->told) && s->status == EW_OK)
            continue;
        snprintf(why, bytes, "rank %d did not come through", rank);
        return most_starved_ns(o) < (int64_t)o->fate.timeout_ms * 1000000 ? VERDICT_STORY
                                                                          : VERDICT_STARVED;
    }
    return VERDICT_GOOD;
}

verdict judge(const ordeal *o, char *why, size_t bytes)
{
    why[0] = '\0';
    for (int rank = 0; rank < o->fate.num_ranks; rank++)
        if (o->board->seats[rank].wrong) {
            snprintf(why, bytes, "rank %d has wrong values with EW_OK", rank);
            return VERDICT_WRONG;
        }
    if (o->hung) {
        snprintf(why, bytes, "the job did not end");
        return VERDICT_HANG;
    }
    if (o->left_processes || o->left_files) {
        snprintf(why, bytes, "%d processes%s were left behind", o->left_processes,
                 o->left_files ? " and files" : "");
        return VERDICT_LEFT;
    }
    if (!judge_was_hit(o))
        return judge_success(o, why, bytes);
    const verdict v = judge_time(o, why, bytes);
    return v == VERDICT_GOOD ? judge_story(o, why, bytes) : v;
}

/* ---- In words ---- */

static const char *step_name(const seat *s)
{
    static const char *const names[] = {
#define CHAOS_STEP_NAME(name, text) text,
        CHAOS_STEPS(CHAOS_STEP_NAME)
#undef CHAOS_STEP_NAME
    };
    return names[atomic_load(&s->step)];
}

void judge_describe(const ordeal *o)
{
    for (int rank = 0; rank < o->fate.num_ranks; rank++) {
        const seat *s = &o->board->seats[rank];
        const bool told = atomic_load(&s->told);
        fprintf(stderr, "  rank %d%s, world %d, turn %d, %s: ", rank,
                is_victim(o, rank) ? " (struck)" : "", atomic_load(&s->world),
                atomic_load(&s->turn), step_name(s));
        if (told && o->blow_ns)
            fprintf(stderr, "%.1f ms after the blow (%.1f without a core) ",
                    (double)(s->out_ns - o->blow_ns) * 1e-6,
                    (double)starved_ns(o, rank) * 1e-6);
        fprintf(stderr, "%s%s\n    %s\n", told ? ew_status_name(s->status) : "silent",
                s->refused ? " (by the harness's all-gather)" : "", s->text);
    }
    if (atomic_load(&o->board->launcher_told))
        fprintf(stderr, "  ew_run_ranks: %s\n    %s\n",
                ew_status_name(o->board->launcher_status), o->board->launcher_text);
}
