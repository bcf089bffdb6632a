/* Calls in a CUDA graph, timed by events: what a program sees that replays its layers. */
#include <stdlib.h>

#include "backend/cuda/cuda_engine.h"

typedef struct recording {
    const ewx_device *device;
    cudaStream_t stream; /* a caller's, in the GPU's usual context */
    cudaGraphExec_t runnable;
    cudaEvent_t begun, ended;
} recording;

static ew_status capture(recording *r, ewx_enqueuer *enqueue, void *context)
{
    cudaGraph_t graph = NULL;
    EW_CUDA_TRY(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking),
                "creating a stream");
    EW_CUDA_TRY(cudaEventCreate(&r->begun), "creating an event");
    EW_CUDA_TRY(cudaEventCreate(&r->ended), "creating an event");
    EW_CUDA_TRY(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal),
                "capturing calls");
    const ew_status status = enqueue(context, r->stream);
    const cudaError_t error = cudaStreamEndCapture(r->stream, &graph);
    if (status == EW_OK && error == cudaSuccess) {
        const cudaError_t made = cudaGraphInstantiate(&r->runnable, graph, 0);
        cudaGraphDestroy(graph);
        EW_CUDA_TRY(made, "making a graph of calls");
        EW_CUDA_TRY(cudaGraphUpload(r->runnable, r->stream), "uploading a graph");
        EW_CUDA_TRY(cudaStreamSynchronize(r->stream), "uploading a graph");
        return EW_OK;
    }
    if (error == cudaSuccess)
        cudaGraphDestroy(graph);
    EW_TRY(status);
    return ewx_cuda_fail(error, "capturing calls");
}

static ew_status enter(const ewx_device *device)
{
    EW_DRIVER_TRY(device->driver->cuCtxPushCurrent(device->primary), "entering the GPU");
    return EW_OK;
}

ew_status ewx_cuda_graph_open(void *state, ewx_enqueuer *enqueue, void *context,
                              void **graph_out)
{
    const ewx_cuda_engine *engine = state;
    if (engine->world->num_hosts > 1)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "calls among ranks on %d hosts cannot be captured\n"
                        "  fix: start all ranks on one host",
                        engine->world->num_hosts);
    /* A graph's branches become streams, and a process has few queues for these: a kernel
     * can come to stand behind one that waits for it. */
    if (engine->world->in_threads && engine->device->sharers > 1)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "graphs of %d ranks that share a GPU and a process can deadlock\n"
                        "  fix: start the ranks as processes",
                        engine->world->num_ranks);
    recording *r = calloc(1, sizeof *r);
    if (!r)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a graph");
    r->device = engine->device;
    ew_status status = enter(r->device);
    if (status == EW_OK) {
        status = capture(r, enqueue, context);
        ewx_device_leave(r->device);
    }
    if (status == EW_OK)
        *graph_out = r;
    else
        ewx_cuda_graph_close(r);
    return status;
}

static ew_status replay(const recording *r, int times, double *us_out)
{
    float ms = 0;
    EW_CUDA_TRY(cudaEventRecord(r->begun, r->stream), "recording an event");
    for (int i = 0; i < times; i++)
        EW_CUDA_TRY(cudaGraphLaunch(r->runnable, r->stream), "launching a graph");
    EW_CUDA_TRY(cudaEventRecord(r->ended, r->stream), "recording an event");
    EW_CUDA_TRY(cudaEventSynchronize(r->ended), "a graph"); /* its kernels are bounded */
    EW_CUDA_TRY(cudaEventElapsedTime(&ms, r->begun, r->ended), "reading events");
    *us_out = (double)ms * 1e3;
    return EW_OK;
}

ew_status ewx_cuda_graph_replay(void *graph, int times, double *us_out)
{
    const recording *r = graph;
    EW_TRY(enter(r->device));
    const ew_status status = replay(r, times, us_out);
    ewx_device_leave(r->device);
    return status;
}

void ewx_cuda_graph_close(void *graph)
{
    recording *r = graph;
    if (!r)
        return;
    if (enter(r->device) == EW_OK) {
        if (r->runnable)
            cudaGraphExecDestroy(r->runnable);
        if (r->begun)
            cudaEventDestroy(r->begun);
        if (r->ended)
            cudaEventDestroy(r->ended);
        if (r->stream)
            cudaStreamDestroy(r->stream);
        ewx_device_leave(r->device);
    }
    free(r);
}
