/* Local ranks as forked processes.  The parent carries one all-gather, so that the ranks
 * can find each other, then waits for them; when one fails the others get a short grace
 * to unwind and are killed after it. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "base/text.h"
#include "base/timer.h"
#include "world/shrink.h"

#define MAX_HELLO_BYTES 512
#define GRACE_NS 2000000000
#define EXIT_NO_WORLD 125

typedef struct child {
    pid_t pid;
    int socket; /* the parent's end */
    int death_fd;
    bool running;
    bool hello_in;
    bool stopped_by_us; /* killed after the grace: not the cause of anything */
    bool lost;          /* ended, but its exit code was collected elsewhere */
    int signal;         /* that ended it, or 0 */
    unsigned char hello[MAX_HELLO_BYTES];
    ewx_shrunk_note shrunk; /* the world that it has gone on with, if any */
} child;

/* What the parent answers: the hellos of all ranks follow when status is EW_OK.  A rank
 * that could not join sends the same struct back to say why. */
typedef struct answer {
    int32_t status;
    char text[256];
} answer;

/* ---- In a rank ---- */

typedef struct gather_context {
    int fd, num_ranks;
} gather_context;

/* An ew_allgather over the socket to the parent. */
static int gather_through_parent(void *context, const void *mine, void *all, size_t bytes)
{
    const int fd = ((const gather_context *)context)->fd;
    const int num_ranks = ((const gather_context *)context)->num_ranks;
    const size_t all_bytes = sizeof(answer) + (size_t)num_ranks * bytes;
    unsigned char *reply = malloc(all_bytes);
    if (!reply)
        return ewx_fail(EW_ERR_MEMORY, "no memory for %d ranks", num_ranks);
    ew_status status = EW_ERR_PEER_DIED;
    ssize_t got = -1;
    if (send(fd, mine, bytes, MSG_NOSIGNAL) == (ssize_t)bytes) {
        do /* bounded: the parent answers at its timeout, and its death hangs up */
            got = recv(fd, reply, all_bytes, 0);
        while (got < 0 && errno == EINTR);
    }
    if (got < (ssize_t)sizeof(answer)) {
        ewx_fail(status, "the launcher went away");
    } else {
        answer head;
        memcpy(&head, reply, sizeof head);
        status = (ew_status)head.status;
        if (status != EW_OK)
            ewx_fail(status, "%s", head.text);
        else
            memcpy(all, reply + sizeof(answer), (size_t)num_ranks * bytes);
    }
    free(reply);
    return status;
}

int ewx_rank_body(ew_world *world, ew_rank_main rank_main, void *argument)
{
    const int code = rank_main(world, argument);
    if (code != 0)
        ew_world_abort(world);
    ew_world_destroy(world);
    return code;
}

_Noreturn static void be_rank(int rank, int num_ranks, int fd, pid_t parent,
                              const ew_world_options *options, ew_rank_main rank_main,
                              void *argument)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_NO_WORLD);
    gather_context context = {fd, num_ranks};
    ew_world *world;
    int code = EXIT_NO_WORLD;
    const ew_status status =
        ew_world_create(rank, num_ranks, gather_through_parent, &context, options, &world);
    if (status == EW_OK) {
        world->launcher_fd = fd;
        code = ewx_rank_body(world, rank_main, argument);
    } else {
        answer why = {.status = status};
        snprintf(why.text, sizeof why.text, "%s", ew_last_error());
        send(fd, &why, sizeof why, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    fflush(NULL);
    _exit(code != 0 && (code & 0xff) == 0 ? 1 : code); /* exit codes have eight bits */
}

/* ---- In the parent ---- */

static void close_children(child *children, int num_ranks)
{
    for (int rank = 0; rank < num_ranks && children[rank].pid > 0; rank++) {
        close(children[rank].socket);
        if (children[rank].death_fd >= 0)
            close(children[rank].death_fd);
    }
}

static ew_status start_child(child *children, int rank, int num_ranks,
                             const ew_world_options *options, ew_rank_main rank_main,
                             void *argument)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return ewx_fail(EW_ERR_SYSTEM, "socketpair failed: %s", strerror(errno));
    const pid_t parent = getpid(), pid = fork();
    if (pid < 0) {
        close(pair[0]);
        close(pair[1]);
        return ewx_fail(EW_ERR_SYSTEM, "fork failed: %s", strerror(errno));
    }
    if (pid == 0) {
        close_children(children, rank);
        close(pair[0]);
        be_rank(rank, num_ranks, pair[1], parent, options, rank_main, argument);
    }
    close(pair[1]);
    children[rank] = (child){.pid = pid, .socket = pair[0], .running = true};
    children[rank].death_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    return EW_OK;
}

