/* Hopper's instructions: mbarriers, bulk tensor copies, warpgroup MMA, clusters. */
#ifndef EWX_CUDA_HOPPER_CUH
#define EWX_CUDA_HOPPER_CUH

#include "backend/cuda/kernels/ptx.cuh"

__device__ __forceinline__ uint32_t ld_shared(uint32_t address)
{
    uint32_t value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ void st_shared(uint32_t address, uint32_t value)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ uint4 ld_shared_16(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

__device__ __forceinline__ void st_shared_16(uint32_t address, uint4 v)
{
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}

/* ---- Clusters ---- */

__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* The same place in the shared memory of another CTA of the cluster. */
__device__ __forceinline__ uint32_t in_cta(uint32_t address, uint32_t cta)
{
    uint32_t mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(cta));
    return mapped;
}

__device__ __forceinline__ void st_cluster_16(uint32_t address, int4 v)
{
    asm volatile("st.shared::cluster.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* A word by which a CTA of a cluster tells another: whoever acquires it sees all that was
 * stored before it. */
__device__ __forceinline__ void st_release_cluster(uint32_t address, uint32_t value)
{
    asm volatile("st.release.cluster.shared::cluster.u32 [%0], %1;" ::"r"(address),
                 "r"(value)
                 : "memory");
}

__device__ __forceinline__ uint32_t ld_relaxed_shared(uint32_t address)
{
    uint32_t value;
    asm volatile("ld.relaxed.cluster.shared::cta.u32 %0, [%1];"
                 : "=r"(value)
                 : "r"(address)
                 : "memory");
    return value;
}

__device__ __forceinline__ uint32_t ld_acquire_shared(uint32_t address)
{
    uint32_t value;
    asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];"
                 : "=r"(value)
                 : "r"(address)
                 : "memory");
    return value;
}

/* ---- mbarriers: between the warps of a CTA or cluster, which always move on, so these
 * waits need no deadline ---- */

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void mbarrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 0x989680;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Sees what another CTA stored before its mbarrier_arrive_release. */
__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1, "
                 "0x989680;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void mbarrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

/* Plain, not .release.cluster: that one costs a fifth of the GEMM when it is done per
 * k-step, and what it would order was read by wgmma, which has been waited for. */
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier_in_cluster)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier_in_cluster)
                 : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_release(uint32_t barrier_in_cluster)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                     barrier_in_cluster)
                 : "memory");
}

/* ---- Named barriers between some warps of a CTA ---- */

__device__ __forceinline__ void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- Bulk tensor copies (TMA) ---- */

__device__ __forceinline__ void tensor_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map));
}

__device__ __forceinline__ void tensor_load(uint32_t to, const CUtensorMap *map,
                                            uint32_t barrier, int col, int row,
                                            uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3,%4}], [%2], %5;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(col), "r"(row), "l"(policy)
        : "memory");
}

/* The same from piece `piece` of K. */
__device__ __forceinline__ void tensor_load_3d(uint32_t to, const CUtensorMap *map,
                                               uint32_t barrier, int col, int row,
                                               int piece, uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3,%4,%5}], [%2], %6;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(col), "r"(row), "r"(piece), "l"(policy)
        : "memory");
}

/* Into the same place of every CTA in `mask`, whose barriers all count the bytes. */
__device__ __forceinline__ void tensor_load_multicast(uint32_t to, const CUtensorMap *map,
                                                      uint32_t barrier, int col, int row,
                                                      uint16_t mask, uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%3,%4}], [%2], %5, %6;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(col), "r"(row), "h"(mask), "l"(policy)
        : "memory");
}

__device__ __forceinline__ void tensor_load_multicast_3d(uint32_t to,
                                                         const CUtensorMap *map,
                                                         uint32_t barrier, int col, int row,
                                                         int piece, uint16_t mask,
                                                         uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%3,%4,%5}], [%2], %6, %7;" ::"r"(
            to),
        "l"(map), "r"(barrier), "r"(col), "r"(row), "r"(piece), "h"(mask), "l"(policy)
        : "memory");
}

__device__ __forceinline__ void tensor_store(const CUtensorMap *map, uint32_t from, int col,
                                             int row)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2,%3}], [%1];" ::"l"(
            map),
        "r"(from), "r"(col), "r"(row)
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Adds to what is there, in the order in which additions come and with a rounding after
 * each.  Not yet in a group, as the next: see commit_stores. */
__device__ __forceinline__ void tensor_add(const CUtensorMap *map, uint32_t from, int col,
                                           int row)
{
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, "
                 "{%2,%3}], [%1];" ::"l"(map),
                 "r"(from), "r"(col), "r"(row)
                 : "memory");
}

__device__ __forceinline__ void tensor_store_3d(const CUtensorMap *map, uint32_t from,
                                                int col, int row, int part)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2,%3,%4}], "
                 "[%1];" ::"l"(map),
                 "r"(from), "r"(col), "r"(row), "r"(part)
                 : "memory");
}

/* The stores since the last group become one, of none if there was none: waits count them.
 */
__device__ __forceinline__ void commit_stores()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* All stores but the last PENDING have read their shared memory; their data is not visible
 * to others yet. */
template <int PENDING>
__device__ __forceinline__ void stores_have_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

/* The stores are in memory. */
__device__ __forceinline__ void stores_are_complete()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Shared memory written by ordinary stores, before a bulk copy reads it. */
__device__ __forceinline__ void writes_before_bulk()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Global memory written by ordinary stores, of others too, that this thread has acquired,
 * before its bulk copies read it. */
__device__ __forceinline__ void arrived_before_bulk()
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* ---- Warpgroup MMA ---- */

/* K-major operand, rows of 128 bytes under the 128-byte swizzle. */
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) |
           (1ull << 62);
}

__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#define WGMMA_4(acc, i) "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3])
#define WGMMA_16(acc, i) \
    WGMMA_4(acc, i), WGMMA_4(acc, i + 4), WGMMA_4(acc, i + 8), WGMMA_4(acc, i + 12)
#define WGMMA_M64N128K16(type)                                                      \
    asm volatile(                                                                   \
        "{\n"                                                                       \
        ".reg .pred accumulate;\n"                                                  \
        "setp.ne.b32 accumulate, %66, 0;\n"                                         \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " "            \
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,"   \
        "%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,"  \
        "%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,"  \
        "%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, accumulate, 1, 1, 0, 0;\n"     \
        "}"                                                                         \
        : WGMMA_16(acc, 0), WGMMA_16(acc, 16), WGMMA_16(acc, 32), WGMMA_16(acc, 48) \
        : "l"(a), "l"(b), "r"(accumulate))

template <class T>
__device__ __forceinline__ void wgmma_m64n128k16(float (&acc)[64], uint64_t a, uint64_t b,
                                                 int accumulate);

template <>
__device__ __forceinline__ void wgmma_m64n128k16<__half>(float (&acc)[64], uint64_t a,
                                                         uint64_t b, int accumulate)
{
    WGMMA_M64N128K16("f16");
}

template <>
__device__ __forceinline__ void wgmma_m64n128k16<__nv_bfloat16>(float (&acc)[64],
                                                                uint64_t a, uint64_t b,
                                                                int accumulate)
{
    WGMMA_M64N128K16("bf16");
}

/* Four 8x8 matrices of two-byte elements, one row address per lane. */
__device__ __forceinline__ void stmatrix_x4(uint32_t address, uint4 m)
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
        "r"(m.x), "r"(m.y), "r"(m.z), "r"(m.w)
        : "memory");
}

template <int REGISTERS>
__device__ __forceinline__ void give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

#endif
