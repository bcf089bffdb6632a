/* What a figure is made of: results collected, derived numbers shown as JSON and table. */
#include "output/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const cli_figure_column speedup_columns[] = {{"speedup", "speedup", 3},
                                                    {"efficiency", "overlap", 3},
                                                    {"best", "best", 0},
                                                    {NULL, NULL, 0}};

/* Of a policy's best budget, and of ours beside it. */
static const cli_figure_column policy_columns[] = {
    {"time_us", "time(us)", 1}, {"gemm_us", "gemm(us)", 1},
    {"tail_us", "tail(us)", 1}, {"budget", "x", 0},
    {"ratio", "/ours", 3},      {"tail_reduction", "tail-cut", 3},
    {"speedup", "speedup", 3},  {NULL, NULL, 0}};

static const cli_figure_column budget_columns[] = {{"time_us", "time(us)", 1},
                                                   {"gemm_us", "gemm(us)", 1},
                                                   {"tail_us", "tail(us)", 1},
                                                   {"ratio", "/best", 3},
                                                   {NULL, NULL, 0}};

static const cli_figure_column bandwidth_columns[] = {
    {"tail_us", "tail(us)", 1}, {"measured_gbs", "GB/s", 3}, {NULL, NULL, 0}};

static const cli_figure_column required_columns[] = {
    {"measured_gbs", "measured", 3}, {"gap", "gap", 3}, {NULL, NULL, 0}};

static const cli_figure_column ratio_columns[] = {
    {"geomean", "geomean", 3},   {"least", "least", 3}, {"lower", "quarter", 3},
    {"median", "median", 3},     {"upper", "3/4", 3},   {"most", "most", 3},
    {"problems", "problems", 0}, {NULL, NULL, 0}};

typedef struct form {
    const char *name; /* of the figure */
    const cli_figure_column *columns;
    void (*derive)(cli_figure_data *data);
} form;

static const form forms[] = {{"speedup", speedup_columns, cli_derive_speedup},
                             {"layer", speedup_columns, cli_derive_speedup},
                             {"order", policy_columns, cli_derive_policies},
                             {"release", policy_columns, cli_derive_policies},
                             {"pool", policy_columns, cli_derive_policies},
                             {"budget", budget_columns, cli_derive_budget},
                             {"bandwidth", bandwidth_columns, cli_derive_bandwidth},
                             {"required", required_columns, cli_derive_required},
                             {"waves", ratio_columns, cli_derive_waves},
                             {"scaling", ratio_columns, cli_derive_scaling}};

static const form *form_of(const cli_figure *figure)
{
    const form *at = forms;
    while (strcmp(at->name, figure->name) != 0)
        at++;
    return at;
}

bool cli_figure_init(cli_figure_data *data, const cli_figure *figure, const cli_job *job)
{
    /* A derivation makes at most one row of a point, and one more of a few of them. */
    size_t most = (size_t)job->num_problems * (size_t)job->num_entries;
    *data = (cli_figure_data){
        .figure = figure, .columns = form_of(figure)->columns, .job = job};
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
    form_of(data->figure)->derive(data);
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

static json_t *row_json(const cli_figure_data *data, const cli_figure_row *row)
{
    json_t *object =
        json_pack("{ss so}", "series", row->series, "x",
                  *row->label ? json_string(row->label) : cli_number_json(row->x));
    if (row->point) {
        set_params(object, row->point->problem);
        json_object_set_new(object, "method", json_string(row->point->entry->label));
        json_object_set_new(object, "result", json_integer(row->point->result));
    }
    for (int at = 0; data->columns[at].name; at++)
        json_object_set_new(object, data->columns[at].name,
                            cli_number_json(row->values[at]));
    return object;
}

json_t *cli_figure_json(const cli_figure_data *data)
{
    const cli_figure *figure = data->figure;
    json_t *columns = json_array(), *derived = json_array();
    for (int at = 0; data->columns[at].name; at++)
        json_array_append_new(columns, json_string(data->columns[at].name));
    for (int at = 0; at < data->num_rows; at++)
        json_array_append_new(derived, row_json(data, &data->rows[at]));
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

static void print_row(const cli_figure_data *data, const cli_figure_row *row, widths w)
{
    char ranks[16] = "";
    if (row->point)
        snprintf(ranks, sizeof ranks, "%d", row->point->problem->num_ranks);
    if (*row->label)
        printf("%*s", w.axis, row->label);
    else
        printf("%*.5g", w.axis, row->x);
    printf("%*s %-*s", w.of_ranks, ranks, w.series, row->series);
    for (int at = 0; data->columns[at].name; at++)
        print_value(row->values[at], data->columns[at].digits);
    putchar('\n');
}

void cli_figure_print(const cli_figure_data *data)
{
    const cli_figure *figure = data->figure;
    const widths w = widths_of(data);
    printf("# Figure %s : %s\n#%*s%*s %-*s", figure->name, figure->shows, w.axis - 1,
           figure->axis, w.of_ranks, w.of_ranks ? "W" : "", w.series, "series");
    for (int at = 0; data->columns[at].name; at++)
        printf(" %10s", data->columns[at].head);
    putchar('\n');
    for (int at = 0; at < data->num_rows; at++)
        print_row(data, &data->rows[at], w);
}
