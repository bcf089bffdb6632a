/* Which cores ranks count on and where they run: hardware threads and quotas on fake
 * systems, masks that change, domains as hwloc invents them, and a machine without hwloc.
 */
#include "fake_system.h"
#include "harness.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "api/testing.h"
#include "backend/cpu/cpu_workers.h"
#include "base/cores.h"
#include "base/numa.h"
#include "entwine/measure.h"
#include "trial.h"
#include "world/world.h"

static ewx_cpus cpus(const char *list)
{
    ewx_cpus set;
    assert_true(ewx_cpus_parse(list, &set));
    return set;
}

/* ---- Lists ---- */

static void lists_of_cpus(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",
                                        "\n",
                                        "a",
                                        "1-",
                                        "-1",
                                        "1,",
                                        "1,,2",
                                        "1 2",
                                        "4096",
                                        "0-4096",
                                        "0x1",
                                        "1-2-3",
                                        "99999999999999999999"};
    ewx_cpus set;
    for (size_t at = 0; at < sizeof wrong / sizeof wrong[0]; at++)
        if (ewx_cpus_parse(wrong[at], &set))
            fail_msg("'%s' is taken for a list", wrong[at]);
    set = cpus("0-3,8,4094-4095\n");
    assert_int_equal(ewx_cpus_count(&set), 7);
    assert_true(ewx_cpus_has(&set, 8) && ewx_cpus_has(&set, 4095) &&
                !ewx_cpus_has(&set, 4));
}

/* ---- Shares ---- */

