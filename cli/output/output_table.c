/* The table for people, in the spirit of nccl-tests. */
#include "output/output.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/stats.h"
#include "base/text.h"
#include "run/simulated.h"

/* Above this a comparison of a few per cent means nothing. */
static const double noisy_cv = 0.05;

static int label_width(const cli_job *job)
{
    size_t width = strlen("sequential");
    for (int at = 0; at < job->num_entries; at++)
        if (strlen(job->entries[at].label) > width)
            width = strlen(job->entries[at].label);
    return (int)width;
}

static void print_virtual_node(const cli_job *job, const cli_problem *problem, FILE *stream)
{
    char gpus[24] = "one GPU";
    if (!cli_job_is_virtual(job, problem))
        return;
    if (job->gpus.count > 1)
        snprintf(gpus, sizeof gpus, "%d GPUs", job->gpus.count);
    fprintf(stream, "# VIRTUAL NODE: %d ranks share %s, %d SMs each\n", problem->num_ranks,
            gpus, cli_gpu_sms_per_rank(&job->gpus, problem->num_ranks));
}

/* One line for each W. */
static void print_hardware(const cli_job *job, int which, FILE *stream)
{
    const cli_problem *problem = &job->problems[which];
    char text[192];
    for (int before = 0; before < which; before++)
        if (job->problems[before].num_ranks == problem->num_ranks)
            return;
    if (!job->bed->is_simulated) {
        print_virtual_node(job, problem, stream);
        return;
    }
    cli_sim_text(NULL, problem->num_ranks, text, sizeof text);
    fprintf(stream, "# %s\n", text);
}

void cli_caveats_print(const cli_job *job, FILE *stream)
{
    char text[96];
    for (int which = 0; which < job->num_problems; which++)
        print_hardware(job, which, stream);
    if (job->num_problems > 0)
        fputs(cli_op_text(job->problems[0].problem.op), stream);
    cli_link_text(job, text, sizeof text);
    if (job->ranks.options.link_gbps > 0)
        fprintf(stream, "# link : %s\n", text);
    if (job->bench.skew_us > 0)
        fprintf(stream, "# skew : each rank starts up to %g us late\n", job->bench.skew_us);
}

void cli_table_begin(const cli_job *job)
{
    int width = label_width(job);
    const bool has_intervals =
        job->num_entries > 1 && job->bench.iters >= 5 && !job->bed->is_simulated;
    cli_caveats_print(job, stdout);
    printf("#%6s %7s %7s %4s %4s %-*s %11s %11s %10s %5s %9s %7s %7s %7s %6s%s\n", "M", "N",
           "K", "W", "type", width, "method", "time", "gemm", "tail", "cv", "rate", "algbw",
           "Breq", "speedup", "#wrong", has_intervals ? "   95 % of speedup" : "");
    printf("#%6s %7s %7s %4s %4s %-*s %11s %11s %10s %5s %9s %7s %7s %7s %6s\n", "", "", "",
           "", "", width, "", "(us)", "(us)", "(us)", "(%)", "(GFLOP/s)", "(GB/s)",
           "(GB/s)", "", "");
}

static void print_number(int width, int digits, double value)
{
    if (isnan(value))
        printf(" %*s", width, "-");
    else
        printf(" %*.*f", width, digits, value);
}

static void print_values(const cli_row *row)
{
    const ew_bench_result *result = row->result;
    print_number(11, 1, result->time_us);
    print_number(11, 1, result->gemm_us);
    print_number(10, 1, result->tail_us);
    print_number(5, 1, 100.0 * result->cv);
    print_number(9, 1, row->gflops);
    print_number(7, 2, row->algbw);
    print_number(7, 3, row->breq);
    print_number(7, 2, row->speedup);
    if (row->job->bed->is_simulated)
        printf(" %6s", "-");
    else
        printf(" %6" PRId64, result->check.wrong);
    if (!isnan(row->over_base.low))
        printf(" %6.3f to %.3f", row->over_base.low, row->over_base.high);
    if (row->extra && row->extra->detail.num_graphs > 0)
        printf("  %.1f us in a graph", row->extra->detail.graph_us);
    putchar('\n');
}

void cli_table_row(const cli_row *row)
{
    const ew_problem *shape = &row->problem->problem;
    printf("%7" PRId64 " %7" PRId64 " %7" PRId64 " %4d %4s %-*s", shape->max_m, shape->n,
           shape->k, row->problem->num_ranks, ew_dtype_name(shape->dtype),
           label_width(row->job), row->entry->label);
    if (row->result->status == EW_OK)
        print_values(row);
    else /* the first line of the reason; the fix is in the JSON */
        printf("  skipped: %.*s\n", (int)strcspn(row->result->error, "\n"),
               row->result->error);
}

