/* Counting goes through /proc, so nothing has to be registered to be noticed. */
#include "faultkit.h"

#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"
#include "harness.h"

/* ---- One rank's plan and its buffers ---- */

static size_t output_bytes(const duty *d)
{
    const int num_owners = d->problem.op == EW_OP_GEMM_RS ? ew_world_size(d->world) : 1;
    const int64_t most = d->problem.max_m / num_owners + 1;
    return (size_t)(most * d->problem.n) * ew_dtype_bytes(d->problem.dtype);
}

ew_status duty_open(duty *d, ew_world *world, ew_problem problem, const char *config)
{
    *d = (duty){.world = world, .problem = problem};
    const size_t elem = ew_dtype_bytes(problem.dtype);
    d->A = calloc((size_t)(problem.max_m * problem.k) + 1, elem);
    d->B = calloc((size_t)(problem.n * problem.k), elem);
    d->C = malloc(output_bytes(d));
    ew_config parsed = EW_CONFIG_INIT;
    const ew_status status = ew_config_parse(config, &parsed);
    return status == EW_OK ? ew_plan_create(world, &problem, &parsed, &d->plan) : status;
}

ew_status duty_call(duty *d, int64_t m, uint32_t seed)
{
    const ew_problem *p = &d->problem;
    const int rank = ew_world_rank(d->world), num_ranks = ew_world_size(d->world);
    ew_exact_fill_a(p->dtype, seed, rank, num_ranks, m, p->k, d->A);
    ew_exact_fill_b(p->dtype, seed, rank, p->weight_layout, p->n, p->k, d->B);
    memset(d->C, 0xff, output_bytes(d));
    return harness_call(p->op, d->plan, m, d->A, d->B, d->C);
}

int64_t duty_wrong(const duty *d, int64_t m, uint32_t seed)
{
    ew_check check = {.wrong = -1};
    ew_exact_verify(&d->problem, seed, ew_world_rank(d->world), ew_world_size(d->world), m,
                    d->C, &check);
    return check.wrong;
}

void duty_close(duty *d)
{
    ew_plan_destroy(d->plan);
    free(d->A);
    free(d->B);
    free(d->C);
    *d = (duty){0};
}

/* ---- Collectives ---- */

static unsigned char byte_at(int rank, size_t index)
{
    return (unsigned char)((size_t)rank * 151 + index * 7 + index / 251);
}

int gather_and_compare(ew_world *world, size_t bytes)
{
    const int rank = ew_world_rank(world), num_ranks = ew_world_size(world);
    const size_t total = bytes * (size_t)num_ranks;
    unsigned char *mine = malloc(bytes + 1), *all = malloc(total + 1);
    for (size_t i = 0; i < bytes; i++)
        mine[i] = byte_at(rank, i);
    all[total] = 0xa5;
    const ew_status status = ew_world_allgather(world, mine, all, bytes);
    int64_t wrong = all[total] != 0xa5;
    for (int src = 0; status == EW_OK && src < num_ranks; src++)
        for (size_t i = 0; i < bytes; i++)
            wrong += all[(size_t)src * bytes + i] != byte_at(src, i);
    free(mine);
    free(all);
    RANK_OK(status);
    RANK_CHECK(wrong == 0, "%lld bytes of %zu", (long long)wrong, bytes);
    return 0;
}

/* ---- Texts ---- */

bool error_has(const char *word, ...)
{
    va_list words;
    va_start(words, word);
    bool all = true;
    for (; word; word = va_arg(words, const char *))
        all &= strstr(ew_last_error(), word) != NULL;
    va_end(words);
    return all;
}

/* ---- What is left behind ---- */

/* Those with `word` in their names. */
static int entries_in(const char *path, const char *word)
{
    DIR *folder = opendir(path);
    int count = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        count += strstr(entry->d_name, word) != NULL;
    if (folder)
        closedir(folder);
    return count;
}

static int lines_in(const char *path)
{
    FILE *file = fopen(path, "re");
    int count = 0;
    for (int c; file && (c = fgetc(file)) != EOF;)
        count += c == '\n';
    if (file)
        fclose(file);
    return count;
}

static bool is_child(const char *name)
{
    char path[300], state;
    int pid, parent = 0;
    if (name[0] < '1' || name[0] > '9')
        return false;
    snprintf(path, sizeof path, "/proc/%s/stat", name);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    if (fscanf(file, "%d (%*[^)]) %c %d", &pid, &state, &parent) != 3)
        parent = 0;
    fclose(file);
    return parent == getpid();
}

/* Zombies included: they are still listed under their parent. */
static int count_children(void)
{
    DIR *folder = opendir("/proc");
    int count = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        count += is_child(entry->d_name);
    if (folder)
        closedir(folder);
    return count;
}

census census_take(void)
{
    /* MPI and Python, which may run beside the tests, keep files in /dev/shm too. */
    return (census){.fds = entries_in("/proc/self/fd", ""),
                    .threads = entries_in("/proc/self/task", ""),
                    .maps = lines_in("/proc/self/maps"),
                    .children = count_children(),
                    .shm_files = entries_in("/dev/shm", "entwine")};
}

static bool is_same(const census *before, const census *now)
{
    return now->fds <= before->fds && now->threads <= before->threads &&
           now->children <= before->children && now->shm_files <= before->shm_files;
}

void census_expect_same(const census *before)
{
    census now = census_take();
    for (int tries = 0; tries < 100 && !is_same(before, &now); tries++) {
        sleep_ms(10);
        now = census_take();
    }
    if (!is_same(before, &now))
        fail_msg("left behind: fds %d -> %d, threads %d -> %d, children %d -> %d, /dev/shm "
                 "%d -> %d",
                 before->fds, now.fds, before->threads, now.threads, before->children,
                 now.children, before->shm_files, now.shm_files);
}

static census found;

int census_before(void **state)
{
    (void)state;
    found = census_take();
    return 0;
}

int census_after(void **state)
{
    (void)state;
    census_expect_same(&found);
    return 0;
}

void forbid_pidfds(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

void sleep_ms(int64_t ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}
