/* The CUDA engine's state.  cuda.c builds it and answers the backend interface, launch.c
 * enqueues a call, fault.c tells what went wrong.  Kernels do the rest. */
#ifndef EWX_CUDA_ENGINE_H
#define EWX_CUDA_ENGINE_H

#include "backend/backend.h"
#include "backend/cuda/blas.h"
#include "backend/cuda/budget.h"
#include "backend/cuda/heap.h"
#include "backend/cuda/nccl.h"

typedef struct ewx_cuda_engine {
    ew_world *world;
    const ewx_spec *spec;
    const ewx_device *device;
    ewx_cuda_heap heap;
    ewx_cuda_counters *counters;
    ewx_cuda_report *report; /* host memory, at the same address for kernels */
    void *weight;            /* N x K */
    bool has_weight;
    ewx_cuda_entry producer, reducer, starter, marker, finisher, transpose;
    ewx_budget budget;
    ewx_cuda_blas blas; /* producer=blas, as the next */
    ewx_nccl nccl;
    int64_t blas_rows; /* m of the last call, which starts with one of 0 */
    cudaEvent_t forked, produced, reduced;
    /* The maps of the last call, and what they were made for. */
    ewx_cuda_maps maps;
    const void *mapped_a, *mapped_b;
    int64_t mapped_rows;
    bool gate;
    int64_t clock_offset_ns; /* CLOCK_MONOTONIC - the GPU's timer */
} ewx_cuda_engine;

/* A call on a stream of the caller's begins with fork and ends with join, both in the
 * caller's context: handles such as cudaStreamLegacy mean another stream in another one.
 * Without, calls follow each other on the rank's two streams by themselves, and the end of
 * one overlaps the beginning of the next: the protocol guards what must not be overwritten
 * yet. */
ew_status ewx_cuda_fork(ewx_cuda_engine *engine, cudaStream_t caller);
ew_status ewx_cuda_join(ewx_cuda_engine *engine, cudaStream_t caller);

/* Enqueues one call; arguments have been checked.  The device is entered. */
ew_status ewx_cuda_enqueue(ewx_cuda_engine *engine, int64_t m, const void *A, const void *B,
                           void *C, bool forked);
ew_status ewx_cuda_launch(const ewx_device *device, const ewx_cuda_entry *entry, dim3 grid,
                          dim3 block, int cluster, cudaStream_t stream, void **arguments);

#ifdef EW_TESTING
/* The tests' way to reach the wrap of the epoch; all ranks, before the first call. */
ew_status ewx_cuda_engine_set_epoch(ewx_cuda_engine *engine, uint32_t epoch);
#endif

/* What the kernels of finished calls reported, as the world's fault. */
ew_status ewx_cuda_collect_fault(const ewx_cuda_engine *engine);

#endif
