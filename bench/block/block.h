/* block_bench: several calls of a tensor-parallel layer as one piece of work, in one CUDA
 * graph per rank, timed as a whole.  What the files of this folder share.
 *
 * A case (cases.c) is a list of steps over matrices; a method runs every step its own way
 * (steps.c); measure.c checks, captures and times; block_bench.c reads options and
 * reports. */
#ifndef BLOCK_H
#define BLOCK_H

#include "api/plan.h"
#include "backend/cuda/cuda_engine.h"
#include "block_kernels.h"

enum { MAX_STEPS = 16, MAX_MATRICES = 40, MAX_METHODS = 3, MAX_SAMPLES = 256 };

typedef struct block_options {
    const char *name; /* of the case */
    int num_ranks;
    int64_t m, hidden, inner, qkv, attention; /* of the whole model; m: all ranks' rows */
    double link_gbs;                          /* 0: none is emulated */
    const char *methods[MAX_METHODS];
    int num_methods;
    const char *gather_config, *scatter_config; /* of method entwine */
    ew_ranks_as ranks_as;
    int warmup, samples;
    int rounds, calls; /* of graphs that are replayed in a row */
    double idle;       /* rest after a sample, in units of its time */
    uint32_t seed;
} block_options;

/* ---- Matrices and steps: cases.c ---- */

typedef enum block_role {
    ROWS,    /* exact A for checks, random for timing */
    WEIGHT,  /* exact B, likewise */
    VALUES,  /* random */
    STATE,   /* random, and replaced by a result */
    OUTPUT,  /* poisoned before a check, and compared */
    SCRATCH, /* poisoned, not compared */
} block_role;

typedef struct block_matrix {
    block_role role;
    int64_t rows, cols;
    void *at, *reference, *first; /* copies: of the calls made singly, and of the first
                                     method's */
} block_matrix;

typedef enum block_kind {
    GATHER,   /* c = AG(a) b^T */
    ACTIVATE, /* c = SwiGLU of AG(a) b^T, whose columns are gate and up */
    SCATTER,  /* c = RS(a b^T) */
    LAYER,    /* residual += RS(a b^T); c = its RMSNorm */
    GRADIENT, /* c [n x k] = b^T a with b [m x n] and a [m x k]: local */
} block_kind;

typedef struct block_step {
    const char *name;
    block_kind kind;
    int64_t n, k;
    ew_weight_layout layout;
    const block_matrix *a, *b, *c;
    const block_matrix *gathered;               /* or NULL */
    const block_matrix *residual, *norm_weight; /* of LAYER */
    const block_matrix *wide;                   /* of ACTIVATE: gate and up, side by side */
} block_step;

typedef struct block {
    ew_world *world;
    const ewx_device *device;
    const block_options *options;
    int64_t rows; /* that this rank owns */
    block_matrix matrices[MAX_MATRICES];
    block_step steps[MAX_STEPS];
    int num_matrices, num_steps;
    cudaStream_t stream;        /* the caller's, in the GPU's usual context */
    cudaEvent_t forked, joined; /* around kernels of this program on the rank's SMs */
    ewx_cuda_entry swiglu, compare;
    block_verdict *verdict; /* in the GPU's memory */
    ewx_cuda_blas blas;     /* for GRADIENT */
} block;

/* The names of all cases, ending with NULL. */
extern const char *const block_cases[];

/* Collective.  The device is known; close either way. */
ew_status block_open(block *b);
void block_close(block *b);

bool block_has_plan(const block_step *step);
ew_problem block_problem(const block *b, const block_step *step);

/* Inputs of a check or of timing; and a poisoned place for every result. */
ew_status block_load(block *b, bool exact);
ew_status block_poison(block *b);

/* ---- Methods: steps.c ---- */

typedef struct block_method {
    const char *name;
    ew_plan *plans[MAX_STEPS]; /* NULL: none */
    void *held, *loose;        /* graphs: of ranks that start together, or not */
} block_method;

ew_status block_method_open(block *b, block_method *method);
void block_method_close(const block *b, block_method *method);

/* Weights that calls do not pass are bound: after every load. */
ew_status block_bind(const block *b, const block_method *method);

/* Whether ranks wait for each other at the first step's beginning. */
void block_start_together(const block *b, const block_method *method, bool together);

/* Enqueues all steps; `singly`: each when the one before has ended on all ranks. */
ew_status block_run(block *b, const block_method *method, ew_stream stream, bool singly);

/* ---- measure.c ---- */

typedef struct block_window {
    double begin_us, gemm_us, end_us; /* from the start of the block; the GEMM's length */
} block_window;

typedef struct block_result {
    double time_us;                 /* maximum over ranks of the rank's median */
    double samples_us[MAX_SAMPLES]; /* of that rank */
    int num_samples, discarded;
    bool in_graph;   /* else every call was enqueued by itself */
    double graph_us; /* of a call among `calls` in a row; 0: no graph */
    double graphs_us[MAX_SAMPLES];
    int num_graphs;
    block_window steps[MAX_STEPS]; /* maxima over ranks of their medians */
    char configs[MAX_STEPS][EW_CONFIG_TEXT_BYTES];
    char notes[MAX_STEPS][128];
    int64_t wrong;     /* elements that differ from the calls made singly */
    int64_t different; /* from the first method's */
    double worst;      /* by so much at most, of the largest element of the matrix */
} block_result;

/* What ranks hand to the program that started them. */
typedef struct block_results {
    const block_options *options;
    int num_steps;
    struct {
        const char *name;
        bool has_plan;
        double link_us;
    } steps[MAX_STEPS];
    block_result methods[MAX_METHODS];
} block_results;

/* On every rank; collective. */
ew_status block_measure(ew_world *world, void *results);

#endif
