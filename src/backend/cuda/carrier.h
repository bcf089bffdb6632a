/* Tiles between GPUs on different hosts.  Kernels work as on one host; what they find at
 * the addresses of a rank elsewhere is memory that they can reach:
 *
 *   heaps[r]    the head and the flags of r's segment, a replica in which this rank's
 *               kernels publish, and from which the host reads what has been published;
 *   sources[r]  an inbox, into which the world's fabric writes r's tiles, and from which
 *               the reducer reads them.
 *
 * The host carries the rest: published tiles go to the exchange; when tiles have come it
 * writes their flags into this rank's segment.  What peers say of their calls (rows, done,
 * gate) travels in control messages and is written there too.
 *
 * A fabric that takes device memory (device->direct) sends tiles from where the producer
 * wrote them, and the inbox lies in the GPU's memory.  For others both are staged: tiles
 * are copied into an outbox first, and the inbox, in pinned memory, is read across the bus.
 * Messages are the same, so every rank goes its own way.
 *
 * The caller's thread does all this, since it alone may talk to the fabric: on several
 * hosts a call returns when it is complete. */
#ifndef EWX_CUDA_CARRIER_H
#define EWX_CUDA_CARRIER_H

#include "backend/cuda/device.h"
#include "backend/cuda/kernels/kernels.h"
#include "exchange/exchange.h"

#define EWX_CARRIER_BATCH 64   /* units that are copied together */
#define EWX_CARRIER_WRITES 128 /* words that are written together; fewer than 256 */

typedef struct ewx_cuda_engine ewx_cuda_engine;

/* What a rank on another host has said, as kernels want it in this rank's segment. */
typedef struct ewx_carrier_words {
    uint64_t calls[EWX_CUDA_CALLS];
    uint32_t done, gate;
} ewx_carrier_words;

/* Another rank's side of the call. */
typedef struct ewx_carrier_remote {
    int64_t taken; /* tasks of its part that were found published, in their order */
    ewx_carrier_words heard, written;
} ewx_carrier_remote;

typedef struct ewx_carrier {
    ewx_exchange exchange;
    ewx_listener listener;
    unsigned char *inbox;  /* [parity][source][slot] */
    unsigned char *outbox; /* [remote][slot]; staged, as the next */
    cudaEvent_t copied;    /* behind the copies of a batch */
    int64_t *arrived;      /* [source][release unit]: tiles of ours that have come */
    /* This call: */
    uint32_t epoch;
    ewx_grid grid;
    uint32_t gate; /* as told */
    struct {
        int dst;
        int64_t unit;
    } batch[EWX_CARRIER_BATCH];
    int num_batch;
    CUstreamBatchMemOpParams writes[EWX_CARRIER_WRITES];
    unsigned num_writes;
    int64_t moves;    /* counts words written: whether anything gets on */
    ew_status status; /* of the GPU */
    bool is_idle;     /* nothing is left to be sent */
    ewx_carrier_remote remotes[EWX_CUDA_MAX_RANKS]; /* by rank */
} ewx_carrier;

/* EW_ERR_UNSUPPORTED for what works on one host only. */
ew_status ewx_carrier_check(const ew_world *world, const ewx_spec *spec);

/* Collective, after the heap; nothing on one host.  The device is entered, here and
 * below. */
ew_status ewx_carrier_open(ewx_cuda_engine *engine);
void ewx_carrier_close(ewx_cuda_engine *engine); /* half-open is fine */

/* What to add to the place of a contribution of ours to a tile of ours, to get that of a
 * rank on another host. */
const unsigned char *ewx_carrier_source(const ewx_cuda_engine *engine, int src);

/* Around the launch of a call: before it, and until all of it is done. */
void ewx_carrier_begin(ewx_cuda_engine *engine, int64_t m);
ew_status ewx_carrier_drive(ewx_cuda_engine *engine);

#ifdef EW_TESTING
/* This rank's last call was that one. */
void ewx_carrier_set_epoch(ewx_cuda_engine *engine, uint32_t epoch);
#endif

/* ---- inside the carrier ---- */

/* Keeps the first error of the GPU; the call ends with it. */
void ewx_carrier_fail(ewx_cuda_engine *engine, ew_status status);
/* Around calls of the fabric.  One that takes device memory keeps streams and events of the
 * context that it is called in: always the GPU's own, as between our calls, never that of a
 * group of SMs.  False: that failed, and there is nothing to leave. */
bool ewx_carrier_enter_fabric(ewx_cuda_engine *engine);
void ewx_carrier_leave_fabric(const ewx_cuda_engine *engine);
extern const ewx_exchange_backend ewx_carrier_boxes;
static inline size_t ewx_carrier_counts_bytes(const ewx_spec *spec)
{
    return (size_t)(spec->num_ranks * spec->layout.slots_per_part) * sizeof(int64_t);
}
/* Words of this rank's segment: gathered, then written in that order. */
void ewx_carrier_write(ewx_cuda_engine *engine, uint32_t *word, uint32_t value);
void ewx_carrier_flush(ewx_cuda_engine *engine);

/* Tells other hosts of this call, and of the last one that this rank has read. */
void ewx_carrier_tell(ewx_cuda_engine *engine, uint32_t done);
/* What kernels say of the gate, to ranks of other hosts ... */
void ewx_carrier_pass_gate_on(ewx_cuda_engine *engine);
/* ... and what these have told, to the kernels. */
void ewx_carrier_relay(ewx_cuda_engine *engine);
/* A note has come; the listener's. */
void ewx_carrier_hear(void *context, int src, const void *body, size_t bytes);

#endif
