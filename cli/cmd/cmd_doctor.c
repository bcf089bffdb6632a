/* entwine doctor: runs the checks and says how they ended. */
#include "cmd/commands.h"

#include <stdlib.h>

#include "base/interrupt.h"
#include "doctor/doctor.h"
#include "run/progress.h"

static void print_end(const cli_doctor *d, int argc, char **argv)
{
    if (!d->as_json) {
        printf("%d OK, %d WARN, %d FAIL\n", d->num_verdicts[VERDICT_OK],
               d->num_verdicts[VERDICT_WARN], d->num_verdicts[VERDICT_FAIL]);
        return;
    }
    json_t *document =
        json_pack("{ss so sO}", "schema", "entwine-doctor/1", "context",
                  cli_context_json(&d->context, NULL, argc, argv), "checks", d->checks);
    if (d->kernels)
        json_object_set(document, "kernels", d->kernels);
    cli_json_print(document);
}

cli_exit cli_doctor_main(const cli_settings *settings, int argc, char **argv)
{
    cli_doctor *d = calloc(1, sizeof *d);
    if (!d)
        return cli_fail_memory("for the checks");
    const char *no_color = getenv("NO_COLOR");
    d->settings = settings;
    d->checks = json_array();
    d->as_json = settings->format == CLI_FORMAT_JSON;
    cli_launch_detect(&d->launch);
    /* mpirun gives its ranks a pseudo-terminal, whatever lies behind it. */
    d->colour =
        cli_is_rich_terminal(stdout) && !d->launch.found && !(no_color && *no_color);
    bool talks = !d->launch.found || d->launch.launcher.rank == 0;
    cli_exit result = CLI_EXIT_OK;
    if (talks) {
        cli_context_init(&d->context);
        cli_doctor_check(d);
    }
    /* Last: MPI starts threads, and the self-test forks. */
    const cli_exit joined = cli_doctor_hosts(d);
    if (talks) {
        result = d->num_verdicts[VERDICT_FAIL] ? CLI_EXIT_ENVIRONMENT : CLI_EXIT_OK;
        if (cli_interrupted())
            result = CLI_EXIT_INTERRUPTED;
        if (joined != CLI_EXIT_OK)
            result = joined;
        print_end(d, argc, argv);
    }
    cli_launch_close(&d->launch, joined);
    json_decref(d->checks);
    json_decref(d->kernels);
    free(d);
    return result;
}
