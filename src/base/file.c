#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"

ew_status ewx_file_read(const char *path, char *data, size_t capacity, size_t *bytes_out)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return ewx_fail(EW_ERR_SYSTEM, "%s cannot be read: %s", path, strerror(errno));
    size_t done = 0;
    ssize_t got = 1;
    char more;
    while (got > 0 && done < capacity) {
        got = read(fd, data + done, capacity - done);
        if (got > 0)
            done += (size_t)got;
        else if (got < 0 && errno == EINTR)
            got = 1;
    }
    const int error = errno;
    const bool larger = got > 0 && read(fd, &more, 1) == 1;
    close(fd);
    if (got < 0)
        return ewx_fail(EW_ERR_SYSTEM, "%s cannot be read: %s", path, strerror(error));
    if (larger)
        return ewx_fail(EW_ERR_ARGUMENT, "%s has more than %zu bytes", path, capacity);
    *bytes_out = done;
    return EW_OK;
}

/* ---- Replacing ---- */

static ew_status fail_write(const char *path, int error)
{
    return ewx_fail(EW_ERR_SYSTEM,
                    "%s cannot be written: %s\n"
                    "  fix: make its folder writable, or name another in ENTWINE_CACHE_DIR",
                    path, strerror(error));
}

static int write_all(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t put = write(fd, data, bytes);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return errno;
        data += put;
        bytes -= (size_t)put;
    }
    return fsync(fd) == 0 ? 0 : errno;
}

/* All folders above the file. */
static int make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        const int made = mkdir(path, 0700);
        *slash = '/';
        if (made != 0 && errno != EEXIST)
            return errno;
    }
    return 0;
}

static void flush_folder(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash)
        return;
    *slash = '\0';
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *slash = '/';
    if (fd >= 0) {
        fsync(fd); /* the rename itself; without it an old entry comes back at worst */
        close(fd);
    }
}

/* Containers repeat process ids, and one that was killed may have left its file: where a
 * name is taken, the clock gives another. */
static int open_beside(const char *path, char *beside, size_t bytes)
{
    enum { MAX_TRIES = 100 };
    static _Atomic unsigned counter;
    unsigned mark = atomic_fetch_add(&counter, 1);
    int fd = -1;
    for (int attempt = 0; fd < 0 && attempt < MAX_TRIES; attempt++) {
        snprintf(beside, bytes, "%s.tmp-%d-%u", path, (int)getpid(), mark);
        fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST)
            break;
        mark = (unsigned)ewx_now_ns();
    }
    return fd;
}

ew_status ewx_file_replace(const char *path, const char *data, size_t bytes)
{
    char place[PATH_MAX], beside[PATH_MAX + 64];
    if (snprintf(place, sizeof place, "%s", path) >= (int)sizeof place)
        return ewx_fail(EW_ERR_ARGUMENT, "the path of a file is too long: %.60s...", path);
    int error = make_folders(place);
    if (error)
        return fail_write(path, error);
    const int fd = open_beside(path, beside, sizeof beside);
    if (fd < 0)
        return fail_write(path, errno);
    error = write_all(fd, data, bytes);
    if (close(fd) != 0 && !error)
        error = errno;
    if (!error && rename(beside, path) != 0)
        error = errno;
    if (error) {
        unlink(beside);
        return fail_write(path, error);
    }
    flush_folder(place);
    return EW_OK;
}
