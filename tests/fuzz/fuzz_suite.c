/* Suite files. */
#include "fuzz.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "run/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static cli_settings settings; /* zeroed: -W and -d are not given */
    char path[64];
    cli_job job = {.problems = NULL};
    const int fd = memfd_create("suite", MFD_CLOEXEC);
    FUZZ_DEMAND(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    settings.suite = path;
    if (cli_suite_load(&settings, &job) == CLI_EXIT_OK)
        for (int at = 0; at < job.num_problems; at++)
            FUZZ_DEMAND(job.problems[at].num_ranks >= 1 &&
                        job.problems[at].num_ranks <= CLI_MAX_RANKS &&
                        job.problems[at].problem.max_m >= 1);
    free(job.problems);
    close(fd);
    return 0;
}
