/* entwine plan --sweep: what a profile's hardware would gain over a range of shapes or of
 * ranks, as a table, or as a document of results that `entwine report` draws. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "run/context.h"
#include "output/output.h"
#include "sim/sim_call.h"
#include "run/simulated.h"
#include "sim/sim_plan.h"

enum { ENTWINE, SEQUENTIAL, BLAS, NUM_SWEPT, MOST_RANKS = 512 };
static const char swept_methods[] = "entwine,sequential,blas"; /* in this order */

typedef struct sweep {
    const cli_settings *settings;
    cli_settings lists; /* with the lists that were left open */
    cli_job job;
    ew_bench_result *results; /* of one problem */
    double link_us;           /* of its busiest link alone */
    cli_output *output;       /* NULL: a table */
} sweep;

/* ---- What is swept ---- */

static void set_default(cli_values *values, int64_t first, int64_t last)
{
    if (values->count)
        return;
    for (int64_t value = first; value <= last; value *= 2)
        values->at[values->count++] = value;
}

/* As many ranks as the profile has room for. */
static void set_ranks(cli_values *values)
{
    ew_sim_hardware hardware;
    if (values->count)
        return;
    for (int ranks = 2; ranks <= MOST_RANKS; ranks *= 2)
        if (ew_sim_describe(NULL, ranks, &hardware) == EW_OK)
            values->at[values->count++] = ranks;
        else
            break;
}

static cli_exit fill_lists(sweep *s)
{
    cli_settings *lists = &s->lists;
    const bool over_ranks = s->settings->sweep == CLI_RANGE_RANKS;
    if (s->settings->num_methods || s->settings->num_variants)
        return cli_fail_usage("leave --method out",
                              "--sweep compares entwine with sequential and blas");
    if (!over_ranks &&
        (lists->ranks.count > 1 || lists->cols.count > 1 || lists->dtypes.count > 1))
        return cli_fail_usage("one value for -W, -N and -d",
                              "--sweep mxk is a map over -m and -k alone");
    if (over_ranks)
        set_ranks(&lists->ranks);
    set_default(&lists->ranks, 8, 8);
    set_default(&lists->rows, over_ranks ? 8192 : 1024, over_ranks ? 8192 : 65536);
    set_default(&lists->cols, 8192, 8192);
    set_default(&lists->depth, over_ranks ? 2048 : 512, over_ranks ? 2048 : 8192);
    return CLI_EXIT_OK;
}

/* ---- One problem ---- */

static void keep(sweep *s, int entry, ew_status status, const ew_sim_report *report)
{
    ew_bench_result *result = &s->results[entry];
    *result = (ew_bench_result){.status = status};
    if (status) {
        snprintf(result->error, sizeof result->error, "%s", ew_last_error());
        return;
    }
    result->config = report->config;
    result->time_us = result->samples_us[0] = report->time_us;
    result->gemm_us = report->gemm_us;
    result->tail_us = report->tail_us;
    result->num_samples = 1;
}

static cli_exit simulate(sweep *s, const cli_problem *problem)
{
    ew_sim_report report;
    const ew_world_options *world = &s->job.ranks.options;
    cli_sim_case what = cli_sim_case_of(&problem->problem, problem->num_ranks);
    what.options.link_gbs = world->link_gbps / 8;
    what.options.link_us = world->link_latency_us;
    ew_status status = cli_sim_best(&what, &s->settings->config, &report, NULL);
    if (status)
        return cli_fail_status(status, ew_last_error());
    keep(s, ENTWINE, EW_OK, &report);
    s->link_us = report.link_us;
    status = cli_sim_method(&what, "sequential", &s->settings->config, &report);
    keep(s, SEQUENTIAL, status, &report);
    status = cli_sim_method(&what, "blas", &s->settings->config, &report);
    keep(s, BLAS, status, &report);
    return CLI_EXIT_OK;
}

/* The faster of the others; NAN: neither ran. */
static double baseline_us(const sweep *s)
{
    double least = NAN;
    for (int at = SEQUENTIAL; at < NUM_SWEPT; at++)
        if (s->results[at].status == EW_OK)
            least = fmin(least, s->results[at].time_us);
    return least;
}

/* ---- Tables ---- */

