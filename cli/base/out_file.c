/* Documents that appear under their name whole, or not at all. */
#include "base/out_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_TRIES = 100 };

cli_exit cli_out_file_fail(const cli_out_file *file)
{
    static const char format[] = "cannot write %s to '%.200s': %s";
    const char *reason = strerror(errno);
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO)
        return cli_fail(EW_ERR_SYSTEM, "make room, or send the output elsewhere", format,
                        file->what, file->path, reason);
    return cli_fail_usage("give a file in a folder you may write to", format, file->what,
                          file->path, reason);
}

/* Containers repeat process ids, and one that was killed may have left its file: where a
 * name is taken, the clock gives another. */
static bool name_temporary(cli_out_file *file, int attempt)
{
    struct timespec now = {0};
    char mark[32] = "";
    if (attempt > 0) {
        clock_gettime(CLOCK_REALTIME, &now);
        snprintf(mark, sizeof mark, "-%ld", now.tv_nsec);
    }
    const int length = snprintf(file->temporary, sizeof file->temporary, "%s.tmp-%ld%s",
                                file->target, (long)getpid(), mark);
    if (length < 0 || (size_t)length >= sizeof file->temporary)
        errno = ENAMETOOLONG;
    return length > 0 && (size_t)length < sizeof file->temporary;
}

static void open_temporary(cli_out_file *file)
{
    for (int attempt = 0; !file->stream && attempt < MAX_TRIES; attempt++) {
        if (!name_temporary(file, attempt))
            break;
        file->stream = fopen(file->temporary, "wxe");
        if (!file->stream && errno != EEXIST)
            break;
    }
    if (!file->stream)
        *file->temporary = '\0';
}

/* A path that does not exist yet leads to itself, a link to nothing nowhere. */
static bool find_target(cli_out_file *file)
{
    struct stat link;
    if (realpath(file->path, file->target))
        return true;
    if (errno != ENOENT || lstat(file->path, &link) == 0)
        return false;
    errno = strlen(file->path) < sizeof file->target ? 0 : ENAMETOOLONG;
    snprintf(file->target, sizeof file->target, "%s", file->path);
    return errno == 0;
}

static void begin(cli_out_file *file)
{
    struct stat about;
    const bool is_there = stat(file->target, &about) == 0;
    if (is_there && !S_ISREG(about.st_mode)) {
        file->stream = fopen(file->target, "we");
        return;
    }
    if (is_there && access(file->target, W_OK) != 0)
        return; /* a file that must not be written must not be replaced either */
    open_temporary(file);
    if (file->stream && is_there)
        (void)fchmod(fileno(file->stream), about.st_mode & 0777);
}

cli_exit cli_out_file_open(cli_out_file *file, const char *what, const char *path)
{
    *file = (cli_out_file){.what = what, .path = path};
    if (strcmp(path, "-") == 0)
        file->stream = stdout;
    else if (find_target(file))
        begin(file);
    return file->stream ? CLI_EXIT_OK : cli_out_file_fail(file);
}

bool cli_out_file_is_renewable(const cli_out_file *file)
{
    return file->stream != stdout && (!file->stream || *file->temporary);
}

/* errno is that of the first step that failed. */
static bool finish(cli_out_file *file, bool written)
{
    const bool replaces = *file->temporary;
    bool done = written && fflush(file->stream) == 0 && !ferror(file->stream) &&
                (!replaces || fsync(fileno(file->stream)) == 0);
    int error = errno ? errno : EIO;
    if (fclose(file->stream) != 0 && done) {
        done = false;
        error = errno;
    }
    if (done && replaces && rename(file->temporary, file->target) != 0) {
        done = false;
        error = errno;
    }
    if (replaces && !done)
        unlink(file->temporary);
    file->stream = NULL;
    *file->temporary = '\0';
    errno = error;
    return done;
}

void cli_out_file_renew(cli_out_file *file, bool written)
{
    if (file->stream)
        (void)finish(file, written);
    begin(file);
}

cli_exit cli_out_file_close(cli_out_file *file, bool written)
{
    if (!file->stream || file->stream == stdout) /* main reports on stdout */
        return CLI_EXIT_OK;
    return finish(file, written) || !written ? CLI_EXIT_OK : cli_out_file_fail(file);
}
