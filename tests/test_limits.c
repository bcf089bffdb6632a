/* What the library finds out about the memory and the cores that it may use, on fake
 * systems with control groups of every kind, and under real ones where this process may
 * make them; and that a plan or a weight for which memory does not suffice is refused with
 * the numbers, before anything is touched. */
#include "fake_system.h"
#include "harness.h"

#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/cgroup.h"
#include "base/cores.h"
#include "base/memory.h"
#include "entwine/measure.h"
#include "world/world.h"

#define MIB ((uint64_t)1 << 20)
#define NONE       \
    {              \
        NULL, NULL \
    }

enum { MOST_GROUPS = 4, MOST_FILES = 24 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

typedef struct limit_case {
    const char *name;
    struct {
        uint64_t limit, free;
    } groups[MOST_GROUPS]; /* that have a limit, own first; {0, 0} ends them */
    int quota;             /* cores; 0: no quota */
    fake_file files[MOST_FILES];
} limit_case;

#define PROC(cgroup, mounts)                                        \
    {"/proc/meminfo", FAKE_MEMINFO}, {"/proc/self/cgroup", cgroup}, \
    {                                                               \
        "/proc/self/mountinfo", mounts                              \
    }
#define V2(folder, max, current, stat)                        \
    {"/sys/fs/cgroup" folder "/memory.max", max},             \
        {"/sys/fs/cgroup" folder "/memory.current", current}, \
    {                                                         \
        "/sys/fs/cgroup" folder "/memory.stat", stat          \
    }
#define V1(folder, max, usage, stat)                                      \
    {"/sys/fs/cgroup/memory" folder "/memory.limit_in_bytes", max},       \
        {"/sys/fs/cgroup/memory" folder "/memory.usage_in_bytes", usage}, \
    {                                                                     \
        "/sys/fs/cgroup/memory" folder "/memory.stat", stat               \
    }
#define V1_CPU(folder, quota, period)                                    \
    {"/sys/fs/cgroup/cpu,cpuacct" folder "/cpu.cfs_quota_us", quota},    \
    {                                                                    \
        "/sys/fs/cgroup/cpu,cpuacct" folder "/cpu.cfs_period_us", period \
    }
#define V1_NO_LIMIT "9223372036854771712\n"
#define V1_PATHS(path) "5:memory:" path "\n3:cpu,cpuacct:" path "\n0::/\n"

static const limit_case cases[] = {
    {"v2: a limit on the process's own group",
     {{1024 * MIB, 824 * MIB}},
     1,
     {PROC("0::/job\n", FAKE_V2_MOUNT),
      V2("/job", "1073741824\n", "209715200\n", "anon 1\nfile 2\ninactive_file 0\n"),
      {"/sys/fs/cgroup/job/cpu.max", "50000 100000\n"}}},
    {"v2: the limit is on an ancestor, as in a systemd scope",
     {{512 * MIB, 412 * MIB}},
     1,
     {PROC("0::/user.slice/user-1000.slice/run-7.scope\n", FAKE_V2_MOUNT),
      V2("/user.slice/user-1000.slice/run-7.scope", "max\n", "1048576\n", ""),
      V2("/user.slice/user-1000.slice", "max\n", "1048576\n", ""),
      V2("/user.slice", "536870912\n", "104857600\n", "inactive_file 0\n"),
      {"/sys/fs/cgroup/user.slice/user-1000.slice/run-7.scope/cpu.max", "max 100000\n"},
      {"/sys/fs/cgroup/user.slice/user-1000.slice/cpu.max", "100000 100000\n"}}},
    {"v2: limits on two levels, of which both count",
     {{512 * MIB, 511 * MIB}, {1024 * MIB, 24 * MIB}},
     0,
     {PROC("0::/a/b\n", FAKE_V2_MOUNT),
      V2("/a/b", "536870912\n", "1048576\n", ""),
      V2("/a", "1073741824\n", "1048576000\n", "inactive_file 0\n"),
      {"/sys/fs/cgroup/a/b/cpu.max", "6400000 100000\n"}}},
    {"v2: cached files that the kernel would drop are free",
     {{1024 * MIB, 924 * MIB}},
     0,
     {PROC("0::/job\n", FAKE_V2_MOUNT),
      V2("/job", "1073741824\n", "1048576000\n",
         "anon 1\nfile 3\nactive_file 5\ninactive_file 943718400\nshmem 9\n")}},
    {"v2: in a container with a namespace of its own the top has a limit",
     {{256 * MIB, 156 * MIB}},
     1,
     {PROC("0::/\n", FAKE_V2_MOUNT),
      V2("", "268435456\n", "104857600\n", ""),
      {"/sys/fs/cgroup/cpu.max", "1000 100000\n"}}},
    {"v2: the process lies outside of its namespace",
     {{256 * MIB, 156 * MIB}},
     0,
     {PROC("0::/../../elsewhere\n", FAKE_V2_MOUNT),
      V2("", "268435456\n", "104857600\n", "")}},
    {"v2: no limit anywhere",
     {{0, 0}},
     0,
     {PROC("0::/a/b\n", FAKE_V2_MOUNT),
      V2("/a/b", "max\n", "1\n", "inactive_file 1\n"),
      V2("/a", "max\n", "1\n", ""),
      {"/sys/fs/cgroup/a/b/cpu.max", "max 100000\n"}}},
    {"v2: mounted at a path with blanks, after one that does not show the group",
     {{64 * MIB, 63 * MIB}},
     1,
     {PROC("0::/job\n", "1 1 0:1 /other /nowhere rw - cgroup2 x rw\n"
                        "2 1 0:1 / /mnt/my\\040groups rw shared:1 - cgroup2 x rw\n"),
      {"/mnt/my groups/job/memory.max", "67108864\n"},
      {"/mnt/my groups/job/memory.current", "1048576\n"},
      {"/mnt/my groups/job/cpu.max", "99999 100000\n"}}},
    {"v1: a limit on the process's own group",
     {{1024 * MIB, 924 * MIB}},
     1,
     {PROC(V1_PATHS("/job"), FAKE_V1_MOUNTS),
      V1("/job", "1073741824\n", "209715200\n",
         "inactive_file 1\ntotal_inactive_file 104857600\n"),
      V1("", V1_NO_LIMIT, "1\n", ""), V1_CPU("/job", "100000\n", "100000\n")}},
    {"v1: the limit is on an ancestor, as SLURM sets it",
     {{512 * MIB, 412 * MIB}},
     1,
     {PROC(V1_PATHS("/slurm/uid_1/job_2/step_0"), FAKE_V1_MOUNTS),
      V1("/slurm/uid_1/job_2/step_0", V1_NO_LIMIT, "1\n", ""),
      V1("/slurm/uid_1/job_2", "536870912\n", "104857600\n", "total_inactive_file 0\n"),
      V1_CPU("/slurm/uid_1/job_2/step_0", "-1\n", "100000\n"),
      V1_CPU("/slurm/uid_1", "20000\n", "100000\n")}},
    {"v1: a container whose part of the hierarchy alone is mounted",
     {{128 * MIB, 28 * MIB}},
     1,
     {PROC("4:memory:/docker/0123\n2:cpu,cpuacct:/docker/0123\n",
           "1 1 0:1 /docker/0123 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
           "2 1 0:2 /docker/0123 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup "
           "rw,cpu,cpuacct\n"),
      V1("", "134217728\n", "104857600\n", ""), V1_CPU("", "1\n", "100000\n")}},
    {"hybrid: v1 has the controllers, v2 the processes",
     {{1024 * MIB, 1023 * MIB}},
     1,
     {PROC(V1_PATHS("/job"),
           FAKE_V1_MOUNTS "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"),
      V1("/job", "1073741824\n", "1048576\n", ""),
      V1_CPU("/job", "1000\n", "1000\n"),
      {"/sys/fs/cgroup/unified/cgroup.procs", "1\n"}}},
    {"more is used than the limit allows",
     {{64 * MIB, 0}},
     0,
     {PROC("0::/job\n", FAKE_V2_MOUNT), V2("/job", "67108864\n", "134217728\n", "")}},
    {"more is cached than is used",
     {{64 * MIB, 64 * MIB}},
     0,
     {PROC("0::/job\n", FAKE_V2_MOUNT),
      V2("/job", "67108864\n", "1048576\n", "inactive_file 134217728\n")}},
    {"a limit without its usage",
     {{0, 0}},
     0,
     {PROC("0::/job\n", FAKE_V2_MOUNT),
      {"/sys/fs/cgroup/job/memory.max", "67108864\n"},
      {"/sys/fs/cgroup/job/cpu.max", "100000\n"}}},
    {"files of nonsense",
     {{0, 0}},
     0,
     {PROC("0::/job\n7\n:\n::\n5:memory\nmemory:/x:\n",
           "\n-\n 1 2 3\n" FAKE_V2_MOUNT "1 1 0:1 / /x rw - cgroup2\n"),
      V2("/job", "-5\n", "\n", "inactive_file\n"),
      V2("", "12ab\n", "\x01\x02", "x"),
      {"/sys/fs/cgroup/job/cpu.max", "-100 x\n"},
      {"/sys/fs/cgroup/cpu.max", "100 0\n"}}},
    {"numbers that 64 bits cannot hold",
     {{0, 0}},
     0,
     {PROC("0::/job\n", FAKE_V2_MOUNT),
      V2("/job", "99999999999999999999999\n", "1\n", ""),
      {"/sys/fs/cgroup/job/cpu.max", "99999999999999999999999 1\n"}}},
    {"no mount is visible",
     {{0, 0}},
     0,
     {PROC(V1_PATHS("/job"), ""), V1("/job", "67108864\n", "1\n", "")}},
    {"there is no /proc/self/cgroup",
     {{0, 0}},
     0,
     {{"/proc/meminfo", FAKE_MEMINFO},
      {"/proc/self/mountinfo", FAKE_V2_MOUNT},
      V2("", "67108864\n", "1\n", "")}},
    {"there is no /proc/self/mountinfo",
     {{0, 0}},
     0,
     {{"/proc/meminfo", FAKE_MEMINFO},
      {"/proc/self/cgroup", "0::/\n"},
      V2("", "67108864\n", "1\n", "")}},
};

static int masked_cores(void)
{
    cpu_set_t mask;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    return CPU_COUNT(&mask);
}

static void check_case(const limit_case *c)
{
    const fake_system fake = fake_system_open();
    ewx_memory_limits limits;
    fake_system_fill(&fake, c->files);
    ewx_memory_limits_read(&limits);
    int count = 0;
    while (count < MOST_GROUPS && c->groups[count].limit > 0)
        count++;
    const int cores = masked_cores();
    const int want = c->quota > 0 && c->quota < cores ? c->quota : cores;
    if (limits.count != 1 + count || ewx_usable_cores() != want)
        fail_msg("%s: %d limits instead of %d, %d cores instead of %d", c->name,
                 limits.count, 1 + count, ewx_usable_cores(), want);
    assert_int_equal(limits.at[0].free_bytes, 32768 * MIB);
    assert_int_equal(limits.at[0].limit_bytes, 65536 * MIB);
    for (int at = 0; at < count; at++) {
        const ewx_memory_limit *limit = &limits.at[1 + at];
        if (limit->limit_bytes != c->groups[at].limit ||
            limit->free_bytes != c->groups[at].free || limit->id == 0 ||
            strncmp(limit->name, "cgroup /", 8) != 0)
            fail_msg("%s: %zu bytes of %zu are free in %s", c->name, limit->free_bytes,
                     limit->limit_bytes, limit->name);
    }
    fake_system_close(&fake);
}

static void groups_of_every_kind(void **state)
{
    (void)state;
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++)
        check_case(&cases[at]);
}

