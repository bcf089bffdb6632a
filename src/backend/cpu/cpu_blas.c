/* Loading cblas_sgemm.  The handle is the process's, loaded once; the order of the names
 * is the order of speed that we measured on each architecture. */
#include "backend/cpu/cpu_blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/status.h"

/* The C interface of BLAS as its standard gives it. */
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k,
                         float alpha, const float *a, int lda, const float *b, int ldb,
                         float beta, float *c, int ldc);
typedef void (*set_threads_fn)(int threads);
typedef void (*set_threads_long_fn)(int64_t threads);

#if defined(__aarch64__)
static const char *const candidates[] = {"libblis.so.4", "libopenblas.so.0",
                                         "libblas.so.3"};
#else
static const char *const candidates[] = {"libopenblas.so.0", "libblis.so.4",
                                         "libblas.so.3"};
#endif

static struct {
    pthread_once_t once;
    const char *name;
    sgemm_fn sgemm;
    set_threads_fn openblas_threads;
    set_threads_long_fn blis_threads; /* its dim_t is 64 bits */
} blas = {.once = PTHREAD_ONCE_INIT};

/* ISO C has no cast from an object pointer to a function; POSIX promises this one. */
#define SYMBOL(handle, type, name) (*(type *)&(void *){dlsym(handle, name)})

static int try_load(const char *name)
{
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return 0;
    blas.sgemm = SYMBOL(handle, sgemm_fn, "cblas_sgemm");
    if (!blas.sgemm) {
        dlclose(handle);
        return 0;
    }
    blas.name = name;
    blas.openblas_threads = SYMBOL(handle, set_threads_fn, "openblas_set_num_threads");
    blas.blis_threads = SYMBOL(handle, set_threads_long_fn, "bli_thread_set_num_threads");
    return 1;
}

static void load(void)
{
    const char *wanted = secure_getenv("ENTWINE_BLAS");
    if (wanted && *wanted) {
        try_load(wanted);
        return;
    }
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++)
        if (try_load(candidates[i]))
            return;
}

const char *ewx_blas_name(void)
{
    pthread_once(&blas.once, load);
    return blas.name;
}

ew_status ewx_blas_check(void)
{
    const char *wanted = secure_getenv("ENTWINE_BLAS");
    if (ewx_blas_name())
        return EW_OK;
    if (wanted && *wanted)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "ENTWINE_BLAS=%.200s is no library that can be loaded and has "
                        "cblas_sgemm\n  fix: name one that is, such as libblis.so.4, or "
                        "unset it",
                        wanted);
    return ewx_fail(EW_ERR_UNSUPPORTED,
                    "no BLAS is installed\n"
                    "  fix: install libblis4 or libopenblas0, or name one "
                    "in ENTWINE_BLAS");
}

void ewx_blas_set_threads(int threads)
{
    if (!ewx_blas_name())
        return;
    if (blas.openblas_threads)
        blas.openblas_threads(threads);
    if (blas.blis_threads)
        blas.blis_threads(threads);
}

ew_status ewx_blas_gemm(ew_weight_layout layout, int64_t m, int64_t n, int64_t k,
                        const float *A, const float *B, float *C, int64_t c_stride)
{
    EW_TRY(ewx_blas_check());
    if (m > INT32_MAX || n > INT32_MAX || k > INT32_MAX || c_stride > INT32_MAX)
        return ewx_fail(
            EW_ERR_SHAPE,
            "BLAS counts in 32 bits: %lldx%lldx%lld with rows of %lld is too large\n"
            "  fix: make each smaller than 2147483648",
            (long long)m, (long long)n, (long long)k, (long long)c_stride);
    const int nk = layout == EW_WEIGHT_NK;
    blas.sgemm(ROW_MAJOR, NO_TRANS, nk ? TRANS : NO_TRANS, (int)m, (int)n, (int)k, 1.0f, A,
               (int)k, B, (int)(nk ? k : n), 0.0f, C, (int)c_stride);
    return EW_OK;
}