static void print_map_head(const sweep *s, const cli_problem *first)
{
    const ew_problem *p = &first->problem;
    printf("# Speedup of entwine's best schedule over the faster of sequential and blas, "
           "N=%" PRId64 ", W=%d, %s\n",
           p->n, first->num_ranks, ew_dtype_name(p->dtype));
    printf("#    M \\ K");
    for (int at = 0; at < s->lists.depth.count; at++)
        printf(" %8" PRId64, s->lists.depth.at[at]);
    putchar('\n');
}

static void print_map_cell(const sweep *s, const cli_problem *problem, int at)
{
    const int column = at % s->lists.depth.count;
    if (column == 0)
        printf("%10" PRId64, problem->problem.max_m);
    printf(" %8.3f", baseline_us(s) / s->results[ENTWINE].time_us);
    if (column == s->lists.depth.count - 1)
        putchar('\n');
}

static void print_ranks_head(void)
{
    printf("#%5s %5s %8s %8s %8s %12s %12s %8s %8s  %s\n", "W", "nodes", "M", "N", "K",
           "baseline(us)", "entwine(us)", "speedup", "of floor", "bound by");
}

static void print_ranks_row(const sweep *s, const cli_problem *problem)
{
    const ew_problem *p = &problem->problem;
    const double time_us = s->results[ENTWINE].time_us;
    const double gemm_us =
        s->results[SEQUENTIAL].status == EW_OK
            ? fmin(s->results[SEQUENTIAL].gemm_us, s->results[ENTWINE].gemm_us)
            : s->results[ENTWINE].gemm_us;
    ew_sim_hardware hardware = {.nodes = 0};
    (void)ew_sim_describe(NULL, problem->num_ranks, &hardware);
    printf("%6d %5d %8" PRId64 " %8" PRId64 " %8" PRId64 " %12.1f %12.1f %8.3f %8.3f  %s\n",
           problem->num_ranks, (int)hardware.nodes, p->max_m, p->n, p->k, baseline_us(s),
           time_us, baseline_us(s) / time_us, fmax(gemm_us, s->link_us) / time_us,
           s->link_us <= gemm_us ? "GEMM"
           : hardware.nodes > 1  ? "NIC or link"
                                 : "link");
}

static void print_problem(const sweep *s, int at)
{
    const cli_problem *problem = &s->job.problems[at];
    const bool is_map = s->settings->sweep == CLI_RANGE_SHAPES;
    char text[192];
    if (at == 0) {
        cli_sim_text(NULL, problem->num_ranks, text, sizeof text);
        printf("# %s\n", text);
        is_map ? print_map_head(s, problem) : print_ranks_head();
    }
    is_map ? print_map_cell(s, problem, at) : print_ranks_row(s, problem);
    fflush(stdout);
}

/* ---- All of it ---- */

static cli_exit sweep_all(sweep *s)
{
    cli_exit result = CLI_EXIT_OK;
    for (int at = 0; at < s->job.num_problems && !result; at++) {
        result = simulate(s, &s->job.problems[at]);
        if (result)
            break;
        if (s->output)
            cli_output_problem(s->output, &s->job.problems[at], s->results);
        else
            print_problem(s, at);
    }
    return result;
}

static cli_exit sweep_to_document(sweep *s, int argc, char **argv)
{
    cli_context context;
    cli_context_init(&context);
    cli_exit result = cli_output_open(
        &s->job, s->settings, cli_context_json(&context, NULL, argc, argv), &s->output);
    if (result)
        return result;
    result = sweep_all(s);
    cli_exit failed = cli_output_close(s->output, result == CLI_EXIT_OK);
    return result ? result : failed;
}

cli_exit cli_sim_sweep(const cli_settings *settings, int argc, char **argv)
{
    sweep *s = calloc(1, sizeof *s);
    ew_bench_result *results = calloc(NUM_SWEPT, sizeof *results);
    cli_exit result = CLI_EXIT_OK;
    if (!s || !results)
        result = cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for the sweep");
    if (!result) {
        *s = (sweep){.settings = settings, .lists = *settings, .results = results};
        result = fill_lists(s);
    }
    if (!result)
        result = cli_job_init(&s->job, &s->lists, NULL, swept_methods);
    if (!result)
        result = settings->format == CLI_FORMAT_JSON ? sweep_to_document(s, argc, argv)
                                                     : sweep_all(s);
    if (s)
        cli_job_fini(&s->job);
    free(results);
    free(s);
    return result;
}
