/* One line on stderr that says how far a bench is; only when a person watches. */
#ifndef ENTWINE_CLI_PROGRESS_H
#define ENTWINE_CLI_PROGRESS_H

#include "run/job.h"

typedef struct cli_progress {
    bool shown;
    const cli_job *job;
    double work_total, work_done; /* flops, a fair guess at time */
    int64_t start_ns;
} cli_progress;

void cli_progress_init(cli_progress *progress, const cli_job *job, bool quiet);
/* `part` of the job's problem, 0 to 1, is done. */
void cli_progress_show(const cli_progress *progress, int at, double part, const char *text);
/* All of it is: clears the line. */
void cli_progress_end(cli_progress *progress, int at);
/* A problem that takes no time after all. */
void cli_progress_leave_out(cli_progress *progress, int at);

/* A terminal that wants more than plain text. */
bool cli_is_rich_terminal(FILE *stream);

#endif
