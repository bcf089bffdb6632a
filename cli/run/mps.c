/* A private MPS daemon must not outlive us, whatever ends us, nor must the servers that it
 * starts or the folder of its sockets.  So it belongs to a keeper: a forked child that
 * waits for our end of a pipe to close and then ends everything below it.  The keeper has
 * a session of its own, out of reach of a Ctrl-C, and adopts what the daemon orphans. */
#include "run/mps.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "entwine/measure.h"
#include "base/interrupt.h"
#include "base/process.h"

#define CONTROL "nvidia-cuda-mps-control"
#define PIPE_VARIABLE "CUDA_MPS_PIPE_DIRECTORY"
#define LOG_VARIABLE "CUDA_MPS_LOG_DIRECTORY"
#define USUAL_FOLDER "/tmp/nvidia-mps"

static const double start_seconds = 15.0; /* for the daemon to answer */
static const double ask_seconds = 3.0;    /* for one question */
static const double quit_seconds = 4.0;   /* after `quit` */
static const double end_seconds = 2.0;    /* after SIGTERM */
/* Far more than all that the keeper does, but on a starved machine. */
static const double keeper_seconds = 40.0;

static int64_t after(double seconds)
{
    return ew_now_ns() + (int64_t)(seconds * 1e9);
}

/* ---- Talking to a daemon, in the folder that the environment names ----------------- */

static bool tell(const char *command)
{
    const char *const argv[] = {CONTROL, NULL};
    char answer[256];
    return cli_process_run(argv, command, ask_seconds, answer, sizeof answer) == 0;
}

/* A daemon that is there has a socket, and asking without one takes long. */
static bool answers(const char *folder)
{
    char path[256];
    snprintf(path, sizeof path, "%.200s/control", folder);
    if (access(path, F_OK) != 0)
        return false;
    return !cli_process_exists(CONTROL) || tell("get_server_list\n");
}

/* ---- The keeper --------------------------------------------------------------------- */

static void handle_signals(void (*handler)(int))
{
    signal(SIGINT, handler);
    signal(SIGTERM, handler);
    signal(SIGHUP, handler);
}

