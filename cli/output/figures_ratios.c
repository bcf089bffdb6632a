/* Ours over every method, for the workloads that lie at one place of an axis: the number of
 * the GEMM's waves, or of ranks. */
#include "output/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "output/derived.h"
#include "entwine/sim.h"

/* How many producer blocks a rank runs at once: one on each of its SMs, or workers.  0:
 * not known. */
static int slots_of(const cli_figure_data *data, const cli_figure_point *point)
{
    const cli_job *job = data->job;
    const int num_ranks = point->problem->num_ranks;
    ew_sim_hardware hardware;
    switch (job->backend) {
    case EW_BACKEND_CUDA:
        return cli_gpu_sms_per_rank(&job->gpus, num_ranks);
    case EW_BACKEND_SIM:
        return ew_sim_describe(NULL, num_ranks, &hardware) ? 0 : hardware.sms;
    case EW_BACKEND_CPU:
        break;
    }
    return point->config.workers;
}

static double waves_of(const cli_figure_data *data, const cli_figure_point *point)
{
    const ew_problem *shape = &point->problem->problem;
    const ew_config *config = &point->config;
    return cli_waves(shape->max_m, shape->n,
                     cli_num_parts(shape->op, point->problem->num_ranks), config->block_m,
                     config->block_n, slots_of(data, point));
}

static double ranks_of(const cli_figure_data *data, const cli_figure_point *point)
{
    (void)data;
    return point->problem->num_ranks;
}

typedef double place_on_axis(const cli_figure_data *data, const cli_figure_point *point);

/* Ours over this entry for every problem that lies at x; how many there are. */
static int collect_ratios(const cli_figure_data *data, const cli_entry *entry,
                          place_on_axis *place, double x, double *ratios)
{
    int count = 0;
    for (int at = 0; at < data->num_points; at++) {
        const cli_figure_point *point = &data->points[at];
        if (point->entry != entry)
            continue;
        const cli_figure_point *ours = cli_figure_result_of(data, point, "entwine");
        if (ours && place(data, ours) == x)
            ratios[count++] = point->time_us / ours->time_us;
    }
    cli_sort(ratios, count);
    return count;
}

static void add_ratio_row(cli_figure_data *data, const cli_entry *entry, double x,
                          const double *ratios, int count)
{
    char series[CLI_SERIES_BYTES];
    snprintf(series, sizeof series, "over %.50s", entry->label);
    cli_figure_row *row = cli_figure_row_add(data, NULL, series);
    row->x = x;
    row->values[0] = cli_geomean(ratios, count);
    for (int quarter = 0; quarter <= 4; quarter++)
        row->values[1 + quarter] = cli_quantile(ratios, count, quarter / 4.0);
    row->values[6] = count;
}

/* The places on the axis where results lie, each once, in rising order. */
static int list_places(const cli_figure_data *data, place_on_axis *place, double *places)
{
    int count = 0, distinct = 0;
    for (int at = 0; at < data->num_points; at++) {
        const cli_figure_point *point = &data->points[at];
        if (cli_figure_result_of(data, point, "entwine") == point &&
            isfinite(place(data, point)))
            places[count++] = place(data, point);
    }
    cli_sort(places, count);
    for (int at = 0; at < count; at++)
        if (!distinct || places[at] > places[distinct - 1])
            places[distinct++] = places[at];
    return distinct;
}

static void derive_ratios(cli_figure_data *data, place_on_axis *place)
{
    size_t most = (size_t)data->num_points + 1;
    double *places = calloc(most, sizeof *places), *ratios = calloc(most, sizeof *ratios);
    int num_places = places && ratios ? list_places(data, place, places) : 0;
    for (int at = 0; at < data->job->num_entries; at++) {
        const cli_entry *entry = &data->job->entries[at];
        if (strcmp(entry->method, "entwine") == 0)
            continue;
        for (int which = 0; which < num_places; which++) {
            int count = collect_ratios(data, entry, place, places[which], ratios);
            if (count)
                add_ratio_row(data, entry, places[which], ratios, count);
        }
    }
    free(places);
    free(ratios);
}

void cli_derive_waves(cli_figure_data *data)
{
    derive_ratios(data, waves_of);
}

void cli_derive_scaling(cli_figure_data *data)
{
    derive_ratios(data, ranks_of);
}
