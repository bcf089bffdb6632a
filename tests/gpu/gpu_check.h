/* The checks of the CUDA backend on a real GPU, and what they have in common.  A check is a
 * function that returns when all is well; it fails through the harness.  Each runs in a
 * process of its own, with a time limit.
 *
 * CUDA does not survive fork: a check whose ranks are processes starts them before it
 * touches CUDA itself, also through ranks that are threads. */
#ifndef TESTS_GPU_CHECK_H
#define TESTS_GPU_CHECK_H

#include <stdbool.h>

#include "entwine/measure.h"

/*     name, function, seconds it may take, what its ranks are */
#define GPU_CHECKS(X)                                                       \
    X("conformance-threads", check_conformance_threads, 120, THREADS)       \
    X("copies", check_copies, 60, THREADS)                                  \
    X("trace", check_trace, 30, THREADS)                                    \
    X("start-together", check_start_together, 30, THREADS)                  \
    X("held-start", check_held_start, 60, THREADS)                          \
    X("numerics", check_numerics, 60, THREADS)                              \
    X("determinism", check_determinism, 60, THREADS)                        \
    X("adding", check_adding, 60, THREADS)                                  \
    X("streams", check_streams, 45, THREADS)                                \
    X("reuse", check_reuse, 45, THREADS)                                    \
    X("adding-reuse", check_adding_reuse, 60, THREADS)                      \
    X("allreduce", check_allreduce, 90, THREADS)                            \
    X("allreduce-bits", check_allreduce_bits, 90, THREADS)                  \
    X("allreduce-reuse", check_allreduce_reuse, 60, THREADS)                \
    X("allreduce-graph", check_allreduce_graph, 60, THREADS)                \
    X("few-rows", check_few_rows, 240, THREADS)                             \
    X("few-rows-bits", check_few_rows_bits, 180, THREADS)                   \
    X("few-rows-reuse", check_few_rows_reuse, 180, THREADS)                 \
    X("few-rows-graph", check_few_rows_graph, 90, THREADS)                  \
    X("allreduce-layer", check_allreduce_layer, 90, THREADS)                \
    X("allreduce-rows", check_allreduce_rows, 90, THREADS)                  \
    X("allreduce-blas", check_allreduce_blas, 30, THREADS)                  \
    X("allreduce-symmetric", check_allreduce_symmetric, 150, THREADS)       \
    X("allreduce-faults", check_allreduce_faults, 120, THREADS)             \
    X("invariant", check_invariant, 120, THREADS)                           \
    X("frees", check_frees, 60, THREADS)                                    \
    X("epoch-wrap", check_epoch_wrap, 30, THREADS)                          \
    X("graph", check_graph, 60, THREADS)                                    \
    X("weights", check_weights, 60, THREADS)                                \
    X("blas", check_blas, 30, THREADS)                                      \
    X("layer", check_layer, 120, THREADS)                                   \
    X("layer-repeats", check_layer_repeats, 90, THREADS)                    \
    X("link", check_link, 30, THREADS)                                      \
    X("bad-input", check_bad_input, 60, THREADS)                            \
    X("deadline", check_deadline, 60, THREADS)                              \
    X("abort", check_abort, 30, THREADS)                                    \
    X("abort-latency", check_abort_latency, 60, THREADS)                    \
    X("rows-disagree", check_rows_disagree, 30, THREADS)                    \
    X("plans-disagree", check_plans_disagree, 30, THREADS)                  \
    X("budgets", check_budgets, 90, THREADS)                                \
    X("units", check_units, 60, THREADS)                                    \
    X("two-plans", check_two_plans, 60, THREADS)                            \
    X("plans-in-turn", check_plans_in_turn, 60, THREADS)                    \
    X("needs", check_needs, 30, THREADS)                                    \
    X("environment-threads", check_environment_threads, 120, THREADS)       \
    X("shares", check_shares, 60, THREADS)                                  \
    X("large", check_large, 60, THREADS)                                    \
    X("random", check_random, 60, THREADS)                                  \
    X("gather", check_gather, 90, THREADS)                                  \
    X("gather-bits", check_gather_bits, 60, THREADS)                        \
    X("gather-reuse", check_gather_reuse, 60, THREADS)                      \
    X("gather-copies", check_gather_copies, 90, THREADS)                    \
    X("gather-graph", check_gather_graph, 60, THREADS)                      \
    X("gather-faults", check_gather_faults, 120, THREADS)                   \
    X("products", check_products, 120, THREADS)                             \
    X("products-gates", check_products_gates, 30, THREADS)                  \
    X("products-reuse", check_products_reuse, 60, THREADS)                  \
    X("products-graph", check_products_graph, 60, THREADS)                  \
    X("products-refused", check_products_refused, 30, THREADS)              \
    X("conformance-processes", check_conformance_processes, 90, PROCESSES)  \
    X("environment-processes", check_environment_processes, 120, PROCESSES) \
    X("many-ranks", check_many_ranks, 90, PROCESSES)                        \
    X("killed", check_killed, 60, PROCESSES)                                \
    X("allreduce-processes", check_allreduce_processes, 60, PROCESSES)      \
    X("symmetric-processes", check_symmetric_processes, 90, PROCESSES)      \
    X("allreduce-killed", check_allreduce_killed, 60, PROCESSES)            \
    X("gather-processes", check_gather_processes, 90, PROCESSES)            \
    X("gather-killed", check_gather_killed, 60, PROCESSES)                  \
    X("hosts", check_hosts, 500, PROCESSES)                                 \
    X("hosts-rank", check_hosts_rank, 120, ON_REQUEST)                      \
    X("small-threads", check_small_threads, 60, ON_REQUEST)                 \
    X("small-processes", check_small_processes, 60, ON_REQUEST)             \
    X("sanitizer-one", check_sanitizer_one, 120, ON_REQUEST)                \
    X("sanitizer-two", check_sanitizer_two, 120, ON_REQUEST)                \
    X("sanitizer-allreduce", check_sanitizer_allreduce, 120, ON_REQUEST)    \
    X("sanitizer-gather", check_sanitizer_gather, 120, ON_REQUEST)          \
    X("sanitizer-products", check_sanitizer_products, 120, ON_REQUEST)

#define GPU_DECLARE(name, function, seconds, ranks) void function(void);
GPU_CHECKS(GPU_DECLARE)
#undef GPU_DECLARE

/* Fewer repetitions were asked for, or as many as a promise is worth. */
extern bool gpu_quick, gpu_long;

/* Where checks that draw at random begin, and, of those that count their seeds, how many
 * were asked for; 0: as many as usual. */
extern uint32_t gpu_seed, gpu_count;

/* The first GPU. */
extern ew_gpu gpu_here;
bool gpu_has_kernel(ew_kernel kernel);

/* This check cannot be made here: ends it, with the reason. */
_Noreturn __attribute__((format(printf, 1, 2))) void gpu_skip(const char *format, ...);

/* Something worth reading beside "ok". */
__attribute__((format(printf, 1, 2))) void gpu_remark(const char *format, ...);

#endif
