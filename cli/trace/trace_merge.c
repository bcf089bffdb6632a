/* entwine trace --merge: flight recordings of one job, put together. */
#include "base/json_file.h"
#include "trace/flight.h"
#include "trace/trace.h"

static const char fix_files[] =
    "give files that ENTWINE_DUMP_DIR, SIGUSR1 or `entwine status PID -o json` made";

/* Reads a file into *merged, which is made by the first. */
static cli_exit add_file(const char *path, const char *first, cli_recording **merged)
{
    char why[CLI_WHY_BYTES];
    json_t *root = NULL;
    cli_recording *recording = NULL;
    cli_exit failed = cli_json_load(path, fix_files, &root);
    if (!failed && !cli_recording_parse(root, &recording, why))
        failed = cli_fail_usage(fix_files, "'%.60s': %s", path, why);
    json_decref(root);
    if (failed)
        return failed;
    if (!*merged) {
        *merged = recording;
        return CLI_EXIT_OK;
    }
    if (recording->num_ranks != (*merged)->num_ranks ||
        recording->started_ns != (*merged)->started_ns)
        failed = cli_fail_usage("merge recordings of one job",
                                "'%.60s' is of another job than '%.60s'", path, first);
    else
        cli_recording_merge(*merged, recording);
    cli_recording_free(recording);
    return failed;
}

cli_exit cli_trace_merge(const cli_settings *settings)
{
    cli_recording *merged = NULL;
    cli_exit result = CLI_EXIT_OK;
    if (settings->num_words == 0)
        return cli_fail_usage("entwine trace --merge a.json b.json",
                              "--merge needs flight recordings");
    for (int at = 0; at < settings->num_words && !result; at++)
        result = add_file(settings->words[at], settings->words[0], &merged);
    if (!result && cli_recording_print(merged))
        result = CLI_EXIT_PEER;
    cli_recording_free(merged);
    return result;
}
