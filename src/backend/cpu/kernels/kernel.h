/* A micro-kernel: all that the CPU backend knows of an instruction set.  One file per
 * instruction set defines its kernels; kernel.c lists them and picks the best one that
 * this machine can run.  Kernels know nothing of tiles, ranks or threads. */
#ifndef EWX_CPU_KERNEL_H
#define EWX_CPU_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "entwine/entwine.h"

/* Memory that a later call reads: brought nearer during this one.  None: few panels of A
 * meet all of B, which passes by as a stream. */
typedef struct ewx_ahead {
    const char *at;
    size_t bytes;
} ewx_ahead;

/* acc[mr][nr], row stride `stride` floats, = (or += when accumulate) the product of two
 * panels over `depth` k's, a positive multiple of kr.  Sums run over k in order. */
typedef void ewx_multiply(int64_t depth, const void *a, const void *b, float *acc,
                          int64_t stride, bool accumulate, ewx_ahead ahead);

/* The first row of a panel of A times all panels of a group of `cols` columns, which lie
 * one after the other: acc[cols].  A row has too few sums in one panel of B to keep a core
 * as busy as memory could. */
typedef void ewx_multiply_row(int64_t depth, const void *a, const void *b, int64_t cols,
                              float *acc, bool accumulate);

/* The same as ewx_multiply for the last k's, rounded as below into dst[mr][nr], rather than
 * into acc and from there: sums that stay in registers are rounded while the next ones
 * grow. */
typedef void ewx_multiply_round(int64_t depth, const void *a, const void *b, float *acc,
                                int64_t stride, bool accumulate, ewx_ahead ahead,
                                uint16_t *dst, int64_t dst_stride);

/* Rounds rows x cols of acc as ewx_bf16_from_f32 or ewx_fp16_from_f32 does. */
typedef void ewx_store_half(const float *acc, int64_t stride, int rows, int cols,
                            uint16_t *dst, int64_t dst_stride);

/* `count` elements as fp32; a multiple of a panel's width. */
typedef void ewx_widen(const uint16_t *src, int64_t count, float *dst);

/* B in 16 bits beside an A of fp32.  `multiply` and `multiply_few`, the latter NULL where
 * the kernel has none, take it as it is; that serves few rows.  For more of them a panel of
 * B is widened once.  The bits are the same.  All NULL: B is packed as A is. */
enum { EWX_WIDE_PANEL = 4096 }; /* max_chunk times nr, at most, of a kernel with `widen` */
typedef struct ewx_mixed {
    ewx_multiply *multiply, *multiply_few;
    ewx_widen *widen;
} ewx_mixed;

/* Packed operands: a panel holds `mr` rows of A (or `nr` columns of B), one chunk of K
 * deep, as [k / kr][row][kr] so that a step of the kernel reads consecutive memory.
 * Missing rows and the last k's are zero.  Elements are fp32 with kr == 1, or of a 16-bit
 * type; see ewx_mixed, too. */
typedef struct ewx_kernel {
    const char *name; /* instruction set, register tile, packed element: "neon-8x12-fp32" */
    ew_dtype packs;   /* the packed element; one other than fp32 serves its own type only */
    int mr, nr, kr;
    int kr_b;          /* k's of a column of B that lie together; 0: kr */
    int side_b;        /* columns of B of which kr k's lie together; 0: nr */
    int few_rows;      /* that multiply_few computes, of a panel that has no more; 0: mr */
    int narrow_nr;     /* columns of a group's last panel where so few are left; 0: nr */
    int max_chunk;     /* most k's at a time: a panel of B and two of A fit into L1 */
    int stream_panels; /* of A, at most, for which B is a stream; 0: none */
    int block_side; /* of blocks whose tiles had better pass through K together; 0: none */
    bool (*available)(void);
    const char *(*refusal)(void); /* why a kernel that the CPU could run is unavailable;
                                     NULL, also as its result: no reason */
    bool (*pays)(void);           /* worth choosing unasked where available; NULL: always */
    ewx_multiply *multiply, *multiply_narrow; /* the latter with narrow_nr for nr */
    ewx_multiply *multiply_few;               /* the first few_rows of mr */
    ewx_multiply *multiply_narrow_few;        /* of both; NULL: as narrow */
    ewx_multiply_row *multiply_row;           /* NULL: as few rows, by panels */
    ewx_multiply_round *multiply_round;       /* to the type it packs; NULL: none */
    ewx_multiply_round *multiply_stream;      /* past the caches, whole lines; NULL: none */
    /* Around any number of multiplications by one thread, which in between may be
     * interrupted but calls nothing else; NULL: nothing to do. */
    void (*enter)(void);
    void (*leave)(void);
    ewx_store_half *store_bf16, *store_fp16;
    /* Of kernels that pack fp32, without narrow panels and multiply_row, which read B as
     * fp32. */
    ewx_mixed bf16, fp16;
} ewx_kernel;

/* The best available kernel for the element type, or the one named by `name` (tests
 * compare all of them).  NULL when `name` is unknown, unavailable here or cannot serve
 * the type. */
const ewx_kernel *ewx_kernel_select(ew_dtype dtype, const char *name);

/* Why a kernel that the CPU could run, and that would be chosen for the type, may not be
 * used; NULL when there is none. */
const char *ewx_kernel_refusal(ew_dtype dtype);

/* All kernels built into this library, ending with NULL. */
const ewx_kernel *const *ewx_kernel_list(void);

#endif
