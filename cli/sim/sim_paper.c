/* entwine sim --validate: the paper's published figures beside what the simulator says of
 * its test bed.  Those that the profile was fitted to are marked. */
#include <math.h>
#include <stdlib.h>

#include "sim/sim_call.h"
#include "run/simulated.h"

enum { NUM_MAIN = 15, NUM_WAVES = 5, NUM_SHAPES = 5 };

typedef struct published {
    const char *what;
    double value, predicted;
    bool fitted;
} published;

typedef struct paper {
    const char *profile;
    cli_sim_space space;
    ew_status status; /* of the first simulation that failed */
    int tried;
} paper;

/* ---- Simulations ---- */

static cli_sim_case case_of(const paper *p, int64_t m, int64_t n, int64_t k, int num_ranks)
{
    const ew_problem problem = EW_PROBLEM(m, n, k, EW_FP16);
    cli_sim_case what = {problem, num_ranks, EW_SIM_OPTIONS_INIT};
    what.options.profile = p->profile;
    return what;
}

static ew_sim_report call(paper *p, const cli_sim_case *what, const char *method)
{
    ew_sim_report report = {.time_us = 1, .gemm_us = 1};
    ew_status status = cli_sim_method(what, method, NULL, &report);
    if (status && !p->status)
        p->status = status;
    return report;
}

/* The best budget, block and threads, as the paper's offline profiling picks them. */
static ew_sim_report best(paper *p, const cli_sim_case *what, const char *method,
                          const char *config_text)
{
    ew_sim_report report = {.time_us = 1, .gemm_us = 1};
    ew_config base;
    ew_status status = ew_config_parse(config_text, &base);
    if (status == EW_OK)
        status = cli_sim_search(what, method, &base, &p->space, &report, &p->tried);
    if (status && !p->status)
        p->status = status;
    return report;
}

/* ---- Statistics ---- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

static double geomean(const double *values, int count)
{
    double sum = 0;
    for (int at = 0; at < count; at++)
        sum += log(values[at]);
    return exp(sum / count);
}

static double largest(const double *values, int count)
{
    double most = values[0];
    for (int at = 1; at < count; at++)
        most = fmax(most, values[at]);
    return most;
}

/* ---- The figures ---- */

typedef struct suite_numbers {
    double speedup[NUM_MAIN], exposed[NUM_MAIN], efficiency[NUM_MAIN], gap[NUM_MAIN];
} suite_numbers;

static void run_main_suite(paper *p, int num_ranks, suite_numbers *numbers)
{
    static const int64_t shapes[NUM_SHAPES][2] = {
        {8192, 8192}, {16384, 8192}, {32768, 8192}, {49152, 8192}, {16384, 16384}};
    static const int64_t depths[] = {2048, 4096, 8192};
    for (int at = 0; at < NUM_MAIN; at++) {
        const int64_t *shape = shapes[at / 3];
        const cli_sim_case what = case_of(p, shape[0], shape[1], depths[at % 3], num_ranks);
        const ew_sim_report vendor = call(p, &what, "blas");
        const ew_sim_report alone = call(p, &what, "sequential");
        const ew_sim_report ours = best(p, &what, "entwine", "");
        numbers->speedup[at] = vendor.time_us / ours.time_us;
        numbers->exposed[at] = vendor.tail_us / vendor.time_us;
        numbers->efficiency[at] = alone.gemm_us / ours.time_us;
        numbers->gap[at] = ours.time_us / ours.gemm_us - 1;
    }
}

static void predict_suite(paper *p, published *f)
{
    suite_numbers eight, two;
    run_main_suite(p, 8, &eight);
    run_main_suite(p, 2, &two);
    f[0].predicted = geomean(eight.speedup, NUM_MAIN);
    f[1].predicted = largest(eight.speedup, NUM_MAIN);
    f[4].predicted = median(eight.exposed, NUM_MAIN); /* sorts */
    f[2].predicted = eight.exposed[0];
    f[3].predicted = eight.exposed[NUM_MAIN - 1];
    f[5].predicted = geomean(eight.efficiency, NUM_MAIN);
    f[6].predicted = geomean(two.speedup, NUM_MAIN);
    f[7].predicted = largest(eight.gap, NUM_MAIN);
    f[8].predicted = median(eight.gap, NUM_MAIN);
}

static void predict_ablations(paper *p, published *f)
{
    static const int64_t order_depths[] = {2048, 512},
                         release_depths[] = {2048, 4096, 8192};
    for (int at = 0; at < 2; at++) {
        const cli_sim_case what = case_of(p, 8192, 8192, order_depths[at], 8);
        const ew_sim_report ours = best(p, &what, "entwine", "");
        const ew_sim_report plain = best(p, &what, "entwine", "order=default");
        const ew_sim_report apart = best(p, &what, "static", "");
        f[at].predicted = plain.time_us / ours.time_us;
        f[2 + at].predicted = 1 - ours.tail_us / plain.tail_us;
        f[4 + at].predicted = apart.time_us / ours.time_us;
    }
    for (int at = 0; at < 3; at++) {
        const cli_sim_case what = case_of(p, 8192, 8192, release_depths[at], 8);
        f[6 + at].predicted =
            call(p, &what, "sequential").time_us / best(p, &what, "entwine", "").time_us;
    }
}

