/* A tuner that does not measure, for golden tests of what the tool makes of its results:
 * preloaded, it answers for ew_tune.  FAKE_TUNE holds a letter for each seed, the last one
 * for all further seeds:
 *   a  block=128x128 in 80 us        A  the same in 90 us
 *   b  block=128x256 in 100 us       u  not supported       w  waits for ever
 * The built-in choice always takes 100 us.  Its key names the device "fake". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "entwine/tune.h"

static char letter_of(uint32_t seed)
{
    const char *letters = getenv("FAKE_TUNE");
    if (!letters || !*letters)
        return 'a';
    size_t count = strlen(letters), at = seed > 0 ? seed - 1 : 0;
    return letters[at < count ? at : count - 1];
}

ew_status ew_tuning_key(const ew_problem *problem, int num_ranks, ew_backend backend,
                        char *text, size_t bytes)
{
    int64_t bucket = 1;
    (void)backend;
    while (bucket < problem->max_m)
        bucket *= 2;
    snprintf(text, bytes,
             "op=gemm-rs,m=%" PRId64 ",n=%" PRId64 ",k=%" PRId64
             ",ranks=%d,type=%s,weight=nk,backend=cpu,device=fake,version=%s",
             bucket, problem->n, problem->k, num_ranks, ew_dtype_name(problem->dtype),
             ew_version());
    return EW_OK;
}

ew_status ew_tune(ew_world *world, const ew_problem *problem, const ew_config *fixed,
                  const ew_tune_options *options, ew_tune_result *result_out)
{
    const char letter = letter_of(options->seed);
    ew_tune_result result = {
        .num_candidates = 7, .num_refused = 1, .complete = options->budget_s == 0};
    if (options->effort)
        *options->effort = (ew_tune_effort){42, 1.5};
    ew_tuning *tuning = &result.tuning;
    if (letter == 'u') {
        ew_config unknown = EW_CONFIG_INIT;
        ew_config_parse("never=heard", &unknown); /* so that there is a text */
        return EW_ERR_UNSUPPORTED;
    }
    if (letter == 'w' && problem->max_m > 64)
        pause();
    ew_tuning_key(problem, ew_world_size(world), EW_BACKEND_CPU, tuning->key,
                  sizeof tuning->key);
    ew_config_parse(letter == 'b' ? "backend=cpu,block=128x256"
                                  : "backend=cpu,block=128x128",
                    &tuning->config);
    tuning->config.backend = fixed->backend ? fixed->backend : EW_BACKEND_CPU;
    tuning->time_us = letter == 'b' ? 100 : letter == 'A' ? 90 : 80;
    tuning->default_us = 100;
    tuning->when = 1750000000;
    if (ew_world_rank(world) == 0 && options->progress)
        options->progress(options->context, 1, 2, "", tuning->time_us, 100);
    result.stored = options->store && strcmp(options->method, "entwine") == 0;
    if (ew_world_rank(world) == 0 && result.stored) {
        ew_status status = ew_tuning_store(tuning);
        if (status)
            return status;
    }
    *result_out = result;
    return EW_OK;
}
