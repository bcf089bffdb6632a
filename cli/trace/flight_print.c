/* Who is where, and who went another way first. */
#include <inttypes.h>
#include <string.h>

#include "trace/flight.h"

/* ---- The first to diverge ---- */

static const cli_deed *deed_at(const cli_lane *lane, int64_t sequence)
{
    int low = 0, high = lane->num_deeds;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (lane->deeds[middle].sequence < sequence)
            low = middle + 1;
        else
            high = middle;
    }
    return low < lane->num_deeds && lane->deeds[low].sequence == sequence
               ? &lane->deeds[low]
               : NULL;
}

static bool same_deed(const cli_deed *a, const cli_deed *b)
{
    return a->is_plan == b->is_plan && a->m == b->m && a->n == b->n && a->k == b->k &&
           (a->is_plan || (a->plan == b->plan && strcmp(a->config, b->config) == 0));
}

/* How many ranks did the same at this place. */
static int companions(const cli_recording *recording, const cli_deed *deed)
{
    int count = 0;
    for (int rank = 0; rank < recording->num_ranks; rank++) {
        const cli_deed *other = deed_at(&recording->lanes[rank], deed->sequence);
        count += other && same_deed(deed, other);
    }
    return count;
}

/* Whether ranks did different things at this place: the one that the fewest did is
 * `odd`, and the one that most did `usual`; of equals, the lower rank is right. */
static bool find_odd(const cli_recording *recording, int64_t sequence, int *odd_out,
                     int *usual_out)
{
    const cli_deed *first = NULL;
    bool same = true;
    for (int rank = 0; rank < recording->num_ranks; rank++) {
        const cli_deed *deed = deed_at(&recording->lanes[rank], sequence);
        same &= !deed || !first || same_deed(first, deed);
        first = deed ? deed : first;
    }
    if (same)
        return false;
    int fewest = CLI_MAX_RANKS + 1, most = 0;
    for (int rank = 0; rank < recording->num_ranks; rank++) {
        const cli_deed *deed = deed_at(&recording->lanes[rank], sequence);
        int count = deed ? companions(recording, deed) : 0;
        if (deed && count > most)
            most = count, *usual_out = rank;
        if (deed && count <= fewest)
            fewest = count, *odd_out = rank;
    }
    return true;
}

static bool find_difference(const cli_recording *recording, int64_t *sequence_out,
                            int *odd_out, int *usual_out)
{
    int64_t first = INT64_MAX, last = 0;
    for (int rank = 0; rank < recording->num_ranks; rank++) {
        const cli_lane *lane = &recording->lanes[rank];
        if (lane->num_deeds && lane->deeds[0].sequence < first)
            first = lane->deeds[0].sequence;
        if (lane->num_deeds && lane->sequence > last)
            last = cli_lane_last(lane)->sequence;
    }
    /* Sequences in a damaged file may lie far apart. */
    for (int64_t at = first; at <= last && at - first < 2 * CLI_RECORDS; at++)
        if (find_odd(recording, at, odd_out, usual_out)) {
            *sequence_out = at;
            return true;
        }
    return false;
}

static int severity(const cli_lane *lane)
{
    return strcmp(lane->process, "ended") == 0     ? 2
           : strcmp(lane->process, "stopped") == 0 ? 1
                                                   : 0;
}

/* Of two ranks, whether the first is the likelier cause: dead before stopped before
 * behind before waiting for no one. */
static bool is_likelier(const cli_lane *lane, const cli_lane *than)
{
    if (severity(lane) != severity(than))
        return severity(lane) > severity(than);
    if (lane->sequence != than->sequence)
        return lane->sequence < than->sequence;
    if (lane->meetings != than->meetings)
        return lane->meetings < than->meetings;
    return lane->waits_for < 0 && than->waits_for >= 0;
}

