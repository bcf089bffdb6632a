/* Tiles between GPUs on different hosts.  Kernels work as on one host; what they find at
 * the addresses of a rank elsewhere is memory that they can reach:
 *
 *   heaps[r]    the head and the flags of r's segment, a replica in which this rank's
 *               kernels publish, and from which the host reads what has been published;
 *   sources[r]  an inbox, into which the world's fabric writes r's tiles, and from which
 *               the reducer reads them.
 *
 * The host carries the rest: published tiles are sent, one message each; of tiles that have
 * come it writes the flags into this rank's segment.  What peers say of their calls (rows,
 * done, gate) travels as letters and is written there too.
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
#include "world/hosts.h"

#define EWX_CARRIER_WINDOW 32  /* tiles of a rank that are asked about at once */
#define EWX_CARRIER_BATCH 64   /* tiles that are sent together */
#define EWX_CARRIER_WRITES 128 /* words that are written together; fewer than 256 */

typedef struct ewx_cuda_engine ewx_cuda_engine;

/* What a rank on another host has said, as kernels want it in this rank's segment. */
typedef struct ewx_carrier_words {
    uint64_t calls[EWX_CUDA_CALLS];
    uint32_t done, gate;
} ewx_carrier_words;

/* Another rank's side of the call.  Tiles go and come in the order of their tasks. */
typedef struct ewx_carrier_remote {
    int rank;
    int64_t taken;   /* tasks of its partition that were found published ... */
    int64_t put;     /* ... and that were given to the fabric */
    int64_t arrived; /* tasks of ours that have come, with all before them ... */
    uint32_t ahead;  /* ... and a bit for each of the next ones that has */
    ewx_carrier_words heard, written;
} ewx_carrier_remote;

typedef struct ewx_carrier {
    bool is_open;
    ew_channel *channel;
    ewx_listener listener;
    unsigned char *inbox;  /* [parity][source][slot] */
    unsigned char *outbox; /* [remote][slot]; staged, as the next */
    cudaEvent_t copied;    /* behind the copies of a batch */
    /* This call: */
    uint32_t epoch;
    ewx_grid grid;
    uint32_t gate; /* as told */
    struct {
        int remote;
        int64_t task;
    } batch[EWX_CARRIER_BATCH];
    int num_batch;
    CUstreamBatchMemOpParams writes[EWX_CARRIER_WRITES];
    unsigned num_writes;
    size_t unsent; /* messages, as last asked, and to whom one of them goes */
    int unsent_to;
    int64_t moves;    /* whatever has got on */
    ew_status status; /* of the GPU */
    int num_remotes;
    ewx_carrier_remote remotes[EWX_CUDA_MAX_RANKS];
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
 * slice.  False: that failed, and there is nothing to leave. */
bool ewx_carrier_enter_fabric(ewx_cuda_engine *engine);
void ewx_carrier_leave_fabric(const ewx_cuda_engine *engine);
/* Where a contribution of ours lies when it is given to the fabric. */
const unsigned char *ewx_carrier_outgoing(const ewx_cuda_engine *engine, int remote,
                                          int64_t slot, uint32_t epoch);
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

/* Where a tile's message is received, and the number by which its sender knows that. */
static inline int32_t ewx_carrier_number(int64_t slot, uint32_t epoch)
{
    return (int32_t)(slot * 2 + (epoch & 1));
}

static inline size_t ewx_carrier_place(int64_t slots, int remote, int64_t slot,
                                       uint32_t epoch)
{
    return (size_t)(remote * slots * 2 + ewx_carrier_number(slot, epoch));
}

#endif
