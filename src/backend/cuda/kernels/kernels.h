/* What the host passes to the kernels, and how it finds them.  Plain C, read by both sides.
 * All device code lives in this folder; the host launches by the entries below. */
#ifndef EWX_CUDA_KERNELS_H
#define EWX_CUDA_KERNELS_H

#include <cuda.h>
#include <stdint.h>

#include "base/limits.h"
#include "plan/columns.h"
#include "plan/exact.h"
#include "plan/layout.h"
#include "plan/ownership.h"
#include "plan/release.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As many as one NVLink domain has; every launch carries their addresses. */
#define EWX_CUDA_MAX_RANKS 72

#define EWX_CUDA_CALLS 4         /* announced calls that are kept */
#define EWX_CUDA_EPILOGUE_ROWS 2 /* rows that a CTA finishes at a time */

/* ---- Shared state ---- */

/* The head of every rank's heap segment.  Index r of an array is written by rank r alone,
 * into the owner's memory, so that an owner polls nothing but its own. */
typedef struct ewx_cuda_segment {
    uint32_t done[EWX_MAX_RANKS]; /* last call whose contributions of mine r has read */
    uint32_t gate[EWX_MAX_RANKS]; /* start gate: last call that r is ready to start */
    /* epoch << 32 | rows of r's call, by epoch: r may announce a call that is two ahead of
     * one whose owner has not looked yet. */
    uint64_t calls[EWX_CUDA_CALLS][EWX_MAX_RANKS];
    /* Likewise epoch << 32 | the call's number among all calls of r's plans. */
    uint64_t orders[EWX_CUDA_CALLS][EWX_CUDA_MAX_RANKS];
    /* The last call whose results r takes in its output, and where that lies: `place` of
     * ewx_cuda_symmetric. */
    uint32_t entered[EWX_CUDA_MAX_RANKS];
    uint64_t places[EWX_CUDA_MAX_RANKS];
    /* Emulated link: when each direction of this rank's link is free again, in ns of the
     * GPU's timer.  Everyone who moves bytes over it adds to them. */
    unsigned long long egress_free_ns;
    unsigned long long ingress_free_ns;
} ewx_cuda_segment;

/* The parts of a call that run beside each other and may end in any order. */
typedef enum ewx_cuda_stage {
    EWX_STAGE_GEMM,
    EWX_STAGE_EXCHANGE, /* the kernel at the other end of what crosses */
    EWX_STAGE_COPY,     /* transport=copy: copies, and their publication */
    EWX_NUM_STAGES
} ewx_cuda_stage;

/* One rank's own words, in its memory, touched by its kernels only. */
typedef struct ewx_cuda_counters {
    uint32_t epochs[EWX_NUM_STAGES]; /* the last call in which the stage has ended */
    uint32_t exits[EWX_NUM_STAGES]; /* CTAs of the stage's running launch that have ended */
    uint32_t next_position;         /* the next position of the walk that is not taken */
    uint32_t stop; /* a CTA gave up: the others leave too, nothing is published */
    unsigned long long looked_ns; /* when a waiting thread last read the abort word */
    unsigned long long copied_ns; /* emulated link: when the copy in flight will be there */
    uint32_t unit_tiles[];        /* tiles done of each release unit, all destinations */
} ewx_cuda_counters;

typedef enum ewx_cuda_place {
    EWX_CUDA_TILE = 1, /* a rank's contribution to a tile */
    EWX_CUDA_READERS,  /* a rank's last reads of an earlier call */
    EWX_CUDA_GATE,     /* a rank at the start gate */
    EWX_CUDA_CALL,     /* a rank's announcement of the call's rows ... */
    EWX_CUDA_ROWS,     /* ... which differed: wanted mine, seen theirs */
    EWX_CUDA_ORDER,    /* a call that another rank made in another place: likewise */
    EWX_CUDA_RESULT,   /* a rank's sum of a tile */
    EWX_CUDA_PANEL     /* a rank's rows of A, from tile_row on */
} ewx_cuda_place;

/* Host memory that kernels write: when things happened (GPU timer, ns) and, if a wait
 * failed, which one. */
