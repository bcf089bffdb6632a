#include "plan/backend_traits.h"

#include "base/build_id.h"
#include "plan/layout.h"

#define PAGE_BYTES 4096

#define CPU_HEAP                                                                           \
    {                                                                                      \
        .header_bytes = PAGE_BYTES, .flag_bytes = EWX_FLAG_BYTES, .unit_bytes = PAGE_BYTES \
    }

const ewx_traits ewx_traits_cpu = {.id = EW_BACKEND_CPU,
                                   .name = "cpu",
                                   .has_products = true,
                                   .kernels_id = &ewx_cpu_kernels_id,
                                   .heap = CPU_HEAP};

const ewx_traits ewx_traits_cuda = {
    .id = EW_BACKEND_CUDA,
    .name = "cuda",
    .is_gpu = true,
    .enqueues = true,
    .has_products = true,
    .has_own_clock = true,
    .kernels_id = &ewx_cuda_kernels_id,
    .heap = {.header_bytes = EWX_CUDA_HEADER_BYTES,
             .flag_bytes = sizeof(uint32_t),
             .flags_at_owner = true,
             .unit_bytes = EWX_CUDA_TILE_BYTES,
             .whole_tiles = true, /* TMA stores them, whatever the edge needs */
             .gathers_all = true},
};

const ewx_traits ewx_traits_sim = {.id = EW_BACKEND_SIM,
                                   .name = "sim",
                                   .simulated = true,
                                   .has_own_clock = true,
                                   .heap = CPU_HEAP};

const ewx_traits *ewx_traits_of(ew_backend backend)
{
    switch (backend) {
    case EW_BACKEND_CUDA:
        return &ewx_traits_cuda;
    case EW_BACKEND_SIM:
        return &ewx_traits_sim;
    default:
        return &ewx_traits_cpu;
    }
}