static void a_system_that_says_nothing(void **state)
{
    (void)state;
    const fake_system fake = fake_system_open();
    ewx_memory_limits limits;
    ew_world *world;
    ew_plan *plan;
    const ew_problem problem = EW_PROBLEM(64, 64, 64, EW_FP32);
    ewx_memory_limits_read(&limits);
    assert_int_equal(limits.count, 0);
    assert_int_equal(ew_available_memory(), 0);
    assert_int_equal(ewx_usable_cores(), masked_cores());
    assert_int_equal(ew_world_create(0, 1, NULL, NULL, NULL, &world), EW_OK);
    assert_int_equal(ew_plan_create(world, &problem, NULL, &plan), EW_OK);
    ew_plan_destroy(plan);
    ew_world_destroy(world);
    fake_system_close(&fake);
}

/* Deeper than the list of limits is long: the nearest ones are kept. */
static void a_long_way_up(void **state)
{
    (void)state;
    const fake_system fake = fake_system_open();
    char path[256] = "/sys/fs/cgroup", file[300], group[256] = "0::";
    ewx_memory_limits limits;
    fake_system_write(&fake, "/proc/self/mountinfo", FAKE_V2_MOUNT);
    for (int depth = 0; depth < 40; depth++) {
        strcat(path, "/d");
        strcat(group, "/d");
        snprintf(file, sizeof file, "%s/memory.max", path);
        fake_system_write(&fake, file, depth == 39 ? "4096\n" : "8192\n");
        snprintf(file, sizeof file, "%s/memory.current", path);
        fake_system_write(&fake, file, "0\n");
    }
    fake_system_write(&fake, "/proc/self/cgroup", group);
    ewx_memory_limits_read(&limits);
    assert_int_equal(limits.count, EWX_MAX_MEMORY_LIMITS);
    assert_int_equal(limits.at[0].limit_bytes, 4096);
    assert_int_equal(ew_available_memory(), 4096);
    fake_system_close(&fake);
}

