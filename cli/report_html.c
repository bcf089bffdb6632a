/* Escaping, tables, and the frame around a figure. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "report_page.h"

/* ---- Text ---- */

/* Bytes of the well-formed UTF-8 character at `text`, 0: there is none. */
static int character_bytes(const unsigned char *text)
{
    const unsigned char lead = text[0];
    const int bytes = lead < 0x80                   ? 1
                      : lead >= 0xc2 && lead < 0xe0 ? 2
                      : lead >= 0xe0 && lead < 0xf0 ? 3
                      : lead >= 0xf0 && lead < 0xf5 ? 4
                                                    : 0;
    for (int at = 1; at < bytes; at++)
        if ((text[at] & 0xc0) != 0x80)
            return 0;
    return bytes;
}

void report_text(FILE *out, const char *text)
{
    while (*text) {
        const int bytes = character_bytes((const unsigned char *)text);
        const char *entity = *text == '<'    ? "&lt;"
                             : *text == '>'  ? "&gt;"
                             : *text == '&'  ? "&amp;"
                             : *text == '"'  ? "&quot;"
                             : *text == '\'' ? "&#39;"
                                             : NULL;
        const bool control = bytes == 1 && ((unsigned char)*text < ' ' || *text == 127);
        if (entity)
            fputs(entity, out);
        else if (bytes == 0 || control)
            fputs(control && *text == '\n' ? "\n" : "\xef\xbf\xbd", out);
        else
            fwrite(text, 1, (size_t)bytes, out);
        text += bytes ? bytes : 1;
    }
}

void report_printf(FILE *out, const char *format, ...)
{
    va_list arguments;
    char *text = NULL;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) >= 0)
        report_text(out, text);
    va_end(arguments);
    free(text);
}

/* ---- Tables ---- */

void report_table_begin(FILE *out, const char *const *heads)
{
    fputs("<div class=\"table\" tabindex=\"0\"><table><thead><tr>", out);
    for (; *heads; heads++) {
        const bool is_text = **heads == '<';
        fprintf(out, "<th scope=\"col\"%s>", is_text ? " class=\"text\"" : "");
        report_text(out, *heads + is_text);
        fputs("</th>", out);
    }
    fputs("</tr></thead><tbody>\n", out);
}

void report_table_row(FILE *out, const char *first)
{
    fputs("<tr><th scope=\"row\">", out);
    report_text(out, first);
    fputs("</th>", out);
}

void report_row_end(FILE *out)
{
    fputs("</tr>\n", out);
}

void report_cell(FILE *out, double value, int digits)
{
    if (isfinite(value))
        fprintf(out, "<td>%.*f</td>", digits, value);
    else
        fputs("<td>\xe2\x80\x93</td>", out);
}

void report_cell_text(FILE *out, const char *text)
{
    fputs("<td class=\"text\">", out);
    report_text(out, text);
    fputs("</td>", out);
}

void report_table_end(FILE *out)
{
    fputs("</tbody></table></div>\n", out);
}

/* ---- Figures ---- */

void report_badge(FILE *out, const char *kind, const char *text)
{
    fprintf(out, "<span class=\"badge %s\">", kind);
    report_text(out, text);
    fputs("</span> ", out);
}

static bool same_link(const report_problem *a, const report_problem *b)
{
    return strcmp(a->shape->link, b->shape->link) == 0;
}

static bool same_node(const report_problem *a, const report_problem *b)
{
    return b->virtual_node && a->shape->ranks == b->shape->ranks &&
           a->sms_per_rank == b->sms_per_rank;
}

static bool same_hardware(const report_problem *a, const report_problem *b)
{
    return b->simulated && strcmp(a->profile, b->profile) == 0;
}

/* Whether no problem before it has the same. */
static bool is_first(const report_group *group, int at,
                     bool (*same)(const report_problem *, const report_problem *))
{
    for (int before = 0; before < at; before++)
        if (same(group->problems[at], group->problems[before]))
            return false;
    return true;
}

/* Each caveat once. */
void report_badges(FILE *out, const report_group *group)
{
    char text[160];
    bool incomplete = false;
    for (int at = 0; at < group->num_problems; at++) {
        const report_problem *problem = group->problems[at];
        const char *link = problem->shape->link;
        if (strcmp(link, "none") != 0 && is_first(group, at, same_link)) {
            snprintf(text, sizeof text, "EMULATED link: %.130s",
                     strncmp(link, "EMULATED ", 9) == 0 ? link + 9 : link);
            report_badge(out, "emulated", text);
        }
        if (problem->virtual_node && is_first(group, at, same_node)) {
            snprintf(text, sizeof text,
                     "VIRTUAL NODE: ranks share GPUs, %d SMs each at W=%d",
                     problem->sms_per_rank, (int)problem->shape->ranks);
            report_badge(out, "virtual", text);
        }
        if (problem->simulated && is_first(group, at, same_hardware)) {
            snprintf(text, sizeof text, "SIMULATED%s%.60s, not measured",
                     *problem->profile ? " on " : "", problem->profile);
            report_badge(out, "simulated", text);
        }
        incomplete |= !problem->source->complete;
    }
    if (incomplete)
        report_badge(out, "incomplete", "INCOMPLETE: a run ended early");
}

