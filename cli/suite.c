/* Reads suite files.  They are input from outside: every field is checked, every message
 * names the line. */
#include "suite.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "paths.h"

enum { MAX_LINE = 256, NUM_FIELDS = 6 };
#define LINE_SHAPE \
    "each line is `name M N K W dtype`, for example `small 256 256 128 2 fp32`"

static bool parse_dtype(const char *word, ew_dtype *dtype_out)
{
    static const ew_dtype known[] = {EW_FP32, EW_BF16, EW_FP16};
    for (size_t at = 0; at < sizeof known / sizeof known[0]; at++) {
        if (strcmp(word, ew_dtype_name(known[at])) == 0) {
            *dtype_out = known[at];
            return true;
        }
    }
    return false;
}

static int split_fields(char *line, char **fields)
{
    char *rest = NULL;
    int count = 0;
    line[strcspn(line, "#\n")] = '\0';
    for (char *word = strtok_r(line, " \t\r", &rest); word;
         word = strtok_r(NULL, " \t\r", &rest)) {
        if (count < NUM_FIELDS)
            fields[count] = word;
        count++;
    }
    return count;
}

static cli_exit parse_line(const char *path, int number, char *line,
                           ew_weight_layout weight, cli_job *job)
{
    char *fields[NUM_FIELDS], why[CLI_WHY_BYTES];
    int64_t sizes[4];
    ew_dtype dtype;
    int count = split_fields(line, fields);
    if (count == 0)
        return CLI_EXIT_OK;
    if (count != NUM_FIELDS)
        return cli_fail_usage(LINE_SHAPE, "%s:%d: %d fields instead of %d", path, number,
                              count, NUM_FIELDS);
    for (const char *at = fields[0]; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr("-_.+", *at))
            return cli_fail_usage("letters, digits and - _ . +",
                                  "%s:%d: name '%.30s' has an odd character", path, number,
                                  fields[0]);
    for (int at = 0; at < 4; at++) {
        cli_bounds bounds = {1, at == 3 ? CLI_MAX_RANKS : INT64_MAX};
        if (cli_number_parse(fields[at + 1], bounds, &sizes[at], why))
            return cli_fail_usage(LINE_SHAPE, "%s:%d: %s", path, number, why);
    }
    if (!parse_dtype(fields[5], &dtype))
        return cli_fail_usage("one of fp32, bf16, fp16", "%s:%d: no type '%.40s'", path,
                              number, fields[5]);
    cli_problem problem = {.num_ranks = (int)sizes[3]};
    ew_problem shape = EW_PROBLEM(sizes[0], sizes[1], sizes[2], dtype);
    shape.weight_layout = weight;
    problem.problem = shape;
    snprintf(problem.name, sizeof problem.name, "%s", fields[0]);
    return cli_job_add_problem(job, &problem);
}

static FILE *open_suite(const char *suite, char *path, size_t bytes)
{
    char name[NAME_MAX];
    if (strchr(suite, '/') || strstr(suite, ".suite")) {
        snprintf(path, bytes, "%s", suite);
    } else {
        snprintf(name, sizeof name, "%.200s.suite", suite);
        if (!cli_path_find("suites", EW_SUITES_FROM_BIN, name, path, bytes)) {
            errno = ENOENT;
            snprintf(path, bytes, "%s", suite);
            return NULL;
        }
    }
    return fopen(path, "r");
}

cli_exit cli_suite_load(const char *suite, ew_weight_layout weight, cli_job *job)
{
    char path[PATH_MAX], line[MAX_LINE];
    cli_exit failed = CLI_EXIT_OK;
    FILE *file = open_suite(suite, path, sizeof path);
    if (!file)
        return cli_fail_usage("--suite smoke, or the path of a .suite file",
                              "cannot read suite '%.200s': %s", path, strerror(errno));
    for (int number = 1; !failed && fgets(line, sizeof line, file); number++) {
        if (!strchr(line, '\n') && !feof(file))
            failed = cli_fail_usage(LINE_SHAPE, "%s:%d: line longer than %d bytes", path,
                                    number, MAX_LINE - 2);
        else
            failed = parse_line(path, number, line, weight, job);
    }
    if (!failed && ferror(file))
        failed = cli_fail_usage("--suite smoke, or the path of a .suite file",
                                "cannot read suite '%.200s': %s", path, strerror(errno));
    fclose(file);
    if (!failed && job->num_problems == 0)
        failed = cli_fail_usage(LINE_SHAPE, "suite '%.200s' holds no problem", path);
    return failed;
}
