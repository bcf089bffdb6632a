/* mlp_block: the whole MLP of a Llama layer in one CUDA graph, on a virtual node: rows are
 * gathered and multiplied with gate and up, SwiGLU, down, ReduceScatter, residual, RMSNorm.
 *
 *   fused  two calls: ew_ag_gemm_act, ew_gemm_rs_layer
 *   apart  the same, but SwiGLU in a kernel of its own between them
 *   blas   cuBLAS after our AllGather, that kernel, cuBLAS before our ReduceScatter, and
 *          the residual and the norm in kernels of their own
 *
 *     mlp_block [-W 8] [-m 8192] [-H 8192] [-I 28672] [-l 46 GB/s] [-n samples]
 *               [-c config of the first plan of fused and apart] [-g 0: without graphs]
 *
 * fused and apart must agree in every bit.  SwiGLU's own kernel has the GPU's SMs, not only
 * the rank's: what is said of `fused` is rather too little. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "entwine/entwine.h"
#include "entwine/measure.h"
#include "plan/activation_math.h"

namespace
{

constexpr int MAX_RANKS = 72;
constexpr int REPLAYS = 3; /* of a sample */

struct settings {
    int ranks = 8, samples = 9, graphs = 1;
    int64_t m = 8192, hidden = 8192, inner = 28672;
    double link = 46; /* GB/s; 0: none is emulated */
    const char *config = "";
    std::vector<double> times_ms[3];
    long long different = 0;
};

enum method { FUSED, APART, BLAS, NUM_METHODS };
const char *const names[] = {"fused", "apart", "blas"};

/* Products beside each other in a row: [rows x 2 n] -> [rows x n], eight at a time. */
__global__ void swiglu(const __nv_bfloat16 *gate_up, __nv_bfloat16 *h, int64_t rows,
                       int64_t n)
{
    const int64_t pieces = rows * n / 8;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < pieces;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = i * 8 / n, col = i * 8 % n;
        const __nv_bfloat16 *from = gate_up + row * 2 * n + col;
        __nv_bfloat16 gate[8], up[8], result[8];
        *(uint4 *)gate = *(const uint4 *)from;
        *(uint4 *)up = *(const uint4 *)(from + n);
        for (int j = 0; j < 8; j++)
            result[j] = __float2bfloat16_rn(
                EWX_MUL(ewx_activate(EW_ACTIVATION_SILU, __bfloat162float(gate[j])),
                        __bfloat162float(up[j])));
        *(uint4 *)(h + row * n + col) = *(const uint4 *)result;
    }
}

/* One rank at work. */
struct rank_state {
    ew_world *world;
    settings *s;
    int rank;
    int64_t rows, inner; /* this rank's */
    ew_plan *enter[NUM_METHODS], *leave[NUM_METHODS];
    __nv_bfloat16 *A, *gate_up_weight, *down_weight, *gate_up, *h, *residual, *norm_weight,
        *normed;
    cudaStream_t stream;
    cudaGraphExec_t graphs[NUM_METHODS];
};