/* ---- Refusals ---- */

static const fake_file one_gib[] = {
    PROC("0::/job\n", FAKE_V2_MOUNT),
    V2("/job", "1073741824\n", "1048576000\n", "inactive_file 0\n"), NONE};

static ew_status try_plan(ew_world *world, int64_t m, int64_t n, int64_t k)
{
    const ew_problem problem = EW_PROBLEM(m, n, k, EW_FP32);
    ew_plan *plan = NULL;
    const ew_status status = ew_plan_create(world, &problem, NULL, &plan);
    ew_plan_destroy(plan);
    return status;
}

/* 24 MiB are free: not enough for this plan's heap on both ranks, nor for that one's packed
 * rows; all ranks say so with the numbers, and the world goes on. */
static int be_refused(ew_world *world, void *argument)
{
    (void)argument;
    const int64_t shapes[][3] = {
        {4096, 2048, 64}, {1024, 128, 16384}, {65536, 32768, (int64_t)1 << 40}};
    for (int at = 0; at < 3; at++) {
        const ew_status status =
            try_plan(world, shapes[at][0], shapes[at][1], shapes[at][2]);
        const char *text = ew_last_error();
        RANK_CHECK(status == EW_ERR_MEMORY && strstr(text, "the plan needs ") &&
                       strstr(text, "2 ranks") &&
                       strstr(text, "cgroup /sys/fs/cgroup/job") &&
                       strstr(text, "1073741824") && strstr(text, "25165824") &&
                       strstr(text, "\n  fix: "),
                   "%s: %s", ew_status_name(status), text);
    }
    RANK_OK(try_plan(world, 100, 100, 100));
    return 0;
}

