/* Starts a job, strikes at the appointed time, and watches until all of it has ended. */
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "canary.h"
#include "faultkit.h"
#include "harness.h"
#include "ordeal.h"

/* Beyond every timeout; then the job is killed, unless it had no core for so long: ten
 * times as much is the most. */
#define HANG_NS 30000000000
#define MPI_START_NS 60000000000

/* ---- Where jobs run ---- */

static bool write_text(const char *folder, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return written;
}

/* Needs the rights of root; version 2 of cgroups, or version 1. */
static void find_freezer(tools *t)
{
    static const char *const roots[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified",
                                        "/sys/fs/cgroup/freezer"};
    for (int i = 0; i < 3; i++) {
        t->freezer_is_v2 = i < 2;
        snprintf(t->freezer, sizeof t->freezer, "%s/entwine-chaos-%d", roots[i], getpid());
        if (mkdir(t->freezer, 0700) != 0)
            continue;
        if (t->freezer_is_v2 ? write_text(t->freezer, "cgroup.freeze", "0")
                             : write_text(t->freezer, "freezer.state", "THAWED"))
            return;
        rmdir(t->freezer);
    }
    t->freezer[0] = '\0';
}

void attack_prepare(tools *t)
{
    const char *base = getenv("TMPDIR");
    snprintf(t->folder, sizeof t->folder, "%.30s/entwine-chaos-XXXXXX",
             base ? base : "/tmp");
    if (!mkdtemp(t->folder) || chdir(t->folder) != 0)
        harness_fail("no folder %s: %s", t->folder, strerror(errno));
    setenv("TMPDIR", t->folder, 1);
    setenv("XDG_CACHE_HOME", t->folder, 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_plm_rsh_agent", "sh", 1);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* whoever is left behind becomes our child */
    find_freezer(t);
}

void attack_clean_up(const tools *t)
{
    if (t->freezer[0])
        rmdir(t->freezer);
    if (chdir("/") != 0 || rmdir(t->folder) != 0)
        fprintf(stderr, "%s is not empty: %s\n", t->folder, strerror(errno));
}

/* ---- Start ---- */

static void redirect(const char *path)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
}

_Noreturn static void be_cli(const ordeal *o, const tools *t)
{
    char ranks[12], timeout[24];
    snprintf(ranks, sizeof ranks, "%d", o->fate.num_ranks);
    snprintf(timeout, sizeof timeout, "%.3f", o->fate.timeout_ms * 1e-3);
    redirect("output");
    execl(t->cli, "entwine", "run", "-q", "-m", "64", "-N", "256", "-k", "32", "-n", "40",
          "-W", ranks, "-T", timeout, (char *)NULL);
    _exit(127);
}

_Noreturn static void be_mpirun(const ordeal *o, const tools *t, int board_fd)
{
    char ranks[12], hosts[12], path[64];
    snprintf(ranks, sizeof ranks, "%d", o->fate.num_ranks);
    snprintf(hosts, sizeof hosts, "%d", o->fate.num_hosts);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", getppid(), board_fd);
    setenv("ENTWINE_HOSTS", hosts, 1);
    redirect("/dev/null");
    /* Signals kill: Open MPI's own handler prints where they came, for which it allocates
     * memory, and so waits for ever where the signal came inside malloc. */
    execlp(t->mpirun, t->mpirun, "--oversubscribe", "--bind-to", "none", "--mca",
           "opal_signal", "", "--enable-recovery", "-np", ranks, t->self, "--rank",
           t->mpi_module, path, (char *)NULL);
    _exit(127);
}

/* A process of the job that the harness starts itself: the launcher, or rank `rank`. */
static pid_t start_process(const ordeal *o, const tools *t, int rank, int board_fd)
{
    const pid_t parent = getpid(), group = rank > 0 ? o->ranks[0].pid : 0, pid = fork();
    if (pid != 0) {
        setpgid(pid, group);
        return pid;
    }
    setpgid(0, group);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent ||
        (t->freezer[0] && o->fate.num_victims == 0 && o->fate.in_freezer &&
         !write_text(t->freezer, "cgroup.procs", "0")))
        _exit(126);
    if (o->fate.way == WAY_CLI)
        be_cli(o, t);
    if (o->fate.way == WAY_MPI)
        be_mpirun(o, t, board_fd);
    _exit(o->fate.way == WAY_CREATE ? job_with_own_bootstrap(o->board, rank)
                                    : job_under_run_ranks(o->board));
}

