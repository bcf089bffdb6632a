/* The page from top to bottom: what was measured and where, then for each machine and
 * commit a section with its figures. */
#include "report_page.h"

#include <math.h>
#include <string.h>

#include "run/context.h"
#include "base/process.h"

/* ---- Head ---- */

static bool is_first_of_section(const cli_report *report, int which)
{
    for (int at = 0; at < which; at++)
        if (report_same_section(report->sources[at], report->sources[which]))
            return false;
    return true;
}

static int count_sections(const cli_report *report)
{
    int count = 0;
    for (int at = 0; at < report->num_sources; at++)
        count += is_first_of_section(report, at);
    return count;
}

static void write_head(report_page *page)
{
    FILE *out = page->out;
    const cli_report *report = page->report;
    const int num_sections = count_sections(report);
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
          "<title>Entwine: GEMM + ReduceScatter, measured</title>\n",
          out);
    report_style(out);
    fputs("</head><body>\n<header><h1>GEMM + ReduceScatter, measured</h1>\n"
          "<p class=\"lead\">How much of the communication of a tensor-parallel GEMM hides "
          "behind its computation, method by method.</p>\n<p>",
          out);
    report_printf(out,
                  "Made from %d file%s by entwine %s, commit %s. Every measured call was "
                  "checked: a file with wrong values is refused.",
                  report->num_sources, report->num_sources == 1 ? "" : "s", ew_version(),
                  cli_commit());
    fputs("</p>\n", out);
    if (num_sections > 1)
        fprintf(out,
                "<p class=\"warning\"><b>%d machines or commits.</b> Each has a section of "
                "its own below, and no figure mixes them.</p>\n",
                num_sections);
    if (!page->has_gnuplot)
        fputs("<p class=\"warning\"><b>gnuplot was not found</b>, so the charts are left "
              "out; the tables and timelines are complete.</p>\n",
              out);
    fputs("</header>\n<main>\n", out);
}

/* ---- Machine and files ---- */

static void write_fact(FILE *out, const char *name, const char *text)
{
    fputs("<tr><th scope=\"row\">", out);
    report_text(out, name);
    fputs("</th><td>", out);
    report_text(out, text);
    fputs("</td></tr>\n", out);
}

static void write_text_fact(FILE *out, const json_t *context, const char *key,
                            const char *name)
{
    const char *text = json_string_value(json_object_get(context, key));
    if (text)
        write_fact(out, name, text);
}

static void write_gpus(FILE *out, const json_t *context)
{
    const json_t *gpu;
    size_t at;
    json_array_foreach(json_object_get(context, "gpus"), at, gpu)
    {
        char text[256];
        const char *name = json_string_value(json_object_get(gpu, "name"));
        const char *driver = json_string_value(json_object_get(gpu, "driver"));
        snprintf(text, sizeof text, "%.80s, %d SMs, at most %d MHz, driver %.40s",
                 name ? name : "?", (int)json_number_value(json_object_get(gpu, "sms")),
                 (int)json_number_value(json_object_get(gpu, "clock_mhz")),
                 driver && *driver ? driver : "unknown");
        write_fact(out, "GPU", text);
    }
}

static void write_kernels(FILE *out, const json_t *context)
{
    const json_t *kernels = json_object_get(context, "micro_kernels");
    const char *fp32 = json_string_value(json_object_get(kernels, "fp32"));
    const char *bf16 = json_string_value(json_object_get(kernels, "bf16"));
    const char *fp16 = json_string_value(json_object_get(kernels, "fp16"));
    char text[256];
    if (!kernels)
        return;
    snprintf(text, sizeof text, "%.60s, %.60s, %.60s", fp32 ? fp32 : "none",
             bf16 ? bf16 : "none", fp16 ? fp16 : "none");
    write_fact(out, "kernels", text);
}

static void write_machine(FILE *out, const report_source *source)
{
    const json_t *context = source->context;
    const double bytes = json_number_value(json_object_get(context, "memory_bytes"));
    char text[160];
    fputs("<div class=\"table\" tabindex=\"0\"><table class=\"facts\"><tbody>\n", out);
    write_gpus(out, context);
    write_text_fact(out, context, "cpu", "CPU");
    snprintf(text, sizeof text, "%d usable%s",
             (int)json_number_value(json_object_get(context, "cores_usable")),
             bytes > 0 ? "" : ", memory unknown");
    write_fact(out, "cores", text);
    if (bytes > 0) {
        snprintf(text, sizeof text, "%.1f GiB", bytes / 0x1p30);
        write_fact(out, "memory", text);
    }
    write_text_fact(out, context, "host", "host");
    write_text_fact(out, context, "kernel", "system");
    write_kernels(out, context);
    write_text_fact(out, context, "blas", "BLAS");
    write_text_fact(out, context, "mps", "MPS");
    snprintf(text, sizeof text, "entwine %.40s, commit %.80s", source->version,
             source->commit);
    write_fact(out, "library", text);
    report_table_end(out);
}

