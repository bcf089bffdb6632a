/* One self-contained HTML page from result documents of `bench`, collections of them as in
 * bench/results, and timelines of `trace`. */
#ifndef ENTWINE_CLI_REPORT_H
#define ENTWINE_CLI_REPORT_H

#include <jansson.h>

#include "base/message.h"

typedef struct cli_report cli_report;

/* NULL: no memory. */
cli_report *cli_report_create(void);
void cli_report_destroy(cli_report *report); /* NULL is fine */

/* Takes over the document, which `name` (kept by the caller) stands for on the page and in
 * messages.  On failure the error has been printed; the report can only be destroyed. */
cli_exit cli_report_add(cli_report *report, const char *name, json_t *document);

/* The page as a file, whole or not at all (- is stdout), and a line about it.  On failure
 * the error has been printed. */
cli_exit cli_report_save(const cli_report *report, const char *path);

#endif
