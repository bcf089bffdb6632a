/* From a kernel's report to the fault that all ranks report. */
#include "backend/cuda/cuda_engine.h"

static ewx_fault fault_of(const ewx_cuda_engine *engine, const ewx_cuda_report *report)
{
    ewx_fault fault = {.status = EW_ERR_TIMEOUT,
                       .culprit = report->culprit,
                       .reporter = engine->world->rank,
                       .code = EWX_FAULT_MEETING,
                       .timeout_ms = ewx_timeout_ms(engine->timeout_ns),
                       .plan = engine->number};
    switch ((ewx_cuda_place)report->place) {
    case EWX_CUDA_TILE:
    case EWX_CUDA_RESULT:
        fault.code = report->place == EWX_CUDA_RESULT ? EWX_FAULT_RESULT : EWX_FAULT_TILE;
        fault.detail[0] = report->tile_row;
        fault.detail[1] = report->tile_col;
        fault.detail[2] = report->wanted;
        fault.detail[3] = report->seen;
        break;
    case EWX_CUDA_PANEL:
        fault.code = EWX_FAULT_PANEL;
        fault.detail[0] = (int64_t)report->tile_row * EWX_TILE_M;
        fault.detail[2] = report->wanted;
        fault.detail[3] = report->seen;
        break;
    case EWX_CUDA_READERS:
        fault.code = EWX_FAULT_READERS;
        fault.detail[0] = report->wanted;
        fault.detail[1] = report->seen;
        break;
    case EWX_CUDA_ROWS:
        fault.status = EW_ERR_MISMATCH;
        fault.code = EWX_FAULT_ROWS;
        fault.detail[0] = report->wanted;
        fault.detail[1] = report->seen;
        fault.detail[2] = report->epoch;
        break;
    case EWX_CUDA_ORDER:
        fault.status = EW_ERR_MISMATCH;
        fault.code = EWX_FAULT_ORDER;
        fault.detail[0] = report->wanted;
        fault.detail[1] = report->seen;
        fault.detail[2] = engine->number;
        break;
    case EWX_CUDA_GATE:
    case EWX_CUDA_CALL:
        break;
    }
    return fault;
}

ew_status ewx_cuda_collect_fault(const ewx_cuda_engine *engine)
{
    const ewx_cuda_report *report = engine->report;
    /* Written last by the kernel that gave up, behind a system-wide fence. */
    if (__atomic_load_n(&report->place, __ATOMIC_ACQUIRE) == 0 || report->aborted)
        return ewx_world_check(engine->world);
    const ewx_fault fault = fault_of(engine, report);
    return ewx_world_raise(engine->world, &fault);
}
