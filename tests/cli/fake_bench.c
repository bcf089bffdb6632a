/* A stopwatch that does not measure, for golden tests of what the tool derives from its
 * results: preloaded, it answers for ew_bench_run with times that can be worked out by
 * hand. In microseconds, with x the budget and K the depth: GEMM  K, with
 * producer=blas 1.25 K, with pool=static 1.5 K; and 10 x where reductions run beside it
 *   tail  1000 / x with release=output, else 10 for each tile released together (partition:
 *         400), and 500 more in the default order, 200 more in the contiguous one
 *
 * FAKE_WRONG: so many wrong values in every result.
 * FAKE_NOISE: samples lie up to so much, as a part of the time, above and below it.
 * FAKE_PROFILE: the times are those of this profile's hardware, simulated, but
 *   FAKE_BUSY: calls of K=256 where reductions run beside the GEMM take so many times as
 * long FAKE_TAIL: tails take so many times as long. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "entwine/sim.h"

static double gemm_us(const ew_problem *problem, const ew_config *config)
{
    double us = (double)problem->k;
    if (config->producer == EW_PRODUCER_BLAS)
        us *= 1.25;
    if (config->pool == EW_POOL_STATIC)
        us *= 1.5;
    return config->release == EW_RELEASE_OUTPUT ? us : us + 10.0 * config->budget;
}

static double tail_us(const ew_config *config)
{
    if (config->release == EW_RELEASE_OUTPUT)
        return 1000.0 / config->budget;
    double us = config->release == EW_RELEASE_PARTITION ? 400.0 : 10.0 * config->release;
    if (config->order == EW_ORDER_DEFAULT)
        us += 500.0;
    return config->order == EW_ORDER_CONTIGUOUS ? us + 200.0 : us;
}

static double factor(const char *name)
{
    return getenv(name) ? atof(getenv(name)) : 1;
}

static void take_times(const ew_problem *problem, int num_ranks, ew_bench_result *result)
{
    ew_sim_options options = EW_SIM_OPTIONS_INIT;
    ew_sim_report report;
    ew_config config = result->config;
    const bool overlaps = config.release != EW_RELEASE_OUTPUT;
    result->gemm_us = gemm_us(problem, &result->config);
    result->tail_us = tail_us(&result->config);
    result->time_us = result->gemm_us + result->tail_us;
    options.profile = getenv("FAKE_PROFILE");
    config.backend = EW_BACKEND_SIM;
    if (!options.profile || ew_sim_call(problem, num_ranks, &config, &options, &report))
        return;
    result->gemm_us = report.gemm_us;
    result->tail_us = report.tail_us * factor("FAKE_TAIL");
    result->time_us =
        report.time_us * (overlaps && problem->k == 256 ? factor("FAKE_BUSY") : 1);
}

/* As many above as below, in another order for each entry. */
static double noise(int entry, int sample)
{
    const int step = (sample * (3 + 2 * entry) + entry) % 7 - 3;
    return getenv("FAKE_NOISE") ? atof(getenv("FAKE_NOISE")) * step / 3 : 0;
}

static void fill_detail(const ew_bench_options *options, int num_ranks, double us,
                        ew_bench_detail *detail)
{
    if (!options->details)
        return;
    for (int sample = 0; sample < options->iters; sample++)
        detail->calls_us[sample] = us;
    for (int rank = 0; rank < num_ranks; rank++)
        detail->ranks_us[rank] = us;
}

ew_status ew_bench_run(ew_world *world, const ew_problem *problem,
                       const ew_bench_options *options, const ew_bench_entry *entries,
                       int count, ew_bench_result *results)
{
    for (int at = 0; at < count; at++) {
        ew_forecast forecast;
        ew_bench_result *result = &results[at];
        memset(result, 0, sizeof *result);
        result->status = ew_forecast_build(problem, ew_world_size(world),
                                           &entries[at].config, &forecast);
        if (result->status)
            continue;
        result->config = forecast.config;
        take_times(problem, ew_world_size(world), result);
        result->num_samples = options->iters;
        result->check.wrong = getenv("FAKE_WRONG") ? atoi(getenv("FAKE_WRONG")) : 0;
        for (int sample = 0; sample < options->iters; sample++)
            result->samples_us[sample] = result->time_us * (1 + noise(at, sample));
        fill_detail(options, ew_world_size(world), result->time_us, &options->details[at]);
    }
    return EW_OK;
}