static void watch(member *m, pid_t pid)
{
    m->pid = pid;
    m->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (m->pidfd < 0) /* it has ended already, and was reaped */
        m->ended_ns = ewx_now_ns();
}

/* ---- Watch ---- */

/* `entwine run` forks its ranks in their order; before them it may fork others, one by one.
 */
static void find_ranks_of_cli(ordeal *o)
{
    char path[64];
    int pids[MOST_RANKS], count = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", o->launcher.pid,
             o->launcher.pid);
    FILE *file = o->ranks[0].pid == 0 ? fopen(path, "re") : NULL;
    while (file && count < o->fate.num_ranks && fscanf(file, "%d", &pids[count]) == 1)
        count++;
    for (int rank = 0; count == o->fate.num_ranks && rank < count; rank++)
        watch(&o->ranks[rank], pids[rank]);
    if (file)
        fclose(file);
}

static void find_ranks(ordeal *o)
{
    if (o->fate.way == WAY_CLI)
        find_ranks_of_cli(o);
    for (int rank = 0; rank < o->fate.num_ranks; rank++) {
        const pid_t pid = atomic_load(&o->board->seats[rank].pid);
        if (pid > 0 && o->ranks[rank].pid == 0)
            watch(&o->ranks[rank], pid);
    }
}

static void note_end(ordeal *o, member *m)
{
    struct pollfd entry = {.fd = m->pidfd, .events = POLLIN};
    if (m->pid == 0 || m->ended_ns || poll(&entry, 1, 0) <= 0)
        return;
    m->ended_ns = ewx_now_ns();
    close(m->pidfd);
    if (m != &o->launcher)
        atomic_store(&o->board->seats[m - o->ranks].gone, true);
}

/* Sleeps until something ends, 1 ms at most, then notes what has. */
static void look(ordeal *o)
{
    struct pollfd entries[MOST_RANKS + 1];
    nfds_t count = 0;
    find_ranks(o);
    for (int rank = 0; rank < o->fate.num_ranks; rank++)
        if (o->ranks[rank].pid && !o->ranks[rank].ended_ns)
            entries[count++] =
                (struct pollfd){.fd = o->ranks[rank].pidfd, .events = POLLIN};
    if (o->launcher.pid && !o->launcher.ended_ns)
        entries[count++] = (struct pollfd){.fd = o->launcher.pidfd, .events = POLLIN};
    poll(entries, count, 1);
    for (int rank = 0; rank < o->fate.num_ranks; rank++)
        note_end(o, &o->ranks[rank]);
    note_end(o, &o->launcher);
}

static bool is_victim(const ordeal *o, int rank)
{
    for (int i = 0; i < o->fate.num_victims; i++)
        if (o->fate.victims[i] == rank)
            return true;
    return false;
}

/* Under mpirun ranks wait for the harness to dismiss them. */
static bool is_out(const ordeal *o, int rank)
{
    return o->ranks[rank].ended_ns != 0 ||
           (o->fate.way == WAY_MPI && atomic_load(&o->board->seats[rank].told));
}

static bool survivors_are_out(const ordeal *o)
{
    if (o->launcher.ended_ns)
        return true;
    for (int rank = 0; rank < o->fate.num_ranks; rank++)
        if (!is_victim(o, rank) && !is_out(o, rank) &&
            (o->ranks[rank].pid ||
             !is_victim(o, LAUNCHER))) /* or it has yet to be forked */
            return false;
    return true;
}

static bool all_have_ended(const ordeal *o)
{
    for (int rank = 0; rank < o->fate.num_ranks; rank++)
        if (o->ranks[rank].pid && !o->ranks[rank].ended_ns)
            return false;
    return o->launcher.pid == 0 || o->launcher.ended_ns != 0;
}

