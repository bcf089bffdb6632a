/* What kernels poll in this rank's segment, written for ranks on other hosts; and what
 * ranks say of their calls. */
#include <stdatomic.h>
#include <string.h>

#include "backend/cuda/cuda_engine.h"

/* ---- Writing ---- */

void ewx_carrier_fail(ewx_cuda_engine *engine, ew_status status)
{
    if (engine->carrier.status == EW_OK)
        engine->carrier.status = status;
}

/* Words of this rank's segment, which its kernels poll.  The driver puts a system-wide
 * fence before each and keeps their order.  What the host has seen before, such as tiles in
 * the inbox, is seen by whoever acquires the word: hence the fence here.  Tiles in an inbox
 * in the GPU's memory were written by copies, which are complete when the fabric tells of
 * them, and lie where an acquiring kernel reads; or by a NIC, whose writes the host knows
 * to have left, not to have come: these are flushed where the GPU does not order them. */
void ewx_carrier_flush(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    const unsigned count = c->num_writes;
    c->num_writes = 0;
    if (count == 0 || c->status != EW_OK)
        return;
    if (engine->device->flushes) {
        const cudaError_t error = cudaDeviceFlushGPUDirectRDMAWrites(
            cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
            cudaFlushGPUDirectRDMAWritesToOwner);
        if (error != cudaSuccess) {
            ewx_carrier_fail(engine, ewx_cuda_fail(error, "flushing what a NIC wrote"));
            return;
        }
    }
    atomic_thread_fence(memory_order_seq_cst);
    const CUresult result = engine->device->driver->cuStreamBatchMemOp(
        engine->device->carrying, count, c->writes, 0);
    if (result != CUDA_SUCCESS)
        ewx_carrier_fail(engine, ewx_driver_fail(result, "writing flags"));
}

void ewx_carrier_write(ewx_cuda_engine *engine, uint32_t *word, uint32_t value)
{
    ewx_carrier *c = &engine->carrier;
    if (c->num_writes == EWX_CARRIER_WRITES)
        ewx_carrier_flush(engine);
    c->writes[c->num_writes++] = (CUstreamBatchMemOpParams){
        .writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                       .address = (CUdeviceptr)(uintptr_t)word,
                       .value = value,
                       .flags = CU_STREAM_WRITE_VALUE_DEFAULT}};
    c->moves++;
}

/* ---- Saying and hearing ---- */

/* What a rank says of its calls, as it travels. */
typedef struct call_note {
    uint32_t epoch, rows; /* of its newest call */
    uint32_t done, gate;
} call_note;

void ewx_carrier_tell(ewx_cuda_engine *engine, uint32_t done)
{
    const ewx_carrier *c = &engine->carrier;
    const call_note note = {c->epoch, (uint32_t)c->grid.rows, done, c->gate};
    ewx_remotes_send(engine->world, c->listener.number, &note, sizeof note);
}

/* Perhaps in the middle of something else: kept until a call can write it. */
void ewx_carrier_hear(void *context, int src, const void *body, size_t bytes)
{
    ewx_cuda_engine *engine = context;
    ewx_carrier *c = &engine->carrier;
    call_note note;
    if (bytes != sizeof note) {
        ewx_remotes_refuse(engine->world, src);
        return;
    }
    memcpy(&note, body, sizeof note);
    ewx_carrier_words *heard = &c->remotes[src].heard;
    heard->calls[note.epoch % EWX_CUDA_CALLS] = (uint64_t)note.epoch << 32 | note.rows;
    heard->done = note.done;
    heard->gate = note.gate;
}

/* The rows before the epoch: a kernel that sees the epoch reads the rows.  None can still
 * want the call whose place this one takes. */
static void write_heard(ewx_cuda_engine *engine, int rank)
{
    ewx_carrier_remote *r = &engine->carrier.remotes[rank];
    ewx_cuda_segment *mine =
        (ewx_cuda_segment *)(void *)engine->heap.segments[engine->world->rank];
    for (int i = 0; i < EWX_CUDA_CALLS; i++) {
        uint32_t *halves = (uint32_t *)(void *)&mine->calls[i][rank];
        if (r->heard.calls[i] == r->written.calls[i])
            continue;
        ewx_carrier_write(engine, &halves[0], (uint32_t)r->heard.calls[i]);
        ewx_carrier_write(engine, &halves[1], (uint32_t)(r->heard.calls[i] >> 32));
    }
    if (r->heard.done != r->written.done)
        ewx_carrier_write(engine, &mine->done[rank], r->heard.done);
    if (r->heard.gate != r->written.gate)
        ewx_carrier_write(engine, &mine->gate[rank], r->heard.gate);
    r->written = r->heard;
}

/* Kernels say to all ranks at once that they are ready to start. */
void ewx_carrier_pass_gate_on(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    const ewx_cuda_segment *replica =
        (const void *)engine->heap.segments[c->exchange.remotes[0]];
    const uint32_t gate =
        __atomic_load_n(&replica->gate[engine->world->rank], __ATOMIC_RELAXED);
    if (gate == c->gate)
        return;
    c->gate = gate;
    ewx_carrier_tell(engine, c->epoch - 1);
}

void ewx_carrier_relay(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    for (int remote = 0; remote < c->exchange.num_remotes; remote++)
        write_heard(engine, c->exchange.remotes[remote]);
}