/* Four cores of two threads each, numbered as Linux does on x86. */
static const fake_file four_cores[] = {
    {"/sys/devices/system/cpu/smt/active", "1\n"},
    {"/sys/devices/system/cpu/cpu0/topology/core_cpus_list", "0,4\n"},
    {"/sys/devices/system/cpu/cpu1/topology/core_cpus_list", "1,5\n"},
    {"/sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "2,6\n"},
    {"/sys/devices/system/cpu/cpu3/topology/core_cpus_list", "nonsense\n"},
    {"/sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "3,7\n"},
    {"/sys/devices/system/cpu/cpu4/topology/core_cpus_list", "0,4\n"},
    {"/sys/devices/system/cpu/cpu5/topology/core_cpus_list", "1,5\n"},
    {"/sys/devices/system/cpu/cpu6/topology/core_cpus_list", "2,6\n"},
    {"/sys/devices/system/cpu/cpu7/topology/core_cpus_list", "3,7\n"},
    {NULL, NULL}};

enum { MOST_RANKS = 4 };

typedef struct share_case {
    const char *name;
    const char *cpus[MOST_RANKS]; /* of each rank; NULL ends them */
    int cores, each;
    bool is_enough;
    ewx_cpu_quota quotas[MOST_RANKS][2];
} share_case;

static const share_case share_cases[] = {
    {"one rank, all threads", {"0-7"}, 4, 4, true, {{{0, 0}}}},
    {"both threads of a core", {"0,4"}, 1, 1, true, {{{0, 0}}}},
    {"one thread of each of two cores", {"0,5"}, 2, 2, true, {{{0, 0}}}},
    {"two ranks under one mask", {"0-7", "0-7"}, 4, 2, true, {{{0, 0}}}},
    {"bound to cores of their own", {"0,1,4,5", "2,3,6,7"}, 4, 2, true, {{{0, 0}}}},
    {"bound to one thread each of the same core", {"0", "4"}, 1, 1, false, {{{0, 0}}}},
    {"bound to one thread each of all cores", {"0-3", "4-7"}, 4, 2, true, {{{0, 0}}}},
    {"three ranks on four cores", {"0-7", "0-7", "0-7"}, 4, 1, true, {{{0, 0}}}},
    {"three ranks on three cores", {"0-2", "0-2", "0-2"}, 3, 1, true, {{{0, 0}}}},
    {"a rank without a core of its own", {"0-3", "0-3", "0"}, 4, 1, false, {{{0, 0}}}},
    {"uneven masks: the smaller one counts", {"0-2", "3"}, 4, 1, true, {{{0, 0}}}},
    {"a CPU that /sys does not know", {"100,101"}, 2, 2, true, {{{0, 0}}}},
    {"half a core more than one", {"0-7"}, 2, 2, true, {{{9, 1500}}}},
    {"half a core", {"0-7"}, 1, 1, false, {{{9, 500}}}},
    {"one and a half for two ranks of one group",
     {"0-7", "0-7"},
     2,
     1,
     false,
     {{{9, 1500}}, {{9, 1500}}}},
    {"as much for each of two groups",
     {"0-7", "0-7"},
     4,
     2,
     true,
     {{{8, 2000}}, {{9, 2000}}}},
    {"groups of their own below one that is tighter",
     {"0-7", "0-7"},
     3,
     1,
     true,
     {{{8, 2000}, {7, 3000}}, {{9, 2000}, {7, 3000}}}},
    {"a quota on one rank alone", {"0-7", "0-7"}, 3, 1, true, {{{8, 1000}}}},
    {"a quota above what there is", {"0-7"}, 4, 4, true, {{{9, 64000}}}},
};

static void check_share(const share_case *c)
{
    ewx_cpu_share shares[MOST_RANKS] = {{.num_quotas = 0}};
    int count = 0;
    for (; count < MOST_RANKS && c->cpus[count]; count++) {
        shares[count].cpus = cpus(c->cpus[count]);
        for (int at = 0; at < 2 && c->quotas[count][at].millicores > 0; at++)
            shares[count].quotas[shares[count].num_quotas++] = c->quotas[count][at];
    }
    const ewx_provision got = ewx_cpu_provide(shares, count);
    if (got.cores != c->cores || got.each != c->each || got.is_enough != c->is_enough)
        fail_msg("%s: %d cores, %d each, %s", c->name, got.cores, got.each,
                 got.is_enough ? "enough" : "not enough");
}

static void cores_are_shared(void **state)
{
    (void)state;
    const fake_system fake = fake_system_open();
    fake_system_fill(&fake, four_cores);
    for (size_t at = 0; at < sizeof share_cases / sizeof share_cases[0]; at++)
        check_share(&share_cases[at]);
    fake_system_write(&fake, "/sys/devices/system/cpu/smt/active", "0\n");
    ewx_cpu_share all = {.cpus = cpus("0-7")};
    assert_int_equal(ewx_cpu_provide(&all, 1).each, 8);
    fake_system_close(&fake);
}

/* A rank whose mask nobody knows counts on what is online, as ranks under some seccomp
 * filters do. */
static void an_unknown_mask(void **state)
{
    (void)state;
    const ewx_cpu_share unknown[2] = {{.num_quotas = 0}};
    const int online = (int)sysconf(_SC_NPROCESSORS_ONLN);
    const ewx_provision got = ewx_cpu_provide(unknown, 2);
    assert_in_range(got.cores, 1, online);
    assert_int_equal(got.is_enough, got.cores > 1);
}

/* This process's own threads of one core, and one and a half cores of quota. */
static void what_this_process_may_use(void **state)
{
    (void)state;
    const fake_system fake = fake_system_open();
    cpu_set_t mask;
    char list[32] = "", path[96];
    int count = 0, first = -1;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE && count < 2; cpu++)
        if (CPU_ISSET(cpu, &mask) && count++ == 0)
            first = cpu;
        else if (CPU_ISSET(cpu, &mask))
            snprintf(list, sizeof list, "%d,%d\n", first, cpu);
    if (count < 2 || CPU_COUNT(&mask) > 2)
        skip();
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_cpus_list",
             first);
    fake_system_write(&fake, path, list);
    assert_int_equal(ew_usable_cores(), 1);
    fake_system_write(&fake, "/sys/devices/system/cpu/smt/active", "0\n");
    assert_int_equal(ew_usable_cores(), 2);
    fake_system_write(&fake, "/proc/self/mountinfo", FAKE_V2_MOUNT);
    fake_system_write(&fake, "/proc/self/cgroup", "0::/pod/one\n");
    fake_system_write(&fake, "/sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
    ewx_cpu_share mine[2];
    ewx_cpu_share_read(&mine[0]);
    mine[1] = mine[0];
    assert_int_equal(mine[0].num_quotas, 1);
    assert_int_equal(mine[0].quotas[0].millicores, 1500);
    assert_int_equal(ew_usable_cores(), 2);
    assert_false(ewx_cpu_provide(mine, 2).is_enough);
    fake_system_close(&fake);
}

/* ---- Masks that change ---- */

static bool bind_to(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
}

static trial small_trial(int num_ranks, int workers)
{
    trial t = {.num_ranks = num_ranks,
               .problem = EW_PROBLEM(300, 270, 40, EW_FP32),
               .config = EW_CONFIG_INIT,
               .weight_bound = true,
               .seed = 7,
               .num_calls = 2,
               .rows = {300, 131}};
    t.config.workers = workers;
    return t;
}

static int nth_cpu(const cpu_set_t *mask, int nth)
{
    int cpu = 0;
    while (!CPU_ISSET(cpu, mask) || nth-- > 0)
        cpu++;
    return cpu;
}

/* All CPUs of this process, on a system that says that each is a core. */
static fake_system open_without_smt(cpu_set_t *all_out)
{
    const fake_system fake = fake_system_open();
    fake_system_write(&fake, "/sys/devices/system/cpu/smt/active", "0\n");
    assert_int_equal(sched_getaffinity(0, sizeof *all_out, all_out), 0);
    return fake;
}

/* The world was made with all cores; by the time of the plan all ranks have the same one,
 * the second plan has a rank per core again. */
static int narrow_later(ew_world *world, void *argument)
{
    const cpu_set_t *all = argument;
    trial t = small_trial(2, 0);
    RANK_CHECK(bind_to(nth_cpu(all, 0)), "not bound");
    RANK_TRY(trial_body(world, &t));
    RANK_CHECK(world->spins == 0, "ranks on one core spin");
    RANK_CHECK(sched_setaffinity(0, sizeof *all, all) == 0, "not freed");
    RANK_TRY(trial_body(world, &t));
    RANK_CHECK(world->spins > 0 || CPU_COUNT(all) < 2, "a rank with a core does not spin");
    return 0;
}

static void a_mask_that_changes(void **state)
{
    (void)state;
    cpu_set_t all;
    const fake_system fake = open_without_smt(&all);
    harness_run(EW_RANKS_AS_PROCESSES, 2, narrow_later, &all);
    harness_run(EW_RANKS_AS_THREADS, 2, narrow_later, &all);
    fake_system_close(&fake);
}

/* Each rank may use a core that is its own, as mpirun --bind-to core has it: the world
 * knows although no rank sees more than one core. */
static int on_own_core(ew_world *world, void *argument)
{
    trial t = small_trial(2, 0);
    RANK_CHECK(bind_to(nth_cpu(argument, ew_world_rank(world))), "not bound");
    ewx_place_post(world);
    RANK_OK(ew_world_barrier(world));
    const ewx_provision got = ewx_places_provide(world);
    RANK_CHECK(got.cores == 2 && got.each == 1 && got.is_enough && world->spins > 0,
               "%d cores, %d each", got.cores, got.each);
    RANK_TRY(trial_body(world, &t));
    return 0;
}

static void ranks_on_cores_of_their_own(void **state)
{
    (void)state;
    cpu_set_t all;
    const fake_system fake = open_without_smt(&all);
    if (CPU_COUNT(&all) > 1)
        harness_run(EW_RANKS_AS_PROCESSES, 2, on_own_core, &all);
    fake_system_close(&fake);
}

/* Three ranks of two workers each on one core: right, and said. */
static int crowd(ew_world *world, void *argument)
{
    trial t = small_trial(3, 2);
    char text[EW_EXPLAIN_BYTES];
    RANK_CHECK(bind_to(nth_cpu(argument, 0)), "not bound");
    RANK_TRY(trial_body(world, &t));
    RANK_OK(ew_forecast_explain(&t.problem, 3, NULL, text, sizeof text));
    RANK_CHECK(strstr(text, "workers=1: 1 usable core for 3 ranks, which share them"), "%s",
               text);
    return 0;
}

static void ranks_without_a_core(void **state)
{
    (void)state;
    cpu_set_t all;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    harness_run(EW_RANKS_AS_PROCESSES, 3, crowd, &all);
    harness_run(EW_RANKS_AS_THREADS, 3, crowd, &all);
}

/* ---- Domains ---- */

/* Two CPUs each. */
static ewx_domains some_domains(int count)
{
    ewx_domains domains = {.count = count};
    for (int at = 0; at < count; at++) {
        ewx_cpus_add(&domains.at[at].cpus, 2 * at);
        ewx_cpus_add(&domains.at[at].cpus, 2 * at + 1);
        domains.at[at].node = at;
    }
    return domains;
}

static void homes_are_chosen(void **state)
{
    (void)state;
    static const struct {
        int domains, ranks;
        const char *cpus;              /* that the ranks may use */
        const char *homes[MOST_RANKS]; /* of the first ranks */
    } cases[] = {
        {2, 2, "0-3", {"0-1", "2-3"}},
        {2, 4, "0-3", {"0-1", "0-1", "2-3", "2-3"}},
        {2, 3, "0-3", {"0-1", "0-1", "2-3"}},
        {2, 1, "0-3", {"0-3"}},
        {4, 2, "0-7", {"0-3", "4-7"}},
        {3, 2, "0-5", {"0-3", "2-5"}},
        {6, 4, "0-11", {"0-3", "2-5", "6-9", "8-11"}},
        {4, 2, "1,4-7", {"1,4-5", "4-7"}}, /* a cpuset that leaves one domain out */
        {4, 2, "3", {"3", "3"}},
        {4, 2, "100", {"100", "100"}}, /* no domain: anywhere */
        {0, 2, "0-3", {"0-3", "0-3"}},
    };
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++) {
        const ewx_domains domains = some_domains(cases[at].domains);
        const ewx_cpus all = cpus(cases[at].cpus);
        for (int rank = 0; rank < MOST_RANKS && cases[at].homes[rank]; rank++) {
            const ewx_cpus want = cpus(cases[at].homes[rank]);
            ewx_home home;
            ewx_home_choose(&domains, &all, rank, cases[at].ranks, &home);
            if (!ewx_cpus_equal(&home.cpus, &want))
                fail_msg("case %zu, rank %d", at, rank);
        }
    }
    const ewx_domains six = some_domains(6);
    const ewx_cpus all = cpus("0-11");
    ewx_home home;
    ewx_home_choose(&six, &all, 1, 4, &home);
    assert_int_equal(home.num_domains, 2);
    assert_int_equal(home.nodes[0], 6);
}

