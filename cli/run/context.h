/* What a result was measured on and with: machine, versions, command line. */
#ifndef ENTWINE_CLI_CONTEXT_H
#define ENTWINE_CLI_CONTEXT_H

#include <jansson.h>

#include "base/environment.h"
#include "base/json_file.h"
#include "run/gpus.h"
#include "run/job.h"

enum { CLI_TEXT_BYTES = 128 };

typedef struct cli_context {
    char host[CLI_TEXT_BYTES];
    char cpu[CLI_TEXT_BYTES];
    char kernel[CLI_TEXT_BYTES]; /* of the operating system */
    char arch[CLI_TEXT_BYTES];
    char time[32];                    /* UTC, ISO 8601 */
    char fp32_kernel[CLI_TEXT_BYTES]; /* micro-kernels */
    char bf16_kernel[CLI_TEXT_BYTES];
    char kernel_refusal[CLI_TEXT_BYTES]; /* of the one for bf16; empty: none */
    char fp16_kernel[CLI_TEXT_BYTES];
    char blas[CLI_TEXT_BYTES]; /* empty: none */
    int cores_usable;
    double memory_bytes;
} cli_context;

/* Never fails: what cannot be found out reads "unknown". */
void cli_context_init(cli_context *context);

/* A new JSON object; NULL: no memory. */
json_t *cli_context_json(const cli_context *context, const cli_launch *launch, int argc,
                         char **argv);

/* What a job that prints tables says on stderr before its first result: the context, its
 * ranks, where `calls` is given how they are timed, and variables that nothing reads. */
void cli_context_announce(const cli_context *context, const cli_job *job,
                          const cli_settings *settings, const char *calls);

/* The context of a job with its GPUs, for a document. */
json_t *cli_context_of_job(const cli_context *context, const cli_job *job, int argc,
                           char **argv);

#endif
