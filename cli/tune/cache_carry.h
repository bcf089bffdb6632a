/* entwine cache export and import: all entries as one file, to carry elsewhere.  An import
 * is all or nothing. */
#ifndef ENTWINE_CLI_CACHE_CARRY_H
#define ENTWINE_CLI_CACHE_CARRY_H

#include "options/options.h"
#include "tune/tuning_files.h"

cli_exit cli_cache_export(const cli_settings *settings, cli_tuning_files *files);
cli_exit cli_cache_import(const cli_settings *settings, cli_tuning_files *files);

#endif
