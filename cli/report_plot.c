/* Scripts for gnuplot, and its SVG made part of the page. */
#include "report_plot.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/process.h"

enum { MAX_TEXTS = 256, LEAST_TOKEN = 5 };
static const double plot_seconds = 30.0;
static const double letter_px = 8.3; /* the widest of usual fonts, at their 13 px */

struct report_plot {
    report_page *page;
    FILE *script; /* a file without a name */
    FILE *curves; /* the plot command, which must follow all data */
    char *curves_text;
    size_t curves_bytes;
    char *texts[MAX_TEXTS]; /* what the placeholders stand for */
    int num_texts, num_series, num_ticks;
    bool open; /* a block of data is being written */
};

/* gnuplot's point types that are filled, and the like in text. */
static const struct {
    int type;
    const char *mark;
} points[] = {{7, "\xe2\x97\x8f"},  {5, "\xe2\x96\xa0"},  {9, "\xe2\x96\xb2"},
              {13, "\xe2\x97\x86"}, {11, "\xe2\x96\xbc"}, {15, "\xe2\xac\x9f"}};
enum { NUM_POINTS = sizeof points / sizeof points[0] };

const char *report_mark(int colour)
{
    return points[colour % NUM_POINTS].mark;
}

static void free_plot(report_plot *plot)
{
    for (int at = 0; at < plot->num_texts; at++)
        free(plot->texts[at]);
    if (plot->script)
        fclose(plot->script);
    if (plot->curves)
        fclose(plot->curves);
    free(plot->curves_text);
    free(plot);
}

/* ---- The script ---- */

/* 1, 2, 5, 10, ...: gnuplot alone marks nothing between two powers of ten. */
static void write_log_ticks(FILE *script, char axis, double from, double to)
{
    static const double digits[] = {1.0, 2.0, 5.0};
    const char *comma = "";
    fprintf(script, "set logscale %c\nset %ctics (", axis, axis);
    for (double power = pow(10.0, floor(log10(from))); power <= to; power *= 10.0)
        for (int at = 0; at < 3; at++)
            if (digits[at] * power >= from && digits[at] * power <= to) {
                fprintf(script, "%s'%g' %.9g", comma, digits[at] * power,
                        digits[at] * power);
                comma = ",";
            }
    fputs(")\n", script);
}

static void write_lines(FILE *script, const report_axes *a)
{
    const double low = fmax(a->x_min, a->y_min), high = fmin(a->x_max, a->y_max);
    if (isfinite(a->rule))
        fprintf(script,
                "set arrow from graph 0, first %.9g to graph 1, first %.9g nohead back "
                "lw 1.5 lc rgb '#010103'\n",
                a->rule, a->rule);
    /* In a colour code of its own: gnuplot joins lines of one colour and drops the dashes.
     */
    if (a->diagonal)
        fprintf(script,
                "set grid xtics\nset arrow from first %.9g, first %.9g to first %.9g, "
                "first %.9g nohead back dt 2 lw 1.5 lc rgb '#010105'\n",
                low, low, high, high);
}

/* Slanted labels end at their ticks: the longest may reach beyond the left end. */
static void write_slanted_margins(FILE *script, const report_axes *a, int below)
{
    const double first_tick = -a->x_min / (a->x_max - a->x_min) * (a->width - 100);
    const double left = fmax(78.0, a->slanted_letters * letter_px * 0.82 - first_tick);
    fprintf(script,
            "set xtics rotate by 35 right\n"
            "set bmargin at screen %.4f\nset lmargin at screen %.4f\n",
            (below + 4.0) / (a->height + below), left / a->width);
}

static void write_axes(FILE *script, const report_axes *a)
{
    const double slope = 0.57; /* sine of the angle below */
    const int below =
        a->slanted_letters ? 16 + (int)(a->slanted_letters * letter_px * slope) : 0;
    fprintf(script,
            "set terminal svg size %d,%d dynamic noenhanced font 'sans-serif,13'\n"
            "set border 1 lc rgb '#010101'\n"
            "set grid ytics lt 1 dt solid lw 1 lc rgb '#010102'\n"
            "unset key\n"
            "set tics nomirror scale 0\n"
            "set style fill solid 1 noborder\n"
            "set xlabel '%s'\nset ylabel '%s'\n"
            "set xrange [%.9g:%.9g]\nset yrange [%.9g:%.9g]\n"
            "set rmargin 2\n",
            a->width, a->height + below, a->x_title, a->y_title, a->x_min, a->x_max,
            a->y_min, a->y_max);
    if (below)
        write_slanted_margins(script, a, below);
    if (a->log_x)
        write_log_ticks(script, 'x', a->x_min, a->x_max);
    if (a->log_y)
        write_log_ticks(script, 'y', a->y_min, a->y_max);
    write_lines(script, a);
}

