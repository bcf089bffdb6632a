/* How many CTAs fit on an SM, and what those of our kernels take of it.  The CUDA backend
 * asks the driver what a compiled kernel needs and what the GPU has; the simulator takes
 * the figures below and those of a profile.  Tests compare them with what nvcc made.  Pure.
 */
#ifndef EWX_PLAN_OCCUPANCY_H
#define EWX_PLAN_OCCUPANCY_H

#include <stdbool.h>
#include <stddef.h>

#include "plan/grid.h"

enum {
    EWX_REGISTER_UNIT = 256, /* registers are handed out to warps in such units */
    EWX_SHARED_UNIT = 128,   /* bytes; shared memory is handed out to CTAs in such units */
    EWX_RESERVED_SHARED = 1024 /* bytes that CUDA keeps of every CTA's, from Ampere on */
};

/* What a kernel needs, as it is compiled. */
typedef struct ewx_kernel_needs {
    int threads;
    int registers;    /* of a thread */
    int shared_bytes; /* static and dynamic */
} ewx_kernel_needs;

/* What an SM has, or what a CTA takes of it. */
typedef struct ewx_sm_resources {
    int registers, shared_bytes, threads, ctas;
} ewx_sm_resources;

static inline int ewx_round_up(int value, int unit)
{
    return (value + unit - 1) / unit * unit;
}

static inline ewx_sm_resources ewx_cta_resources(ewx_kernel_needs needs, int reserved_bytes)
{
    const int warps = (needs.threads + 31) / 32;
    return (ewx_sm_resources){
        .registers = warps * ewx_round_up(needs.registers * 32, EWX_REGISTER_UNIT),
        .shared_bytes = reserved_bytes + ewx_round_up(needs.shared_bytes, EWX_SHARED_UNIT),
        .threads = warps * 32,
        .ctas = 1};
}

/* How many more CTAs of `kind` an SM holds beside `count` of `resident`. */
static inline int ewx_fits(const ewx_sm_resources *sm, const ewx_sm_resources *resident,
                           int count, const ewx_sm_resources *kind)
{
    const int room[] = {
        (sm->registers - count * resident->registers) / kind->registers,
        (sm->shared_bytes - count * resident->shared_bytes) / kind->shared_bytes,
        (sm->threads - count * resident->threads) / kind->threads, sm->ctas - count};
    int least = room[0];
    for (size_t i = 1; i < sizeof room / sizeof room[0]; i++)
        least = room[i] < least ? room[i] : least;
    return least > 0 ? least : 0;
}

/* The most CTAs of a kernel that waits on the GPU for another one.  An awaited CTA that
 * finds no room is waited for without end, so some must be left for it however all waiters
 * lie on the SMs.
 *
 * `beside` waiters fit on an SM that is full of awaited CTAs.  If any do, beside x sms of
 * them leave an SM that has at most `beside`: there awaited CTAs run, one after the other.
 * (A cluster finds its SMs too: a GPC has more than beside + 1 of them.)  If none does,
 * each waiter may cost an SM, and with it a cluster of the awaited kernel: the SMs of one
 * cluster must be left over. */
static inline int ewx_most_waiters(int beside, int sms, int cluster)
{
    const int most = beside > 0 ? beside * sms : sms / cluster - 1;
    return most > 1 ? most : 1;
}

/* ---- Our kernels ---- */

/* What every GEMM with this block needs; on some architectures a few registers less. */
static inline ewx_kernel_needs ewx_gemm_needs(ew_kernel kernel, int block_n)
{
    const bool wide = block_n > EWX_TILE_N;
    if (kernel == EW_KERNEL_SM90)
        return wide ? (ewx_kernel_needs){384, 128, 229568}
                    : (ewx_kernel_needs){256, 96, 114864};
    return wide ? (ewx_kernel_needs){256, 224, 98560} : (ewx_kernel_needs){256, 128, 49408};
}

/* What a reducer without an epilogue needs, for any W: of either operation. */
static inline ewx_kernel_needs ewx_reducer_needs(int threads)
{
    return (ewx_kernel_needs){threads, threads > 256 ? 32 : 64, 0};
}

#endif
