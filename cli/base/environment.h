/* The build and the variables that the tool and the library read. */
#ifndef ENTWINE_CLI_ENVIRONMENT_H
#define ENTWINE_CLI_ENVIRONMENT_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

/* The commit the tool was built from. */
const char *cli_commit(void);

/* The variables that are read, ending with a NULL name. */
typedef struct cli_variable {
    const char *name;
    const char *meaning;
} cli_variable;
const cli_variable *cli_variables(void);

/* Calls `report` for every ENTWINE_ variable set that nothing reads, with the known name
 * it most resembles, or NULL. */
void cli_environment_check(void (*report)(void *argument, const char *name,
                                          const char *near),
                           void *argument);

/* Whether the folder that a variable names, set or not, cannot be used.  Then writes what
 * follows, and why. */
bool cli_folder_is_lacking(const char *name, char *why, size_t bytes);

/* All of this as warnings. */
void cli_environment_warn(void);

/* Every ENTWINE_ variable that is set. */
json_t *cli_environment_json(void);

#endif