static void a_plan_that_does_not_fit(void **state)
{
    (void)state;
    const fake_system fake = fake_system_open();
    fake_system_fill(&fake, one_gib);
    harness_run(EW_RANKS_AS_PROCESSES, 2, be_refused, NULL);
    harness_run(EW_RANKS_AS_THREADS, 2, be_refused, NULL);
    fake_system_close(&fake);
}

static int create_plan(ew_world *world, void *argument)
{
    (void)argument;
    RANK_OK(try_plan(world, 4096, 1024, 64));
    return 0;
}

/* A heap of 64 MiB in a group whose usage is mostly cached files. */
static void cached_files_make_room(void **state)
{
    (void)state;
    const fake_system fake = fake_system_open();
    fake_system_fill(&fake, one_gib);
    fake_system_write(&fake, "/sys/fs/cgroup/job/memory.stat",
                      "anon 4096\ninactive_file 943718400\n");
    harness_run(EW_RANKS_AS_PROCESSES, 2, create_plan, NULL);
    fake_system_close(&fake);
}

static int refuse_weight(ew_world *world, void *argument)
{
    (void)argument;
    enum { SIDE = 4096 };
    const ew_problem problem = EW_PROBLEM(1, SIDE, SIDE, EW_FP32);
    float *B = calloc((size_t)SIDE * SIDE, sizeof *B); /* never touched */
    ew_weight *weight = NULL;
    ew_plan *plan;
    RANK_CHECK(B, "no memory");
    const ew_status status = ew_weight_create(world, &problem, NULL, B, &weight);
    RANK_CHECK(status == EW_ERR_MEMORY && !weight &&
                   strstr(ew_last_error(), "a packed weight needs 6") &&
                   strstr(ew_last_error(), "25165824"),
               "%s: %s", ew_status_name(status), ew_last_error());
    RANK_OK(ew_plan_create(world, &problem, NULL, &plan));
    const ew_status own = ew_plan_set_weight(plan, B);
    RANK_CHECK(own == EW_ERR_MEMORY, "%s", ew_status_name(own));
    ew_plan_destroy(plan);
    free(B);
    return 0;
}

