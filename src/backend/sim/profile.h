/* Hardware as the simulator sees it: a small text file, one `key = value  # source` a line.
 * Read strictly, because every forecast rests on it.  docs/SIMULATOR.md lists the keys. */
#ifndef EWX_SIM_PROFILE_H
#define EWX_SIM_PROFILE_H

#include <stdbool.h>

#include "entwine/entwine.h"

#define EWX_SIM_POINTS 12
#define EWX_SIM_NAME_BYTES 64
#define EWX_SIM_DEFAULT "h200-8"

/* Piecewise linear through its points; the outermost pieces are extended beyond them. */
typedef struct ewx_sim_curve {
    int count;
    double x[EWX_SIM_POINTS], y[EWX_SIM_POINTS];
} ewx_sim_curve;

/* Rates are GB/s (1e9 bytes), of one rank and one direction where there are two. */
typedef struct ewx_sim_profile {
    char name[EWX_SIM_NAME_BYTES];
    char device[EWX_SIM_NAME_BYTES]; /* the processor or GPU, as tuning keys name it */
    bool is_cpu;
    double gpus, nodes;  /* GPUs of a node, and how many nodes there are */
    double virtual_node; /* 1: ranks beyond the number of GPUs share them in slices */
    double cores;        /* of a CPU's node, for all its ranks together */
    double sms, arch;
    double sm_registers, sm_shared_bytes, sm_threads, sm_ctas;
    ewx_sim_curve block_us_128, block_us_256; /* by K: a block of 128 x 128 or 256 */
    double clock;                             /* of the SMs, as a factor */
    double bf16_time, blas_time;              /* as factors of the block's time */
    double half_time;         /* the same, of our blocks of at most 64 rows of output */
    double split_time;        /* ... and of one of the two tiles of a block that is split */
    double crowd_time;        /* share of it due to SMs that compute at the same time */
    double cta_us;            /* added for a block with a CTA of its own */
    double add_us;            /* ... whose threads add its tiles at their owner */
    double miss_ps_per_byte;  /* of A and B that a wave loads anew */
    double steal_ps_per_byte; /* of SM time per byte that reducers move */
    double mem_gbs;           /* of one GPU, for its reducers; 0: no limit */
    ewx_sim_curve reducer_gbs; /* by b: of one reducer */
    double reducer_us;         /* per tile, beside its bytes */
    double shared_time;        /* factor of both on an SM that computes too */
    double copy_gbs;           /* of a GPU's copies; 0: no limit */
    double command_us;         /* between commands of a stream, by ranks on the GPU */
    double beside_us;          /* of a GEMM, for a kernel that starts in its midst */
    double link_gbs, link_us;  /* inside a node; 0 GB/s: memory alone */
    double nic_gbs,
        nic_us;        /* between nodes; of a rank, of a CPU's node for all its ranks */
    double nic_shared; /* 1: all nodes and both directions share that rate */
    double nic_cpu_ps_per_byte; /* of a core, at each end */
    double nccl_gbs, nccl_us;   /* 0 GB/s: Entwine's reducer serves cuBLAS */
    double nccl_sms;   /* that its calls beside a GEMM hold; 0: none is made there */
    double start_us;   /* from a call to its first block's start */
    double launch_us;  /* of a kernel behind another */
    double publish_us; /* from a tile in memory to its flag */
    double skew_us;    /* from one rank's start to the next's */
    double jitter;     /* of a block's time: at most +- this share */
} ewx_sim_profile;

double ewx_sim_curve_at(const ewx_sim_curve *curve, double x);

/* `name` is that of a built-in profile, or a path (it holds a / or ends in .profile);
 * NULL: the variable ENTWINE_PROFILE, else EWX_SIM_DEFAULT.  EW_ERR_ARGUMENT names what is
 * wrong with the file, with its line and key. */
ew_status ewx_sim_profile_load(const char *name, ewx_sim_profile *profile_out);

/* The same from text; `file` is what messages call it. */
ew_status ewx_sim_profile_parse(const char *file, const char *text,
                                ewx_sim_profile *profile_out);

/* The built-in profiles, ending with a NULL name; made from bench/profiles by CMake. */
typedef struct ewx_sim_builtin {
    const char *name;
    const char *const *lines; /* ending with NULL */
} ewx_sim_builtin;
extern const ewx_sim_builtin ewx_sim_builtins[];
extern const char *const ewx_sim_names[]; /* the same, names alone */

#endif
