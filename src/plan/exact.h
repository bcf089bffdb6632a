/* Inputs whose results are known exactly, as pure functions for hosts and kernels.  A has a
 * few entries of +-1 per row at random places, B is dense in {-1, 0, 1}, both computed from
 * (seed, rank, index), so any rank can work out any element of the result cheaply and
 * without the other ranks' data.  Partial results stay below 256 in magnitude, which all
 * element types hold exactly. */
#ifndef EWX_PLAN_EXACT_H
#define EWX_PLAN_EXACT_H

#include "plan/walk.h"

#define EWX_LARGEST_EXACT 256 /* the largest count up to which bf16 holds every integer */
#define EWX_MOST_ENTRIES 16

/* What a matrix is to be filled with. */
typedef enum ewx_input_kind {
    EWX_INPUT_EXACT_A, /* rows x depth */
    EWX_INPUT_EXACT_B, /* rows x depth, or depth x rows */
    EWX_INPUT_RANDOM   /* rows x depth, uniform in (-0.25, 0.25) */
} ewx_input_kind;

typedef struct ewx_input {
    ewx_input_kind kind;
    ew_dtype dtype;
    ew_weight_layout layout;
    uint32_t seed;
    int32_t rank, num_ranks;
    int64_t rows, depth;
} ewx_input;

/* ---- Hashes ---- */

EW_HD static inline uint32_t ewx_mix(uint32_t h)
{
    h ^= h >> 15;
    h *= 0x2c1b3c6du;
    h ^= h >> 12;
    h *= 0x297a2d39u;
    h ^= h >> 15;
    return h;
}

EW_HD static inline uint32_t ewx_exact_salt(uint32_t seed, int rank)
{
    return ewx_mix(seed * 0x9e3779b1u + (uint32_t)rank * 0x7feb352du + 1u);
}

/* ---- A ---- */

typedef struct ewx_exact_entry {
    int64_t k;
    int32_t sign;
} ewx_exact_entry;

EW_HD static inline int ewx_exact_entries(int num_ranks)
{
    const int most = EWX_LARGEST_EXACT / num_ranks;
    return most > EWX_MOST_ENTRIES ? EWX_MOST_ENTRIES : most;
}

/* Entry s of a row of A.  Two entries may meet in one place and then add up. */
EW_HD static inline ewx_exact_entry ewx_exact_a(uint32_t salt, int64_t row, int s,
                                                int64_t depth)
{
    const uint32_t h = ewx_mix(salt ^ ewx_mix((uint32_t)row * 0x85ebca77u + (uint32_t)s));
    ewx_exact_entry entry = {(int64_t)(ewx_mix(h) % (uint64_t)depth), h & 1 ? 1 : -1};
    return entry;
}

/* ---- B ---- */

EW_HD static inline uint32_t ewx_exact_k_hash(int64_t k)
{
    return ewx_mix((uint32_t)k + 0x51ed270bu);
}

EW_HD static inline int32_t ewx_exact_b(uint32_t salt, uint32_t n, uint32_t k_hash)
{
    const uint32_t h = (salt ^ k_hash ^ (n * 0x9e3779b1u)) * 0x2c1b3c6du;
    return (int32_t)(((h >> 16) * 3u) >> 16) - 1;
}

/* ---- Random ---- */

EW_HD static inline uint32_t ewx_random_salt(uint32_t seed)
{
    return ewx_mix(seed + 0x2545f491u);
}

EW_HD static inline float ewx_random_value(uint32_t salt, int64_t index)
{
    const uint32_t h = ewx_mix(salt ^ ((uint32_t)index * 0x9e3779b1u));
    return (float)((int32_t)(h >> 16) - 32768) * 0x1p-17f;
}

#endif