/* How long the most starved of the ranks that run had no core. */
static int64_t starved_ns(const ordeal *o)
{
    int64_t most_ns = 0;
    for (int rank = 0; rank < o->fate.num_ranks; rank++) {
        const member *m = &o->ranks[rank];
        const int64_t ns = m->pid && !m->ended_ns ? queued_ns(m->pid) : 0;
        most_ns = ns > most_ns ? ns : most_ns;
    }
    return most_ns < 9 * HANG_NS ? most_ns : 9 * HANG_NS;
}

static bool watch_until(ordeal *o, bool (*done)(const ordeal *), int64_t deadline_ns)
{
    while (!done(o)) {
        const int64_t late_ns = ewx_now_ns() - deadline_ns;
        if (late_ns > 0 && late_ns > starved_ns(o))
            return false;
        look(o);
    }
    return true;
}

static bool all_sit(const ordeal *o)
{
    for (int rank = 0; rank < o->fate.num_ranks; rank++)
        if (atomic_load(&o->board->seats[rank].step) < STEP_MEET)
            return false;
    return true;
}

static void start(ordeal *o, const tools *t, int board_fd)
{
    board *b = o->board;
    *b = (board){.num_ranks = o->fate.num_ranks,
                 .num_worlds = o->fate.num_worlds,
                 .num_turns = o->fate.num_turns,
                 .timeout_ms = o->fate.timeout_ms,
                 .gather_turns = o->fate.num_victims ? o->fate.timeout_ms + 100 : 20000,
                 .seed = o->fate.job_seed};
    o->started_ns = ewx_now_ns();
    if (o->fate.way != WAY_CREATE)
        watch(&o->launcher, start_process(o, t, LAUNCHER, board_fd));
    if (o->fate.way == WAY_MPI) { /* what happens in MPI_Init is MPI's own business */
        if (!watch_until(o, all_sit, o->started_ns + MPI_START_NS))
            harness_fail("mpirun does not start ranks");
        o->started_ns = ewx_now_ns();
    }
    if (o->fate.way != WAY_CREATE)
        return;
    for (int rank = 0; rank < b->num_ranks; rank++) {
        const pid_t pid = start_process(o, t, rank, board_fd);
        atomic_store(&b->seats[rank].pid, pid);
        watch(&o->ranks[rank], pid);
    }
}

/* ---- Strike ---- */

static const member *victim_of(const ordeal *o, int i)
{
    const int victim = o->fate.victims[i];
    return victim == LAUNCHER ? &o->launcher : &o->ranks[victim];
}

static void signal_all(const ordeal *o, int signal)
{
    if (o->fate.way != WAY_MPI) {
        kill(-(o->launcher.pid ? o->launcher.pid : o->ranks[0].pid), signal);
        return;
    }
    for (int rank = 0; rank < o->fate.num_ranks; rank++)
        if (o->ranks[rank].pid && !o->ranks[rank].ended_ns)
            kill(o->ranks[rank].pid, signal);
}

static void set_frozen(const ordeal *o, const tools *t, bool frozen)
{
    if (!o->fate.in_freezer || !t->freezer[0])
        signal_all(o, frozen ? SIGSTOP : SIGCONT);
    else if (t->freezer_is_v2)
        write_text(t->freezer, "cgroup.freeze", frozen ? "1" : "0");
    else
        write_text(t->freezer, "freezer.state", frozen ? "FROZEN" : "THAWED");
}

static void strike(ordeal *o, const tools *t)
{
    look(o);
    for (int rank = 0; rank < o->fate.num_ranks; rank++)
        o->ranks[rank].queued_ns = o->ranks[rank].pid ? queued_ns(o->ranks[rank].pid) : 0;
    for (int i = 0; i < o->fate.num_victims; i++) {
        const member *m = victim_of(o, i);
        o->hit[i] = m->pid && !m->ended_ns && kill(m->pid, o->fate.signals[i]) == 0;
    }
    if (o->fate.num_victims == 0) {
        o->frozen = !all_have_ended(o);
        set_frozen(o, t, true);
        sleep_ms(2 * o->fate.timeout_ms);
        set_frozen(o, t, false);
    }
    o->blow_ns = ewx_now_ns();
}

