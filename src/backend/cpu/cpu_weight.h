/* A weight as the CPU engine reads it: packed, one panel per tile column; for BLAS a plain
 * copy.  Depends on its N, K and the pieces it is cut into, the element type and the
 * producer alone, so that plans of any size and schedule can share it. */
#ifndef EWX_CPU_WEIGHT_H
#define EWX_CPU_WEIGHT_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "backend/cpu/gemm.h"

typedef struct ewx_weight_form {
    ewx_gemm gemm;      /* of one piece of K; all zero for BLAS */
    size_t piece_bytes; /* of a panel; pieces lie one after the other */
    size_t panel_bytes;
    int64_t num_panels;
    size_t bytes;
} ewx_weight_form;

/* The packed form of a weight of n columns, for plans of this spec. */
ewx_weight_form ewx_weight_form_build(const ewx_spec *spec, int64_t n);

/* A B that several workers pack: each takes the next panel until none is left. */
typedef struct ewx_packing {
    const ewx_spec *spec;
    ewx_weight_form form;
    int64_t n; /* columns of B */
    const unsigned char *B;
    unsigned char *packed;
    _Alignas(64) _Atomic int64_t next_panel;
    _Atomic int64_t panels_done; /* counted with release */
} ewx_packing;

void ewx_packing_begin(ewx_packing *packing, const ewx_spec *spec, int64_t n, const void *B,
                       void *packed);
void ewx_packing_work(ewx_packing *packing);
/* Acquire: what other workers packed is visible then. */
bool ewx_packing_is_done(const ewx_packing *packing);

/* Zeroed, so that the first call meets no page fault; large buffers ask for huge pages,
 * which spare the packed panels most of their TLB misses.  `what` is for the message. */
ew_status ewx_buffer_allocate(size_t bytes, const char *what, void **buffer_out);

/* Each page of 4 KiB has an entry of 8 bytes in the kernel's tables of every process that
 * maps it. */
#define EWX_BYTES_PER_TABLE_BYTE 512

/* Room for packed weights. */
ew_status ewx_weight_room_open(ew_world *world, size_t bytes, void **room_out);

/* As ewx_weights says. */
ew_status ewx_cpu_weight_open(ew_world *world, const ewx_spec *spec, void **packed_out);
ew_status ewx_cpu_weight_pack(ew_world *world, const ewx_spec *spec, void *packed,
                              const void *B);
void ewx_cpu_weight_close(ew_world *world, void *packed);

#endif
