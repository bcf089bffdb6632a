/* entwine run: one problem, by default with Entwine alone. */
#include "cmd/commands.h"
#include "cmd/measure_job.h"

cli_exit cli_run_main(const cli_settings *settings, int argc, char **argv)
{
    return cli_measure(settings, "entwine", argc, argv);
}
