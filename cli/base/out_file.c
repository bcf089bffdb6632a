/* Documents that appear under their name whole, or not at all. */
#include "base/out_file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

cli_exit cli_out_file_fail(const cli_out_file *file)
{
    return cli_fail_usage("give a file in a folder you may write to",
                          "cannot write %s to '%.200s': %s", file->what, file->path,
                          strerror(errno));
}

cli_exit cli_out_file_open(cli_out_file *file, const char *what, const char *path)
{
    struct stat about;
    *file = (cli_out_file){.what = what, .path = path};
    if (strcmp(path, "-") == 0) {
        file->stream = stdout;
    } else if (stat(path, &about) == 0 && !S_ISREG(about.st_mode)) {
        file->stream = fopen(path, "we");
    } else {
        int length = snprintf(file->temporary, sizeof file->temporary, "%s.tmp-%ld", path,
                              (long)getpid());
        if (length < 0 || (size_t)length >= sizeof file->temporary)
            errno = ENAMETOOLONG;
        else
            file->stream = fopen(file->temporary, "wxe");
    }
    return file->stream ? CLI_EXIT_OK : cli_out_file_fail(file);
}

cli_exit cli_out_file_close(cli_out_file *file, bool written)
{
    cli_exit failed = CLI_EXIT_OK;
    if (!file->stream || file->stream == stdout)
        return failed;
    if (fclose(file->stream) && written)
        failed = cli_out_file_fail(file);
    if (*file->temporary && written && !failed && rename(file->temporary, file->path))
        failed = cli_out_file_fail(file);
    if (*file->temporary && (!written || failed))
        unlink(file->temporary);
    return failed;
}