/* Those that were stopped go on, or end. */
static void release_the_stopped(const ordeal *o)
{
    for (int i = 0; i < o->fate.num_victims; i++)
        if (o->hit[i] && o->fate.signals[i] == SIGSTOP)
            kill(victim_of(o, i)->pid, o->fate.wakes ? SIGCONT : SIGKILL);
}

static void wait_for_the_time(ordeal *o, spans usual)
{
    const double span = (double)(o->fate.in_meeting ? usual.meeting_ns : usual.whole_ns);
    const int64_t at_ns = o->started_ns + (int64_t)(o->fate.delay * span);
    while (ewx_now_ns() < at_ns - 1500000)
        look(o);
    const struct timespec at = {.tv_sec = at_ns / 1000000000,
                                .tv_nsec = at_ns % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

/* ---- After it ---- */

static void read_output(ordeal *o)
{
    FILE *file = fopen("output", "re");
    if (!file)
        return;
    o->output[fread(o->output, 1, sizeof o->output - 1, file)] = '\0';
    fclose(file);
    unlink("output");
}

/* Our children but for the canaries, which are always there. */
static int count_children(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    FILE *file = fopen(path, "re");
    int count = -canary_count(), pid;
    while (file && fscanf(file, "%d", &pid) == 1)
        count++;
    if (file)
        fclose(file);
    return count > 0 ? count : 0;
}

/* Of the job's processes, and of those that others have left to us. */
static void reap(ordeal *o)
{
    const pid_t first = o->launcher.pid ? o->launcher.pid : o->ranks[0].pid;
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        if (pid == first)
            o->exit_status = status;
    o->left_processes = count_children();
}

static void kill_all(const ordeal *o)
{
    signal_all(o, SIGKILL);
    for (int rank = 0; rank < o->fate.num_ranks; rank++)
        if (o->ranks[rank].pid && !o->ranks[rank].ended_ns)
            kill(o->ranks[rank].pid, SIGKILL);
    if (o->launcher.pid && !o->launcher.ended_ns)
        kill(o->launcher.pid, SIGKILL);
}

static bool is_empty(const char *folder)
{
    DIR *stream = opendir(folder);
    int count = 0;
    while (stream && readdir(stream))
        count++;
    if (stream)
        closedir(stream);
    return count <= 2; /* "." and ".." */
}

/* Open MPI keeps files there, and is not judged. */
static void remove_files(const ordeal *o)
{
    if (o->fate.way == WAY_MPI && system("rm -rf ./* ") != 0)
        fprintf(stderr, "files of mpirun could not be removed\n");
}

static void clear_up(ordeal *o, const tools *t)
{
    if (o->hung) {
        set_frozen(o, t, false);
        kill_all(o);
        watch_until(o, all_have_ended, ewx_now_ns() + 5000000000);
    }
    for (int tries = 0; reap(o), o->left_processes > 0 && tries < 1000; tries++)
        sleep_ms(1); /* on their way out: killed with their launcher */
    read_output(o);
    remove_files(o);
    o->left_files = !is_empty(t->folder);
}

void attack_run(ordeal *o, const tools *t, spans usual, bool with_blow)
{
    const int board_fd = memfd_create("chaos", 0);
    if (board_fd < 0 || ftruncate(board_fd, sizeof *o->board) != 0)
        harness_fail("no memory to share: %s", strerror(errno));
    o->board =
        mmap(NULL, sizeof *o->board, PROT_READ | PROT_WRITE, MAP_SHARED, board_fd, 0);
    if (o->board == MAP_FAILED)
        harness_fail("no memory to share: %s", strerror(errno));
    start(o, t, board_fd);
    if (with_blow) {
        wait_for_the_time(o, usual);
        strike(o, t);
    }
    const int64_t deadline_ns = ewx_now_ns() + HANG_NS;
    o->hung = !watch_until(o, survivors_are_out, deadline_ns);
    release_the_stopped(o);
    atomic_store(&o->board->dismissed, true);
    o->hung |= !watch_until(o, all_have_ended, deadline_ns);
    o->ended_ns = ewx_now_ns();
    clear_up(o, t);
    close(board_fd);
}
