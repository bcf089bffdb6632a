/* Documents that appear under their name whole, or not at all. */
#include "base/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_file.h"

static cli_exit fail(const cli_out_file *file, int error)
{
    static const char format[] = "cannot write %s to '%.200s': %s";
    static const int of_path[] = {ENOENT, EACCES,       EPERM, EISDIR, ENOTDIR,
                                  EROFS,  ENAMETOOLONG, ELOOP, ENXIO,  ETXTBSY};
    for (size_t at = 0; at < sizeof of_path / sizeof of_path[0]; at++)
        if (error == of_path[at])
            return cli_fail_usage(error == ENXIO
                                      ? "let another process read the pipe"
                                      : "give a file in a folder you may write to",
                                  format, file->what, file->path, strerror(error));
    if (error == ENOMEM)
        return cli_fail(EW_ERR_MEMORY, "free some memory", format, file->what, file->path,
                        strerror(error));
    return cli_fail(EW_ERR_SYSTEM, "make room, or send the output elsewhere", format,
                    file->what, file->path, strerror(error));
}

/* ---- Where it goes ---- */

/* As it is in /dev/stdout; replaced, the file would lose what stdout still gets. */
static bool is_stdout(const struct stat *facts)
{
    struct stat ours;
    return fstat(STDOUT_FILENO, &ours) == 0 && ours.st_dev == facts->st_dev &&
           ours.st_ino == facts->st_ino;
}

/* The mode and owner of the file that is there, or those of any new file. */
static int open_draft(const cli_out_file *file, ewx_draft *draft)
{
    struct stat facts;
    const bool is_there = stat(file->target, &facts) == 0;
    if (is_there && access(file->target, W_OK) != 0)
        return errno; /* what must not be written must not be replaced either */
    const int error = ewx_draft_open(draft, file->target, 0666);
    if (!error && is_there) {
        if (fchown(draft->fd, facts.st_uid, facts.st_gid) != 0)
            errno = 0; /* another user's, in a folder of ours: the new one is ours */
        (void)fchmod(draft->fd, facts.st_mode & 0777);
    }
    return error;
}

/* A path that does not exist yet leads to itself, a link to nothing nowhere.  A draft that
 * is taken back shows whether there will be one. */
static int find_target(cli_out_file *file)
{
    struct stat link;
    ewx_draft draft;
    if (!realpath(file->path, file->target)) {
        if (errno != ENOENT || lstat(file->path, &link) == 0)
            return errno ? errno : ENOENT;
        if (strlen(file->path) >= sizeof file->target)
            return ENAMETOOLONG;
        memcpy(file->target, file->path, strlen(file->path) + 1);
    }
    const int error = open_draft(file, &draft);
    if (!error)
        ewx_draft_close(&draft, file->target, ECANCELED);
    return error;
}

cli_exit cli_out_file_open(cli_out_file *file, const char *what, const char *path)
{
    struct stat facts;
    int error = 0;
    *file = (cli_out_file){.what = what, .path = path, .kind = CLI_OUT_REPLACED};
    const bool is_there = stat(path, &facts) == 0;
    if (strcmp(path, "-") == 0 || (is_there && is_stdout(&facts)))
        file->kind = CLI_OUT_STDOUT;
    else if (is_there && S_ISDIR(facts.st_mode))
        error = EISDIR;
    else if (is_there && !S_ISREG(facts.st_mode))
        file->kind = CLI_OUT_DIRECT;
    else
        error = find_target(file);
    return error ? fail(file, error) : CLI_EXIT_OK;
}

/* ---- Writing ---- */

/* Without a reader a pipe cannot be opened: one gets some seconds to come. */
static int open_direct(const char *path)
{
    enum { TRIES = 200, PAUSE_US = 10000 };
    struct stat facts;
    int fd = -1;
    for (int attempt = 0; fd < 0 && attempt < TRIES; attempt++) {
        fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (fd >= 0 || errno != ENXIO || stat(path, &facts) != 0 ||
            !S_ISFIFO(facts.st_mode))
            break;
        usleep(PAUSE_US);
        errno = ENXIO;
    }
    if (fd >= 0)
        (void)fcntl(fd, F_SETFL, 0); /* a slow reader is waited for */
    return fd;
}

/* Takes over the descriptor.  0, or errno of the first step that failed. */
static int write_to(int fd, cli_writer writer, const void *context)
{
    FILE *stream = fd >= 0 ? fdopen(fd, "w") : NULL;
    int error = 0;
    if (!stream) {
        error = errno;
        if (fd >= 0)
            close(fd);
        return error;
    }
    errno = 0;
    if (!writer(context, stream) || fflush(stream) != 0 || ferror(stream))
        error = errno ? errno : ferror(stream) ? EIO : ENOMEM;
    else if (cli_json_lacks())
        error = ENOMEM;
    if (fclose(stream) != 0 && !error)
        error = errno;
    return error;
}

static int put(const cli_out_file *file, cli_writer writer, const void *context)
{
    ewx_draft draft;
    if (file->kind == CLI_OUT_DIRECT)
        return write_to(open_direct(file->path), writer, context);
    const int error = open_draft(file, &draft);
    if (error)
        return error;
    const int copy = fcntl(draft.fd, F_DUPFD_CLOEXEC, 0);
    return ewx_draft_close(&draft, file->target, write_to(copy, writer, context));
}

cli_exit cli_out_file_write(const cli_out_file *file, cli_writer writer,
                            const void *context)
{
    if (file->kind == CLI_OUT_STDOUT) {
        errno = ENOMEM; /* a stream that fails is main's; other writers lack memory */
        return writer(context, stdout) || ferror(stdout) ? CLI_EXIT_OK : fail(file, errno);
    }
    const int error = put(file, writer, context);
    return error ? fail(file, error) : CLI_EXIT_OK;
}

void cli_out_file_renew(const cli_out_file *file, cli_writer writer, const void *context)
{
    if (file->kind == CLI_OUT_REPLACED)
        (void)put(file, writer, context);
}
