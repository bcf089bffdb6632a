/* The report as its users see it: documents in, a page out.  The page is made of page.html,
 * its script, of which page.js is the last part, and the data, between which nothing but
 * the data varies. */
#include "report/report.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/out_file.h"
#include "report/report_inputs.h"

extern const char *const cli_report_page[]; /* lines, made by cmake/report_page.cmake */

/* ---- The data ---- */

/* As JSON that nothing in it can end: no character in it means anything to HTML. */
static int write_escaped(const char *text, size_t bytes, void *out)
{
    for (size_t at = 0; at < bytes; at++)
        if (memchr("<>&", text[at], 3))
            fprintf(out, "\\u%04x", (unsigned)text[at]);
        else
            fputc(text[at], out);
    return 0;
}

static bool write_data(const cli_report *report, FILE *out)
{
    json_t *model = report_model(report);
    const bool written = model && !json_dump_callback(model, write_escaped, out,
                                                      JSON_ENSURE_ASCII | JSON_COMPACT |
                                                          JSON_REAL_PRECISION(9));
    fputc('\n', out);
    json_decref(model);
    return written;
}

/* ---- The table for browsers without scripts ---- */

static void write_text(FILE *out, const char *text)
{
    for (; *text; text++)
        if (strchr("<>&\"'", *text))
            fprintf(out, "&#%d;", *text);
        else
            fputc((unsigned char)*text < ' ' ? ' ' : *text, out);
}

static void write_problem(FILE *out, const report_problem *problem, const report_row *row)
{
    const char *name = report_string(problem->params, "name", NULL);
    fputs("<tr><th>", out);
    write_text(out, problem->source->name);
    fputs("</th><td>", out);
    if (name)
        write_text(out, name);
    else
        fprintf(out, "%" PRId64 "x%" PRId64 "x%" PRId64, (int64_t)problem->shape->m,
                (int64_t)problem->shape->n, (int64_t)problem->shape->k);
    fprintf(out, ", W=%" PRId64 ", %s, %s</td><td>", (int64_t)problem->shape->ranks,
            problem->shape->dtype, problem->shape->op);
    write_text(out, problem->shape->link);
    fputs(*problem->shape->profile ? ", SIMULATED on " : "", out);
    write_text(out, problem->shape->profile);
    fputs(problem->is_virtual ? ", VIRTUAL NODE" : "", out);
    fputs("</td><td>", out);
    write_text(out, row->measured->method);
    fputs("</td>", out);
}

static void write_row(FILE *out, const report_problem *problem, const report_row *row)
{
    static const int digits[] = {1, 1, 1, 3, 3, 3, 3, 3};
    write_problem(out, problem, row);
    if (row->error) {
        fputs("<td colspan=\"8\">skipped: ", out);
        write_text(out, row->error);
        fputs("</td>", out);
    }
    for (int at = 0; at <= REPORT_ACHIEVED && !row->error; at++)
        if (isfinite(row->values[at]))
            fprintf(out, "<td>%.*f</td>", digits[at], row->values[at]);
        else
            fputs("<td>\xe2\x80\x93</td>", out);
    fputs("</tr>\n", out);
}

static void write_table(const cli_report *report, FILE *out)
{
    for (int at = 0; at < report->num_problems; at++)
        for (int row = 0; row < report->problems[at].num_rows; row++)
            write_row(out, &report->problems[at], &report->problems[at].rows[row]);
}

/* ---- The page ---- */

/* False: no memory.  The stream's own failures are left to the caller. */
static bool write_page(const void *report, FILE *out)
{
    bool written = true;
    for (const char *const *line = cli_report_page; *line && written; line++) {
        if (strcmp(*line, "@DATA@") == 0)
            written = write_data(report, out);
        else if (strcmp(*line, "@TABLE@") == 0)
            write_table(report, out);
        else
            fprintf(out, "%s\n", *line);
    }
    return written;
}

cli_exit cli_report_save(const cli_report *report, const char *path)
{
    cli_out_file file;
    cli_exit failed = cli_out_file_open(&file, "the report", path);
    if (!failed)
        failed = cli_out_file_write(&file, write_page, report);
    if (!failed && file.kind != CLI_OUT_STDOUT)
        cli_print(stdout, "# Report : %s\n", path);
    return failed;
}