typedef struct ewx_cuda_report {
    unsigned long long start_ns, gemm_end_ns, end_ns;
    unsigned long long gemm_begin_ns; /* where the GEMM waits: of a first block */
    int32_t place;                    /* ewx_cuda_place; written last */
    int32_t culprit;
    int32_t aborted; /* the abort word ended the wait, not the clock */
    int32_t tile_row, tile_col;
    uint32_t wanted, seen;
    uint32_t epoch;    /* of a call with other rows */
    int32_t straight;  /* the last call's results went straight into the outputs */
    uint32_t enqueued; /* by the host: held calls of which everything is in the streams */
} ewx_cuda_report;

/* Emulated link of each rank. */
typedef struct ewx_cuda_link {
    double ns_per_byte;       /* of data, with their headers; 0: off */
    double asked_ns_per_byte; /* of requests, per byte that is read */
    uint64_t latency_ns;
} ewx_cuda_link;

/* When a tile was worked on, in ns of the GPU's timer. */
typedef struct ewx_cuda_stamp {
    unsigned long long begin_ns, end_ns;
    unsigned long long published_ns; /* of contributions */
} ewx_cuda_stamp;

/* Of one call; NULL: not wanted.  This rank's contributions by destination and task: the
 * tile's GEMM, from its first to its last step; its own tiles by task: from the last
 * contribution's arrival to the stored sum; in an AllReduce those of others too, while they
 * are copied. */
typedef struct ewx_cuda_trace {
    ewx_cuda_stamp *produced, *reduced;
} ewx_cuda_trace;

/* ---- Parameters ---- */

typedef struct ewx_cuda_call {
    ewx_grid grid;
    int32_t rank;
    int32_t num_ranks;
    ewx_release release;
    int32_t tile_rows;       /* slots of one part are tile_rows x grid.tile_cols */
    int32_t num_slots;       /* of a slice */
    int32_t num_pieces;      /* of K: a slot has a tile for each, one after the other */
    int32_t num_sources;     /* contributions to a tile: the pieces of all ranks */
    int32_t row_major;       /* contributions lie as one matrix, not tile by tile */
    int32_t pushed;          /* 1: a contribution is stored in the heap of the rank that
                                reads it; 0: in the heap of the rank that made it */
    int32_t adds;            /* 1: contributions are added to one sum in that rank's own
                                slot, which it sets to zero when it has read it */
    int32_t ownership;       /* ewx_ownership: who sums what */
    int32_t part;            /* of the grid, in which the tiles lie that this rank sums */
    int64_t flags_offset;    /* uint32_t[unit][W]: r's epoch of a unit I own rows of */
    int64_t results_offset;  /* uint32_t[task]: the epoch of a sum that another rank owns */
    int64_t slice_offset[2]; /* contributions, by epoch parity */
    int32_t num_slices;      /* 1: both offsets are the same */
    int32_t num_chunks;      /* where the GEMM waits: of a panel, EWX_CHUNK_COLS each; a
                                flag's unit is panel * num_chunks + chunk */
    ewx_cuda_counters *counters;
    uint32_t *calls_made; /* of all the rank's plans; NULL: not counted, not compared */
    ewx_cuda_report *report;
    const uint64_t *abort; /* the world's word, in host memory */
    uint64_t timeout_ns;
    int32_t gate; /* the call is held until all ranks may start, which notes the time too:
                     benchmarks only */
    ewx_cuda_link link;
    ewx_cuda_trace trace;
    unsigned char *heaps[EWX_CUDA_MAX_RANKS]; /* every rank's segment */
    /* A base address per source, in the order of summation, which is that of K: plus the
     * offset of my own first contribution in my heap, it is the address of this source's
     * contribution to the same tile. */
    const unsigned char *sources[EWX_CUDA_MAX_SOURCES];
} ewx_cuda_call;

/* A: rows x K; B: N x K, both K-major; out: the tiles of every rank's slices, and last of
 * the outbox, 128 columns wide; in the GPU's memory.
 *
 * Where the GEMM waits, A has the rank's own rows alone; out: all rows, of slice 0 and of
 * slice 1; and C is [part][row][column], of the large parts and of the others, so that a
 * box ends where its part does. */
typedef struct ewx_cuda_maps {
    CUtensorMap a, b; /* with several pieces of K [piece][row][column] */
    const CUtensorMap *out;
    CUtensorMap c_large, c_small;
} ewx_cuda_maps;

