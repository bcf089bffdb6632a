/* Which call tells which number.  Calls are small: a calibration takes seconds. */
#include "sim/calibrate.h"

#include <string.h>

static calibrate_probe *probe(calibration *c, int rows_per_rank, int64_t cols,
                              int64_t depth, ew_dtype dtype, const char *method,
                              const char *config)
{
    calibrate_probe *p = &c->probes[c->num_probes++];
    const ew_problem problem =
        EW_PROBLEM((int64_t)rows_per_rank * c->machine.num_ranks, cols, depth, dtype);
    *p = (calibrate_probe){.problem = problem,
                           .num_ranks = c->machine.num_ranks,
                           .method = method,
                           .config = config};
    return p;
}

static void fact(calibration *c, const char *key, double value, const char *source)
{
    calibrate_number *n = &c->numbers[c->num_numbers++];
    *n = (calibrate_number){.key = key, .value = value};
    snprintf(n->source, sizeof n->source, "%s", source);
}

/* `least` 0 means that there may be nothing of it. */
static void number(calibration *c, const char *key, double x, double assumed,
                   const calibrate_probe *told_by, calibrate_window window, double least,
                   double most)
{
    c->numbers[c->num_numbers++] = (calibrate_number){.key = key,
                                                      .x = x,
                                                      .value = assumed,
                                                      .probe = told_by,
                                                      .window = window,
                                                      .least = least,
                                                      .most = most};
}

static void rate(calibration *c, const char *key, double x, double assumed,
                 const calibrate_probe *told_by)
{
    number(c, key, x, assumed, told_by, CALIBRATE_TAIL, calibrate_least, calibrate_most);
}

static void block(calibration *c, const char *key, double depth, double assumed,
                  const calibrate_probe *told_by)
{
    number(c, key, depth, assumed, told_by, CALIBRATE_GEMM, calibrate_least,
           calibrate_most);
}

static void factor(calibration *c, const char *key, double most,
                   const calibrate_probe *told_by)
{
    number(c, key, 0, 1, told_by, CALIBRATE_GEMM, 0.1, most);
}

static void latency(calibration *c, const char *key, const calibrate_probe *told_by,
                    calibrate_window window)
{
    number(c, key, 0, 1, told_by, window, 0, 1e4);
}

/* ---- CPU ---- */

enum { CPU_COLS = 512, CPU_ROWS = 256 };

static void plan_cpu(calibration *c)
{
    calibrate_probe *shallow = probe(c, CPU_ROWS, CPU_COLS, 64, EW_FP32, "sequential", "");
    calibrate_probe *middle = probe(c, CPU_ROWS, CPU_COLS, 256, EW_FP32, "sequential", "");
    calibrate_probe *blas = probe(c, CPU_ROWS, CPU_COLS, 256, EW_FP32, "blas", "");
    c->judge = probe(c, CPU_ROWS, CPU_COLS, 256, EW_FP32, "entwine", "");
    calibrate_probe *deep = probe(c, CPU_ROWS, CPU_COLS, 1024, EW_FP32, "sequential", "");
    calibrate_probe *bf16 = probe(c, CPU_ROWS, CPU_COLS, 256, EW_BF16, "sequential", "");
    calibrate_probe *flat = probe(c, 8, CPU_COLS, 64, EW_FP32, "sequential", "");
    calibrate_probe *tiny = probe(c, 128, 128, 64, EW_FP32, "sequential", "");
    calibrate_probe *tiny_overlap = probe(c, 128, 128, 64, EW_FP32, "entwine", "");

    fact(c, "nodes", 1, "ranks share one host");
    fact(c, "cores", c->machine.cores, "that the calibrating process could use");
    block(c, "block_us_128", 64, 25, shallow);
    block(c, "block_us_128", 256, 100, middle);
    block(c, "block_us_128", 1024, 400, deep);
    fact(c, "clock", 1, "as it was");
    factor(c, "bf16_time", 10, bf16);
    factor(c, "blas_time", 10, blas);
    fact(c, "mem_gbs", 0, "in reducer_gbs, measured with all ranks at work");
    rate(c, "reducer_gbs", 1, 10, shallow);
    latency(c, "reducer_us", flat, CALIBRATE_TAIL);
    fact(c, "link_gbs", 0, "ranks share memory; --link emulates a link");
    fact(c, "link_us", 0, "ranks share memory");
    latency(c, "start_us", tiny, CALIBRATE_GEMM);
    latency(c, "publish_us", tiny_overlap, CALIBRATE_TAIL);
    fact(c, "skew_us", 10, "estimate: timed calls start together");
    fact(c, "jitter", 0, "not modelled");
}

/* ---- GPU ---- */

enum { GPU_ROWS = 256, WAVES = 8, NUM_DEPTHS = 5, NUM_BATCHES = 3 };
static const int depths[NUM_DEPTHS] = {512, 1024, 2048, 4096, 8192};
static const int batches[NUM_BATCHES] = {128, 256, 512};
static const char *const lone_reducers[NUM_BATCHES] = {
    "release=output,pool=after,x=4,b=128", "release=output,pool=after,x=4,b=256",
    "release=output,pool=after,x=4,b=512"};