report_plot *report_plot_begin(report_page *page, const report_axes *axes)
{
    if (page->failed || !page->has_gnuplot)
        return NULL;
    report_plot *plot = calloc(1, sizeof *plot);
    const int fd = memfd_create("gnuplot", 0); /* its number is the child's, too */
    if (plot) {
        plot->page = page;
        plot->script = fd < 0 ? NULL : fdopen(fd, "w");
        plot->curves = open_memstream(&plot->curves_text, &plot->curves_bytes);
    }
    if (!plot || !plot->script || !plot->curves) {
        page->failed = cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for a chart");
        if (plot)
            free_plot(plot);
        return NULL;
    }
    write_axes(plot->script, axes);
    return plot;
}

static int count_characters(const char *text)
{
    int count = 0;
    for (; *text; text++)
        count += ((unsigned char)*text & 0xc0) != 0x80;
    return count;
}

/* A placeholder about as long as the text, so that gnuplot leaves room for it. */
static void write_token(report_plot *plot, FILE *to, const char *text)
{
    char *kept = plot->num_texts < MAX_TEXTS ? strdup(text) : NULL;
    if (!kept)
        return;
    fprintf(to, "ZQ%03d", plot->num_texts);
    for (int at = count_characters(text); at > LEAST_TOKEN; at--)
        fputc('Z', to);
    plot->texts[plot->num_texts++] = kept;
}

void report_plot_tick(report_plot *plot, double x, const char *label)
{
    if (!plot)
        return;
    /* The first one takes the place of gnuplot's own. */
    fprintf(plot->script, "set xtics %s('", plot->num_ticks++ ? "add " : "");
    write_token(plot, plot->script, label);
    fprintf(plot->script, "' %.9g)\n", x);
}

static void end_block(report_plot *plot)
{
    if (plot->open)
        fputs("EOD\n", plot->script);
    plot->open = false;
}

static int colour_code(int colour)
{
    return colour == REPORT_TAIL_COLOUR    ? 0x010104
           : colour == REPORT_INK_COLOUR   ? 0x010101
           : colour == REPORT_MUTED_COLOUR ? 0x010103
                                           : 0x010200 + colour;
}

void report_plot_series(report_plot *plot, report_shape shape, int colour,
                        const char *label, double bar_width)
{
    static const char *const styles[] = {
        [REPORT_LINE] = "linespoints dt solid",
        [REPORT_DASHED] = "linespoints dt 2",
        [REPORT_DOTTED] = "linespoints dt 3",
        [REPORT_DOTS] = "points",
    };
    if (!plot)
        return;
    FILE *curves = plot->curves;
    end_block(plot);
    fprintf(plot->script, "$d%d << EOD\n", plot->num_series);
    plot->open = true;
    fprintf(curves, "%s $d%d using 1:2", plot->num_series ? "," : "plot", plot->num_series);
    if (shape == REPORT_BARS)
        fprintf(curves, ":(%.9g) with boxes", bar_width);
    else if (shape == REPORT_VALUES)
        fputs(
            ":(sprintf($2 < 100 ? '%.2f' : '%.0f',$2)) with labels font ',11' offset 0,0.6",
            curves);
    else
        fprintf(curves, " with %s pt %d ps 0.9 lw 2", styles[shape],
                points[colour % NUM_POINTS].type);
    if (shape != REPORT_VALUES)
        fprintf(curves, " lc rgb '#%06x'", (unsigned)colour_code(colour));
    fputs(" title '", curves);
    write_token(plot, curves, label);
    fputs("'", curves);
    plot->num_series++;
}

void report_plot_point(report_plot *plot, double x, double y)
{
    if (plot && isfinite(x) && isfinite(y))
        fprintf(plot->script, "%.9g %.9g\n", x, y);
}

/* ---- The picture ---- */

/* rgb(1,1,2): one of the placeholders for colours; returns its length, 0: another. */
static int write_colour(FILE *out, const char *text)
{
    int red, green, blue, length = 0;
    if (sscanf(text, "rgb( %d , %d , %d )%n", &red, &green, &blue, &length) != 3 || !length)
        return 0;
    if (red == 1 && green == 2)
        fprintf(out, "var(--s%d)", blue % REPORT_NUM_COLOURS);
    else if (red == 1 && green == 1)
        fprintf(out, "var(--%s)",
                blue == 1   ? "ink"
                : blue == 2 ? "grid"
                : blue == 4 ? "tail"
                            : "muted");
    else
        return 0;
    return length;
}

