/* entwine sim --validate FILE...: every measured result beside its simulation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "entwine/sim.h"
#include "output/result_file.h"
#include "sim/sim_pairs.h"
#include "run/simulated.h"

/* Of whole calls: what a simulation must keep to be worth asking. */
typedef struct bounds {
    double median, p95, regret;
} bounds;
static const bounds gpu_bounds = {0.03, 0.08, 0.03}, cpu_bounds = {0.05, INFINITY, 0.03},
                    hosts_bounds = {0.05, 0.10, 0.03};
/* Every so manieth workload of the file, from the first, is for calibration. */
enum { CALIBRATION = 3 };

static const bounds *bounds_of(const sim_pairs *all)
{
    return all->has_hosts ? &hosts_bounds : all->is_cpu ? &cpu_bounds : &gpu_bounds;
}

static bool same_workload(const sim_pair *a, const sim_pair *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->ranks == b->ranks &&
           a->link_gbps == b->link_gbps && a->nic_gbps == b->nic_gbps &&
           a->nic_shared == b->nic_shared && strcmp(a->dtype, b->dtype) == 0;
}

static int number_workload(sim_pairs *all, const sim_pair *new)
{
    for (int at = 0; at < all->count; at++)
        if (same_workload(&all->at[at], new))
            return all->at[at].workload;
    return all->num_workloads++;
}

static ew_status simulate(const sim_pairs *all, sim_pair *p, double latency_us)
{
    const ew_dtype dtype = strcmp(p->dtype, "fp32") == 0   ? EW_FP32
                           : strcmp(p->dtype, "bf16") == 0 ? EW_BF16
                                                           : EW_FP16;
    const ew_problem problem = EW_PROBLEM(p->m, p->n, p->k, dtype);
    ew_sim_options options = EW_SIM_OPTIONS_INIT;
    ew_sim_report report;
    ew_config config;
    options.profile = all->profile;
    options.link_gbs = p->link_gbps / 8;
    options.link_us = latency_us;
    options.nic_gbs = p->nic_gbps / 8;
    options.nic_shared = p->nic_shared ? 1 : -1;
    ew_status status = ew_config_parse(p->config, &config);
    config.backend = EW_BACKEND_SIM;
    if (status == EW_OK)
        status = ew_sim_call(&problem, (int)p->ranks, &config, &options, &report);
    p->time_us = status == EW_OK ? report.time_us : 0;
    p->skipped = status != EW_OK;
    return status;
}

/* Whether there is something to simulate: a config of the engine that ran, and nothing
 * behind its ReduceScatter (entwine+fused).  One rank has nothing to overlap. */
static bool is_simulated(const sim_pair *p, const char *status)
{
    return strcmp(status, "EW_OK") == 0 && p->config && *p->config && p->measured_us > 0 &&
           p->ranks >= 2 && p->ranks <= CLI_MAX_RANKS && !strchr(p->method, '+');
}

static cli_exit add_result(sim_pairs *all, const json_t *result, const json_t *network)
{
    const char *status = NULL;
    double latency_us = 0;
    sim_pair p = {0};
    json_error_t error;
    if (json_unpack_ex(
            (json_t *)result, &error, 0, "{ss ss s?s s?F s{sI sI sI sI ss sF sF}}",
            "status", &status, "method", &p.method, "config", &p.config, "time_us",
            &p.measured_us, "params", "m", &p.m, "n", &p.n, "k", &p.k, "ranks", &p.ranks,
            "dtype", &p.dtype, "link_gbps", &p.link_gbps, "link_latency_us", &latency_us))
        return cli_fail_usage("give a file of bench -o json", "a result is not one: %.80s",
                              error.text);
    if (network && json_unpack_ex((json_t *)network, &error, 0, "{sF sb}", "nic_gbps",
                                  &p.nic_gbps, "shared", &p.nic_shared))
        return cli_fail_usage("give a file of scripts/bench-mpi",
                              "a run's network is none: %.80s", error.text);
    p.scatter = json_number_value(json_object_get(result, "cv"));
    if (!is_simulated(&p, status)) {
        all->num_others++;
        return CLI_EXIT_OK;
    }
    sim_pair *grown = realloc(all->at, ((size_t)all->count + 1) * sizeof *grown);
    if (!grown)
        return cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for the results");
    all->at = grown;
    p.workload = number_workload(all, &p);
    ew_status failed = simulate(all, &p, latency_us);
    all->at[all->count++] = p;
    return failed == EW_ERR_ARGUMENT ? cli_fail_status(failed, ew_last_error())
                                     : CLI_EXIT_OK;
}

