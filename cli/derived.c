/* Arithmetic on measured numbers; no measuring, no output. */
#include "derived.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double cli_geomean(const double *values, int count)
{
    double sum = 0.0;
    for (int at = 0; at < count; at++)
        sum += log(values[at]);
    return count ? exp(sum / count) : NAN;
}

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

void cli_sort(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
}

double cli_quantile(const double *values, int count, double part)
{
    double place = part * (count - 1);
    int below = (int)place;
    int above = below + 1 < count ? below + 1 : below;
    return values[below] + (place - below) * (values[above] - values[below]);
}

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

double cli_waves(int64_t m, int64_t n, int num_ranks, int64_t block_m, int64_t block_n,
                 int slots)
{
    int64_t first, rows, block_rows = 0;
    if (slots < 1 || block_m < 1 || block_n < 1)
        return NAN;
    for (int rank = 0; rank < num_ranks; rank++)
        if (ew_owned_rows(m, num_ranks, rank, &first, &rows) == EW_OK)
            block_rows += (rows + block_m - 1) / block_m;
    return (double)(block_rows * ((n + block_n - 1) / block_n)) / slots;
}

double cli_remote_gbs(int64_t m, int64_t n, int num_ranks, ew_dtype dtype, double us)
{
    return ew_remote_bytes(m, n, num_ranks, ew_dtype_bytes(dtype)) / us * 1e-3;
}
