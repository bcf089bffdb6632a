/* Arithmetic on measured numbers; no measuring, no output. */
#include "output/derived.h"

#include <math.h>
#include <string.h>

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