/* The GEMM of a call is launched once, or once per part (transport=copy). */
typedef struct ewx_cuda_operands {
    const void *a, *b;  /* for kernels without TMA */
    int64_t k;          /* from row to row */
    int64_t piece_k;    /* of a piece; without several, k */
    int32_t persistent; /* take positions until none is left, else one per CTA (cluster) */
    int64_t first_position, end_position; /* of this launch */
    int64_t split_position; /* blocks from here on are taken tile by tile (walk.h) */
    int32_t opens, closes;  /* the call */
    /* Contributions are stored here, by destination, to be copied and then published;
     * NULL: they are stored in a heap, and the GEMM publishes them. */
    unsigned char *outbox;
    /* Where the GEMM waits: the whole C, for kernels without TMA; and whether the slice is
     * free when the GEMM has ended, or still read by a kernel behind it. */
    void *c;
    int32_t frees_slice;
} ewx_cuda_operands;

#define EWX_CUDA_RESULTS (EW_MAX_PRODUCTS + 1)
#define EWX_CUDA_ACTIVATED EW_MAX_PRODUCTS /* the place of what an activation gives */

/* The weights and outputs of a call with several products, whose grid is that of all their
 * columns. */
typedef struct ewx_cuda_products {
    ewx_columns columns;
    const void *b[EW_MAX_PRODUCTS]; /* n x K each, for kernels without TMA */
    void *c[EWX_CUDA_RESULTS];      /* m x n each; NULL: not wanted */
    int32_t activation;             /* ew_activation, where there is one */
    int32_t keeps;                  /* ... and some of the products are wanted besides */
} ewx_cuda_products;

/* The same for TMA; c as in ewx_cuda_maps, undefined where it is not wanted. */
typedef struct ewx_cuda_product_maps {
    ewx_cuda_products all;
    CUtensorMap b[EW_MAX_PRODUCTS];
    CUtensorMap c_large[EWX_CUDA_RESULTS], c_small[EWX_CUDA_RESULTS];
} ewx_cuda_product_maps;

/* The rank's rows of A, and what becomes of all rows. */
typedef struct ewx_cuda_rows {
    const void *a; /* owned rows x K */
    int64_t k;
    int32_t keeps_own; /* store them in the rank's own slice too ... */
    int32_t spanning;  /* ... where tiles span owners */
    void *gathered;    /* m x K */
} ewx_cuda_rows;

/* Rows of this rank that a copy engine takes to another: panels from `first` to `end`. */
typedef struct ewx_cuda_parcel {
    int32_t dst; /* -1: there is none */
    int64_t first, end;
    int64_t bytes;
} ewx_cuda_parcel;

/* What keeps a stream of a call that starts together with those of other ranks. */
typedef struct ewx_cuda_hold {
    uint32_t number; /* the gate opens when report->enqueued has reached this everywhere */
    int32_t stage;   /* ewx_cuda_stage: the one behind it in the stream */
    int32_t opens;   /* the first of the call: announces the rank, and notes the time */
    uint64_t delay_ns; /* from the gate to the start */
} ewx_cuda_hold;

/* The reducer of a call is launched once, or once per release unit. */
typedef struct ewx_cuda_output {
    void *c;                      /* owned rows x N, or all of them */
    ewx_share mine;               /* GEMM-RS: what this rank sums */
    int64_t first_task, end_task; /* of this launch */
    int32_t closes;               /* the call */
    int32_t announce; /* publish this rank's whole output first: the GEMM was not ours */
} ewx_cuda_output;

/* An output in symmetric memory.  If that of all ranks has the same place, results go
 * straight there, else into the slots of contributions, from which every rank copies. */
typedef struct ewx_cuda_symmetric {
    uint64_t place; /* allocation and offset; 0: the output lies elsewhere */
    int64_t apart[EWX_CUDA_MAX_RANKS]; /* bytes from this rank's to that of each rank */
} ewx_cuda_symmetric;

/* GEMM-AllReduce: what a rank sums, and which rounds a launch has.  In two shots W
 * consecutive tasks are a round, in one shot each is. */
typedef struct ewx_cuda_rounds {
    ewx_share mine;     /* at most one tile of each round */
    int64_t first, end; /* of this launch */
    int64_t tiles;      /* of the call */
    int32_t two_shots;
    ewx_cuda_symmetric symmetric; /* C */
} ewx_cuda_rounds;