static double geomean_speedup(const cli_summary *summary, int at)
{
    return exp(summary->log_speedup_sum[at] / summary->num_speedups[at]);
}

static void print_geomeans(const cli_job *job, const cli_summary *summary)
{
    for (int at = 0; at < job->num_entries && job->num_problems > 1; at++)
        if (summary->num_speedups[at] > 0)
            printf("# Geomean speedup : %.3f %s over %s, %d problem%s\n",
                   geomean_speedup(summary, at), job->entries[at].label,
                   job->entries[job->baseline].label, summary->num_speedups[at],
                   ewx_text_plural(summary->num_speedups[at]));
}

/* What a quoted figure must not be parted from. */
static void print_reservations(const cli_job *job, const cli_summary *summary)
{
    bool is_virtual = false;
    for (int at = 0; at < job->num_problems; at++)
        is_virtual = is_virtual || cli_job_is_virtual(job, &job->problems[at]);
    const bool few = job->bench.iters < CLI_LEAST_SAMPLES && !job->bed->is_simulated;
    printf("%s%s%s%s%s\n", job->bed->is_simulated ? ", SIMULATED" : "",
           job->ranks.options.link_gbps > 0 ? ", EMULATED link" : "",
           is_virtual ? ", VIRTUAL NODE" : "", few ? ", FEW SAMPLES" : "",
           summary->worst_cv > noisy_cv ? ", NOISY" : "");
}

/* The one figure of a comparison: ours, or the first method's, over the baseline; where
 * that is ours, over the first other method. */
static void print_result(const cli_job *job, const cli_summary *summary)
{
    int quoted = -1;
    for (int at = 0; at < job->num_entries; at++)
        if (at != job->baseline && summary->num_speedups[at] > 0 &&
            (quoted < 0 || strcmp(job->entries[at].label, "entwine") == 0))
            quoted = at;
    if (quoted < 0)
        return;
    const cli_entry *one = &job->entries[quoted], *other = &job->entries[job->baseline];
    double speedup = geomean_speedup(summary, quoted);
    cli_ratio ratio = summary->last_over_base[quoted];
    if (strcmp(other->method, "entwine") == 0 && strcmp(one->method, "entwine") != 0) {
        one = other, other = &job->entries[quoted];
        speedup = 1 / speedup;
        ratio = (cli_ratio){1 / ratio.value, 1 / ratio.high, 1 / ratio.low};
    }
    printf("# Result : %s is %.2f times as fast as %s", one->label, speedup, other->label);
    if (summary->num_speedups[quoted] > 1)
        printf(", geomean of %d problems", summary->num_speedups[quoted]);
    else if (!isnan(ratio.low))
        printf(", %s (95 %%: %.3f to %.3f)", cli_lead_name(&ratio), ratio.low, ratio.high);
    print_reservations(job, summary);
}

/* Ours against every other method, and what the difference between two runs of one config
 * is here. */
static void print_lead(const cli_job *job, const cli_summary *summary)
{
    const int count = summary->num_ahead + summary->num_level + summary->num_behind;
    if (count > 0)
        printf(
            "# Lead : %s is ahead of every other method on %d of %d problem%s, level with "
            "the best on %d, behind on %d\n",
            job->entries[cli_job_find(job, "entwine")].label, summary->num_ahead, count,
            ewx_text_plural(count), summary->num_level, summary->num_behind);
    if (summary->num_drifts > 0)
        printf("# Drift : %.1f %% on average, %.1f %% at most between two entries of one "
               "config\n",
               100 * summary->drift_sum / summary->num_drifts, 100 * summary->worst_drift);
}

void cli_table_end(const cli_job *job, const cli_summary *summary, bool complete)
{
    print_geomeans(job, summary);
    if (summary->num_ok > 0) {
        if (job->bench.iters > 1)
            printf("# Noise : cv %.1f %% %s\n", 100.0 * summary->worst_cv,
                   summary->worst_cv <= noisy_cv ? "OK" : "NOISY, try --gate 20");
        if (job->bed->is_simulated)
            puts("# Wrong values : not applicable, SIMULATED");
        else
            printf("# Wrong values : %" PRId64 " %s\n", summary->wrong,
                   summary->wrong ? "FAILED" : "OK");
    }
    if (summary->num_tuned > 0)
        printf("# Tuning : %d of %d searches complete\n",
               summary->num_tuned - summary->num_cut_short, summary->num_tuned);
    print_lead(job, summary);
    if (complete && !summary->wrong)
        print_result(job, summary);
    if (!complete)
        puts("# Incomplete : the run ended before all problems were measured");
}
