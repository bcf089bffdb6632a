/* Measuring one problem of a job on its ranks. */
#include "run/job.h"

#include <stdlib.h>
#include <string.h>

#include "entwine/tune.h"

/* Up to SHORT_ROWS rows a call is so short that what a program feels is the graph's time.
 */
enum { GRAPH_CALLS = 20, SHORT_ROWS = 256 };

/* Enough for a search to end; what is cut short says so. */
enum { TUNE_CALLS = 2000 };

/* What rank 0 hands back, in memory shared with forked ranks. */
typedef struct bench_call {
    const cli_job *job;
    const cli_problem *problem;
    ew_bench_result results[CLI_MAX_METHODS];
    cli_extra extras[CLI_MAX_METHODS];
} bench_call;

/* The entries as ew_bench_run takes them: those the MPI module serves get their custom
 * method, those it refuses are left out. */
typedef struct entry_set {
    ew_bench_entry entries[CLI_MAX_METHODS];
    ew_bench_custom customs[CLI_MAX_METHODS];
    int from[CLI_MAX_METHODS]; /* index in the job */
    int count;
    uint64_t symmetric; /* of ew_bench_options */
    bool repeats;       /* one more entry follows: the job's repeated one */
    ew_bench_result results[CLI_MAX_METHODS];
    ew_bench_detail details[CLI_MAX_METHODS];
    cli_extra extras[CLI_MAX_METHODS]; /* what tuning found */
} entry_set;

/* An entry runs only if every rank could make it, or the ranks would part ways. */
static ew_status all_could(ew_world *world, bool mine, bool *all_out)
{
    unsigned char flags[CLI_MAX_RANKS], flag = mine;
    ew_status status = ew_world_allgather(world, &flag, flags, sizeof flag);
    *all_out = true;
    for (int rank = 0; status == EW_OK && rank < ew_world_size(world); rank++)
        *all_out = *all_out && flags[rank];
    return status;
}

static ew_status make_custom(ew_world *world, bench_call *call, int at, entry_set *set,
                             bool *made_out)
{
    const ew_mpi_module *mpi = call->job->ranks.launch->mpi;
    ew_bench_custom *custom = &set->customs[set->count];
    char text[CLI_ERROR_BYTES] = "";
    int failed = mpi->method_create(call->job->entries[at].method, &call->problem->problem,
                                    ew_world_rank(world), ew_world_size(world), custom,
                                    text, sizeof text);
    ew_status status = all_could(world, !failed, made_out);
    if (status)
        return status;
    if (!*made_out) {
        if (!failed)
            mpi->method_destroy(custom);
        *custom = (ew_bench_custom){.context = NULL};
    }
    if (!*made_out && ew_world_rank(world) == 0) {
        ew_bench_result *result = &call->results[at];
        result->status = EW_ERR_UNSUPPORTED;
        snprintf(result->error, sizeof result->error, "%s",
                 failed ? text : "refused on another rank");
    } else if (*text && ew_world_rank(world) == 0) {
        fprintf(stderr, "# %s : %s\n", call->job->entries[at].label, text);
    }
    return EW_OK;
}

static ew_status make_entries(ew_world *world, bench_call *call, entry_set *set)
{
    for (int at = 0; at < call->job->num_entries; at++) {
        const cli_entry *entry = &call->job->entries[at];
        bool made = true;
        ew_bench_entry *slot = &set->entries[set->count];
        *slot = (ew_bench_entry){entry->label, entry->config, NULL, entry->layer};
        if (cli_method_needs_mpi(entry->method)) {
            ew_status status = make_custom(world, call, at, set, &made);
            if (status)
                return status;
            slot->custom = &set->customs[set->count];
        }
        if (!made)
            continue;
        set->symmetric |= (uint64_t)entry->symmetric << set->count;
        set->from[set->count++] = at;
    }
    return EW_OK;
}

/* Finds what the entries leave open, with the same effort for each, in the world in which
 * they are measured: an emulated link counts.  One that cannot run is left to the
 * benchmark, which says why. */
