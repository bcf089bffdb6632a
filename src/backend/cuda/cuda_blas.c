#include "backend/cuda/cuda_blas.h"

#include <library_types.h>
#include <pthread.h>

#include "base/symbol.h"

#define WORKSPACE_BYTES ((size_t)64 << 20) /* ours, so that calls allocate nothing */

/* cuBLAS's names and values, fixed by its ABI; its header may not be installed. */
enum { OP_N = 0, OP_T = 1, COMPUTE_32F = 68, GEMM_DEFAULT = -1, SUCCESS = 0 };

static struct {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    int (*set_workspace)(void *handle, void *workspace, size_t bytes);
    int (*set_sm_count)(void *handle, int sms);
    int (*gemm)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,
                const void *A, cudaDataType a_type, int lda, const void *B,
                cudaDataType b_type, int ldb, const void *beta, void *C,
                cudaDataType c_type, int ldc, int compute, int algorithm);
} cublas;

static pthread_once_t looked = PTHREAD_ONCE_INIT;
static bool found;

static void look(void)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12",
                                        "libcublas.so"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    found = library && ewx_symbol_find(library, "cublasCreate_v2", &cublas.create) &&
            ewx_symbol_find(library, "cublasDestroy_v2", &cublas.destroy) &&
            ewx_symbol_find(library, "cublasSetStream_v2", &cublas.set_stream) &&
            ewx_symbol_find(library, "cublasSetWorkspace_v2", &cublas.set_workspace) &&
            ewx_symbol_find(library, "cublasSetSmCountTarget", &cublas.set_sm_count) &&
            ewx_symbol_find(library, "cublasGemmEx", &cublas.gemm);
}

ew_status ewx_cuda_blas_check(void)
{
    pthread_once(&looked, look);
    return found ? EW_OK
                 : ewx_fail(EW_ERR_UNSUPPORTED,
                            "cuBLAS is not installed\n"
                            "  fix: install it (libcublas.so), or use producer=own");
}

static ew_status check(int result, const char *what)
{
    return result == SUCCESS
               ? EW_OK
               : ewx_fail(EW_ERR_SYSTEM, "cuBLAS: %s failed with status %d", what, result);
}

ew_status ewx_cuda_blas_open(ewx_cuda_blas *blas, const ewx_device *device)
{
    EW_TRY(ewx_cuda_blas_check());
    EW_TRY(check(cublas.create(&blas->handle), "create"));
    EW_CUDA_TRY(cudaMalloc(&blas->workspace, WORKSPACE_BYTES), "allocating for cuBLAS");
    if (device->sm_group) /* cuBLAS would plan for the whole GPU */
        EW_TRY(check(cublas.set_sm_count(blas->handle, device->sms), "set SM count"));
    return EW_OK;
}

static ewx_blas_operands operands_of(const ewx_cuda_blas *blas, const void *A,
                                     const void *B, void *C, cudaStream_t stream)
{
    return (ewx_blas_operands){A, B, C, blas->workspace, WORKSPACE_BYTES, stream};
}

ew_status ewx_cuda_blas_tune(ewx_cuda_blas *blas, ew_world *world, const ewx_device *device,
                             ewx_blas_shape shape, const void *A, const void *B, void *C)
{
    const ewx_blas_operands operands = operands_of(blas, A, B, C, device->producing);
    return ewx_blas_search(world, device, blas->handle, shape, &operands, &blas->choice);
}

void ewx_cuda_blas_close(ewx_cuda_blas *blas)
{
    ewx_blas_forget(&blas->choice);
    if (blas->handle)
        cublas.destroy(blas->handle);
    cudaFree(blas->workspace);
    *blas = (ewx_cuda_blas){0};
}

static ew_status choose_stream(const ewx_cuda_blas *blas, cudaStream_t stream)
{
    EW_TRY(check(cublas.set_stream(blas->handle, stream), "set stream"));
    /* Setting the stream drops the workspace. */
    return check(cublas.set_workspace(blas->handle, blas->workspace, WORKSPACE_BYTES),
                 "set workspace");
}

ew_status ewx_cuda_blas_gemm(const ewx_cuda_blas *blas, ew_dtype dtype, int64_t m,
                             int64_t n, int64_t k, const void *A, const void *B, void *C,
                             cudaStream_t stream)
{
    const float one = 1.0f, zero = 0.0f;
    const cudaDataType type = dtype == EW_BF16 ? CUDA_R_16BF : CUDA_R_16F;
    if (m == 0)
        return EW_OK;
    const ewx_blas_operands operands = operands_of(blas, A, B, C, stream);
    if (ewx_blas_serves(&blas->choice, m, &operands))
        return check(ewx_blas_launch(blas->handle, &blas->choice, &operands), "matmul");
    EW_TRY(choose_stream(blas, stream));
    /* Column-major: C^T [n x m] = B * A^T. */
    return check(cublas.gemm(blas->handle, OP_T, OP_N, (int)n, (int)m, (int)k, &one, B,
                             type, (int)k, A, type, (int)k, &zero, C, type, (int)n,
                             COMPUTE_32F, GEMM_DEFAULT),
                 "gemm");
}

ew_status ewx_cuda_blas_gradient(const ewx_cuda_blas *blas, ew_dtype dtype, int64_t m,
                                 int64_t n, int64_t k, const void *A, const void *B,
                                 void *C, cudaStream_t stream)
{
    const float one = 1.0f, zero = 0.0f;
    const cudaDataType type = dtype == EW_BF16 ? CUDA_R_16BF : CUDA_R_16F;
    EW_TRY(choose_stream(blas, stream));
    /* Column-major: C^T [n x m] = B^T * A. */
    return check(cublas.gemm(blas->handle, OP_N, OP_T, (int)n, (int)m, (int)k, &one, B,
                             type, (int)n, A, type, (int)m, &zero, C, type, (int)n,
                             COMPUTE_32F, GEMM_DEFAULT),
                 "gemm");
}