static void start_daemon(void)
{
    pid_t keeper = getpid();
    if (fork() != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    handle_signals(SIG_DFL); /* what is ignored stays so over exec */
    if (getppid() == keeper)
        execlp(CONTROL, CONTROL, "-f", (char *)NULL);
    _exit(127);
}

/* True when no child is left. */
static bool reap(void)
{
    pid_t waited;
    do
        waited = waitpid(-1, NULL, WNOHANG);
    while (waited > 0 || (waited < 0 && errno == EINTR));
    return waited < 0;
}

static void signal_children(int number)
{
    char path[64];
    long child;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *file = fopen(path, "r");
    while (file && fscanf(file, "%ld", &child) == 1)
        kill((pid_t)child, number);
    if (file)
        fclose(file);
}

/* Again and again, since servers become our children only when their daemon ends.  Nobody
 * survives SIGKILL, so that this has no limit: to leave with the time would leave a server
 * where the keeper is starved. */
static bool end_children(int number, double seconds)
{
    int64_t end_ns = after(seconds);
    while (!reap()) {
        if (number != SIGKILL && ew_now_ns() > end_ns)
            return false;
        if (number)
            signal_children(number);
        usleep(20000);
    }
    return true;
}

static int remove_entry(const char *path, const struct stat *about, int kind,
                        struct FTW *place)
{
    (void)about, (void)kind, (void)place;
    return remove(path);
}

static void remove_folder(const char *folder)
{
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

_Noreturn static void keep(int lifeline, const char *folder)
{
    int null_fd = open("/dev/null", O_RDWR);
    setsid();
    handle_signals(SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    /* Whoever reads our output must see its end when the program ends. */
    for (int fd = 0; fd <= 2 && null_fd >= 0; fd++)
        dup2(null_fd, fd);
    start_daemon();
    struct pollfd hangup = {.fd = lifeline, .events = POLLIN};
    bool gone = false;
    while (poll(&hangup, 1, 100) <= 0 && !gone)
        gone = reap();
    if (!gone) {
        tell("quit -t 1\n"); /* a killed rank's kernels may keep a server busy */
        if (!end_children(0, quit_seconds) && !end_children(SIGTERM, end_seconds))
            end_children(SIGKILL, 0.0);
    }
    remove_folder(folder);
    _exit(gone ? 1 : 0);
}

/* ---- Our side ------------------------------------------------------------------------ */

static bool start_keeper(cli_mps *mps)
{
    int pair[2];
    if (pipe2(pair, O_CLOEXEC) != 0)
        return false;
    fflush(NULL);
    mps->keeper = fork();
    if (mps->keeper == 0) {
        close(pair[1]);
        keep(pair[0], mps->folder);
    }
    close(pair[0]);
    mps->lifeline = pair[1];
    if (mps->keeper > 0)
        return true;
    close(pair[1]);
    return false;
}

/* Zero while it lives. */
static pid_t await_keeper(const cli_mps *mps, double seconds)
{
    int64_t end_ns = after(seconds);
    pid_t waited;
    do {
        waited = waitpid(mps->keeper, NULL, WNOHANG);
        if (waited != 0 && !(waited < 0 && errno == EINTR))
            return mps->keeper;
        usleep(5000);
    } while (ew_now_ns() < end_ns);
    return 0;
}

static void stop_private(cli_mps *mps)
{
    bool ended = true;
    if (mps->keeper > 0) {
        close(mps->lifeline);
        ended = await_keeper(mps, keeper_seconds); /* else it ends its work without us */
    }
    if (ended && *mps->folder)
        remove_folder(mps->folder); /* unless the keeper did */
    mps->keeper = 0;
    mps->folder[0] = '\0';
    unsetenv(PIPE_VARIABLE);
    unsetenv(LOG_VARIABLE);
}

static bool await_answer(cli_mps *mps)
{
    int64_t end_ns = after(start_seconds);
    while (!cli_interrupted() && ew_now_ns() < end_ns) {
        if (answers(mps->folder))
            return true;
        if (await_keeper(mps, 0.05)) {
            mps->keeper = 0;
            close(mps->lifeline);
            snprintf(mps->why, sizeof mps->why, CONTROL " ended as soon as it started");
            return false;
        }
    }
    snprintf(mps->why, sizeof mps->why, CONTROL " does not answer");
    return false;
}

static void start_private(cli_mps *mps)
{
    snprintf(mps->folder, sizeof mps->folder, "/tmp/entwine-mps.XXXXXX");
    if (!mkdtemp(mps->folder)) {
        mps->folder[0] = '\0';
        snprintf(mps->why, sizeof mps->why, "no folder in /tmp: %s", strerror(errno));
        return;
    }
    setenv(PIPE_VARIABLE, mps->folder, 1);
    setenv(LOG_VARIABLE, mps->folder, 1);
    if (!start_keeper(mps))
        snprintf(mps->why, sizeof mps->why, "no process for it: %s", strerror(errno));
    else if (await_answer(mps))
        mps->kind = CLI_MPS_PRIVATE;
    if (mps->kind != CLI_MPS_PRIVATE)
        stop_private(mps);
}

cli_mps_kind cli_mps_probe(void)
{
    const char *named = getenv(PIPE_VARIABLE);
    if (answers(named ? named : USUAL_FOLDER))
        return CLI_MPS_RUNNING;
    return !named && cli_process_exists(CONTROL) ? CLI_MPS_PRIVATE : CLI_MPS_NONE;
}

void cli_mps_open(cli_mps *mps)
{
    const char *named = getenv(PIPE_VARIABLE);
    *mps = (cli_mps){.kind = cli_mps_probe()};
    if (mps->kind == CLI_MPS_PRIVATE) {
        mps->kind = CLI_MPS_NONE;
        start_private(mps);
    } else if (mps->kind == CLI_MPS_NONE && named) {
        snprintf(mps->why, sizeof mps->why,
                 "no daemon answers in " PIPE_VARIABLE "=%.80s, unset it to get one",
                 named);
    } else if (mps->kind == CLI_MPS_NONE) {
        snprintf(mps->why, sizeof mps->why, CONTROL " is not installed");
    }
}

void cli_mps_close(cli_mps *mps)
{
    if (mps->kind == CLI_MPS_PRIVATE)
        stop_private(mps);
    mps->kind = CLI_MPS_UNUSED;
}

const char *cli_mps_text(const cli_mps *mps)
{
    static const char *const texts[] = {NULL, "no MPS", "the running MPS daemon",
                                        "private MPS daemon"};
    return texts[mps->kind];
}
