/* Progress and what may be shown on a terminal. */
#include "run/progress.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool cli_is_rich_terminal(FILE *stream)
{
    const char *term = getenv("TERM");
    return isatty(fileno(stream)) && term && strcmp(term, "dumb") != 0;
}

static double work_of(const cli_progress *progress, int at)
{
    const cli_problem *problem = &progress->job->problems[at];
    const ew_problem *shape = &problem->problem;
    return (double)problem->num_ranks * (double)shape->max_m * (double)shape->n *
           (double)shape->k;
}

void cli_progress_init(cli_progress *progress, const cli_job *job, bool quiet)
{
    *progress = (cli_progress){.shown = !quiet && cli_is_rich_terminal(stderr),
                               .job = job,
                               .start_ns = ew_now_ns()};
    for (int at = 0; at < job->num_problems; at++)
        progress->work_total += work_of(progress, at);
}

void cli_progress_show(const cli_progress *progress, int at, double part, const char *text)
{
    const cli_problem *problem = &progress->job->problems[at];
    const ew_problem *shape = &problem->problem;
    const double done = progress->work_done + part * work_of(progress, at);
    char left[48] = "";
    if (!progress->shown)
        return;
    if (done > 0) {
        double spent = (double)(ew_now_ns() - progress->start_ns) * 1e-9;
        double rest = progress->work_total - done;
        snprintf(left, sizeof left, ", ETA %.0f s", spent * rest / done);
    }
    fprintf(stderr, "\r\033[K[%d/%d] %" PRId64 "x%" PRId64 "x%" PRId64 " W=%d %s%s%s",
            at + 1, progress->job->num_problems, shape->max_m, shape->n, shape->k,
            problem->num_ranks, ew_dtype_name(shape->dtype), text, left);
    fflush(stderr);
}

void cli_progress_end(cli_progress *progress, int at)
{
    progress->work_done += work_of(progress, at);
    if (progress->shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
}

void cli_progress_leave_out(cli_progress *progress, int at)
{
    progress->work_total -= work_of(progress, at);
}
