/* entwine sweep: one quantity varied.  The figure says what is measured. */
#include "cmd/commands.h"
#include "cmd/measure_job.h"

cli_exit cli_sweep_main(const cli_settings *settings, int argc, char **argv)
{
    return cli_measure(settings, "", argc, argv);
}
