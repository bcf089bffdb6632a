/* entwine ablate: one mechanism changed at a time.  The figure says what is measured. */
#include "cmd/commands.h"
#include "cmd/measure_job.h"

cli_exit cli_ablate_main(const cli_settings *settings, int argc, char **argv)
{
    return cli_measure(settings, "", argc, argv);
}