static void write_clock_lines(FILE *out, const char *when, const json_t *lines)
{
    const json_t *line;
    size_t at;
    json_array_foreach(lines, at, line)
    {
        const char *text = json_string_value(line);
        report_printf(out, "%s%s: %s", at ? "; " : "", when, text ? text : "?");
    }
    if (json_array_size(lines) == 0)
        report_printf(out, "%s: unknown", when);
    fputs("<br>", out);
}

static void write_file(FILE *out, const report_source *source)
{
    report_table_row(out, source->title);
    report_cell_text(out, source->time);
    fputs("<td class=\"text\">", out);
    if (source->is_trace)
        fputs("a timeline", out);
    else
        fprintf(out, "%d result%s", source->results.num_results,
                source->results.num_results == 1 ? "" : "s");
    if (!source->complete)
        fputs(" <span class=\"badge incomplete\">INCOMPLETE</span>", out);
    fputs("</td><td class=\"text wrap\">", out);
    report_commands(out, source);
    if (source->clocks) {
        const char *query = json_string_value(json_object_get(source->clocks, "query"));
        report_printf(out, " (%s) ", query ? query : "clocks");
        write_clock_lines(out, "before", json_object_get(source->clocks, "before"));
        write_clock_lines(out, "after", json_object_get(source->clocks, "after"));
    }
    fputs("</td>", out);
    report_row_end(out);
}

static void write_files(report_page *page, int section)
{
    static const char *const heads[] = {"<file", "<measured at (UTC)", "<holds",
                                        "<the command that makes it again", NULL};
    const cli_report *report = page->report;
    report_table_begin(page->out, heads);
    for (int at = section; at < report->num_sources; at++)
        if (report_same_section(report->sources[section], report->sources[at]))
            write_file(page->out, report->sources[at]);
    report_table_end(page->out);
}

/* ---- Numbers at a glance ---- */

/* Ours, or else the quickest of what was measured besides the baseline. */
static const char *find_hero(const report_group *group)
{
    const char *baseline = group->problems[0]->baseline, *hero = NULL;
    double best = 0.0;
    int count;
    for (int at = 0; at < group->num_methods; at++) {
        const char *method = group->methods[at];
        const double mean = report_geomean(group, method, report_speedup, &count);
        if (strcmp(method, "entwine") == 0)
            return method;
        if (mean > best && !(baseline && strcmp(baseline, method) == 0)) {
            best = mean;
            hero = method;
        }
    }
    return hero;
}

static void write_number(FILE *out, double value, int digits, const char *unit,
                         const char *label, const char *detail)
{
    if (!isfinite(value))
        return;
    fprintf(out, "<li><b>%.*f%s</b>", digits, value, unit);
    report_printf(out, "%s%s", label, detail);
    fputs("</li>\n", out);
}

static void write_glance(report_page *page, const report_group *group)
{
    const char *hero = find_hero(group);
    int count = 0, num_rows = 0;
    double worst_cv = 0.0;
    char label[160], detail[160];
    for (int at = 0; at < group->num_problems; at++)
        for (int row = 0; row < group->problems[at]->num_rows; row++) {
            num_rows += !group->problems[at]->rows[row].error;
            worst_cv = fmax(worst_cv, group->problems[at]->rows[row].cv);
        }
    fputs("<ul class=\"numbers\">\n", page->out);
    if (hero && group->problems[0]->baseline &&
        strcmp(hero, group->problems[0]->baseline) != 0) {
        const double mean = report_geomean(group, hero, report_speedup, &count);
        snprintf(label, sizeof label, "speedup of %.60s", hero);
        snprintf(detail, sizeof detail, " over %.60s%s", group->problems[0]->baseline,
                 count > 1 ? ", geomean" : "");
        write_number(page->out, mean, 2, "\xc3\x97", label, detail);
        write_number(page->out, report_geomean(group, hero, report_efficiency, &count), 3,
                     "", "overlap efficiency of ", hero);
    }
    snprintf(detail, sizeof detail, ", %d results%s", num_rows,
             group->problems[0]->simulated ? "" : ", 0 wrong values");
    write_number(page->out, group->num_problems, 0, "",
                 group->num_problems == 1 ? "workload" : "workloads", detail);
    write_number(page->out, worst_cv * 100.0, 1, " %", "noise: the worst cv of a result",
                 worst_cv > 0.05 ? ", NOISY" : "");
    fputs("</ul>\n", page->out);
}