/* Notes the ranks that have ended; returns how many still run. */
static int reap(child *children, int num_ranks, int *exits, ewx_timer *since_exit,
                bool *failed)
{
    int running = 0;
    for (int rank = 0; rank < num_ranks; rank++) {
        child *c = &children[rank];
        int status = 0;
        if (!c->running)
            continue;
        const pid_t ended = waitpid(c->pid, &status, WNOHANG);
        if (ended == 0 || (ended < 0 && errno != ECHILD)) {
            running++;
            continue;
        }
        c->running = false;
        c->lost = ended < 0;
        c->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        exits[rank] = c->signal ? 128 + c->signal : WEXITSTATUS(status);
        *since_exit = ewx_timer_begin(GRACE_NS);
        *failed |= exits[rank] != 0;
    }
    return running;
}

/* Whether no rank that is left can run: then none of them is late. */
static bool all_are_stopped(const child *children, int num_ranks)
{
    bool stopped = false;
    for (int rank = 0; rank < num_ranks; rank++) {
        siginfo_t is = {0};
        if (!children[rank].running)
            continue;
        stopped = waitid(P_PID, (id_t)children[rank].pid, &is,
                         WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
                  is.si_code == CLD_STOPPED;
        if (!stopped)
            return false;
    }
    return stopped;
}

static void sleep_until_something(child *children, int num_ranks, bool hellos,
                                  const ewx_timer *timer)
{
    struct pollfd entries[2 * EWX_MAX_RANKS];
    int all_watched = 1;
    for (int rank = 0; rank < num_ranks; rank++) {
        const child *c = &children[rank];
        all_watched &= !c->running || c->death_fd >= 0;
        entries[2 * rank] =
            (struct pollfd){.fd = c->running ? c->death_fd : -1, .events = POLLIN};
        entries[2 * rank + 1] = (struct pollfd){
            .fd = hellos && c->running && !c->hello_in ? c->socket : -1, .events = POLLIN};
    }
    poll(entries, 2 * (nfds_t)num_ranks, ewx_timer_sleep_ms(timer, all_watched ? 100 : 5));
}

/* A rank sends its hello, or why it has none. */
static bool is_answer(const void *message, ssize_t bytes, answer *why_out)
{
    if (bytes != sizeof *why_out)
        return false;
    memcpy(why_out, message, sizeof *why_out);
    why_out->text[sizeof why_out->text - 1] = '\0';
    return why_out->status < 0; /* a hello starts with text */
}

/* Takes what has come from a rank, if anything. */
static void take_hello(child *c, int rank, size_t *hello_bytes, answer *reply)
{
    const ssize_t got = recv(c->socket, c->hello, sizeof c->hello, MSG_DONTWAIT);
    answer why;
    if (is_answer(c->hello, got, &why)) {
        reply->status = why.status;
        snprintf(reply->text, sizeof reply->text, "rank %d: %.*s", rank,
                 (int)sizeof reply->text - 20, why.text);
        return;
    }
    c->hello_in = got > 0;
    if (got > 0)
        *hello_bytes = (size_t)got;
}

/* Waits for every rank's hello.  Returns what to answer. */
static answer collect_hellos(child *children, int num_ranks, int64_t timeout_ns, int *exits,
                             size_t *hello_bytes)
{
    answer reply = {.status = EW_OK};
    ewx_timer timer = ewx_timer_begin(timeout_ns);
    for (;;) {
        char missing_ranks[200], dead_ranks[200];
        ewx_text missing = ewx_text_in(missing_ranks, sizeof missing_ranks);
        ewx_text dead = ewx_text_in(dead_ranks, sizeof dead_ranks);
        ewx_timer since_exit;
        bool failed = false;
        if (all_are_stopped(children, num_ranks))
            ewx_timer_skip(&timer);
        reap(children, num_ranks, exits, &since_exit, &failed);
        for (int rank = 0; rank < num_ranks; rank++) {
            if (!children[rank].hello_in)
                take_hello(&children[rank], rank, hello_bytes, &reply);
            if (!children[rank].hello_in)
                ewx_text_add(&missing, " %d", rank);
            if (!children[rank].running)
                ewx_text_add(&dead, " %d", rank);
        }
        if (missing.used == 0 || reply.status != EW_OK)
            return reply;
        if (dead.used > 0 || ewx_timer_is_over(&timer)) {
            reply.status = dead.used > 0 ? EW_ERR_PEER_DIED : EW_ERR_TIMEOUT;
            snprintf(reply.text, sizeof reply.text,
                     dead.used > 0 ? "rank%s died before joining the world"
                                   : "rank%s did not arrive in %.3g s\n"
                                     "  fix: see why, or raise the timeout",
                     dead.used > 0 ? dead_ranks : missing_ranks, (double)timeout_ns * 1e-9);
            return reply;
        }
        sleep_until_something(children, num_ranks, true, &timer);
    }
}

static void answer_all(child *children, int num_ranks, const answer *reply,
                       size_t hello_bytes)
{
    const size_t hellos = reply->status == EW_OK ? (size_t)num_ranks * hello_bytes : 0;
    unsigned char *message = malloc(sizeof *reply + hellos);
    if (!message)
        return; /* the ranks see the hang-up when the sockets close */
    memcpy(message, reply, sizeof *reply);
    for (int rank = 0; hellos && rank < num_ranks; rank++)
        memcpy(message + sizeof *reply + (size_t)rank * hello_bytes, children[rank].hello,
               hello_bytes);
    for (int rank = 0; rank < num_ranks; rank++)
        send(children[rank].socket, message, sizeof *reply + hellos,
             MSG_NOSIGNAL | MSG_DONTWAIT);
    free(message);
}

/* A rank that goes on in a smaller world tells who is in it. */
static void take_note(child *c)
{
    unsigned char message[MAX_HELLO_BYTES];
    for (ssize_t got; (got = recv(c->socket, message, sizeof message, MSG_DONTWAIT)) > 0;) {
        ewx_shrunk_note note;
        if (got != sizeof note)
            continue;
        memcpy(&note, message, sizeof note);
        if (note.magic == EWX_SHRUNK_MAGIC)
            c->shrunk = note;
    }
}

/* Whether a rank goes on in a world without those that have failed. */
static bool goes_on(const child *children, int num_ranks, const int *exits, int rank)
{
    const ewx_shrunk_note *note = &children[rank].shrunk;
    bool all_well = note->magic == EWX_SHRUNK_MAGIC;
    for (int peer = 0; peer < num_ranks; peer++)
        if (note->members[peer / 8] >> peer % 8 & 1)
            all_well = all_well && (children[peer].running || exits[peer] == 0);
    return all_well;
}

/* The grace is over. */
static void kill_idle(child *children, int num_ranks, const int *exits)
{
    for (int rank = 0; rank < num_ranks; rank++) {
        child *c = &children[rank];
        if (c->running)
            take_note(c);
        if (c->running && !goes_on(children, num_ranks, exits, rank)) {
            c->stopped_by_us = true;
            kill(c->pid, SIGKILL);
        }
    }
}

static void kill_running(child *children, int num_ranks)
{
    for (int rank = 0; rank < num_ranks; rank++)
        if (children[rank].running) {
            children[rank].stopped_by_us = true;
            kill(children[rank].pid, SIGKILL);
        }
}

static void wait_for_all(child *children, int num_ranks, int *exits)
{
    ewx_timer since_exit = ewx_timer_begin(GRACE_NS);
    bool failed = false;
    while (reap(children, num_ranks, exits, &since_exit, &failed) > 0) {
        if (failed && ewx_timer_is_over(&since_exit))
            kill_idle(children, num_ranks, exits);
        sleep_until_something(children, num_ranks, false, &since_exit);
    }
}

/* A rank that only missed another one knows less than that one. */
static bool only_noticed(int32_t status)
{
    return status == EW_ERR_PEER_DIED || status == EW_ERR_TIMEOUT ||
           status == EW_ERR_ABORTED;
}

/* What a rank that could not join said last, if anything.  A hello that came after the
 * answer had been given may lie before its words. */
static bool take_last_words(const child *c, answer *words_out)
{
    unsigned char message[MAX_HELLO_BYTES];
    for (ssize_t got; (got = recv(c->socket, message, sizeof message, MSG_DONTWAIT)) > 0;)
        if (is_answer(message, got, words_out))
            return true;
    return false;
}

/* One rank that could not join the world explains for all: the first that knows why. */
static ew_status explain_no_world(child *children, int num_ranks, const int *exits)
{
    answer best = {.status = EW_OK}, words;
    for (int rank = 0; rank < num_ranks; rank++)
        if (exits[rank] == EXIT_NO_WORLD && take_last_words(&children[rank], &words) &&
            (best.status == EW_OK ||
             (only_noticed(best.status) && !only_noticed(words.status))))
            best = words;
    return best.status == EW_OK ? EW_OK : ewx_fail((ew_status)best.status, "%s", best.text);
}

/* Ranks that died by themselves come first: those that we killed are consequences. */
static ew_status blame_the_dead(const child *children, int num_ranks)
{
    for (int rank = 0; rank < num_ranks; rank++)
        if (children[rank].signal && !children[rank].stopped_by_us)
            return ewx_fail(EW_ERR_PEER_DIED, "rank %d was killed by signal %d (%s)", rank,
                            children[rank].signal, strsignal(children[rank].signal));
    for (int rank = 0; rank < num_ranks; rank++)
        if (children[rank].signal)
            return ewx_fail(EW_ERR_PEER_DIED,
                            "rank %d was still running %d s after another rank had failed, "
                            "and was killed",
                            rank, (int)(GRACE_NS / 1000000000));
    for (int rank = 0; rank < num_ranks; rank++)
        if (children[rank].lost)
            return ewx_fail(EW_ERR_SYSTEM,
                            "how rank %d ended is unknown: SIGCHLD is ignored, or "
                            "another part of the program waits for all children\n"
                            "  fix: set SIGCHLD to SIG_DFL around ew_run_ranks",
                            rank);
    return EW_OK;
}

ew_status ewx_run_processes(int num_ranks, const ew_world_options *options,
                            ew_rank_main rank_main, void *argument, int *exits)
{
    ew_world probe = {0};
    EW_TRY(ewx_world_init(&probe, 0, num_ranks, options));
    child *children = calloc((size_t)num_ranks, sizeof *children);
    if (!children)
        return ewx_fail(EW_ERR_MEMORY, "no memory for %d ranks", num_ranks);
    ew_status status = EW_OK;
    size_t hello_bytes = 0;
    fflush(NULL); /* else every rank would print the parent's pending output again */
    for (int rank = 0; rank < num_ranks && status == EW_OK; rank++)
        status = start_child(children, rank, num_ranks, options, rank_main, argument);
    if (status == EW_OK && num_ranks > 1) {
        const answer reply =
            collect_hellos(children, num_ranks, probe.timeout_ns, exits, &hello_bytes);
        answer_all(children, num_ranks, &reply, hello_bytes);
    } else if (status != EW_OK) {
        kill_running(children, num_ranks);
    }
    wait_for_all(children, num_ranks, exits);
    if (status == EW_OK)
        status = explain_no_world(children, num_ranks, exits);
    if (status == EW_OK)
        status = blame_the_dead(children, num_ranks);
    close_children(children, num_ranks);
    free(children);
    return status;
}
