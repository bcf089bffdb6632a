/* PTX that has no C name.  One instruction per function, named after it. */
#ifndef EWX_CUDA_PTX_CUH
#define EWX_CUDA_PTX_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/* ---- Memory order: flags are system-scoped, always ---- */

__device__ __forceinline__ uint32_t ld_relaxed_sys(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];"
                 : "=r"(value)
                 : "l"(word)
                 : "memory");
    return value;
}

__device__ __forceinline__ uint32_t ld_acquire_sys(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
                 : "=r"(value)
                 : "l"(word)
                 : "memory");
    return value;
}

__device__ __forceinline__ uint64_t ld_relaxed_sys(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];"
                 : "=l"(value)
                 : "l"(word)
                 : "memory");
    return value;
}

__device__ __forceinline__ void st_release_sys(uint32_t *word, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/* After it, st_relaxed_sys means what st_release_sys would: for words to several ranks,
 * each of which would wait for all stores before it anew (1.3 us on an H200). */
__device__ __forceinline__ void fence_release_sys()
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* Before it, ld_relaxed_sys means what ld_acquire_sys would: for many words at a time.
 * fence.acq_rel would do, but means a release wherever it stands (tests/check_ptx.sh). */
__device__ __forceinline__ void fence_acquire_sys()
{
    asm volatile("fence.sc.sys;" ::: "memory");
}

/* Ordinary accesses to memory, before bulk copies to the same memory. */
__device__ __forceinline__ void accesses_before_bulk()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

__device__ __forceinline__ void st_relaxed_sys(uint32_t *word, uint32_t value)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ void st_relaxed_sys(uint64_t *word, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

/* ---- Kernels in a stream: the next may start early and then waits for this one ---- */

__device__ __forceinline__ void let_next_kernel_start()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits until the kernel before has ended and its writes are visible. */
__device__ __forceinline__ void await_kernel_before()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* ---- Time ---- */

__device__ __forceinline__ unsigned long long global_timer_ns()
{
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* ---- Loads and stores of 16 bytes that leave the caches alone ---- */

__device__ __forceinline__ uint64_t l2_evict_first()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ uint64_t l2_evict_normal()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ uint64_t l2_evict_last()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Never ld.global.nc: peers write this memory while the kernel runs. */
__device__ __forceinline__ uint4 ld_16(const void *from, uint64_t policy)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from), "l"(policy)
                 : "memory");
    return v;
}

__device__ __forceinline__ void st_16(void *to, uint4 v, uint64_t policy)
{
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1,%2,%3,%4}, %5;" ::"l"(to),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(policy)
                 : "memory");
}

/* ---- Element types ---- */

template <class T>
struct element;

/* Adds eight elements to those in memory, a pair at a time, in the order in which additions
 * come and with a rounding after each.  bf16 needs compute capability 9.0. */
#if __CUDA_ARCH__ >= 900
#define RED_ADD_16(type)                                     \
    asm volatile("red.relaxed.sys.global.add.noftz.v4." type \
                 " [%0], {%1,%2,%3,%4};" ::"l"(to),          \
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)      \
                 : "memory")
#else
#define RED_ADD_16(type)                                                               \
    asm volatile("red.relaxed.sys.global.add.noftz." type " [%0], %1;\n"               \
                 "red.relaxed.sys.global.add.noftz." type " [%0 + 4], %2;\n"           \
                 "red.relaxed.sys.global.add.noftz." type " [%0 + 8], %3;\n"           \
                 "red.relaxed.sys.global.add.noftz." type " [%0 + 12], %4;" ::"l"(to), \
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)                                \
                 : "memory")
#endif

template <class T>
__device__ __forceinline__ void red_add_16(void *to, uint4 v);

template <>
__device__ __forceinline__ void red_add_16<__half>(void *to, uint4 v)
{
    RED_ADD_16("f16x2");
}

#if __CUDA_ARCH__ >= 900
template <>
__device__ __forceinline__ void red_add_16<__nv_bfloat16>(void *to, uint4 v)
{
    RED_ADD_16("bf16x2");
}
#endif

template <>
struct element<__half> {
    static __device__ __forceinline__ float2 unpack(uint32_t pair)
    {
        return __half22float2(*reinterpret_cast<__half2 *>(&pair));
    }
    static __device__ __forceinline__ uint32_t pack(float low, float high)
    {
        const __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t *>(&pair);
    }
};

template <>
struct element<__nv_bfloat16> {
    static __device__ __forceinline__ float2 unpack(uint32_t pair)
    {
        return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&pair));
    }
    static __device__ __forceinline__ uint32_t pack(float low, float high)
    {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t *>(&pair);
    }
};

/* ---- Shared memory ---- */

__device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

#endif
