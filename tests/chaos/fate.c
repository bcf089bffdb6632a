/* Fates: what is drawn depends on seed and number alone. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "ordeal.h"

#define DEATH_TIMEOUT_MS                                                               \
    8000                    /* never to be seen: a survivor that waits for it is found \
                             */
#define MPI_TIMEOUT_MS 1000 /* a rank alone on its host is missed by its silence only */
#define STOP_TIMEOUT_MS 500
#define FREEZE_TIMEOUT_MS 250

static bool one_in(harness_random *random, int n)
{
    return harness_between(random, 1, n) == 1;
}

static job_way draw_way(harness_random *random, unsigned ways)
{
    /* Most blows meet the two ways to make a world. */
    static const job_way urn[] = {
        WAY_RUN_RANKS, WAY_RUN_RANKS, WAY_RUN_RANKS, WAY_RUN_RANKS, WAY_CREATE, WAY_CREATE,
        WAY_CREATE,    WAY_CREATE,    WAY_CREATE,    WAY_CLI,       WAY_MPI};
    for (;;) {
        const job_way drawn = urn[harness_between(random, 0, sizeof urn / sizeof *urn - 1)];
        if (ways & 1u << drawn)
            return drawn;
    }
}

static int draw_ranks(harness_random *random, job_way way)
{
    const int64_t dice = harness_between(random, 1, 100);
    if (way == WAY_MPI)
        return (int)harness_between(random, 2, 6);
    if (dice <= 25)
        return 2;
    if (dice <= 60)
        return (int)harness_between(random, 3, 4);
    if (dice <= 88)
        return (int)harness_between(random, 5, 8);
    return (int)(dice <= 97 ? harness_between(random, 9, 16)
                            : harness_between(random, 17, MOST_RANKS));
}

static void draw_victims(harness_random *random, fate *f)
{
    static const int deaths[] = {SIGKILL, SIGKILL, SIGSEGV, SIGABRT};
    const bool has_launcher = f->way == WAY_RUN_RANKS || f->way == WAY_CLI;
    f->num_victims = f->num_ranks > 2 && one_in(random, 8) ? 2 : 1;
    f->victims[0] = has_launcher && f->num_victims == 1 && one_in(random, 16)
                        ? LAUNCHER
                        : (int)harness_between(random, 0, f->num_ranks - 1);
    f->victims[1] =
        (f->victims[0] + 1 + (int)harness_between(random, 0, f->num_ranks - 2)) %
        f->num_ranks;
    for (int i = 0; i < f->num_victims; i++)
        f->signals[i] =
            one_in(random, 12) ? SIGSTOP : deaths[harness_between(random, 0, 3)];
}

static bool has_death(const fate *f)
{
    for (int i = 0; i < f->num_victims; i++)
        if (f->signals[i] != SIGSTOP)
            return true;
    return false;
}

fate fate_draw(uint64_t seed, uint64_t number, unsigned ways, bool freezes)
{
    harness_random random = harness_seed(seed * 1000003 + number);
    fate f = {.seed = seed, .number = number};
    f.way = draw_way(&random, ways);
    f.num_ranks = draw_ranks(&random, f.way);
    f.num_hosts = (int)harness_between(&random, 1, 3);
    if (f.num_hosts > f.num_ranks)
        f.num_hosts = f.num_ranks;
    f.num_worlds =
        f.way == WAY_RUN_RANKS ? 1 : (int)harness_between(&random, 1, MOST_WORLDS);
    f.num_turns = f.num_ranks > 8 ? 1 : 2;
    f.job_seed = (uint32_t)harness_between(&random, 1, 1000000);
    f.delay = (double)harness_between(&random, 0, 1050000) * 1e-6;
    f.in_meeting = f.way != WAY_CLI && one_in(&random, 3);
    f.wakes = one_in(&random, 2);
    f.in_freezer = one_in(&random, 2);
    if (!freezes)
        draw_victims(&random, &f);
    f.timeout_ms = freezes            ? FREEZE_TIMEOUT_MS + 10 * (uint32_t)f.num_ranks
                   : !has_death(&f)   ? STOP_TIMEOUT_MS
                   : f.way == WAY_MPI ? MPI_TIMEOUT_MS
                                      : DEATH_TIMEOUT_MS;
    return f;
}

void fate_describe(const fate *f, char *text, size_t bytes)
{
    static const char *const ways[] = {"ew_run_ranks", "ew_world_create", "entwine run",
                                       "mpirun"};
    int used =
        snprintf(text, bytes, "%s, W=%d, %d worlds, %d turns, timeout %u ms", ways[f->way],
                 f->num_ranks, f->num_worlds, f->num_turns, f->timeout_ms);
    if (f->way == WAY_MPI)
        used += snprintf(text + used, bytes - (size_t)used, ", %d hosts", f->num_hosts);
    used += snprintf(text + used, bytes - (size_t)used, ", after %.4f of the %s:", f->delay,
                     f->in_meeting ? "meeting" : "job");
    if (f->num_victims == 0)
        snprintf(text + used, bytes - (size_t)used, " all ranks are frozen%s",
                 f->in_freezer ? " by their cgroup" : "");
    for (int i = 0; i < f->num_victims; i++) {
        char who[24] = "the launcher";
        if (f->victims[i] != LAUNCHER)
            snprintf(who, sizeof who, "rank %d", f->victims[i]);
        used += snprintf(text + used, bytes - (size_t)used, " SIG%s to %s%s",
                         sigabbrev_np(f->signals[i]), who,
                         f->signals[i] == SIGSTOP && f->wakes ? " (goes on)" : "");
    }
}
