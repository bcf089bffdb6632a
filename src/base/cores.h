/* Which cores this process may use, and how the ranks of a host share them. */
#ifndef EWX_BASE_CORES_H
#define EWX_BASE_CORES_H

#include "base/cpus.h"
#include "base/text.h"

#define EWX_MAX_CPU_QUOTAS 6

/* CPU time that the processes of a control group have together. */
typedef struct ewx_cpu_quota {
    uint64_t group; /* the same for all processes in it; 0: unknown */
    uint64_t millicores;
} ewx_cpu_quota;

/* What one rank may use.  Plain words: ranks show it to each other. */
typedef struct ewx_cpu_share {
    ewx_cpus cpus; /* none: not known, so those of the others */
    uint64_t num_quotas;
    ewx_cpu_quota quotas[EWX_MAX_CPU_QUOTAS]; /* own group first; of more, the lowest */
} ewx_cpu_share;

/* The calling thread's: its affinity mask, which the kernel keeps inside its cpuset, and
 * the quotas of its control group and those above it (cgroup v1 and v2). */
void ewx_cpu_share_read(ewx_cpu_share *share_out);

typedef struct ewx_provision {
    int cores;      /* for all ranks together */
    int each;       /* for the least provided one, at least 1 */
    bool is_enough; /* every rank has a core to itself */
} ewx_provision;

/* What a host's ranks get.  Hardware threads of one core are one
 * core; a core that several ranks may use, and a quota that they are under together, are
 * shared out evenly among them.  A part of a core that a quota grants counts as a core:
 * workers that are now and then made to wait do more than one worker less. */
ewx_provision ewx_cpu_provide(const ewx_cpu_share *shares, int count);

/* What this process would have for itself alone. */
int ewx_usable_cores(void);

/* The processor's name, or on ARM the numbers that stand for it; "unknown" at worst. */
void ewx_cpu_model(ewx_text *text);

#endif