void report_figure_begin(report_page *page, const report_group *group, const char *title)
{
    fprintf(page->out, "<figure id=\"figure-%d\"><h4>", ++page->num_figures);
    report_text(page->out, title);
    fputs("</h4>\n<p class=\"badges\">", page->out);
    report_badges(page->out, group);
    fputs("</p>\n", page->out);
}

void report_caption(report_page *page, const report_group *group, const char *text)
{
    fputs("<figcaption>", page->out);
    report_text(page->out, text);
    if (*group->common)
        report_printf(page->out, " All with %s.", group->common);
    fputs("</figcaption>\n", page->out);
}

/* Quoted for a shell where it has to be. */
static void write_word(FILE *out, const char *word)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=.,/:+@%";
    if (*word && word[strspn(word, plain)] == '\0') {
        report_text(out, word);
        return;
    }
    fputs("&#39;", out);
    for (; *word; word++) {
        const char one[2] = {*word, '\0'};
        if (*word == '\'')
            report_text(out, "'\\''");
        else if ((unsigned char)*word < 0x80)
            report_text(out, one);
        else
            fputc(*word, out); /* part of a character that JSON vouches for */
    }
    fputs("&#39;", out);
}

void report_commands(FILE *out, const report_source *source)
{
    json_t *words = json_object_get(source->context, "argv"), *word, *value;
    json_t *variables = json_object_get(source->context, "env");
    const char *name;
    size_t at;
    fputs("<code>", out);
    json_object_foreach(variables, name, value)
    {
        report_printf(out, "%s=", name);
        write_word(out, json_is_string(value) ? json_string_value(value) : "");
        fputc(' ', out);
    }
    json_array_foreach(words, at, word)
    {
        if (at > 0)
            fputc(' ', out);
        write_word(out, json_is_string(word) ? json_string_value(word) : "?");
    }
    fputs("</code>", out);
}

void report_figure_end(report_page *page, const report_group *group)
{
    fputs("<p class=\"again\">Measured by ", page->out);
    for (int at = 0; at < group->num_problems; at++) {
        const report_source *source = group->problems[at]->source;
        bool seen = false;
        for (int before = 0; before < at; before++)
            seen |= group->problems[before]->source == source;
        if (seen)
            continue;
        if (at > 0)
            fputs(", ", page->out);
        report_commands(page->out, source);
    }
    fputs("</p>\n</figure>\n", page->out);
}

void report_legend(report_page *page, const char *colour, const char *mark,
                   const char *label)
{
    if (mark)
        fprintf(page->out, "<li><span class=\"mark\" style=\"color:var(--%s)\">%s</span>",
                colour, mark);
    else
        fprintf(page->out, "<li><span class=\"box\" style=\"background:var(--%s)\"></span>",
                colour);
    report_text(page->out, label);
    fputs("</li>", page->out);
}

void report_legend_of(report_page *page, const report_group *group, const char *left_out,
                      bool as_marks, bool with_tail)
{
    fputs("<ul class=\"legend\">", page->out);
    for (int at = 0; at < group->num_methods; at++) {
        const int colour = report_colour(page, group->methods[at]);
        char name[16];
        snprintf(name, sizeof name, "s%d", colour);
        if (!left_out || strcmp(group->methods[at], left_out) != 0)
            report_legend(page, name, as_marks ? report_mark(colour) : NULL,
                          group->methods[at]);
    }
    if (with_tail)
        report_legend(page, "tail", NULL, "exposed tail");
    fputs("</ul>\n", page->out);
}

/* Ours and the plain baseline always look the same; the others come in turn. */
int report_colour(report_page *page, const char *method)
{
    if (strcmp(method, "sequential") == 0)
        return 0;
    if (strcmp(method, "entwine") == 0)
        return 1;
    int at = 0;
    while (at < page->num_methods && strcmp(page->methods[at], method) != 0)
        at++;
    if (at == page->num_methods && at < REPORT_MAX_METHODS)
        page->methods[page->num_methods++] = method;
    return 2 + at % (REPORT_NUM_COLOURS - 2);
}
