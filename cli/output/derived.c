/* Arithmetic on measured numbers; no measuring, no output. */
#include "output/derived.h"

#include <math.h>
#include <string.h>

enum { NUM_RESAMPLES = 2000 };

bool cli_method_is(const char *label, const char *method)
{
    const size_t length = strlen(method);
    return strncmp(label, method, length) == 0 &&
           (label[length] == '\0' || strchr("+[", label[length]));
}

double cli_overlap_efficiency(const char *label, double time_us, double gemm_us,
                              double sequential_gemm_us)
{
    return (cli_method_is(label, "blas") ? gemm_us : sequential_gemm_us) / time_us;
}

/* ---- Ratios ---- */

/* Samples in order, and where each round's is among them: medians of draws need no sorting.
 */
typedef struct ordered {
    double values[EW_BENCH_MAX_SAMPLES];
    int places[EW_BENCH_MAX_SAMPLES]; /* by round */
} ordered;

static void put_in_order(ordered *samples, const double *samples_us, int count)
{
    memcpy(samples->values, samples_us, (size_t)count * sizeof *samples_us);
    cli_sort(samples->values, count);
    for (int round = 0; round < count; round++) {
        int low = 0, high = count - 1;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (samples->values[middle] < samples_us[round])
                low = middle + 1;
            else
                high = middle;
        }
        samples->places[round] = low;
    }
}

/* Of the samples that these rounds have, as often as they are among them. */
static double median_of(const ordered *samples, const int *rounds, int count)
{
    int times[EW_BENCH_MAX_SAMPLES];
    memset(times, 0, (size_t)count * sizeof *times);
    for (int i = 0; i < count; i++)
        times[samples->places[rounds[i]]]++;
    return cli_counted_median(samples->values, times, count);
}

cli_ratio cli_paired_ratio(const double *over_us, const double *under_us, int count)
{
    double ratios[NUM_RESAMPLES];
    int rounds[EW_BENCH_MAX_SAMPLES];
    ordered over, under;
    uint64_t random = 1;
    cli_ratio ratio = {NAN, NAN, NAN};
    if (count < 1 || count > EW_BENCH_MAX_SAMPLES)
        return ratio;
    put_in_order(&over, over_us, count);
    put_in_order(&under, under_us, count);
    for (int round = 0; round < count; round++)
        rounds[round] = round;
    ratio.value = median_of(&over, rounds, count) / median_of(&under, rounds, count);
    for (int draw = 0; draw < NUM_RESAMPLES && count >= CLI_LEAST_SAMPLES; draw++) {
        for (int at = 0; at < count; at++)
            rounds[at] = cli_draw(&random, count);
        ratios[draw] = median_of(&over, rounds, count) / median_of(&under, rounds, count);
    }
    if (count >= CLI_LEAST_SAMPLES)
        cli_percentiles(ratios, NUM_RESAMPLES, &ratio.low, &ratio.high);
    return ratio;
}

const char *cli_lead_name(const cli_ratio *ratio)
{
    if (isnan(ratio->low))
        return NULL;
    return ratio->low > 1 ? "ahead" : ratio->high < 1 ? "behind" : "level";
}

void cli_field_add(cli_field *field, const cli_ratio *ratio)
{
    if (isnan(ratio->low))
        return;
    field->ahead += ratio->low > 1;
    field->behind += ratio->high < 1;
    field->level += !(ratio->low > 1) && !(ratio->high < 1);
}

const char *cli_field_name(const cli_field *field)
{
    if (field->behind)
        return "behind";
    return field->level ? "level" : field->ahead ? "ahead" : NULL;
}

/* ---- Shapes ---- */

int cli_num_parts(ew_op op, int num_ranks)
{
    return op == EW_OP_GEMM_AR ? 1 : num_ranks;
}

int64_t cli_most_output_rows(const ew_problem *problem, int num_ranks)
{
    return problem->op == EW_OP_GEMM_RS ? (problem->max_m + num_ranks - 1) / num_ranks
                                        : problem->max_m;
}

double cli_waves(int64_t m, int64_t n, int num_parts, int64_t block_m, int64_t block_n,
                 int slots)
{
    int64_t first, rows, block_rows = 0;
    if (slots < 1 || block_m < 1 || block_n < 1)
        return NAN;
    for (int part = 0; part < num_parts; part++)
        if (ew_owned_rows(m, num_parts, part, &first, &rows) == EW_OK)
            block_rows += (rows + block_m - 1) / block_m;
    return (double)(block_rows * ((n + block_n - 1) / block_n)) / slots;
}

double cli_remote_gbs(const ew_problem *problem, int num_ranks, double us)
{
    return ew_problem_remote_bytes(problem, problem->max_m, num_ranks) / us * 1e-3;
}
