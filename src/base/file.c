#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

static const char not_a_file[] = "it is a pipe, a socket or a device, not a file";

/* ---- Reading ---- */

/* NULL for a regular file. */
static const char *refuse_kind(const struct stat *facts)
{
    return S_ISREG(facts->st_mode)   ? NULL
           : S_ISDIR(facts->st_mode) ? strerror(EISDIR)
                                     : not_a_file;
}

static const char *refuse_size(size_t capacity)
{
    static _Thread_local char text[64];
    snprintf(text, sizeof text, "it has more than %zu bytes", capacity);
    return text;
}

/* The file may be longer than it said, as those of /proc, or grow meanwhile. */
static const char *read_all(int fd, char *data, size_t capacity, size_t *bytes_out)
{
    struct stat facts;
    const char *why = fstat(fd, &facts) == 0 ? refuse_kind(&facts) : strerror(errno);
    char more;
    size_t done = 0;
    if (!why && facts.st_size > (off_t)capacity)
        why = refuse_size(capacity);
    while (!why) {
        const ssize_t got =
            done < capacity ? read(fd, data + done, capacity - done) : read(fd, &more, 1);
        if (got == 0)
            break;
        if (got < 0 && errno != EINTR)
            why = strerror(errno);
        else if (got > 0 && done == capacity)
            why = refuse_size(capacity);
        else if (got > 0)
            done += (size_t)got;
    }
    *bytes_out = done;
    return why;
}

const char *ewx_file_read(const char *path, char *data, size_t capacity, size_t *bytes_out)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return errno == ENXIO ? not_a_file : strerror(errno);
    const char *why = read_all(fd, data, capacity, bytes_out);
    close(fd);
    return why;
}

/* ---- Drafts ---- */

/* The target's name, shortened where there is no room, and a random end. */
static bool name_draft(ewx_draft *draft, const char *target)
{
    enum { MOST_NAME = 200 };
    uint64_t mark = 0;
    const char *slash = strrchr(target, '/');
    const int folder = slash ? (int)(slash + 1 - target) : 0;
    if (getrandom(&mark, sizeof mark, GRND_NONBLOCK) != sizeof mark)
        mark = (uint64_t)ewx_now_ns() ^ (uint64_t)getpid() << 40;
    const int length =
        snprintf(draft->path, sizeof draft->path, "%.*s%.*s.tmp-%016llx", folder, target,
                 MOST_NAME, target + folder, (unsigned long long)mark);
    return length > 0 && length < (int)sizeof draft->path;
}

int ewx_draft_open(ewx_draft *draft, const char *target, mode_t mode)
{
    enum { MAX_TRIES = 100 };
    int error = EEXIST;
    for (int attempt = 0; error == EEXIST && attempt < MAX_TRIES; attempt++) {
        if (!name_draft(draft, target))
            return ENAMETOOLONG;
        draft->fd = open(draft->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        error = draft->fd < 0 ? errno : 0;
    }
    return error;
}

/* The rename itself; without it an old file comes back at worst. */
static void flush_folder(const char *path)
{
    char folder[PATH_MAX] = ".";
    const char *slash = strrchr(path, '/');
    if (slash)
        snprintf(folder, sizeof folder, "%.*s", (int)(slash + 1 - path), path);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}

int ewx_draft_close(ewx_draft *draft, const char *target, int error)
{
    if (!error && fsync(draft->fd) != 0)
        error = errno;
    if (close(draft->fd) != 0 && !error)
        error = errno;
    if (!error && rename(draft->path, target) != 0)
        error = errno;
    if (error)
        unlink(draft->path);
    else
        flush_folder(target);
    return error;
}

/* ---- Replacing ---- */

static int write_all(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t put = write(fd, data, bytes);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put < 0 ? errno : EIO;
        data += put;
        bytes -= (size_t)put;
    }
    return 0;
}

/* All folders above the file. */
static int make_folders(const char *path)
{
    char folder[PATH_MAX];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        if (snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path) >= PATH_MAX)
            return ENAMETOOLONG;
        if (mkdir(folder, 0700) != 0 && errno != EEXIST)
            return errno;
    }
    return 0;
}

const char *ewx_file_replace(const char *path, const char *data, size_t bytes)
{
    ewx_draft draft;
    struct stat facts;
    if (stat(path, &facts) == 0 && !S_ISREG(facts.st_mode))
        return refuse_kind(&facts);
    int error = make_folders(path);
    if (!error)
        error = ewx_draft_open(&draft, path, 0600);
    if (!error)
        error = ewx_draft_close(&draft, path, write_all(draft.fd, data, bytes));
    return error ? strerror(error) : NULL;
}