static int write_label(const report_plot *plot, FILE *out, const char *text)
{
    int which, length = 0;
    if (sscanf(text, "ZQ%3d%n", &which, &length) != 1 || which < 0 ||
        which >= plot->num_texts)
        return 0;
    report_text(out, plot->texts[which]);
    return length + (int)strspn(text + length, "Z");
}

/* Colours and texts take their places, and every name becomes one of this plot alone. */
static void write_svg(const report_plot *plot, const char *svg, const char *title)
{
    FILE *out = plot->page->out;
    const int number = plot->page->num_plots;
    fputs("<svg role=\"img\" aria-label=\"", out);
    report_text(out, title);
    fputc('"', out);
    for (const char *at = svg + strlen("<svg"); *at;) {
        int length = 0;
        if (strncmp(at, "rgb(", 4) == 0)
            length = write_colour(out, at);
        else if (strncmp(at, "ZQ", 2) == 0)
            length = write_label(plot, out, at);
        else if (strncmp(at, "\"black\"", 7) == 0)
            length = (fputs("\"var(--ink)\"", out), 7);
        else if (strncmp(at, " id=", 4) == 0 && at[4])
            length = (fprintf(out, " id=%cp%d-", at[4], number), 5);
        else if (strncmp(at, "'#gp", 4) == 0)
            length = (fprintf(out, "'#p%d-gp", number), 4);
        else if (strncmp(at, "<title>Gnuplot</title>", 22) == 0)
            length = 22;
        if (length == 0)
            fputc(*at, out);
        at += length ? length : 1;
    }
}

/* All that was written into a file without a name; NULL: nothing. */
static char *read_back(int fd)
{
    const off_t bytes = lseek(fd, 0, SEEK_END);
    char *text = bytes > 0 ? calloc(1, (size_t)bytes + 1) : NULL;
    if (text && pread(fd, text, (size_t)bytes, 0) != (ssize_t)bytes) {
        free(text);
        text = NULL;
    }
    return text;
}

/* Its words in one line. */
static cli_exit fail_gnuplot(int status, char *said)
{
    size_t length = strlen(said);
    while (length > 0 && isspace((unsigned char)said[length - 1]))
        said[--length] = '\0';
    for (size_t at = 0; at < length; at++)
        if (iscntrl((unsigned char)said[at]))
            said[at] = ' ';
    said += strspn(said, " ");
    return cli_fail(EW_ERR_SYSTEM,
                    "see `gnuplot --version` (5.2 or later), or make the page without "
                    "gnuplot on PATH",
                    "gnuplot drew no chart: %.300s",
                    *said         ? said
                    : status == 0 ? "it said nothing"
                                  : "it did not come to its end");
}

/* Its messages come on stdout, the picture in a file without a name: nothing is left
 * behind, whatever happens. */
static cli_exit draw(const report_plot *plot, int svg_fd, char **svg_out)
{
    char path[48], said[1024];
    const char *const argv[] = {"sh", "-c", "exec gnuplot -d \"$0\" 2>&1", path, NULL};
    snprintf(path, sizeof path, "/proc/self/fd/%d", fileno(plot->script));
    const int status = cli_process_run(argv, "", plot_seconds, said, sizeof said);
    char *svg = status == 0 ? read_back(svg_fd) : NULL;
    char *start = svg ? strstr(svg, "<svg") : NULL;
    if (!start || !strstr(start, "</svg>")) {
        free(svg);
        return fail_gnuplot(status, said);
    }
    memmove(svg, start, strlen(start) + 1);
    *svg_out = svg;
    return CLI_EXIT_OK;
}

void report_plot_end(report_plot *plot, const char *title)
{
    if (!plot)
        return;
    if (plot->num_series == 0) { /* gnuplot would draw nothing, and say nothing */
        free_plot(plot);
        return;
    }
    report_page *page = plot->page;
    char *svg = NULL;
    const int svg_fd = memfd_create("svg", 0);
    end_block(plot);
    fflush(plot->curves);
    fprintf(plot->script, "set output '/proc/self/fd/%d'\n%s\n", svg_fd, plot->curves_text);
    if (svg_fd < 0 || fflush(plot->script))
        page->failed = cli_fail(EW_ERR_SYSTEM, "free some memory",
                                "no room for a chart: %s", strerror(errno));
    else
        page->failed = draw(plot, svg_fd, &svg);
    if (svg) {
        page->num_plots++;
        fputs("<div class=\"plot\" tabindex=\"0\">", page->out);
        write_svg(plot, svg, title);
        fputs("</div>\n", page->out);
    }
    free(svg);
    if (svg_fd >= 0)
        close(svg_fd);
    free_plot(plot);
}