/* Domains are looked up once per process: each of these has one of its own. */
static void in_a_child(int (*check)(void))
{
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(check());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void invent(const char *topology)
{
    setenv("HWLOC_SYNTHETIC", topology, 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
}

static bool hwloc_is_missing(void)
{
    return ewx_domains_find()->why != NULL;
}

static int describe_topologies(void)
{
    ewx_home home;
    invent("pack:2 [numa] l3:2 core:4 pu:2");
    if (hwloc_is_missing())
        return 77;
    const ewx_domains *domains = ewx_domains_find();
    const ewx_cpus all = cpus("0-31"), second = cpus("16-31");
    if (domains->count != 2 || !domains->can_bind)
        return 1;
    ewx_home_choose(domains, &all, 1, 2, &home);
    return home.num_domains == 1 && ewx_cpus_equal(&home.cpus, &second) ? 0 : 2;
}

/* Memory that is near to the same cores as another is not a domain of its own. */
static int describe_fast_memory(void)
{
    invent("pack:2 [numa] [numa(memory=16GB)] core:2 pu:1");
    if (hwloc_is_missing())
        return 77;
    return ewx_domains_find()->count == 2 ? 0 : 1;
}

static int describe_one_domain(void)
{
    invent("pack:1 [numa] core:4 pu:2");
    const ewx_domains *domains = ewx_domains_find();
    return domains->count == 0 ? 0 : 1;
}

static void synthetic_topologies(void **state)
{
    (void)state;
    in_a_child(describe_topologies);
    in_a_child(describe_fast_memory);
    in_a_child(describe_one_domain);
}

static int count_mask(pthread_t thread)
{
    cpu_set_t mask;
    return pthread_getaffinity_np(thread, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 0;
}

static ew_status count_own_mask(void *context, int worker)
{
    ((int *)context)[worker] = count_mask(pthread_self());
    return EW_OK;
}

/* Started here, a rank stays in its domain, CPU `rank`.  Freed, as if a launcher had
 * started it, it stays free, but its workers do not leave. */
static int stay_home(ew_world *world, void *argument)
{
    const cpu_set_t *all = argument;
    trial t = small_trial(2, 2);
    ew_plan *plan;
    cpu_set_t mask;
    RANK_CHECK(sched_getaffinity(0, sizeof mask, &mask) == 0 && CPU_COUNT(&mask) == 1 &&
                   CPU_ISSET(ew_world_rank(world), &mask),
               "the rank is elsewhere");
    RANK_TRY(trial_body(world, &t));
    RANK_CHECK(sched_setaffinity(0, sizeof *all, all) == 0, "not freed");
    RANK_TRY(trial_body(world, &t));
    RANK_OK(ew_plan_create(world, &t.problem, &t.config, &plan));
    int cpus[2] = {0, 0};
    RANK_OK(ewx_workers_run(world, 2, count_own_mask, cpus));
    ew_plan_destroy(plan);
    RANK_CHECK(cpus[0] == CPU_COUNT(all) && cpus[1] == 1, "%d CPUs, workers have %d",
               cpus[0], cpus[1]);
    return 0;
}

static ew_status tell_own_mask(void *context, int worker)
{
    cpu_set_t *masks = context;
    return pthread_getaffinity_np(pthread_self(), sizeof *masks, &masks[worker]) == 0
               ? EW_OK
               : EW_ERR_SYSTEM;
}

/* Workers stay when a plan ends, and the next one finds them where the rank is by then, but
 * for the CPU that the rank computes on, wherever that is in this call. */
static int move_later(ew_world *world, void *argument)
{
    const cpu_set_t *all = argument;
    const trial t = small_trial(1, 2);
    const int num_cpus = CPU_COUNT(all);
    for (int round = 0; round < 2; round++) {
        ew_plan *plan;
        cpu_set_t masks[2];
        RANK_CHECK(round ? sched_setaffinity(0, sizeof *all, all) == 0
                         : bind_to(nth_cpu(all, 0)),
                   "not bound");
        RANK_OK(ew_plan_create(world, &t.problem, &t.config, &plan));
        for (int call = 0; call < 6; call++) {
            const int cpu = nth_cpu(all, round ? call / 2 % num_cpus : 0);
            RANK_CHECK(bind_to(cpu), "not bound");
            RANK_OK(ewx_workers_run(world, 2, tell_own_mask, masks));
            const bool leaves = round && num_cpus > 1;
            RANK_CHECK(CPU_COUNT(&masks[1]) == (round ? num_cpus : 1) - leaves &&
                           !CPU_ISSET(cpu, &masks[1]) == leaves,
                       "round %d, call %d: the worker has %d of %d CPUs", round, call,
                       CPU_COUNT(&masks[1]), num_cpus);
        }
        ew_plan_destroy(plan);
    }
    return 0;
}

static void workers_follow_their_rank(void **state)
{
    (void)state;
    cpu_set_t all;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    harness_run(EW_RANKS_AS_PROCESSES, 1, move_later, &all);
}

static int run_at_home(void)
{
    cpu_set_t all;
    char text[HARNESS_TEXT_BYTES];
    if (sched_getaffinity(0, sizeof all, &all) != 0 || !CPU_ISSET(0, &all) ||
        !CPU_ISSET(1, &all))
        return 77;
    invent("numa:2 core:1 pu:1");
    if (hwloc_is_missing())
        return 77;
    for (int kind = 0; kind < 2; kind++)
        if (harness_try(kind ? EW_RANKS_AS_THREADS : EW_RANKS_AS_PROCESSES, 2, NULL,
                        stay_home, &all, NULL, text, sizeof text) != EW_OK) {
            fprintf(stderr, "%s\n", text);
            return 1;
        }
    return 0;
}

static void ranks_stay_at_home(void **state)
{
    (void)state;
    in_a_child(run_at_home);
}

static int tell_of_straddling(void)
{
    const ew_problem problem = EW_PROBLEM(256, 256, 64, EW_FP32);
    char text[EW_EXPLAIN_BYTES];
    ew_numa numa;
    invent("numa:2 core:1 pu:1");
    if (hwloc_is_missing() || ew_usable_cores() < 2)
        return 77;
    if (ew_forecast_explain(&problem, 1, NULL, text, sizeof text) != EW_OK ||
        !strstr(text, "numa: a rank straddles 2 domains") ||
        ew_numa_describe(1, &numa) != EW_OK || numa.domains != 2 ||
        numa.domains_per_rank != 2)
        return 1;
    if (ew_forecast_explain(&problem, 2, NULL, text, sizeof text) != EW_OK ||
        !strstr(text, "numa: every rank stays in one domain") ||
        ew_numa_describe(2, &numa) != EW_OK || numa.domains_per_rank != 1)
        return 2;
    return ew_numa_describe(0, &numa) == EW_ERR_ARGUMENT ? 0 : 3;
}

static void straddling_is_told(void **state)
{
    (void)state;
    in_a_child(tell_of_straddling);
}

/* Two domains and no hwloc: all works, and the plan says what is missed. */
static int do_without(void)
{
    const ew_problem problem = EW_PROBLEM(256, 256, 64, EW_FP32);
    char text[HARNESS_TEXT_BYTES], why[EW_EXPLAIN_BYTES];
    trial t = small_trial(2, 2);
    ew_numa numa;
    const fake_system fake = fake_system_open();
    fake_system_write(&fake, "/sys/devices/system/node/online", "0-1\n");
    ewx_hwloc_library = "libnothing.so.15";
    const ew_status run = harness_try(EW_RANKS_AS_PROCESSES, 2, NULL, trial_body, &t, NULL,
                                      text, sizeof text);
    const bool is_told = ew_numa_describe(2, &numa) == EW_OK && numa.unknown &&
                         numa.domains == 0 &&
                         ew_forecast_explain(&problem, 2, NULL, why, sizeof why) == EW_OK &&
                         strstr(why, "numa: several domains, but ");
    fake_system_close(&fake);
    return run != EW_OK ? 1 : is_told ? 0 : 2;
}

static void without_hwloc(void **state)
{
    (void)state;
    in_a_child(do_without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* First: a child inherits what its parent has looked up. */
        cmocka_unit_test(synthetic_topologies),
        cmocka_unit_test(ranks_stay_at_home),
        cmocka_unit_test(straddling_is_told),
        cmocka_unit_test(without_hwloc),
        cmocka_unit_test(homes_are_chosen),
        cmocka_unit_test(lists_of_cpus),
        cmocka_unit_test(cores_are_shared),
        cmocka_unit_test(an_unknown_mask),
        cmocka_unit_test(what_this_process_may_use),
        cmocka_unit_test(a_mask_that_changes),
        cmocka_unit_test(workers_follow_their_rank),
        cmocka_unit_test(ranks_on_cores_of_their_own),
        cmocka_unit_test(ranks_without_a_core),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
