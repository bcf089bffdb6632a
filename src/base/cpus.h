/* Sets of the logical CPUs of a machine, by the numbers that Linux gives them. */
#ifndef EWX_BASE_CPUS_H
#define EWX_BASE_CPUS_H

#include <stdbool.h>
#include <stdint.h>

#define EWX_MAX_CPUS 4096
#define EWX_CPU_WORDS (EWX_MAX_CPUS / 64)

typedef struct ewx_cpus {
    uint64_t words[EWX_CPU_WORDS];
} ewx_cpus;

static inline bool ewx_cpus_has(const ewx_cpus *set, int cpu)
{
    return set->words[cpu / 64] >> (cpu % 64) & 1;
}

static inline void ewx_cpus_add(ewx_cpus *set, int cpu)
{
    set->words[cpu / 64] |= (uint64_t)1 << (cpu % 64);
}

static inline void ewx_cpus_remove(ewx_cpus *set, int cpu)
{
    set->words[cpu / 64] &= ~((uint64_t)1 << (cpu % 64));
}

static inline int ewx_cpus_count(const ewx_cpus *set)
{
    int count = 0;
    for (int word = 0; word < EWX_CPU_WORDS; word++)
        count += __builtin_popcountll(set->words[word]);
    return count;
}

static inline ewx_cpus ewx_cpus_both(const ewx_cpus *one, const ewx_cpus *other)
{
    ewx_cpus both;
    for (int word = 0; word < EWX_CPU_WORDS; word++)
        both.words[word] = one->words[word] & other->words[word];
    return both;
}

static inline void ewx_cpus_join(ewx_cpus *set, const ewx_cpus *more)
{
    for (int word = 0; word < EWX_CPU_WORDS; word++)
        set->words[word] |= more->words[word];
}

static inline bool ewx_cpus_meet(const ewx_cpus *one, const ewx_cpus *other)
{
    for (int word = 0; word < EWX_CPU_WORDS; word++)
        if (one->words[word] & other->words[word])
            return true;
    return false;
}

static inline bool ewx_cpus_equal(const ewx_cpus *one, const ewx_cpus *other)
{
    for (int word = 0; word < EWX_CPU_WORDS; word++)
        if (one->words[word] != other->words[word])
            return false;
    return true;
}

/* A list as in /sys, "0-3,8,10-11"; false, and of no meaning, for any other text. */
bool ewx_cpus_parse(const char *text, ewx_cpus *set_out);

#endif
