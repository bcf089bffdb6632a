/* What a figure is made of: results collected, derived numbers shown as JSON and table. */
#include "output/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/context.h"

bool cli_figure_init(cli_figure_data *data, const cli_figure *figure, const cli_job *job)
{
    /* A derivation makes at most one row of a point, and one more of a few of them. */
    size_t most = (size_t)job->num_problems * (size_t)job->num_entries;
    *data = (cli_figure_data){.figure = figure, .job = job};
    data->points = calloc(most, sizeof *data->points);
    data->rows = calloc(2 * most, sizeof *data->rows);
    return data->points && data->rows;
}

void cli_figure_fini(cli_figure_data *data)
{
    free(data->points);
    free(data->rows);
}

void cli_figure_add(cli_figure_data *data, const cli_row *row, int result)
{
    const ew_bench_result *measured = row->result;
    if (measured->status == EW_OK && measured->time_us > 0)
        data->points[data->num_points++] =
            (cli_figure_point){row->problem,      row->entry,        result,
                               measured->time_us, measured->gemm_us, measured->tail_us,
                               row->speedup,      row->breq,         measured->config};
}

void cli_figure_derive(cli_figure_data *data)
{
    data->num_rows = 0;
    data->figure->derive(data);
}

static json_t *number_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static void set_params(json_t *object, const cli_problem *problem)
{
    const ew_problem *shape = &problem->problem;
    json_t *params = json_pack("{so sI sI sI si ss}", "name",
                               *problem->name ? cli_text_json(problem->name) : json_null(),
                               "m", (json_int_t)shape->max_m, "n", (json_int_t)shape->n,
                               "k", (json_int_t)shape->k, "ranks", problem->num_ranks,
                               "dtype", ew_dtype_name(shape->dtype));
    json_object_update(object, params);
    json_decref(params);
}

static json_t *row_json(const cli_figure *figure, const cli_figure_row *row)
{
    json_t *object =
        json_pack("{ss so}", "series", row->series, "x",
                  *row->label ? json_string(row->label) : number_or_null(row->x));
    if (row->point) {
        set_params(object, row->point->problem);
        json_object_set_new(object, "method", json_string(row->point->entry->label));
        json_object_set_new(object, "result", json_integer(row->point->result));
    }
    for (int at = 0; figure->columns[at].name; at++)
        json_object_set_new(object, figure->columns[at].name,
                            number_or_null(row->values[at]));
    return object;
}

json_t *cli_figure_json(const cli_figure_data *data)
{
    const cli_figure *figure = data->figure;
    json_t *columns = json_array(), *derived = json_array();
    for (int at = 0; figure->columns[at].name; at++)
        json_array_append_new(columns, json_string(figure->columns[at].name));
    for (int at = 0; at < data->num_rows; at++)
        json_array_append_new(derived, row_json(figure, &data->rows[at]));
    return json_pack("{ss ss ss so so}", "name", figure->name, "shows", figure->shows,
                     "axis", figure->axis, "columns", columns, "derived", derived);
}

static void print_value(double value, int digits)
{
    if (isfinite(value))
        printf(" %10.*f", digits, value);
    else
        printf(" %10s", "-");
}

/* How wide the columns of texts are; of_ranks is 0 where no row is of one problem. */
typedef struct widths {
    int axis, of_ranks, series;
} widths;

static widths widths_of(const cli_figure_data *data)
{
    widths w = {(int)strlen(data->figure->axis) + 1, 0, (int)strlen("series")};
    w.axis = w.axis < 8 ? 8 : w.axis;
    for (int at = 0; at < data->num_rows; at++) {
        const cli_figure_row *row = &data->rows[at];
        int series = (int)strlen(row->series), label = (int)strlen(row->label);
        w.series = series > w.series ? series : w.series;
        w.axis = label > w.axis ? label : w.axis;
        w.of_ranks = row->point ? 5 : w.of_ranks;
    }
    return w;
}

static void print_row(const cli_figure *figure, const cli_figure_row *row, widths w)
{
    char ranks[16] = "";
    if (row->point)
        snprintf(ranks, sizeof ranks, "%d", row->point->problem->num_ranks);
    if (*row->label)
        printf("%*s", w.axis, row->label);
    else
        printf("%*.5g", w.axis, row->x);
    printf("%*s %-*s", w.of_ranks, ranks, w.series, row->series);
    for (int at = 0; figure->columns[at].name; at++)
        print_value(row->values[at], figure->columns[at].digits);
    putchar('\n');
}

void cli_figure_print(const cli_figure_data *data)
{
    const cli_figure *figure = data->figure;
    const widths w = widths_of(data);
    printf("# Figure %s : %s\n#%*s%*s %-*s", figure->name, figure->shows, w.axis - 1,
           figure->axis, w.of_ranks, w.of_ranks ? "W" : "", w.series, "series");
    for (int at = 0; figure->columns[at].name; at++)
        printf(" %10s", figure->columns[at].head);
    putchar('\n');
    for (int at = 0; at < data->num_rows; at++)
        print_row(figure, &data->rows[at], w);
}
