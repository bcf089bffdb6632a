/* entwine bench: many problems, several methods. */
#include "cmd/commands.h"
#include "cmd/measure_job.h"

cli_exit cli_bench_main(const cli_settings *settings, int argc, char **argv)
{
    return cli_measure(settings, "entwine,sequential,blas", argc, argv);
}