static void a_weight_that_does_not_fit(void **state)
{
    (void)state;
    const fake_system fake = fake_system_open();
    fake_system_fill(&fake, one_gib);
    harness_run(EW_RANKS_AS_PROCESSES, 1, refuse_weight, NULL);
    harness_run(EW_RANKS_AS_THREADS, 2, refuse_weight, NULL);
    fake_system_close(&fake);
}

/* ---- Claims ---- */

/* Of 24 MiB rank 0 has claimed 16 and touched none. */
static int claim_in_turn(ew_world *world, void *argument)
{
    (void)argument;
    const bool is_first = ew_world_rank(world) == 0;
    if (is_first)
        RANK_OK(ewx_claim_memory(world, 16 * MIB, false, "the first"));
    RANK_OK(ew_world_barrier(world));
    if (!is_first) {
        const ew_status status = ewx_claim_memory(world, 12 * MIB, false, "the second");
        RANK_CHECK(status == EW_ERR_MEMORY && strstr(ew_last_error(), "29360128"), "%s: %s",
                   ew_status_name(status), ew_last_error());
    }
    RANK_OK(ew_world_barrier(world));
    if (is_first)
        ewx_claim_settle(world, 8 * MIB);
    RANK_OK(ew_world_barrier(world));
    if (!is_first)
        RANK_OK(ewx_claim_memory(world, 12 * MIB, false, "the second"));
    RANK_OK(ew_world_barrier(world));
    ewx_claim_settle(world, is_first ? 8 * MIB : 12 * MIB);
    RANK_OK(ew_world_barrier(world));
    /* In a step of all ranks each counts for all, wherever the others are. */
    const ew_status status = ewx_claim_memory(world, 13 * MIB, true, "all");
    RANK_CHECK(status == EW_ERR_MEMORY, "%s", ew_status_name(status));
    RANK_OK(ew_world_barrier(world));
    RANK_OK(ewx_claim_memory(world, 12 * MIB, true, "all"));
    RANK_OK(ew_world_barrier(world));
    ewx_claim_settle(world, 12 * MIB);
    return 0;
}

static void claims_add_up(void **state)
{
    (void)state;
    const fake_system fake = fake_system_open();
    fake_system_fill(&fake, one_gib);
    harness_run(EW_RANKS_AS_PROCESSES, 2, claim_in_turn, NULL);
    harness_run(EW_RANKS_AS_THREADS, 2, claim_in_turn, NULL);
    fake_system_close(&fake);
}

/* Each rank is in a group of its own, as ranks in containers are; the parent of both has a
 * limit too. */
static int claim_in_groups(ew_world *world, void *argument)
{
    const fake_system *fake = argument;
    const bool is_first = ew_world_rank(world) == 0;
    static char root[FAKE_PATH_BYTES + 2];
    char link[FAKE_PATH_BYTES + 8];
    snprintf(root, sizeof root, "%s/%d", fake->root, ew_world_rank(world));
    fake_system own = {""};
    memcpy(own.root, root, sizeof own.root);
    mkdir(root, 0700);
    fake_system_write(&own, "/proc/self/mountinfo", FAKE_V2_MOUNT);
    fake_system_write(&own, "/proc/self/cgroup",
                      is_first ? "0::/pod/zero\n" : "0::/pod/one\n");
    snprintf(link, sizeof link, "%s/sys", root);
    RANK_CHECK(symlink("../sys", link) == 0, "no link");
    ewx_system_root = root;
    ewx_claims_open(world);
    RANK_OK(ew_world_barrier(world));
    RANK_OK(ewx_claim_memory(world, 20 * MIB, true, "the own group"));
    RANK_OK(ew_world_barrier(world));
    ewx_claim_settle(world, 20 * MIB);
    RANK_OK(ew_world_barrier(world));
    const ew_status status = ewx_claim_memory(world, 24 * MIB, true, "the pod");
    RANK_CHECK(status == EW_ERR_MEMORY && strstr(ew_last_error(), "cgroup/pod has"),
               "%s: %s", ew_status_name(status), ew_last_error());
    return 0;
}

