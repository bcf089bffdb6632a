/* Domains of a machine: cores and the memory that is near to them.  Which there are hwloc
 * says, if it can be loaded; without it the machine counts as one domain. */
#ifndef EWX_BASE_NUMA_H
#define EWX_BASE_NUMA_H

#include <pthread.h>

#include "base/cpus.h"

#define EWX_MAX_DOMAINS 64

typedef struct ewx_domain {
    ewx_cpus cpus;
    int node; /* Linux's number of its memory */
} ewx_domain;

typedef struct ewx_domains {
    int count;       /* 0: they do not matter, or are not known */
    bool can_bind;   /* they are this machine's, not hwloc's idea of another one */
    const char *why; /* they are not known, although there are several; or NULL */
    ewx_domain at[EWX_MAX_DOMAINS];
} ewx_domains;

/* Looked up once per process. */
const ewx_domains *ewx_domains_find(void);

/* The domains that a rank is to run in. */
typedef struct ewx_home {
    int num_domains; /* above 1 it straddles them; 0: not known */
    ewx_cpus cpus;
    unsigned long nodes[EWX_MAX_CPUS / (8 * sizeof(unsigned long))];
} ewx_home;

/* Of `count` ranks that all may use `cpus`, that of the rank `index`.  There is a domain
 * for every rank, or several ranks to a domain; where there are more domains than ranks, a
 * rank has several, of which it may share the outer ones with its neighbours. */
void ewx_home_choose(const ewx_domains *domains, const ewx_cpus *cpus, int index, int count,
                     ewx_home *home_out);

/* A thread's stay at home: pages that it touches lie there, and threads that it starts
 * stay.  Not being allowed to is fine. */
typedef struct ewx_stay {
    bool is_bound, interleaves;
    ewx_cpus before;
} ewx_stay;

ewx_stay ewx_home_enter(const ewx_home *home);
void ewx_home_leave(const ewx_stay *stay);

/* The CPUs that the calling thread may use; false: that is not known. */
bool ewx_own_cpus(ewx_cpus *cpus_out);

/* Another thread of the program may use these from now on. */
void ewx_confine(pthread_t thread, const ewx_cpus *cpus);

#ifdef EW_TESTING
extern const char *ewx_hwloc_library;
#endif

#endif
