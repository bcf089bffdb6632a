#include "backend/cuda/blas_search.h"

#include <library_types.h>
#include <math.h>
#include <pthread.h>

#include "base/limits.h"
#include "base/symbol.h"

enum { MOST_ALGORITHMS = 16, ALIGNMENT = 16, TIMED_CALLS = 5 };
#define GAIN_WANTED 0.99 /* less is noise, and the next plan would choose another */

/* cuBLASLt's names and values, fixed by its ABI; its header may not be installed. */
enum {
    OP_N = 0,
    OP_T = 1,
    COMPUTE_32F = 68,
    SUCCESS = 0,
    DESC_TRANSA = 3,
    DESC_TRANSB = 4,
    DESC_SM_COUNT_TARGET = 15,
    PREF_MAX_WORKSPACE_BYTES = 1,
    PREF_MIN_ALIGNMENT_A = 5 /* and of B, C, D after it */
};

typedef struct heuristic {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
} heuristic;

static struct {
    int (*create_operation)(void **operation, int compute, int scale_type);
    int (*destroy_operation)(void *operation);
    int (*set_operation)(void *operation, int attribute, const void *value, size_t bytes);
    int (*create_layout)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
    int (*destroy_layout)(void *layout);
    int (*create_preference)(void **preference);
    int (*destroy_preference)(void *preference);
    int (*set_preference)(void *preference, int attribute, const void *value, size_t bytes);
    int (*get_heuristic)(void *handle, void *operation, void *a, void *b, void *c, void *d,
                         void *preference, int wanted, heuristic *found, int *count);
    int (*matmul)(void *handle, void *operation, const void *alpha, const void *A, void *a,
                  const void *B, void *b, const void *beta, const void *C, void *c, void *D,
                  void *d, const void *algorithm, void *workspace, size_t bytes,
                  cudaStream_t stream);
} lt;

static pthread_once_t looked = PTHREAD_ONCE_INIT;
static bool found;

static void look(void)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                        "libcublasLt.so"};
    const struct {
        const char *name;
        void *place;
    } wanted[] = {{"cublasLtMatmulDescCreate", &lt.create_operation},
                  {"cublasLtMatmulDescDestroy", &lt.destroy_operation},
                  {"cublasLtMatmulDescSetAttribute", &lt.set_operation},
                  {"cublasLtMatrixLayoutCreate", &lt.create_layout},
                  {"cublasLtMatrixLayoutDestroy", &lt.destroy_layout},
                  {"cublasLtMatmulPreferenceCreate", &lt.create_preference},
                  {"cublasLtMatmulPreferenceDestroy", &lt.destroy_preference},
                  {"cublasLtMatmulPreferenceSetAttribute", &lt.set_preference},
                  {"cublasLtMatmulAlgoGetHeuristic", &lt.get_heuristic},
                  {"cublasLtMatmul", &lt.matmul}};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    found = library != NULL;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && found; i++)
        found = ewx_symbol_find(library, wanted[i].name, wanted[i].place);
}

/* ---- The operation ---- */

void ewx_blas_forget(ewx_blas_choice *choice)
{
    void *layouts[] = {choice->a, choice->b, choice->c};
    if (choice->operation)
        lt.destroy_operation(choice->operation);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (layouts[i])
            lt.destroy_layout(layouts[i]);
    *choice = (ewx_blas_choice){0};
}

/* Column-major: C^T [n x rows] = B * A^T. */
static bool describe(const ewx_device *device, ewx_blas_shape shape, ewx_blas_choice *c)
{
    const int type = shape.dtype == EW_BF16 ? CUDA_R_16BF : CUDA_R_16F;
    const int32_t op_a = OP_T, op_b = OP_N, sms = device->sms;
    const uint64_t rows = (uint64_t)shape.rows, n = (uint64_t)shape.n,
                   k = (uint64_t)shape.k;
    return lt.create_operation(&c->operation, COMPUTE_32F, CUDA_R_32F) == SUCCESS &&
           lt.set_operation(c->operation, DESC_TRANSA, &op_a, sizeof op_a) == SUCCESS &&
           lt.set_operation(c->operation, DESC_TRANSB, &op_b, sizeof op_b) == SUCCESS &&
           /* it would plan for the whole GPU */
           (!device->sm_group || lt.set_operation(c->operation, DESC_SM_COUNT_TARGET, &sms,
                                                  sizeof sms) == SUCCESS) &&
           lt.create_layout(&c->a, type, k, n, shape.k) == SUCCESS &&
           lt.create_layout(&c->b, type, k, rows, shape.k) == SUCCESS &&
           lt.create_layout(&c->c, type, n, rows, shape.n) == SUCCESS;
}

static int list_algorithms(void *handle, const ewx_blas_choice *c, size_t workspace_bytes,
                           heuristic *list)
{
    const uint32_t alignment = ALIGNMENT;
    void *preference = NULL;
    int count = 0;
    bool ok = lt.create_preference(&preference) == SUCCESS &&
              lt.set_preference(preference, PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                sizeof workspace_bytes) == SUCCESS;
    for (int matrix = 0; matrix < 4 && ok; matrix++)
        ok = lt.set_preference(preference, PREF_MIN_ALIGNMENT_A + matrix, &alignment,
                               sizeof alignment) == SUCCESS;
    ok = ok && lt.get_heuristic(handle, c->operation, c->a, c->b, c->c, c->c, preference,
                                MOST_ALGORITHMS, list, &count) == SUCCESS;
    if (preference)
        lt.destroy_preference(preference);
    return ok ? count : 0;
}