/* ---- Sections ---- */

static const char *setting_title(const report_problem *problem)
{
    return problem->simulated       ? "in the simulator"
           : problem->link_gbps > 0 ? "over an emulated link"
           : problem->virtual_node  ? "ranks that share a GPU, without a link"
                                    : "as the machine is";
}

static void write_setting(report_page *page, const report_group *group,
                          const report_group *source)
{
    fputs("<h3>", page->out);
    report_printf(page->out, "%s: %s", group->problems[0]->source->title,
                  setting_title(group->problems[0]));
    fputs("</h3>\n<p class=\"badges\">", page->out);
    report_badges(page->out, group);
    fputs("</p>\n", page->out);
    write_glance(page, group);
    page->num_methods = 0; /* colours start anew */
    if (source)
        report_derived_figure(page, source);
    page->num_methods = 0;
    report_overview_figures(page, group);
    report_curve_figures(page, group);
    report_map_figures(page, group);
    report_budget_figure(page, group);
    report_bandwidth_figure(page, group);
}

static bool is_of_section(const report_problem *a, const report_problem *b)
{
    return report_same_section(a->source, b->source);
}

static bool is_of_source(const report_problem *a, const report_problem *b)
{
    return a->source == b->source;
}

/* The first setting of an input also shows the figure that the input was made for. */
static void write_figures(report_page *page, const report_group *section)
{
    for (int first = 0; first < section->num_problems; first++) {
        report_group group, source;
        const bool is_first = report_group_open(&source, section, first, is_of_source);
        if (report_group_open(&group, section, first, report_same_setting))
            write_setting(page, &group, is_first ? &source : NULL);
        report_group_close(&group);
        report_group_close(&source);
    }
    report_scaling_figures(page, section);
}

static void write_timelines(report_page *page, int section)
{
    const cli_report *report = page->report;
    bool any = false;
    for (int at = section; at < report->num_sources; at++) {
        if (!report->sources[at]->is_trace ||
            !report_same_section(report->sources[at], report->sources[section]))
            continue;
        fputs(any ? "" : "<h3>Timelines</h3>\n", page->out);
        report_timeline(page, report->sources[at]);
        any = true;
    }
}

static void write_section(report_page *page, const report_group *all, int which)
{
    const cli_report *report = page->report;
    const report_source *source = report->sources[which];
    fputs("<section><h2>", page->out);
    report_text(page->out, source->machine);
    fputs("</h2>\n<p class=\"lead\">", page->out);
    report_printf(page->out, "entwine %s, commit %s", source->version, source->commit);
    fputs("</p>\n", page->out);
    write_machine(page->out, source);
    write_files(page, which);
    for (int first = 0; first < all->num_problems; first++) {
        report_group section;
        if (report_same_section(all->problems[first]->source, source) &&
            report_group_open(&section, all, first, is_of_section)) {
            write_figures(page, &section);
            report_group_close(&section);
        }
    }
    write_timelines(page, which);
    fputs("</section>\n", page->out);
}

static void write_foot(FILE *out)
{
    fputs(
        "</main>\n<footer><h2>Words</h2>\n<dl>"
        "<dt>GEMM window</dt><dd>From the start of a call to the end of its last "
        "block.</dd>"
        "<dt>exposed tail</dt><dd>From there to the end of the call: communication that "
        "was not hidden.</dd>"
        "<dt>overlap efficiency</dt><dd>GEMM window of the method sequential, over the "
        "time of a call.</dd>"
        "<dt>required bandwidth (Eq. 4)</dt><dd>Per rank, what hides all communication "
        "behind a GEMM of the rate seen.</dd>"
        "<dt>EMULATED link</dt><dd>Tiles are delayed as a link of that rate would; nothing "
        "is moved over a network.</dd>"
        "<dt>VIRTUAL NODE</dt><dd>Ranks share one GPU, each in SMs of its own; cache, "
        "memory and power are common.</dd>"
        "<dt>SIMULATED</dt><dd>Computed from a model, not measured.</dd>"
        "<dt>cv</dt><dd>Standard deviation over mean of a result&#39;s samples.</dd>"
        "</dl></footer>\n</body></html>\n",
        out);
}

cli_exit report_write(const cli_report *report, FILE *out)
{
    report_page page = {.report = report, .out = out};
    report_group all;
    page.has_gnuplot = cli_process_exists("gnuplot");
    if (!report_group_open_all(&all, report))
        page.failed = cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for the page");
    else
        write_head(&page);
    for (int at = 0; at < report->num_sources && !page.failed; at++)
        if (is_first_of_section(report, at))
            write_section(&page, &all, at);
    write_foot(out);
    report_group_close(&all);
    return page.failed;
}