static void ranks_in_groups_of_their_own(void **state)
{
    (void)state;
    const fake_file files[] = {V2("/pod/zero", "33554432\n", "8388608\n", ""),
                               V2("/pod/one", "33554432\n", "8388608\n", ""),
                               V2("/pod", "67108864\n", "20971520\n", ""), NONE};
    fake_system fake = fake_system_open();
    fake_system_fill(&fake, files);
    harness_run(EW_RANKS_AS_PROCESSES, 2, claim_in_groups, &fake);
    fake_system_close(&fake);
}

/* ---- Real groups ---- */

enum { M = 1024, N = 512, K = 8192, W = 2, REFUSED = 3, CHECK_BYTES = 1 << 20 };

static bool write_to(const ewx_cgroup *group, const char *name, const char *value)
{
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", group->folder, name);
    FILE *file = fopen(path, "w");
    const bool is_written = file && fputs(value, file) >= 0;
    return file && fclose(file) == 0 && is_written;
}

/* A group below this process's own; false: that is not allowed here. */
static bool make_group(ewx_cgroup *group, const char *controller)
{
    if (!ewx_cgroup_find(controller, group))
        return false;
    const size_t length = strlen(group->folder);
    snprintf(group->folder + length, sizeof group->folder - length, "/entwine-test-%d",
             (int)getpid());
    return mkdir(group->folder, 0755) == 0;
}

static bool limit_memory(ewx_cgroup *group, uint64_t bytes)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64 "\n", bytes);
    return write_to(group, group->is_v2 ? "memory.max" : "memory.limit_in_bytes", text);
}

static bool enter_group(const ewx_cgroup *group)
{
    char text[32];
    snprintf(text, sizeof text, "%d\n", (int)getpid());
    return write_to(group, "cgroup.procs", text);
}