static ew_status tune_entries(ew_world *world, const bench_call *call, entry_set *set)
{
    const cli_job *job = call->job;
    for (int at = 0; at < set->count && job->tuned; at++) {
        const cli_entry *entry = &job->entries[set->from[at]];
        ew_tune_options options = EW_TUNE_OPTIONS_INIT;
        ew_tune_result found;
        if (set->entries[at].custom)
            continue;
        options.budget_s = job->tune_budget_s;
        options.budget_calls = job->tune_budget_s > 0 ? 0 : TUNE_CALLS;
        options.effort = &set->extras[at].effort;
        options.seed = job->bench.seed;
        options.store = 0;
        options.method = entry->method;
        ew_status status =
            ew_tune(world, &call->problem->problem, &entry->base, &options, &found);
        if (status == EW_OK) {
            set->entries[at].config = found.tuning.config;
            set->extras[at].tuning = found;
            set->extras[at].tuned = true;
        } else if (status != EW_ERR_UNSUPPORTED && status != EW_ERR_SHAPE &&
                   status != EW_ERR_CONFIG)
            return status; /* it concerns more than this entry */
    }
    return EW_OK;
}

/* Behind the others, with the config that was found for it. */
static void repeat_entry(const cli_job *job, entry_set *set)
{
    for (int at = 0; at < set->count && set->count < CLI_MAX_METHODS; at++) {
        if (set->from[at] != job->repeated)
            continue;
        set->entries[set->count] = set->entries[at];
        set->symmetric |= (set->symmetric >> at & 1) << set->count;
        set->repeats = true;
        return;
    }
}

static ew_status measure_entries(ew_world *world, const bench_call *call, entry_set *set)
{
    ew_bench_options options = call->job->bench;
    options.details = set->details;
    if (call->job->graph ||
        (call->job->bed->on_gpus && call->problem->problem.max_m <= SHORT_ROWS))
        options.graph_calls = GRAPH_CALLS;
    repeat_entry(call->job, set);
    options.symmetric = set->symmetric;
    return ew_bench_run(world, &call->problem->problem, &options, set->entries,
                        set->count + set->repeats, set->results);
}

static void hand_back(const entry_set *set, bench_call *call)
{
    for (int at = 0; at < set->count; at++) {
        call->results[set->from[at]] = set->results[at];
        call->extras[set->from[at]] = set->extras[at];
        call->extras[set->from[at]].detail = set->details[at];
    }
    const ew_bench_result *again = &set->results[set->count];
    if (!set->repeats || again->status != EW_OK)
        return;
    cli_extra *extra = &call->extras[call->job->repeated];
    extra->num_again = again->num_samples;
    memcpy(extra->again_us, again->samples_us, sizeof extra->again_us);
}

static ew_status bench_body(ew_world *world, void *argument)
{
    bench_call *call = argument;
    entry_set *set = calloc(1, sizeof *set);
    ew_status status = set ? make_entries(world, call, set) : EW_ERR_MEMORY;
    if (status == EW_OK)
        status = tune_entries(world, call, set);
    if (status == EW_OK && set->count > 0)
        status = measure_entries(world, call, set);
    if (status == EW_OK && ew_world_rank(world) == 0)
        hand_back(set, call);
    for (int at = 0; set && at < set->count; at++)
        if (set->entries[at].custom)
            call->job->ranks.launch->mpi->method_destroy(&set->customs[at]);
    free(set);
    return status;
}

ew_status cli_job_run(const cli_job *job, const cli_problem *problem,
                      ew_bench_result *results, cli_extra *extras, char *error)
{
    bench_call *call = cli_shared_alloc(sizeof *call);
    if (!call) {
        snprintf(error, CLI_ERROR_BYTES, "no memory for the results\n  fix: free some");
        return EW_ERR_MEMORY;
    }
    call->job = job;
    call->problem = problem;
    ew_status status =
        cli_ranks_run(&job->ranks, problem->num_ranks, bench_body, call, error);
    memcpy(results, call->results, (size_t)job->num_entries * sizeof *results);
    if (extras)
        memcpy(extras, call->extras, (size_t)job->num_entries * sizeof *extras);
    cli_shared_free(call, sizeof *call);
    return status;
}
