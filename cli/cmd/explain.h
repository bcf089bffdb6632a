/* The codes that errors carry in brackets, each with its usual causes and what to do. */
#ifndef ENTWINE_CLI_EXPLAIN_H
#define ENTWINE_CLI_EXPLAIN_H

/* The codes one after the other; NULL behind the last. */
const char *cli_explain_code(int index);

#endif
