/* JSON in and out. */
#ifndef ENTWINE_CLI_JSON_FILE_H
#define ENTWINE_CLI_JSON_FILE_H

#include <jansson.h>
#include <stdbool.h>

#include "base/message.h"
#include "entwine/entwine.h"

/* Before any JSON.  From then on every allocation that fails is noticed, since documents
 * are built without looking at each: one that lacks a part is an error when it is written.
 */
void cli_json_init(void);
void cli_json_lack(void); /* a part is missing for another reason */
bool cli_json_lacks(void);

/* Any JSON file; on failure the error, with `fix`, has been printed. */
cli_exit cli_json_load(const char *path, const char *fix, json_t **document_out);

/* Prints a document on stdout and frees it. */
void cli_json_print(json_t *document);

/* JSON has no NaN and no infinity: they become null. */
json_t *cli_number_json(double value);

/* Adds the members of `more`, and frees it. */
void cli_json_merge(json_t *object, json_t *more);

/* What every document says of a problem: op, m, n, k, ranks, dtype, weight. */
json_t *cli_problem_json(const ew_problem *problem, int num_ranks);

/* A JSON string, whatever bytes the text holds. */
json_t *cli_text_json(const char *text);

#endif
