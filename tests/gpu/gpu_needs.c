/* What plan/occupancy.h says of the kernels, which the simulator believes, is what they
 * take of this GPU, for which the driver may have compiled some of them itself. */
#include "backend/cuda/cuda_occupancy.h"
#include "gpu_check.h"
#include "gpukit.h"
#include "needs.h"

static const ew_dtype dtypes[] = {EW_BF16, EW_FP16};

static int compare(const ewx_cuda_entry *entry, ewx_kernel_needs figure, const char *what,
                   int block_n)
{
    ewx_kernel_needs compiled;
    if (ewx_cuda_entry_needs(entry, &compiled) != EW_OK)
        harness_fail("%s: %s", what, ew_last_error());
    if (!needs_hold(figure, compiled))
        harness_fail("%s, block or b %d: %d threads, %d registers, %d bytes, where "
                     "plan/occupancy.h has %d, %d, %d",
                     what, block_n, compiled.threads, compiled.registers,
                     compiled.shared_bytes, figure.threads, figure.registers,
                     figure.shared_bytes);
    return 1;
}

static int compare_gemms(ew_op op, ewx_cuda_form form, ew_dtype dtype)
{
    int count = 0;
    for (int block_n = 128; block_n <= 256; block_n += 128) {
        for (int cluster = 1; cluster <= 2 && gpu_has_kernel(EW_KERNEL_SM90); cluster++) {
            const ewx_cuda_entry entry =
                ewx_cuda_gemm_sm90(op, form, dtype, block_n, cluster);
            const ewx_cuda_entry pieces =
                form == EWX_CUDA_ONE_WEIGHT
                    ? ewx_cuda_gemm_sm90_pieces(op, dtype, block_n, cluster)
                    : (ewx_cuda_entry){0};
            count += compare(&entry, ewx_gemm_needs(EW_KERNEL_SM90, block_n), "gemm_sm90",
                             block_n);
            if (pieces.function)
                count += compare(&pieces, ewx_gemm_needs(EW_KERNEL_SM90, block_n),
                                 "gemm_sm90_pieces", block_n);
        }
        const ewx_cuda_entry entry = ewx_cuda_gemm_sm80(op, form, dtype, block_n);
        count +=
            compare(&entry, ewx_gemm_needs(EW_KERNEL_SM80, block_n), "gemm_sm80", block_n);
    }
    return count;
}

static int compare_reducers(ew_dtype dtype)
{
    static const int ranks[] = {2, 4, 8, 3}; /* 3 stands for any other W */
    int count = 0;
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++)
        for (int threads = 128; threads <= 512; threads *= 2) {
            const ewx_kernel_needs needs = ewx_reducer_needs(threads);
            const ewx_cuda_entry own = ewx_cuda_reducer(dtype, ranks[i], threads);
            const ewx_cuda_entry all = ewx_cuda_allreducer(dtype, ranks[i], threads);
            count += compare(&own, needs, "reducer", threads) +
                     compare(&all, needs, "allreducer", threads);
        }
    return count;
}

static int compare_movers(void)
{
    int count = 0;
    for (int threads = 128; threads <= 512; threads *= 2) {
        const ewx_cuda_entry entry = ewx_cuda_mover(threads);
        count += compare(&entry, ewx_reducer_needs(threads), "mover", threads);
    }
    return count;
}

void check_needs(void)
{
    int count = compare_movers();
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        count += compare_gemms(EW_OP_GEMM_RS, EWX_CUDA_ONE_WEIGHT, dtypes[i]) +
                 compare_gemms(EW_OP_GEMM_AR, EWX_CUDA_ONE_WEIGHT, dtypes[i]) +
                 compare_reducers(dtypes[i]);
        for (int form = 0; form < EWX_CUDA_NUM_FORMS; form++)
            count += compare_gemms(EW_OP_AG_GEMM, (ewx_cuda_form)form, dtypes[i]);
    }
    gpu_remark("%d kernels take what is written", count);
}
