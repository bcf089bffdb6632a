/* Structs that start with struct_size, from programs that were compiled with an older or a
 * newer header.  Every function of the interface copies them in and out through here, so
 * that behind it there are only structs of this library's own size.
 *
 * New fields go to the end, behind any padding the struct had, and 0 means what was before
 * there was the field. */
#ifndef EWX_BASE_VERSIONED_H
#define EWX_BASE_VERSIONED_H

#include <stddef.h>

#include "entwine/fabric.h"
#include "entwine/sim.h"
#include "entwine/tune.h"

/* The structs of the first release, 0.1.0: up to and with their last fields. */
#define EWX_UP_TO(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))
#define EWX_FIRST_WORLD_OPTIONS EWX_UP_TO(ew_world_options, link_latency_us)
#define EWX_FIRST_PROBLEM EWX_UP_TO(ew_problem, k)
#define EWX_FIRST_CONFIG EWX_UP_TO(ew_config, levels)
#define EWX_FIRST_EPILOGUE EWX_UP_TO(ew_epilogue, normed)
#define EWX_FIRST_FABRIC EWX_UP_TO(ew_fabric, takes_device_memory)
#define EWX_FIRST_BENCH_OPTIONS EWX_UP_TO(ew_bench_options, idle)
#define EWX_FIRST_TUNE_OPTIONS EWX_UP_TO(ew_tune_options, method)
#define EWX_FIRST_SIM_OPTIONS EWX_UP_TO(ew_sim_options, nic_shared)

/* Copies a caller's struct into `mine` of `bytes` bytes; what an older program does not
 * have is 0 there.  `first` is its size in the first release.  EW_ERR_ARGUMENT when it was
 * not initialised, or comes from a newer program that uses fields unknown here; `what` and
 * `init` name it and its macro. */
ew_status ewx_struct_take(void *mine, size_t bytes, const void *theirs, size_t first,
                          const char *what, const char *init);

/* Copies a struct out to a caller, no more of it than its struct_size makes room for, and
 * sets that to what was written.  One that was not initialised gets the fields of the
 * first release. */
void ewx_struct_give(void *theirs, size_t first, const void *mine, size_t bytes);

/* The same for those that several functions have.  NULL stands for a config or options with
 * every field open; a problem cannot be left out. */
ew_status ewx_problem_take(ew_problem *mine, const ew_problem *theirs);
ew_status ewx_config_take(ew_config *mine, const ew_config *theirs);
ew_status ewx_world_options_take(ew_world_options *mine, const ew_world_options *theirs);
void ewx_config_give(ew_config *theirs, const ew_config *mine);

#endif
