/* Suite files: problems as text, one a line, `name M N K W dtype`, # comments. */
#ifndef ENTWINE_CLI_SUITE_H
#define ENTWINE_CLI_SUITE_H

#include "run/job.h"

/* Appends the problems of the settings' suite, given by name (looked up) or by path, to
 * the job; the settings' ranks and types replace the suite's.  On failure the error has
 * been printed. */
cli_exit cli_suite_load(const cli_settings *settings, cli_job *job);

#endif