#define TRY(expression)                                                                 \
    do {                                                                                \
        if ((expression) != EW_OK) {                                                    \
            fprintf(stderr, "rank %d: %s: %s\n", r.rank, #expression, ew_last_error()); \
            return 1;                                                                   \
        }                                                                               \
    } while (0)
#define CUDA_TRY(expression)                                          \
    do {                                                              \
        const cudaError_t error = (expression);                       \
        if (error != cudaSuccess) {                                   \
            fprintf(stderr, "rank %d: %s: %s\n", r.rank, #expression, \
                    cudaGetErrorString(error));                       \
            return 1;                                                 \
        }                                                             \
    } while (0)

ew_status create_plans(rank_state &r, method which)
{
    ew_problem into = EW_PROBLEM(r.s->m, 2 * r.inner, r.s->hidden, EW_BF16);
    ew_problem out = EW_PROBLEM(r.s->m, r.s->hidden, r.inner, EW_BF16);
    ew_config base = EW_CONFIG_INIT, config = EW_CONFIG_INIT;
    base.backend = EW_BACKEND_CUDA;
    if (which == BLAS)
        base.epilogue = EW_EPILOGUE_SEPARATE;
    into.op = EW_OP_AG_GEMM;
    ew_status status = ew_method_config(which == BLAS ? "blas" : "entwine", &base, &config);
    if (status == EW_OK)
        status = ew_plan_create(r.world, &out, &config, &r.leave[which]);
    config.epilogue = (ew_epilogue_form)0;
    if (status == EW_OK && which != BLAS) {
        status = ew_config_parse(r.s->config, &config); /* which leaves the rest open */
        config.backend = EW_BACKEND_CUDA;
    }
    return status == EW_OK ? ew_plan_create(r.world, &into, &config, &r.enter[which])
                           : status;
}

ew_status run_block(const rank_state &r, method which)
{
    const int64_t size = r.inner * r.s->hidden;
    const ew_product products[] = {{r.inner, r.gate_up_weight, NULL, NULL},
                                   {r.inner, r.gate_up_weight + size, NULL, NULL}};
    ew_epilogue epilogue = EW_EPILOGUE_INIT;
    epilogue.residual = r.residual;
    epilogue.norm_weight = r.norm_weight;
    epilogue.normed = r.normed;
    ew_status status;
    if (which == FUSED) {
        status = ew_ag_gemm_act(r.enter[which], r.s->m, r.A, products, 2,
                                EW_ACTIVATION_SILU, r.h, NULL, r.stream);
    } else {
        status = ew_ag_gemm(r.enter[which], r.s->m, r.A, r.gate_up_weight, r.gate_up, NULL,
                            r.stream);
        swiglu<<<1024, 256, 0, r.stream>>>(r.gate_up, r.h, r.s->m, r.inner);
    }
    return status != EW_OK ? status
                           : ew_gemm_rs_layer(r.leave[which], r.s->m, r.h, r.down_weight,
                                              NULL, &epilogue, r.stream);
}

int fill(rank_state &r, __nv_bfloat16 **matrix, int64_t count, uint32_t seed, float scale)
{
    std::vector<uint16_t> words(count);
    CUDA_TRY(cudaMalloc((void **)matrix, count * 2));
    TRY(ew_random_fill(EW_BF16, seed, count, words.data()));
    for (uint16_t &word : words) {
        __nv_bfloat16 value;
        memcpy(&value, &word, 2);
        value = __float2bfloat16_rn(__bfloat162float(value) * scale);
        memcpy(&word, &value, 2);
    }
    CUDA_TRY(cudaMemcpy(*matrix, words.data(), count * 2, cudaMemcpyHostToDevice));
    return 0;
}

int set_up(rank_state &r)
{
    const settings &s = *r.s;
    const uint32_t seed = 10 * (uint32_t)r.rank;
    int64_t first;
    TRY(ew_owned_rows(s.m, s.ranks, r.rank, &first, &r.rows));
    r.inner = s.inner / s.ranks;
    CUDA_TRY(cudaSetDevice(0));
    CUDA_TRY(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
    if (fill(r, &r.A, r.rows * s.hidden, seed, 1) ||
        fill(r, &r.gate_up_weight, 2 * r.inner * s.hidden, seed + 1, 1.0f / 64) ||
        fill(r, &r.down_weight, r.inner * s.hidden, seed + 2, 1.0f / 64) ||
        fill(r, &r.norm_weight, s.hidden, seed + 3, 1) ||
        fill(r, &r.residual, r.rows * s.hidden, seed + 4, 1))
        return 1;
    CUDA_TRY(cudaMalloc((void **)&r.gate_up, 2 * s.m * r.inner * 2));
    CUDA_TRY(cudaMalloc((void **)&r.h, s.m * r.inner * 2));
    CUDA_TRY(cudaMalloc((void **)&r.normed, r.rows * s.hidden * 2));
    for (int which = 0; which < NUM_METHODS; which++)
        TRY(create_plans(r, (method)which));
    return 0;
}

/* Every method once, from the same residual: fused and apart give the same bits. */
int compare(rank_state &r)
{
    const size_t count = r.rows * r.s->hidden;
    std::vector<uint16_t> residual(count), results[NUM_METHODS];
    CUDA_TRY(cudaMemcpy(residual.data(), r.residual, count * 2, cudaMemcpyDefault));
    for (int which = 0; which < NUM_METHODS; which++) {
        results[which].resize(count);
        CUDA_TRY(cudaMemcpy(r.residual, residual.data(), count * 2, cudaMemcpyDefault));
        CUDA_TRY(cudaMemset(r.normed, 0xff, count * 2));
        CUDA_TRY(cudaDeviceSynchronize());
        TRY(ew_world_barrier(r.world));
        TRY(run_block(r, (method)which));
        CUDA_TRY(cudaStreamSynchronize(r.stream));
        TRY(ew_world_barrier(r.world));
        CUDA_TRY(cudaMemcpy(results[which].data(), r.normed, count * 2, cudaMemcpyDefault));
    }
    long long different = 0;
    for (size_t i = 0; i < count; i++)
        different += results[FUSED][i] != results[APART][i];
    __atomic_fetch_add(&r.s->different, different, __ATOMIC_RELAXED);
    return 0;
}

int capture(rank_state &r, int which)
{
    cudaGraph_t graph;
    TRY(ew_world_barrier(r.world));
    CUDA_TRY(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal));
    TRY(run_block(r, (method)which));
    CUDA_TRY(cudaStreamEndCapture(r.stream, &graph));
    CUDA_TRY(cudaGraphInstantiate(&r.graphs[which], graph, 0));
    CUDA_TRY(cudaGraphUpload(r.graphs[which], r.stream));
    CUDA_TRY(cudaStreamSynchronize(r.stream));
    return 0;
}

/* From the meeting of all ranks to the end of the last one. */
int sample(rank_state &r, int which, bool counts)
{
    TRY(ew_world_barrier(r.world));
    const int64_t begin = ew_now_ns();
    for (int i = 0; i < REPLAYS; i++)
        if (r.s->graphs)
            CUDA_TRY(cudaGraphLaunch(r.graphs[which], r.stream));
        else
            TRY(run_block(r, (method)which));
    CUDA_TRY(cudaStreamSynchronize(r.stream));
    TRY(ew_world_barrier(r.world));
    if (r.rank == 0 && counts)
        r.s->times_ms[which].push_back((double)(ew_now_ns() - begin) / 1e6 / REPLAYS);
    TRY(ew_plan_wait(r.leave[which]));
    return 0;
}

int rank_main(ew_world *world, void *argument)
{
    rank_state r = {};
    r.world = world;
    r.s = (settings *)argument;
    r.rank = ew_world_rank(world);
    if (set_up(r) || compare(r))
        return 1;
    for (int which = 0; which < NUM_METHODS && r.s->graphs; which++)
        if (capture(r, which))
            return 1;
    for (int i = -1; i < r.s->samples; i++)
        for (int which = 0; which < NUM_METHODS; which++)
            if (sample(r, which, i >= 0))
                return 1;
    TRY(ew_world_barrier(world));
    for (int which = 0; which < NUM_METHODS; which++) {
        if (r.graphs[which])
            cudaGraphExecDestroy(r.graphs[which]);
        ew_plan_destroy(r.enter[which]);
        ew_plan_destroy(r.leave[which]);
    }
    return 0;
}

double median(std::vector<double> values)
{
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

settings read(int argc, char **argv)
{
    settings s;
    for (int i = 1; i + 1 < argc; i += 2) {
        const double value = atof(argv[i + 1]);
        switch (argv[i][0] == '-' ? argv[i][1] : 0) {
        case 'W':
            s.ranks = (int)value;
            break;
        case 'm':
            s.m = (int64_t)value;
            break;
        case 'H':
            s.hidden = (int64_t)value;
            break;
        case 'I':
            s.inner = (int64_t)value;
            break;
        case 'l':
            s.link = value;
            break;
        case 'g':
            s.graphs = (int)value;
            break;
        case 'c':
            s.config = argv[i + 1];
            break;
        case 'n':
            s.samples = (int)value;
            break;
        default:
            fprintf(stderr, "mlp_block: unknown option '%s'\n", argv[i]);
            exit(2);
        }
    }
    if (s.ranks < 1 || s.ranks > MAX_RANKS || s.samples < 1 || s.inner % (8 * s.ranks)) {
        fprintf(stderr, "mlp_block: -I is to be a multiple of 8 W\n");
        exit(2);
    }
    return s;
}

} // namespace

int main(int argc, char **argv)
{
    settings s = read(argc, argv);
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.link_gbps = 8 * s.link;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    if (ew_run_ranks(EW_RANKS_AS_THREADS, s.ranks, &options, rank_main, &s, NULL) !=
        EW_OK) {
        fprintf(stderr, "mlp_block: %s\n", ew_last_error());
        return 1;
    }
    printf("MLP block, W=%d m=%lld hidden=%lld inner=%lld bf16, VIRTUAL NODE, link %g GB/s "
           "(EMULATED), %d samples of %d replays\n",
           s.ranks, (long long)s.m, (long long)s.hidden, (long long)s.inner, s.link,
           s.samples, REPLAYS);
    const double fused = median(s.times_ms[FUSED]);
    for (int which = 0; which < NUM_METHODS; which++)
        printf("%-6s %9.3f ms  %.3f of fused\n", names[which], median(s.times_ms[which]),
               median(s.times_ms[which]) / fused);
    printf("fused and apart differ in %lld elements\n", s.different);
    return s.different != 0;
}