/* GEMM-AllReduce in a layer: the strips of rows that a rank normalises and gives to all. */
typedef struct ewx_cuda_strips {
    ewx_share mine;
    int32_t rows;           /* of a strip */
    int32_t count;          /* of the rank that has most of them */
    int32_t per_block;      /* strips whose tiles are counted together ... */
    uint32_t tiles;         /* ... and how many tiles that are */
    int64_t results_offset; /* uint32_t[owner][row]: the epoch of the strip it begins */
    int64_t results_per_rank;
    void *normed;                 /* all rows x N */
    ewx_cuda_symmetric symmetric; /* the same */
} ewx_cuda_strips;

/* How far a call's epilogue is; all zero between calls. */
typedef struct ewx_cuda_epilogue_counters {
    uint32_t next_strip;  /* next rows to normalise */
    uint32_t exits;       /* CTAs of the following kernel that have ended */
    uint32_t row_tiles[]; /* of each owned row of tiles, how many are summed */
} ewx_cuda_epilogue_counters;

/* What follows the sum, for the owned rows; parts that are not wanted are NULL. */
typedef struct ewx_cuda_epilogue {
    const void *bias, *norm_weight;
    const void *sum; /* for the kernel that follows a sum of others */
    void *c;         /* sum + bias */
    void *h;         /* c + residual: the residual's place, else that of c, else normed */
    void *normed;
    int32_t has_residual, stores_h; /* else it is there already */
    float eps;
    float *squares; /* sums of them, [owned row][tile column] */
    ewx_cuda_epilogue_counters *counters;
} ewx_cuda_epilogue;

/* The owned rows of an output on exact inputs, and how many of its elements are not. */
typedef struct ewx_cuda_expectation {
    uint32_t seed;
    int32_t num_ranks;
    int32_t gathers; /* row r is that of the rank that has it, times the weight of `rank` */
    int32_t rank;
    int64_t all_rows; /* m */
    int64_t first_row, rows, cols, depth;
} ewx_cuda_expectation;

typedef struct ewx_cuda_verdict {
    unsigned long long wrong;
    unsigned long long worst_bits; /* of a double */
} ewx_cuda_verdict;

/* ---- Entries ---- */

/* A kernel, with what its launch needs. */
typedef struct ewx_cuda_entry {
    const void *function; /* as the runtime knows it; NULL: there is no such variant */
    int32_t threads;
    int32_t dynamic_smem;
    int32_t box_cols_b; /* rows of B that one TMA load brings; 0 without TMA */
    int32_t box_rows_a; /* rows of A, likewise */
    CUfunction handle;  /* as the driver knows it, once it is loaded */
} ewx_cuda_entry;

/* Which GEMM of an operation: that of one weight, or of several, which an activation may
 * follow: AllGather-GEMM alone has these two. */
typedef enum ewx_cuda_form {
    EWX_CUDA_ONE_WEIGHT,
    EWX_CUDA_WEIGHTS,
    EWX_CUDA_ACTIVATES,
    EWX_CUDA_NUM_FORMS
} ewx_cuda_form;

/* (ewx_cuda_maps, ewx_cuda_operands, ewx_cuda_call, and with several weights
 * ewx_cuda_product_maps, else any byte); block_n 128 or 256, cluster 1 or 2 */
ewx_cuda_entry ewx_cuda_gemm_sm90(ew_op op, ewx_cuda_form form, ew_dtype dtype, int block_n,
                                  int cluster);
/* The same of one weight for several pieces of K; not for AllGather-GEMM. */
ewx_cuda_entry ewx_cuda_gemm_sm90_pieces(ew_op op, ew_dtype dtype, int block_n,
                                         int cluster);
/* GEMM-ReduceScatter's, for a transport that adds. */
ewx_cuda_entry ewx_cuda_gemm_sm90_adding(ew_transport transport, ew_dtype dtype,
                                         int block_n, int cluster);
/* The same of one weight and one or two rows of tiles, of up to `tokens` rows: 8, 16, 32,
 * 64, 128, 160 or 208.  It takes all positions, column by column.  The bits are the same.
 */
ewx_cuda_entry ewx_cuda_gemm_decode_sm90(ew_op op, ew_dtype dtype, int tokens);
/* (ewx_cuda_operands, ewx_cuda_call, and with several weights ewx_cuda_products, else any
 * byte); any number of pieces */
ewx_cuda_entry ewx_cuda_gemm_sm80(ew_op op, ewx_cuda_form form, ew_dtype dtype,
                                  int block_n);