typedef struct gpu_probes {
    calibrate_probe *wide[NUM_DEPTHS], *narrow[NUM_DEPTHS], *reducer[NUM_BATCHES];
    calibrate_probe *blas, *by_block, *scattered, *overlap, *bandwidth, *bf16, *half, *flat;
    calibrate_probe *tiny, *tiny_overlap, *tiny_blas, *tiny_copies, *tiny_pair;
    calibrate_probe *lonely, *copies, *half_wave;
} gpu_probes;

/* So many columns of 256 that a rank has WAVES waves of blocks. */
static int64_t gpu_cols(const calibrate_machine *m)
{
    const int64_t rows = GPU_ROWS / 128 * m->num_ranks;
    return 256 * ((WAVES * (int64_t)m->sms_per_rank + rows - 1) / rows);
}

/* So many that, with one row of blocks per rank, half of the SMs have one. */
static int64_t half_wave_cols(const calibrate_machine *m)
{
    const int64_t blocks = m->sms_per_rank / 2 / m->num_ranks;
    return 256 * (blocks > 1 ? blocks : 1);
}

/* What is measured beside the blocks of one depth. */
static void probe_depth(calibration *c, gpu_probes *g, int64_t cols, int depth)
{
    if (depth == 512) {
        for (int i = 0; i < NUM_BATCHES; i++)
            g->reducer[i] =
                probe(c, GPU_ROWS, cols, depth, EW_FP16, "entwine", lone_reducers[i]);
        g->overlap =
            probe(c, GPU_ROWS, cols, depth, EW_FP16, "entwine", "block=128x256,group=1");
    } else if (depth == 2048) {
        g->blas = probe(c, GPU_ROWS, cols, depth, EW_FP16, "blas", "");
        g->by_block = probe(c, GPU_ROWS, cols, depth, EW_FP16, "sequential",
                            "block=128x256,group=1,ctas=block");
        c->judge = probe(c, GPU_ROWS, cols, depth, EW_FP16, "entwine", "");
    } else if (depth == 4096) {
        g->scattered =
            probe(c, GPU_ROWS, cols, depth, EW_FP16, "entwine",
                  "release=output,pool=after,block=128x256,group=1,order=contiguous");
        g->lonely = probe(c, GPU_ROWS, cols, depth, EW_FP16, "entwine", "x=1,b=256");
    }
}

static void probe_gpu(calibration *c, gpu_probes *g)
{
    const int64_t cols = gpu_cols(&c->machine);
    for (int i = 0; i < NUM_DEPTHS; i++) {
        g->wide[i] = probe(c, GPU_ROWS, cols, depths[i], EW_FP16, "sequential",
                           "block=128x256,group=1");
        g->narrow[i] = probe(c, GPU_ROWS, cols, depths[i], EW_FP16, "sequential",
                             "block=128x128,group=1");
        probe_depth(c, g, cols, depths[i]);
    }
    g->half_wave = probe(c, 128, half_wave_cols(&c->machine), 4096, EW_FP16, "sequential",
                         "block=128x256,group=1");
    g->bandwidth = probe(c, 4 * GPU_ROWS, cols, 512, EW_FP16, "sequential", "");
    if (c->machine.sharers > 1) /* more bytes than can be copied beside so short a GEMM */
        g->copies = probe(c, 16 * GPU_ROWS, cols, 256, EW_FP16, "chunked", "");
    g->bf16 =
        probe(c, GPU_ROWS, cols, 2048, EW_BF16, "sequential", "block=128x256,group=1");
    g->half = probe(c, 64, cols, 2048, EW_FP16, "sequential", "block=128x256,group=1");
    g->flat = probe(c, 8, cols, 512, EW_FP16, "entwine", lone_reducers[1]);
    g->tiny_pair = probe(c, 128, 256, 512, EW_FP16, "sequential", "block=128x256");
    g->tiny_pair->num_ranks = 2;
    g->tiny_pair->problem.max_m = 2 * 128;
    g->tiny = probe(c, 128, 256, 512, EW_FP16, "sequential", "block=128x256");
    g->tiny_overlap = probe(c, 128, 256, 512, EW_FP16, "entwine", "block=128x256");
    g->tiny_blas = probe(c, 128, 256, 512, EW_FP16, "blas", "");
    /* So little to compute that the host is what kernels wait for. */
    g->tiny_copies = probe(c, 128, 256, 64, EW_FP16, "chunked", "");
}