/* `network`: between the hosts that a run had, or NULL. */
static cli_exit add_document(sim_pairs *all, const json_t *document, const json_t *network)
{
    const bool has_results = json_array_size(json_object_get(document, "results")) > 0;
    if (has_results && (network != NULL) != all->has_hosts)
        return cli_fail_usage("use the profile of such machines; entwine sim lists them",
                              "runs on %s, and profile %s is of %s",
                              network ? "several hosts" : "one host", all->profile,
                              network ? "one" : "several");
    size_t at;
    const json_t *result;
    cli_exit failed = CLI_EXIT_OK;
    json_array_foreach(json_object_get(document, "results"), at, result)
    {
        failed = add_result(all, result, network);
        if (failed)
            break;
    }
    return failed;
}

/* A document of bench, or one of the project's files with many of them. */
static cli_exit read_pairs(const char *path, sim_pairs *all, json_t **document_out)
{
    size_t at;
    const json_t *run;
    const int before = all->count + all->num_others;
    cli_exit failed = cli_json_load(path, "give a file of bench -o json", document_out);
    if (failed)
        return failed;
    failed = add_document(all, *document_out, NULL);
    json_array_foreach(json_object_get(*document_out, "runs"), at, run)
    {
        if (!failed)
            failed = add_document(all, json_object_get(run, "output"),
                                  json_object_get(run, "network"));
    }
    if (!failed && all->count + all->num_others == before)
        failed = cli_fail_usage("give a file of bench -o json",
                                "'%.200s' holds no result of an engine", path);
    return failed;
}

/* ---- Errors ---- */

typedef struct errors {
    int count;
    double median, p95, worst;
} errors;

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A result whose own samples lie further apart than the bound cannot tell whether a
 * simulation keeps it. */
static bool judges(const sim_pairs *all, const sim_pair *p)
{
    const bounds *most = bounds_of(all);
    return !p->skipped && p->scatter <= most->p95;
}

static errors errors_of(const sim_pairs *all, bool calibration, double *space)
{
    errors e = {0};
    for (int at = 0; at < all->count; at++) {
        const sim_pair *p = &all->at[at];
        if (judges(all, p) && (p->workload % CALIBRATION == 0) == calibration)
            space[e.count++] = fabs(p->time_us / p->measured_us - 1);
    }
    qsort(space, (size_t)e.count, sizeof *space, compare);
    if (e.count > 0) {
        e.median = cli_median_of_sorted(space, e.count);
        e.p95 = space[(int)(0.95 * (e.count - 1) + 0.5)];
        e.worst = space[e.count - 1];
    }
    return e;
}

static void print_errors(const char *name, const errors *e)
{
    printf("# %-28s %4d results, error of the time: median %.2f %%, p95 %.2f %%, worst "
           "%.2f %%\n",
           name, e->count, 100 * e->median, 100 * e->p95, 100 * e->worst);
}

static void print_pairs(const sim_pairs *all)
{
    printf("#%6s %7s %7s %4s %4s %7s %-26s %11s %11s %7s\n", "M", "N", "K", "W", "type",
           "link", "method", "measured", "SIMULATED", "error");
    printf("#%6s %7s %7s %4s %4s %7s %-26s %11s %11s %7s\n", "", "", "", "", "", "(Gb/s)",
           "", "(us)", "(us)", "(%)");
    for (int at = 0; at < all->count; at++) {
        const sim_pair *p = &all->at[at];
        printf("%7lld %7lld %7lld %4lld %4s %6g%c %-26.26s %11.1f", (long long)p->m,
               (long long)p->n, (long long)p->k, (long long)p->ranks, p->dtype,
               p->nic_gbps > 0 ? p->nic_gbps : p->link_gbps, p->nic_shared ? 's' : ' ',
               p->method, p->measured_us);
        if (p->skipped)
            printf(" %11s\n", "-");
        else
            printf(" %11.1f %+7.2f%s%s\n", p->time_us,
                   100 * (p->time_us / p->measured_us - 1),
                   p->workload % CALIBRATION == 0 ? " c" : "", judges(all, p) ? "" : " ~");
    }
}

static json_t *errors_json(const errors *e)
{
    return json_pack("{si sf sf sf}", "results", e->count, "median", e->median, "p95",
                     e->p95, "worst", e->worst);
}

/* ---- The verdict ---- */

typedef struct verdict {
    errors calibration, rest;
    sim_choice *choices;
    int num_choices;
    double regret, worst_regret; /* of the choices: median, and the largest */
    bool kept;
} verdict;

static bool judge(const sim_pairs *all, verdict *v)
{
    const bounds *most = bounds_of(all);
    double *space = malloc((size_t)all->count * sizeof *space);
    v->choices = calloc((size_t)all->num_workloads + 1, sizeof *v->choices);
    if (space && v->choices) {
        v->calibration = errors_of(all, true, space);
        v->rest = errors_of(all, false, space);
        v->num_choices = sim_choices(all, v->choices);
        v->regret = sim_choices_median(v->choices, v->num_choices, &v->worst_regret);
    }
    const errors *judged = v->rest.count > 0 ? &v->rest : &v->calibration;
    v->kept = judged->median <= most->median && judged->p95 <= most->p95 &&
              v->regret <= most->regret;
    free(space);
    return space && v->choices;
}

