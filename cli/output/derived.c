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