static void add_gpu_facts(calibration *c)
{
    static const char guide[] = "CUDA programming guide, for this compute capability";
    const calibrate_machine *m = &c->machine;
    const bool large = m->arch == 80 || m->arch >= 90;
    fact(c, "gpus", m->gpus, "that the ranks lie on");
    fact(c, "nodes", 1, "the one that was measured");
    fact(c, "virtual_node", m->sharers > 1, "whether ranks shared a GPU");
    fact(c, "sms", m->sms, "of the GPU");
    fact(c, "arch", m->arch, "of the GPU");
    fact(c, "sm_registers", 65536, guide);
    fact(c, "sm_shared_bytes", m->arch >= 90 ? 233472 : large ? 167936 : 102400, guide);
    fact(c, "sm_threads", large ? 2048 : 1536, guide);
    fact(c, "sm_ctas", large ? 32 : 16, guide);
}

/* Ranks that share a GPU meet in its memory, others on their links. */
static void add_gpu_links(calibration *c, const gpu_probes *g)
{
    const bool shared = c->machine.sharers > 1;
    if (shared) {
        rate(c, "mem_gbs", 0, 2000, g->bandwidth);
        rate(c, "copy_gbs", 0, 1000, g->copies);
        fact(c, "link_gbs", 0, "ranks share memory; --link emulates a link");
        fact(c, "link_us", 0, "ranks share memory");
    } else {
        fact(c, "mem_gbs", 0, "not reached: the link was measured");
        fact(c, "copy_gbs", 0, "not reached: copies cross the link");
        rate(c, "link_gbs", 0, 200, g->bandwidth);
        fact(c, "link_us", 0, "in reducer_us, measured over the link");
    }
    fact(c, "nic_gbs", 0, "one node");
    fact(c, "nic_us", 0, "one node");
    if (!shared) { /* unless calibrate_drop_nccl says otherwise */
        rate(c, "nccl_gbs", 0, 200, g->blas);
        latency(c, "nccl_us", g->tiny_blas, CALIBRATE_TAIL);
    } else {
        fact(c, "nccl_gbs", 0, "blas was reduced by Entwine's kernels");
        fact(c, "nccl_us", 0, "blas was reduced by Entwine's kernels");
    }
}

static void plan_gpu(calibration *c)
{
    gpu_probes g = {.blas = NULL};
    const bool shared = c->machine.sharers > 1;
    probe_gpu(c, &g);
    add_gpu_facts(c);
    for (int i = 0; i < NUM_DEPTHS; i++)
        block(c, "block_us_256", depths[i], depths[i] * 0.01, g.wide[i]);
    for (int i = 0; i < NUM_DEPTHS; i++)
        block(c, "block_us_128", depths[i], depths[i] * 0.01, g.narrow[i]);
    fact(c, "clock", 1, "as it was");
    factor(c, "bf16_time", 10, g.bf16);
    factor(c, "blas_time", 10, g.blas);
    factor(c, "half_time", 1, g.half);
    number(c, "crowd_time", 0, 0.2, g.half_wave, CALIBRATE_GEMM, 0, 0.9);
    number(c, "cta_us", 0, 1, g.by_block, CALIBRATE_GEMM, 0, 1e4);
    number(c, "miss_ps_per_byte", 0, 1, g.scattered, CALIBRATE_GEMM, 0, 1e4);
    number(c, "steal_ps_per_byte", 0, 1, g.overlap, CALIBRATE_GEMM, 0, 1e4);
    for (int i = 0; i < NUM_BATCHES; i++)
        rate(c, "reducer_gbs", batches[i], 20, g.reducer[i]);
    latency(c, "reducer_us", g.flat, CALIBRATE_TAIL);
    number(c, "shared_time", 0, 2, g.lonely, CALIBRATE_TAIL, 1, 100);
    latency(c, "host_us", g.tiny_copies, CALIBRATE_GEMM);
    latency(c, "blas_us", g.tiny_blas, CALIBRATE_GEMM);
    add_gpu_links(c, &g);
    latency(c, "start_us", g.tiny_overlap, CALIBRATE_GEMM);
    latency(c, "launch_us", shared ? g.tiny_pair : g.tiny, CALIBRATE_TAIL);
    latency(c, "publish_us", g.tiny, CALIBRATE_GEMM); /* fences at its end */
    if (shared && c->machine.num_ranks > 2)
        latency(c, "skew_us", g.tiny, CALIBRATE_TAIL);
    else
        fact(c, "skew_us", 2, "estimate: timed calls start together");
    fact(c, "jitter", 0, "not modelled");
}

void calibrate_drop_nccl(calibration *c)
{
    for (int at = 0; at < c->num_numbers; at++) {
        calibrate_number *n = &c->numbers[at];
        if (strncmp(n->key, "nccl_", strlen("nccl_")) != 0)
            continue;
        n->value = 0;
        n->probe = NULL;
        snprintf(n->source, sizeof n->source, "blas was reduced by Entwine's kernels");
    }
}

void calibrate_plan(calibration *c, const calibrate_machine *machine)
{
    *c = (calibration){.machine = *machine};
    machine->is_gpu ? plan_gpu(c) : plan_cpu(c);
}