static void print_json(const sim_pairs *all, const verdict *v)
{
    json_t *results = json_array();
    for (int at = 0; at < all->count; at++) {
        const sim_pair *p = &all->at[at];
        json_array_append_new(
            results,
            json_pack("{sI sI sI sI ss sf sf sb ss sf so sb sb}", "m", p->m, "n", p->n, "k",
                      p->k, "ranks", p->ranks, "dtype", p->dtype, "link_gbps", p->link_gbps,
                      "nic_gbps", p->nic_gbps, "nic_shared", p->nic_shared, "method",
                      p->method, "measured_us", p->measured_us, "simulated_us",
                      p->skipped ? json_null() : json_real(p->time_us), "calibration",
                      (int)(p->workload % CALIBRATION == 0), "judges",
                      (int)judges(all, p)));
    }
    json_t *document = json_pack(
        "{ss ss so so s{si sf sf so} so}", "schema", "entwine-validation/1", "profile",
        all->profile, "calibration", errors_json(&v->calibration), "predicted",
        errors_json(&v->rest), "choices", "workloads", v->num_choices, "median_regret",
        v->regret, "worst_regret", v->worst_regret, "list",
        sim_choices_json(v->choices, v->num_choices), "results", results);
    json_dumpf(document, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(document);
}

static void print_left_out(const sim_pairs *all)
{
    const bounds *most = bounds_of(all);
    int scattered = 0;
    for (int at = 0; at < all->count; at++)
        scattered += !all->at[at].skipped && !judges(all, &all->at[at]);
    if (all->num_others > 0)
        printf(
            "# %d results are not simulated: they failed, had one rank, or did more than "
            "GEMM and ReduceScatter\n",
            all->num_others);
    if (scattered > 0)
        printf("# %d results scatter by more than %.0f %% themselves and do not judge\n",
               scattered, 100 * most->p95);
}

static void print_table(const sim_pairs *all, const verdict *v)
{
    const bounds *most = bounds_of(all);
    printf(
        "# SIMULATED beside measured, profile %s; c: of the calibration third, ~: does not "
        "judge%s\n",
        all->profile, all->has_hosts ? ", s: both directions share the link" : "");
    print_pairs(all);
    if (v->num_choices > 0)
        sim_choices_print(v->choices, v->num_choices);
    print_left_out(all);
    print_errors("calibration third", &v->calibration);
    print_errors("the rest, predicted", &v->rest);
    if (v->num_choices > 0)
        printf("# %-28s %4d workloads, cost over the measured best: median %.2f %%, worst "
               "%.2f %%\n",
               "choice among configs", v->num_choices, 100 * v->regret,
               100 * v->worst_regret);
    printf("# Bounds : median %.0f %%, p95 %.0f %%, choice %.0f %% %s\n",
           100 * most->median, 100 * most->p95, 100 * most->regret,
           v->kept ? "OK" : "MISSED");
}

static cli_exit report(const sim_pairs *all, const cli_settings *settings)
{
    verdict v = {.num_choices = 0};
    cli_exit result = CLI_EXIT_OK;
    if (!judge(all, &v)) {
        result = cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for the errors");
    } else {
        settings->format == CLI_FORMAT_JSON ? print_json(all, &v) : print_table(all, &v);
        result = v.kept ? CLI_EXIT_OK : CLI_EXIT_REGRESSION;
    }
    free(v.choices);
    return result;
}

cli_exit cli_sim_validate_files(const cli_settings *settings)
{
    sim_pairs all = {.profile = settings->profile ? settings->profile : "h200-vnode-8"};
    json_t *documents[CLI_MAX_WORDS] = {NULL};
    ew_sim_hardware hardware;
    ew_status status = ew_sim_describe(all.profile, 2, &hardware);
    if (status)
        return cli_fail_status(status, ew_last_error());
    all.is_cpu = hardware.is_cpu;
    all.has_hosts = hardware.nodes > 1;
    cli_exit result = CLI_EXIT_OK;
    for (int at = 0; at < settings->num_words && !result; at++)
        result = read_pairs(settings->words[at], &all, &documents[at]);
    if (!result && all.count == 0)
        result =
            cli_fail_usage("give a file with GEMM and ReduceScatter of 2 ranks or more",
                           "none of %d results can be simulated", all.num_others);
    if (!result)
        result = report(&all, settings);
    for (int at = 0; at < settings->num_words; at++)
        json_decref(documents[at]);
    free(all.at);
    return result;
}