/* The rank that holds up the others, or -1. */
static int find_laggard(const cli_recording *recording)
{
    int laggard = -1, working = 0;
    bool uneven = false;
    /* The ranks have found it themselves; others that ended since did so because of it. */
    if (recording->culprit >= 0 && recording->lanes[recording->culprit].known)
        return recording->culprit;
    for (int rank = 0; rank < recording->num_ranks; rank++) {
        const cli_lane *lane = &recording->lanes[rank];
        if (!lane->known)
            continue;
        const cli_deed *last = cli_lane_last(lane);
        working += last && (strcmp(last->state, "running") == 0 || lane->waits_for >= 0);
        if (laggard >= 0) {
            const cli_lane *found = &recording->lanes[laggard];
            uneven |= is_likelier(lane, found) || is_likelier(found, lane);
        }
        if (laggard < 0 || is_likelier(lane, &recording->lanes[laggard]))
            laggard = rank;
    }
    return uneven && (working || recording->fault[0]) ? laggard : -1;
}

static bool print_verdict(const cli_recording *recording)
{
    char odd_text[128], usual_text[128];
    int64_t sequence;
    int odd = 0, usual = 0;
    if (find_difference(recording, &sequence, &odd, &usual)) {
        const cli_deed *odd_deed = deed_at(&recording->lanes[odd], sequence);
        const cli_deed *usual_deed = deed_at(&recording->lanes[usual], sequence);
        cli_deed_text(odd_deed, odd_text, sizeof odd_text);
        cli_deed_text(usual_deed, usual_text, sizeof usual_text);
        printf("# First to diverge : rank %d at operation %" PRId64 ": %s, plan %" PRId64
               ", config %s; rank %d: %s, plan %" PRId64 ", config %s\n",
               odd, sequence, odd_text, odd_deed->plan, odd_deed->config, usual, usual_text,
               usual_deed->plan, usual_deed->config);
        return true;
    }
    int laggard = find_laggard(recording);
    if (laggard < 0) {
        puts("# First to diverge : none, all ranks are together");
        return false;
    }
    const cli_lane *lane = &recording->lanes[laggard];
    printf("# First to diverge : rank %d, %s, at operation %" PRId64 ", meeting %" PRId64
           "\n",
           laggard, lane->process, lane->sequence, lane->meetings);
    return true;
}

/* ---- The table ---- */

static void print_lane(const cli_recording *recording, int rank)
{
    const cli_lane *lane = &recording->lanes[rank];
    const cli_deed *last = cli_lane_last(lane);
    char deed[128] = "-", since[32] = "-", step[48] = "-", wait[48] = "-";
    if (last) {
        const int64_t then_ns = last->end_ns > 0 ? last->end_ns : last->begin_ns;
        cli_deed_text(last, deed, sizeof deed);
        snprintf(since, sizeof since, "%.3f s",
                 ((double)recording->now_ns - (double)then_ns) * 1e-9);
    }
    if (lane->step[0])
        snprintf(step, sizeof step, "%s %" PRId64, lane->step, lane->position);
    if (lane->waits_for >= 0)
        snprintf(wait, sizeof wait, "rank %d, a %s", lane->waits_for, lane->waits_at);
    printf("%4d  %8d  %-8s  %10" PRId64 "  %8" PRId64 "  %-28s  %-8s  %10s  %-10s  %s\n",
           rank, lane->pid, lane->left ? "left" : lane->process, lane->sequence,
           lane->meetings, deed, last ? last->state : "-", since, step, wait);
}

bool cli_recording_print(const cli_recording *recording)
{
    printf("# %d rank%s as %s, %.1f s after the start%s%s\n", recording->num_ranks,
           recording->num_ranks == 1 ? "" : "s", recording->ranks_as,
           ((double)recording->now_ns - (double)recording->started_ns) * 1e-9,
           recording->fault[0] ? ", stopped by " : "", recording->fault);
    if (recording->culprit >= 0)
        printf("# The ranks blame rank %d\n", recording->culprit);
    printf("%4s  %8s  %-8s  %10s  %8s  %-28s  %-8s  %10s  %-10s  %s\n", "rank", "pid",
           "process", "operations", "meetings", "last operation", "state", "since",
           "last step", "waits for");
    for (int rank = 0; rank < recording->num_ranks; rank++)
        if (recording->lanes[rank].known)
            print_lane(recording, rank);
        else
            printf("%4d  not in the recording\n", rank);
    return print_verdict(recording);
}