/* Waves up to which the rival is ahead, in geomean, at each wave count of the suites. */
static double crossing(paper *p, const char *rival)
{
    static const int64_t gemms[NUM_SHAPES][2] = {
        {4096, 512}, {4096, 1792}, {8192, 1024}, {8192, 3584}, {8192, 3696}};
    double ahead_until = 0;
    for (int step = 0; step < NUM_WAVES; step++) {
        double ratios[NUM_SHAPES];
        int count = 0;
        for (int at = 0; at < NUM_SHAPES; at++) {
            const int64_t rows = ((int64_t)1024 << step) * 4096 / gemms[at][0];
            if (rows < 1024 || rows > 8192)
                continue;
            const cli_sim_case what = case_of(p, rows, gemms[at][0], gemms[at][1], 8);
            ratios[count++] =
                best(p, &what, rival, "").time_us / best(p, &what, "entwine", "").time_us;
        }
        if (count > 0 && geomean(ratios, count) < 1)
            ahead_until = 128.0 / 108.0 * (1 << step);
    }
    return ahead_until;
}

/* ---- Printing ---- */

static void print_figures(const published *figures, int count, const paper *p)
{
    printf("# SIMULATED beside published, profile %s, %d simulations; f: used to fit the "
           "profile\n",
           p->profile, p->tried);
    printf("# %-52s %10s %10s %8s\n", "figure", "published", "SIMULATED", "error");
    for (int at = 0; at < count; at++) {
        const published *f = &figures[at];
        printf("  %-52s %10.4g %10.4g %+7.1f%%%s\n", f->what, f->value, f->predicted,
               100 * (f->predicted / f->value - 1), f->fitted ? " f" : "");
    }
}

static void print_figures_json(const published *figures, int count, const paper *p)
{
    json_t *array = json_array();
    for (int at = 0; at < count; at++)
        json_array_append_new(array, json_pack("{ss sf sf sb}", "figure", figures[at].what,
                                               "published", figures[at].value, "simulated",
                                               figures[at].predicted, "fitted",
                                               (int)figures[at].fitted));
    json_t *document = json_pack("{ss ss so}", "schema", "entwine-validation/1", "profile",
                                 p->profile, "figures", array);
    json_dumpf(document, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(document);
}

cli_exit cli_sim_validate_paper(const cli_settings *settings)
{
    published figures[] = {
        {"speedup over cuBLAS+NCCL, geomean of 15", 1.232, 0, true},
        {"  the largest of them", 1.433, 0, false},
        {"communication exposed by cuBLAS+NCCL, least", 0.110, 0, false},
        {"  most", 0.402, 0, true},
        {"  median", 0.233, 0, true},
        {"overlap efficiency, geomean", 0.946, 0, true},
        {"speedup at W=2, geomean", 1.1484, 0, false},
        {"required against measured bandwidth, largest gap", 0.030, 0, false},
        {"  median gap", 0.0037, 0, false},
        {"default order is so many times slower, K=2048", 1.267, 0, false},
        {"  K=512", 1.277, 0, false},
        {"  tail that interleaving removes, K=2048", 0.976, 0, false},
        {"  K=512", 0.985, 0, false},
        {"static pool is so many times slower, K=2048", 1.185, 0, false},
        {"  K=512", 1.066, 0, false},
        {"tile release over no overlap, K=2048", 1.439, 0, false},
        {"  K=4096", 1.199, 0, false},
        {"  K=8192", 1.132, 0, false},
        {"wave groups are ahead up to so many waves", 1.19, 0, false},
        {"fused epilogues are ahead up to so many waves", 9.48, 0, false},
    };
    const int count = sizeof figures / sizeof figures[0];
    paper p = {.profile = settings->profile ? settings->profile : "a800-8",
               .space = {.block_n = {128, 256},
                         .group = {1, 2, 4},
                         .budget = {8, 16, 32, 48, 64},
                         .batch = {128, 256, 512}}};
    predict_suite(&p, figures);
    predict_ablations(&p, figures + 9);
    figures[18].predicted = crossing(&p, "wavegroup");
    figures[19].predicted = crossing(&p, "fused-push");
    if (p.status)
        return cli_fail_status(p.status, ew_last_error());
    if (settings->format == CLI_FORMAT_JSON)
        print_figures_json(figures, count, &p);
    else
        print_figures(figures, count, &p);
    return CLI_EXIT_OK;
}
