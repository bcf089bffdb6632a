/* One line on stderr that says how far a bench is; only when a person watches. */
#ifndef ENTWINE_CLI_PROGRESS_H
#define ENTWINE_CLI_PROGRESS_H

#include "run/job.h"

typedef struct cli_progress {
    bool shown;
    int num_problems;
    double work_total, work_done; /* flops, a fair guess at time */
    int64_t start_ns;
} cli_progress;

void cli_progress_init(cli_progress *progress, const cli_job *job, bool quiet);
void cli_progress_show(const cli_progress *progress, int at, const cli_problem *problem);
/* The same in the middle of a problem: `part` of it, 0 to 1, is done. */
void cli_progress_show_part(const cli_progress *progress, int at,
                            const cli_problem *problem, double part, const char *text);
void cli_progress_advance(cli_progress *progress, const cli_problem *problem);
/* A problem that takes no time after all. */
void cli_progress_leave_out(cli_progress *progress, const cli_problem *problem);
void cli_progress_clear(const cli_progress *progress);

/* A terminal that wants more than plain text. */
bool cli_is_rich_terminal(FILE *stream);

#endif