static int work(ew_world *world, void *argument)
{
    (void)argument;
    const ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    static float A[M * K], B[N * K], C[M * N]; /* zero pages until they are written */
    const int rank = ew_world_rank(world);
    ew_config config = EW_CONFIG_INIT;
    ew_plan *plan;
    ew_check check;
    config.workers = 1;
    /* A plan does not know that its results will be checked. */
    void *check_room = mmap(NULL, CHECK_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    RANK_CHECK(check_room != MAP_FAILED, "no room for the check");
    RANK_OK(ew_exact_fill_a(EW_FP32, 1, rank, W, M, K, A));
    RANK_OK(ew_exact_fill_b(EW_FP32, 1, rank, EW_WEIGHT_NK, N, K, B));
    memset(C, 0xff, sizeof C);
    RANK_OK(ew_world_barrier(world));
    ew_status status = ew_plan_create(world, &problem, &config, &plan);
    if (status == EW_ERR_MEMORY)
        return REFUSED;
    RANK_OK(status);
    status = ew_plan_set_weight(plan, B);
    int32_t mine = status, all[W];
    RANK_OK(ew_world_allgather(world, &mine, all, sizeof mine));
    if (all[0] == EW_ERR_MEMORY || all[1] == EW_ERR_MEMORY)
        return REFUSED;
    RANK_OK(status);
    RANK_OK(ew_gemm_rs(plan, M, A, NULL, C, NULL));
    munmap(check_room, CHECK_BYTES);
    RANK_OK(ew_exact_verify(&problem, 1, rank, W, M, C, &check));
    RANK_CHECK(check.wrong == 0, "%lld wrong", (long long)check.wrong);
    ew_plan_destroy(plan);
    return 0;
}

/* 0: right; REFUSED; or 128 + the signal by which a rank died. */
static int work_in(const ewx_cgroup *group)
{
    char text[HARNESS_TEXT_BYTES];
    int exits[W] = {0};
    if (!enter_group(group))
        return 1;
    (void)harness_try(EW_RANKS_AS_PROCESSES, W, NULL, work, NULL, exits, text, sizeof text);
    if (*text)
        fprintf(stderr, "%s\n", text);
    return exits[0] > exits[1] ? exits[0] : exits[1];
}

static int try_limit(uint64_t bytes, bool *is_allowed)
{
    ewx_cgroup group;
    int status = 0;
    *is_allowed = make_group(&group, "memory");
    if (!*is_allowed)
        return 0;
    *is_allowed = limit_memory(&group, bytes);
    const pid_t child = *is_allowed ? fork() : -1;
    if (child == 0)
        _exit(work_in(&group));
    if (child > 0)
        assert_int_equal(waitpid(child, &status, 0), child);
    rmdir(group.folder);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Around what the ranks need, in steps: too little is refused, enough suffices, and nobody
 * is killed in between. */
static void under_a_real_limit(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    ew_forecast forecast;
    if (IS_SANITIZED)
        skip(); /* a sanitizer's shadow is memory too */
    assert_int_equal(ew_forecast_build(&problem, W, NULL, &forecast), EW_OK);
    const uint64_t matrices =
        W * ((uint64_t)(M * K + N * K + M * N) * sizeof(float) + CHECK_BYTES + 2 * MIB);
    const uint64_t needed = W * (uint64_t)forecast.total_bytes;
    int refused = 0, done = 0;
    bool is_allowed = true;
    for (int percent = 20; percent <= 150 && is_allowed; percent += 10) {
        const int outcome =
            try_limit(matrices + needed * (unsigned)percent / 100, &is_allowed);
        if (is_allowed && outcome != 0 && outcome != REFUSED)
            fail_msg("with %d %% of the forecast a rank ended with %d", percent, outcome);
        refused += is_allowed && outcome == REFUSED;
        done += is_allowed && outcome == 0;
    }
    if (!is_allowed)
        skip(); /* no rights, or no memory controller */
    print_message("a real limit: %d refused, %d done, none killed\n", refused, done);
    assert_in_range(refused, 6, 10);
    assert_in_range(done, 4, 8);
}

/* How many cores a process in the group finds. */
static int cores_in(const ewx_cgroup *group)
{
    int status = 0;
    const pid_t child = fork();
    if (child == 0)
        _exit(enter_group(group) ? ewx_usable_cores() : 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static void under_a_real_quota(void **state)
{
    (void)state;
    ewx_cgroup group;
    int cores = 0;
    if (masked_cores() < 2 || !make_group(&group, "cpu"))
        skip();
    if (group.is_v2 ? write_to(&group, "cpu.max", "100000 100000\n")
                    : write_to(&group, "cpu.cfs_quota_us", "100000\n"))
        cores = cores_in(&group);
    rmdir(group.folder);
    if (cores == 0)
        skip();
    assert_int_equal(cores, 1);
}

static void in_a_real_cpuset(void **state)
{
    (void)state;
    ewx_cgroup group;
    char first[32];
    int cpu = 0, cores = 0;
    cpu_set_t mask;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    while (!CPU_ISSET(cpu, &mask))
        cpu++;
    snprintf(first, sizeof first, "%d\n", cpu);
    if (masked_cores() < 2 || !make_group(&group, "cpuset"))
        skip();
    if (write_to(&group, "cpuset.cpus", first) &&
        (group.is_v2 || write_to(&group, "cpuset.mems", "0\n")))
        cores = cores_in(&group);
    rmdir(group.folder);
    if (cores == 0)
        skip();
    assert_int_equal(cores, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_every_kind),
        cmocka_unit_test(a_system_that_says_nothing),
        cmocka_unit_test(a_long_way_up),
        cmocka_unit_test(a_plan_that_does_not_fit),
        cmocka_unit_test(cached_files_make_room),
        cmocka_unit_test(a_weight_that_does_not_fit),
        cmocka_unit_test(claims_add_up),
        cmocka_unit_test(ranks_in_groups_of_their_own),
        cmocka_unit_test(under_a_real_limit),
        cmocka_unit_test(under_a_real_quota),
        cmocka_unit_test(in_a_real_cpuset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