/* GEMM-ReduceScatter's, for transport=add; fp16 */
ewx_cuda_entry ewx_cuda_gemm_sm80_adding(ew_dtype dtype, int block_n);
/* (ewx_cuda_output, ewx_cuda_call, ewx_cuda_rounds): the sum of every tile, whoever makes
 * it; num_ranks 0: as many as the call says, with several contributions each; threads 128,
 * 256 or 512 */
ewx_cuda_entry ewx_cuda_allreducer(ew_dtype dtype, int num_ranks, int threads);
/* (ewx_cuda_output, ewx_cuda_call, ewx_cuda_epilogue, ewx_cuda_strips): that of the rows
 * this rank owns, with an epilogue, and the norm of all; likewise, threads 128 or 256 */
ewx_cuda_entry ewx_cuda_row_allreducer(ew_dtype dtype, int num_ranks, int threads);
/* (ewx_cuda_output, ewx_cuda_call): that of the tiles this rank owns; threads 128, 256 or
 * 512 */
ewx_cuda_entry ewx_cuda_reducer(ew_dtype dtype, int num_sources, int threads);
/* (ewx_cuda_output, ewx_cuda_call, ewx_cuda_epilogue): the same with an epilogue, less the
 * rows that were not complete in time */
ewx_cuda_entry ewx_cuda_fused_reducer(ew_dtype dtype, int num_sources, int threads);
/* (ewx_cuda_epilogue, ewx_cuda_call): those rows */
ewx_cuda_entry ewx_cuda_epilogue_rest(ew_dtype dtype);
/* (ewx_cuda_epilogue, ewx_cuda_call): the whole epilogue, after a sum */
ewx_cuda_entry ewx_cuda_epilogue_whole(ew_dtype dtype);
/* (ewx_cuda_hold, ewx_cuda_call): waits until the call may start on all ranks */
ewx_cuda_entry ewx_cuda_hold_call(void);
/* (ewx_cuda_call): announces the call, before a GEMM that is not ours */
ewx_cuda_entry ewx_cuda_open_call(void);
/* (ewx_cuda_call): notes that such a GEMM has ended, before a collective that is not ours
 */
ewx_cuda_entry ewx_cuda_mark_gemm_end(void);
/* (ewx_cuda_call): ends the call after such a collective */
ewx_cuda_entry ewx_cuda_close_call(void);
/* (ewx_cuda_call): waits until copies may overwrite the peers' memory */
ewx_cuda_entry ewx_cuda_await_readers(void);
/* (ewx_cuda_call, int dst): a copy to dst starts: books it on an emulated link */
ewx_cuda_entry ewx_cuda_book_copy(void);
/* (ewx_cuda_call, int dst, int closes): the partition of dst has been copied: publishes it
 */
ewx_cuda_entry ewx_cuda_publish_copied(void);
/* (ewx_cuda_rows, ewx_cuda_call): pushes the rank's rows to all others; threads 128, 256 or
 * 512 */
ewx_cuda_entry ewx_cuda_mover(int threads);
/* (ewx_cuda_call, ewx_cuda_parcel before, next): in front of a call's copies of rows,
 * between them and behind them, publishes those of the copy before */
ewx_cuda_entry ewx_cuda_between_copies(void);
/* (ewx_cuda_call, int src): waits for the rows of a rank, before a GEMM that is not ours */
ewx_cuda_entry ewx_cuda_await_rows(void);
/* (ewx_cuda_rows, ewx_cuda_call): copies all rows into `gathered`, behind the GEMM */
ewx_cuda_entry ewx_cuda_hand_out(void);
/* (ewx_cuda_call): opens a call before GEMMs that are not ours; with release=output, waits
 * for all rows */
ewx_cuda_entry ewx_cuda_open_gathered(void);
/* (ewx_cuda_call, int frees_slice): ends the call after such a GEMM */
ewx_cuda_entry ewx_cuda_close_gathered(void);
/* (const void *from [rows x cols], void *to [cols x rows], int64_t rows, int64_t cols) */
ewx_cuda_entry ewx_cuda_transpose(void);
/* (unsigned long long *ns_out): the GPU's timer now */
ewx_cuda_entry ewx_cuda_clock(void);

/* (ewx_input, void *matrix); an exact A must be zero before */
ewx_cuda_entry ewx_cuda_generator(ew_dtype dtype);
/* (ewx_cuda_expectation, const void *c, ewx_cuda_verdict *verdict); added to what is there
 */
ewx_cuda_entry ewx_cuda_verifier(ew_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
