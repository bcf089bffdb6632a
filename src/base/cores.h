/* How many cores this process may really use. */
#ifndef EWX_BASE_CORES_H
#define EWX_BASE_CORES_H

#include "base/text.h"

/* The affinity mask, which includes cpusets, capped by the CPU quotas of the process's
 * control group and those above it; at least 1. */
int ewx_usable_cores(void);

/* The processor's name, or on ARM the numbers that stand for it; "unknown" at worst. */
void ewx_cpu_model(ewx_text *text);

#endif