bool ewx_blas_serves(const ewx_blas_choice *choice, int64_t rows,
                     const ewx_blas_operands *operands)
{
    const uintptr_t places =
        (uintptr_t)operands->A | (uintptr_t)operands->B | (uintptr_t)operands->C;
    return choice->rows == rows && places % ALIGNMENT == 0;
}

int ewx_blas_launch(void *handle, const ewx_blas_choice *c,
                    const ewx_blas_operands *operands)
{
    const float one = 1.0f, zero = 0.0f;
    return lt.matmul(handle, c->operation, &one, operands->B, c->a, operands->A, c->b,
                     &zero, operands->C, c->c, operands->C, c->c, c->algorithm,
                     operands->workspace, operands->workspace_bytes, operands->stream);
}

/* ---- The search ---- */

/* Mean of a few calls in a row; the first, which may load a kernel, does not count.
 * INFINITY: it cannot run. */
static double time_algorithm(void *handle, const ewx_blas_choice *c,
                             const ewx_blas_operands *operands, const cudaEvent_t *events)
{
    float ms = 0;
    if (ewx_blas_launch(handle, c, operands) != SUCCESS ||
        cudaEventRecord(events[0], operands->stream) != cudaSuccess)
        return INFINITY;
    for (int call = 0; call < TIMED_CALLS; call++)
        if (ewx_blas_launch(handle, c, operands) != SUCCESS)
            return INFINITY;
    if (cudaEventRecord(events[1], operands->stream) != cudaSuccess ||
        cudaEventSynchronize(events[1]) != cudaSuccess ||
        cudaEventElapsedTime(&ms, events[0], events[1]) != cudaSuccess || !(ms > 0))
        return INFINITY;
    return (double)ms * 1e3 / TIMED_CALLS;
}

/* The slowest rank counts, and the first stays unless another gains a per cent. */
static int choose(const double times[EWX_MAX_RANKS][MOST_ALGORITHMS], int num_ranks,
                  int count, double *part_out)
{
    double slowest[MOST_ALGORITHMS] = {0};
    int best = 0;
    for (int at = 0; at < count; at++) {
        for (int rank = 0; rank < num_ranks; rank++)
            slowest[at] = fmax(slowest[at], times[rank][at]);
        if (slowest[at] < slowest[best])
            best = at;
    }
    if (!(slowest[best] < GAIN_WANTED * slowest[0]) && !isinf(slowest[0]))
        best = 0;
    *part_out = slowest[best] / slowest[0];
    return isinf(slowest[best]) ? -1 : best;
}

/* As many as every rank has; heuristics of equal GPUs are equal. */
static ew_status share_count(ew_world *world, int *count)
{
    int32_t mine = *count, all[EWX_MAX_RANKS];
    EW_TRY(ewx_world_allgather(world, &mine, all, sizeof mine));
    for (int rank = 0; rank < world->num_ranks; rank++)
        *count = all[rank] < *count ? all[rank] : *count;
    return EW_OK;
}

static ew_status race(ew_world *world, void *handle, const ewx_blas_operands *operands,
                      const heuristic *list, int count, ewx_blas_choice *c)
{
    double mine[MOST_ALGORITHMS] = {0}, all[EWX_MAX_RANKS][MOST_ALGORITHMS];
    cudaEvent_t events[2] = {NULL, NULL};
    const bool ready = cudaEventCreate(&events[0]) == cudaSuccess &&
                       cudaEventCreate(&events[1]) == cudaSuccess;
    ew_status status = EW_OK;
    for (int at = 0; at < count && status == EW_OK; at++) {
        memcpy(c->algorithm, list[at].algorithm, sizeof c->algorithm);
        status = ewx_world_barrier(world); /* ranks on one GPU are as busy as in a call */
        mine[at] = ready && list[at].status == SUCCESS && status == EW_OK
                       ? time_algorithm(handle, c, operands, events)
                       : INFINITY;
    }
    for (int i = 0; i < 2; i++)
        if (events[i])
            cudaEventDestroy(events[i]);
    (void)cudaGetLastError();
    EW_TRY(status);
    EW_TRY(ewx_world_allgather(world, mine, all, sizeof mine));
    const int best =
        choose((const double(*)[MOST_ALGORITHMS])all, world->num_ranks, count, &c->part);
    if (best >= 0)
        memcpy(c->algorithm, list[best].algorithm, sizeof c->algorithm);
    c->number = best + 1;
    c->count = count;
    return EW_OK;
}

ew_status ewx_blas_search(ew_world *world, const ewx_device *device, void *handle,
                          ewx_blas_shape shape, const ewx_blas_operands *operands,
                          ewx_blas_choice *choice_out)
{
    heuristic list[MOST_ALGORITHMS];
    ewx_blas_choice c = {.rows = shape.rows};
    pthread_once(&looked, look);
    int count = found && shape.rows > 0 && describe(device, shape, &c)
                    ? list_algorithms(handle, &c, operands->workspace_bytes, list)
                    : 0;
    if (!ewx_blas_serves(&c, shape.rows, operands))
        count = 0;
    ew_status status = share_count(world, &count);
    if (status == EW_OK && count > 0)
        status = race(world, handle, operands, list, count, &c);
    if (status != EW_OK || count == 0 || c.number == 0)
        ewx_blas_forget(&c);
    *choice_out = c;
    return status;
}
