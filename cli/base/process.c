/* A child with two pipes and a deadline. */
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "entwine/measure.h"

extern char **environ;

bool cli_process_exists(const char *name)
{
    const char *at = getenv("PATH");
    char path[PATH_MAX];
    while (at && *at) {
        int length = (int)strcspn(at, ":");
        snprintf(path, sizeof path, "%.*s/%s", length, at, name);
        if (access(path, X_OK) == 0)
            return true;
        at += length;
        at += *at == ':';
    }
    return false;
}

static void close_both(int *pair)
{
    close(pair[0]);
    close(pair[1]);
}

static bool start(const char *const *argv, int input_fd, int output_fd, pid_t *child_out)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return false;
    if (posix_spawnattr_init(&attributes) != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return false;
    }
    posix_spawn_file_actions_adddup2(&actions, input_fd, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output_fd, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    /* The cast adds no write: POSIX has argv that way for old programs. */
    int failed = posix_spawnp(child_out, argv[0], &actions, &attributes,
                              (char *const *)(uintptr_t)argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return failed == 0;
}

/* Until the other end is closed, or the time is over. */
static void read_text(int fd, int64_t end_ns, char *output, size_t bytes)
{
    char scrap[256];
    size_t used = 0;
    for (;;) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        const int64_t left_ns = end_ns - ew_now_ns();
        bool room = used + 1 < bytes;
        if (left_ns <= 0)
            break;
        if (poll(&ready, 1, (int)(left_ns / 1000000) + 1) <= 0)
            continue;
        ssize_t got =
            read(fd, room ? output + used : scrap, room ? bytes - 1 - used : sizeof scrap);
        if (got <= 0 && !(got < 0 && errno == EINTR))
            break;
        if (got > 0 && room)
            used += (size_t)got;
    }
    if (bytes > 0)
        output[used] = '\0';
}

static int collect(pid_t child, int64_t end_ns)
{
    int state = 0;
    pid_t waited;
    while ((waited = waitpid(child, &state, WNOHANG)) == 0 && ew_now_ns() < end_ns)
        usleep(1000);
    if (waited == 0) {
        kill(child, SIGKILL);
        do
            waited = waitpid(child, &state, 0);
        while (waited < 0 && errno == EINTR);
        return -1;
    }
    return waited == child && WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

int cli_process_run(const char *const *argv, const char *input, double seconds,
                    char *output, size_t bytes)
{
    int64_t end_ns = ew_now_ns() + (int64_t)(seconds * 1e9);
    int to[2], from[2], result = -1;
    pid_t child;
    if (bytes > 0)
        output[0] = '\0';
    if (pipe2(to, O_CLOEXEC) != 0)
        return -1;
    if (pipe2(from, O_CLOEXEC) != 0) {
        close_both(to);
        return -1;
    }
    /* Short texts fit into the pipe, and written before there is a reader they cannot
     * meet one that has gone away. */
    bool started = write(to[1], input, strlen(input)) == (ssize_t)strlen(input) &&
                   start(argv, to[0], from[1], &child);
    close_both(to);
    close(from[1]);
    if (started) {
        read_text(from[0], end_ns, output, bytes);
        result = collect(child, end_ns);
    }
    close(from[0]);
    return result;
}
