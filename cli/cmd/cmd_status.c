/* entwine status: the jobs of this user on this host, read from their shared memory. */
#include "cmd/commands.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_file.h"
#include "trace/flight.h"

typedef struct finding {
    int pid; /* of a rank or of what started it; 0: all jobs */
    bool as_json;
    json_t *jobs;   /* those that fit */
    int unreadable; /* of another version, or damaged */
} finding;

static int parent_of(int pid)
{
    char path[64], text[512];
    int parent = 0;
    size_t bytes;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (ewx_file_read(path, text, sizeof text - 1, &bytes))
        return 0;
    text[bytes] = '\0';
    const char *close = strrchr(text, ')'); /* a program may have any name */
    return close && sscanf(close + 1, " %*c %d", &parent) == 1 ? parent : 0;
}

/* Launchers have launchers. */
static bool descends_from(int pid, int ancestor)
{
    for (int generation = 0; pid > 1 && generation < 16; generation++) {
        if (pid == ancestor)
            return true;
        pid = parent_of(pid);
    }
    return false;
}

static bool belongs_to(const cli_recording *recording, int pid)
{
    for (int rank = 0; rank < recording->num_ranks; rank++)
        if (descends_from(recording->lanes[rank].pid, pid))
            return true;
    return pid == 0;
}

static void take_job(void *context, const char *json, size_t bytes)
{
    finding *f = context;
    char why[CLI_WHY_BYTES];
    cli_recording *recording = NULL;
    json_t *root = json_loadb(json, bytes, 0, NULL);
    if (!root || !cli_recording_parse(root, &recording, why)) {
        f->unreadable++;
    } else if (belongs_to(recording, f->pid)) {
        json_array_append(f->jobs, root);
    }
    cli_recording_free(recording);
    json_decref(root);
}

static void print_jobs(const finding *f)
{
    size_t at;
    const json_t *root;
    char why[CLI_WHY_BYTES];
    if (f->as_json) {
        cli_json_print(json_incref(f->pid ? json_array_get(f->jobs, 0) : f->jobs));
        return;
    }
    json_array_foreach(f->jobs, at, root)
    {
        cli_recording *recording = NULL;
        if (at > 0)
            putchar('\n');
        if (cli_recording_parse(root, &recording, why))
            cli_recording_print(recording);
        cli_recording_free(recording);
    }
}

static cli_exit parse_pid(const cli_settings *settings, int *pid_out)
{
    char *end;
    if (settings->num_words == 0)
        return CLI_EXIT_OK;
    errno = 0;
    long pid = strtol(settings->words[0], &end, 10);
    if (errno || *end || end == settings->words[0] || pid < 1 || pid > INT32_MAX)
        return cli_fail_usage("the number of a process, as ps shows it",
                              "'%.60s' is not a process id", settings->words[0]);
    *pid_out = (int)pid;
    return CLI_EXIT_OK;
}

cli_exit cli_status_main(const cli_settings *settings, int argc, char **argv)
{
    finding f = {.as_json = settings->format == CLI_FORMAT_JSON, .jobs = json_array()};
    (void)argc, (void)argv;
    cli_exit result = parse_pid(settings, &f.pid);
    ew_status status = result ? EW_OK : ew_jobs_read(take_job, &f);
    if (status)
        result = cli_fail_status(status, ew_last_error());
    if (!result && f.unreadable)
        cli_warn("%d job%s of another version, or with damaged memory", f.unreadable,
                 f.unreadable == 1 ? "" : "s");
    if (!result && f.pid && json_array_size(f.jobs) == 0)
        result = cli_fail_usage("entwine status lists the jobs",
                                "process %d takes part in no job of this user", f.pid);
    else if (!result && !f.as_json && json_array_size(f.jobs) == 0)
        puts("no Entwine job of this user runs on this host");
    else if (!result)
        print_jobs(&f);
    json_decref(f.jobs);
    return result;
}
