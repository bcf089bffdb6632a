/* One result as a JSON object; docs/schema.json describes it. */
#include "output/output.h"

#include <math.h>

#include "run/context.h"
#include "run/simulated.h"

json_t *cli_params_json(const cli_problem *problem, const cli_ranks *ranks)
{
    json_t *params = cli_problem_json(&problem->problem, problem->num_ranks);
    json_object_set_new(params, "name",
                        *problem->name ? cli_text_json(problem->name) : json_null());
    json_object_set_new(params, "ranks_as", json_string(cli_ranks_as_name(ranks)));
    return params;
}

static json_t *params_json(const cli_row *row)
{
    const ew_world_options *options = &row->job->ranks.options;
    const ew_bench_options *bench = &row->job->bench;
    char link[96];
    cli_link_text(row->job, link, sizeof link);
    json_t *params = cli_params_json(row->problem, &row->job->ranks);
    cli_json_merge(params,
                   json_pack("{ss sf sf sf sI si si sf sf sf ss}", "link", link, "link_gbs",
                             options->link_gbps / 8, "link_latency_us",
                             options->link_latency_us, "link_header_bytes",
                             options->link_header_bytes, "seed", (json_int_t)bench->seed,
                             "iters", (int)bench->iters, "warmup", (int)bench->warmup,
                             "gate_ms", bench->gate_ms, "idle", bench->idle, "skew_us",
                             bench->skew_us, "order", "random"));
    if (row->job->tuned)
        json_object_set_new(params, "tuned", json_true());
    if (row->job->bed->is_simulated)
        cli_sim_params(params, row->problem->num_ranks);
    if (row->job->bed->on_gpus) {
        int num_ranks = row->problem->num_ranks;
        json_object_set_new(params, "virtual_node",
                            json_boolean(cli_job_is_virtual(row->job, row->problem)));
        json_object_set_new(params, "sms_per_rank",
                            json_integer(cli_gpu_sms_per_rank(&row->job->gpus, num_ranks)));
    }
    return params;
}

static json_t *numbers_json(const double *values, int count)
{
    json_t *numbers = json_array();
    for (int at = 0; at < count && at < EW_BENCH_MAX_SAMPLES; at++)
        json_array_append_new(numbers, cli_number_json(values[at]));
    return numbers;
}

/* What a reader needs to judge the samples: every call, every rank, and who ran before. */
static json_t *detail_json(const cli_row *row)
{
    const ew_bench_detail *detail = &row->extra->detail;
    json_t *turns = json_array();
    for (int at = 0; at < row->result->num_samples && at < EW_BENCH_MAX_SAMPLES; at++)
        json_array_append_new(turns, json_integer(detail->turns[at]));
    return json_pack("{so so so}", "calls_us",
                     numbers_json(detail->calls_us, row->result->num_samples), "ranks_us",
                     numbers_json(detail->ranks_us, row->problem->num_ranks), "turns",
                     turns);
}

static json_t *interval_json(const cli_ratio *ratio)
{
    return json_pack("[o, o]", cli_number_json(ratio->low), cli_number_json(ratio->high));
}

/* Only where there are enough samples for an interval. */
static void add_ratios(json_t *object, const cli_row *row)
{
    const char *lead = cli_lead_name(&row->over_ours);
    if (!isnan(row->over_base.low))
        json_object_set_new(object, "speedup_interval", interval_json(&row->over_base));
    if (lead)
        json_object_set_new(object, "over_entwine",
                            json_pack("{so so ss}", "ratio",
                                      cli_number_json(row->over_ours.value), "interval",
                                      interval_json(&row->over_ours), "entwine_is", lead));
    if (row->extra && row->extra->detail.num_graphs > 0)
        cli_json_merge(object,
                       json_pack("{so so}", "graph_us",
                                 cli_number_json(row->extra->detail.graph_us), "graphs_us",
                                 numbers_json(row->extra->detail.graphs_us,
                                              row->extra->detail.num_graphs)));
    if (!isnan(row->drift.value))
        cli_json_merge(object,
                       json_pack("{so so}", "again_us",
                                 numbers_json(row->extra->again_us, row->extra->num_again),
                                 "drift", cli_number_json(row->drift.value)));
}

/* With what effort the entry's open fields were found. */
static json_t *tuning_json(const cli_extra *extra)
{
    const ew_tune_result *found = &extra->tuning;
    return json_pack("{sb si si si sI so so so}", "complete", (int)found->complete,
                     "candidates", (int)found->num_candidates, "refused",
                     (int)found->num_refused, "left_out", (int)found->num_left_out, "calls",
                     (json_int_t)extra->effort.calls, "seconds",
                     cli_number_json(extra->effort.seconds), "time_us",
                     cli_number_json(found->tuning.time_us), "default_us",
                     cli_number_json(found->tuning.default_us));
}

json_t *cli_row_json(const cli_row *row)
{
    const ew_bench_result *result = row->result;
    bool ran = result->status == EW_OK;
    json_t *object =
        json_pack("{so ss ss ss}", "params", params_json(row), "method", row->entry->label,
                  "config", row->config, "status", ew_status_name(result->status));
    if (!ran) {
        json_object_set_new(object, "error", cli_text_json(result->error));
        return object;
    }
    cli_json_merge(
        object,
        json_pack(
            "{so so so so so so si so so so so so so s{sI so}}", "samples_us",
            numbers_json(result->samples_us, result->num_samples), "time_us",
            cli_number_json(result->time_us), "gemm_us", cli_number_json(result->gemm_us),
            "tail_us", cli_number_json(result->tail_us), "enqueue_us",
            cli_number_json(result->enqueue_us), "cv", cli_number_json(result->cv),
            "discarded", (int)result->discarded, "gflops", cli_number_json(row->gflops),
            "algbw_gbs", cli_number_json(row->algbw), "breq_gbs",
            cli_number_json(row->breq), "speedup", cli_number_json(row->speedup),
            "overlap_efficiency", cli_number_json(row->efficiency), "waves",
            cli_number_json(row->waves), "check", "wrong", (json_int_t)result->check.wrong,
            "max_abs_err", cli_number_json(result->check.max_abs_err)));
    if (row->extra && !row->job->bed->is_simulated) /* whose calls are all alike */
        cli_json_merge(object, detail_json(row));
    add_ratios(object, row);
    if (row->extra && row->extra->tuned)
        json_object_set_new(object, "tuning", tuning_json(row->extra));
    if (row->extra && *row->extra->detail.note)
        json_object_set_new(object, "note", cli_text_json(row->extra->detail.note));
    if (row->entry->uses_nccl)
        json_object_set_new(object, "reduced_by", json_string("nccl"));
    if (row->job->bed->is_simulated) /* no values, so none right or wrong */
        json_object_set_new(object, "check", json_pack("{sn sn}", "wrong", "max_abs_err"));
    return object;
}
