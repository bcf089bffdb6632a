/* Reads suite files: problems as text, one a line, `name M N K W dtype`, # comments.  They
 * are input from outside: every field is checked, every message names the line. */
#include "run/job.h"

#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/paths.h"
#include "options/option_rules.h"

enum { MAX_LINE = CLI_NAME_BYTES, NUM_FIELDS = 6, MOST_BYTES = 1 << 20 };
#define LINE_SHAPE \
    "each line is `name M N K W dtype`, for example `small 256 256 128 2 fp32`"

static int split_fields(char *line, char **fields)
{
    char *rest = NULL;
    int count = 0;
    line[strcspn(line, "#")] = '\0';
    for (char *word = strtok_r(line, " \t\r", &rest); word;
         word = strtok_r(NULL, " \t\r", &rest)) {
        if (count < NUM_FIELDS)
            fields[count] = word;
        count++;
    }
    return count;
}

/* One line's problem, as often as -W and -d have values that replace its own. */
static cli_exit add_line(const cli_settings *settings, const char *name,
                         const int64_t *sizes, int dtype, cli_job *job)
{
    const cli_values ranks = cli_values_or(&settings->ranks, sizes[3]);
    const cli_values dtypes = cli_values_or(&settings->dtypes, dtype);
    cli_exit failed = CLI_EXIT_OK;
    for (int w = 0; w < ranks.count; w++) {
        for (int d = 0; d < dtypes.count && !failed; d++) {
            cli_problem problem = {.problem = cli_settings_problem(settings, sizes[0],
                                                                   sizes[1], sizes[2],
                                                                   (ew_dtype)dtypes.at[d]),
                                   .num_ranks = (int)ranks.at[w]};
            snprintf(problem.name, sizeof problem.name, "%s", name);
            failed = cli_job_add_problem(job, &problem);
        }
    }
    return failed;
}

static cli_exit parse_line(const char *path, int number, char *line, const char *start,
                           const cli_settings *settings, cli_job *job)
{
    char *fields[NUM_FIELDS], why[CLI_WHY_BYTES];
    int64_t sizes[4];
    int count = split_fields(line, fields);
    if (count == 0)
        return CLI_EXIT_OK;
    if (count != NUM_FIELDS)
        return cli_fail_usage(LINE_SHAPE, "%s:%d: %d fields instead of %d", path, number,
                              count, NUM_FIELDS);
    for (const char *at = fields[0]; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr("-_.+", *at))
            return cli_fail_usage("letters, digits and - _ . +",
                                  "%s:%d: name '%.30s' has a character that is not allowed",
                                  path, number, fields[0]);
    for (int at = 0; at < 4; at++) {
        cli_bounds bounds = {1, at == 3 ? CLI_MAX_RANKS : INT64_MAX};
        if (cli_number_parse(fields[at + 1], bounds, &sizes[at], why))
            return cli_fail_usage(LINE_SHAPE, "%s:%d: %s", path, number, why);
    }
    const cli_choice *dtype = cli_choice_find(cli_dtype_choices, fields[5]);
    if (!dtype)
        return cli_fail_usage("one of fp32, bf16, fp16", "%s:%d: '%.40s' is not a type",
                              path, number, fields[5]);
    if (strncmp(fields[0], start, strlen(start)) != 0)
        return CLI_EXIT_OK;
    return add_line(settings, fields[0], sizes, dtype->value, job);
}

/* The names of the suites that lie where smoke does, or just that of smoke. */
static const char *list_suites(char *text, size_t bytes)
{
    char path[PATH_MAX];
    size_t used = 0;
    glob_t found = {.gl_pathc = 0};
    snprintf(text, bytes, "smoke");
    if (!cli_path_find("suites", EW_SUITES_FROM_BIN, "smoke.suite", path, sizeof path))
        return text;
    snprintf(strrchr(path, '/'), sizeof "/*.suite", "/*.suite");
    glob(path, 0, NULL, &found);
    for (size_t at = 0; at < found.gl_pathc; at++) {
        const char *name = strrchr(found.gl_pathv[at], '/') + 1;
        int length = (int)strlen(name) - (int)strlen(".suite");
        if (used + (size_t)length + 3 < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%s%.*s", used ? ", " : "",
                                     length, name);
    }
    globfree(&found);
    return text;
}

static cli_exit fail_read(const char *path, const char *why)
{
    char suites[128], fix[192];
    snprintf(fix, sizeof fix, "one of %s, or the path of a .suite file",
             list_suites(suites, sizeof suites));
    return cli_fail_usage(fix, "cannot read suite '%.200s': %s", path, why);
}

static char *read_suite(const char *suite, char *path, size_t bytes, const char **why_out)
{
    char name[NAME_MAX];
    snprintf(name, sizeof name, "%.200s.suite", suite);
    const bool is_path = strchr(suite, '/') || strstr(suite, ".suite");
    if (is_path || !cli_path_find("suites", EW_SUITES_FROM_BIN, name, path, bytes))
        snprintf(path, bytes, "%s", suite);
    *why_out = strerror(ENOENT);
    return is_path || strcmp(path, suite) != 0 ? cli_path_read(path, MOST_BYTES, why_out)
                                               : NULL;
}

/* "paper:main" is the suite paper and its problems whose names start with main. */
static const char *split_start(const char *text, char *suite, size_t bytes)
{
    const char *colon = strrchr(text, ':');
    int length = colon ? (int)(colon - text) : (int)strlen(text);
    snprintf(suite, bytes, "%.*s", length, text);
    return colon ? colon + 1 : "";
}

cli_exit cli_suite_load(const cli_settings *settings, cli_job *job)
{
    char suite[PATH_MAX], path[PATH_MAX];
    const char *why, *start = split_start(settings->suite, suite, sizeof suite);
    cli_exit failed = CLI_EXIT_OK;
    char *text = read_suite(suite, path, sizeof path, &why), *rest = text;
    if (!text)
        return fail_read(path, why);
    for (int number = 1; !failed && rest && *rest; number++) {
        char *line = strsep(&rest, "\n");
        if (strlen(line) > MAX_LINE - 2)
            failed = cli_fail_usage(LINE_SHAPE, "%s:%d: line longer than %d bytes", path,
                                    number, MAX_LINE - 2);
        else
            failed = parse_line(path, number, line, start, settings, job);
    }
    free(text);
    if (!failed && job->num_problems == 0)
        failed =
            *start
                ? cli_fail_usage("the start of a name in the file",
                                 "no problem of '%.200s' starts with '%.60s'", path, start)
                : cli_fail_usage(LINE_SHAPE, "suite '%.200s' holds no problem", path);
    return failed;
}
