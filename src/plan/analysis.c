/* The paper's bandwidth analysis. */
#include "entwine/measure.h"

double ew_remote_bytes(int64_t m, int64_t n, int num_ranks, size_t elem_bytes)
{
    return (double)(num_ranks - 1) / num_ranks * (double)m * (double)n * (double)elem_bytes;
}

double ew_gemm_seconds(int64_t m, int64_t n, int64_t k, double flops)
{
    return 2.0 * (double)m * (double)n * (double)k / flops;
}

double ew_required_bandwidth(int64_t k, int num_ranks, size_t elem_bytes, double flops)
{
    return (double)(num_ranks - 1) / num_ranks * (double)elem_bytes * flops /
           (2.0 * (double)k);
}
