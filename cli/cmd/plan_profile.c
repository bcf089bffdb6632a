/* entwine plan --profile: what to expect of every method on that hardware, which schedule
 * is best, and what would change the answer. */
#include "cmd/commands.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "output/derived.h"
#include "base/json_file.h"
#include "entwine/sim.h"
#include "run/simulated.h"

/* With more events than this, another simulation would take too long. */
static const double most_events = 3e5;

enum { MAX_METHODS = 12, MAX_CHANGES = 10 };

/* Ranks that are simulated and stand for the rest (ew_sim_options). */
enum { SAMPLED_RANKS = 16 };

/* A problem on hardware. */
typedef struct sim_case {
    ew_problem problem;
    int num_ranks;
    ew_sim_options options;
} sim_case;

typedef struct method_view {
    const char *name;
    ew_status status;
    char why[128];
    ew_sim_report report;
} method_view;

typedef struct change_view {
    char what[48];
    double baseline_us, best_us;
} change_view;

typedef struct forecast {
    sim_case what;
    ew_sim_hardware hardware;
    method_view methods[MAX_METHODS];
    int num_methods;
    ew_sim_report best; /* of entwine, by search */
    int32_t tried;
    double link_gbs;
    const ew_config *asked;
    double gemm_us, link_us, floor_us, breq_gbs;
    double baseline_us; /* the faster of sequential and blas */
    const char *baseline;
    change_view changes[MAX_CHANGES];
    int num_changes;
} forecast;

/* ---- Simulated calls ---- */

static ew_status config_of(const char *method, const ew_config *base, ew_config *config_out)
{
    ew_config open = *base;
    open.backend = EW_BACKEND_SIM;
    *config_out = (ew_config)EW_CONFIG_INIT;
    return ew_method_config(method, &open, config_out);
}

/* One call of `method` with what `base` leaves open chosen as plans do. */
static ew_status call_method(const sim_case *what, const char *method,
                             const ew_config *base, ew_sim_report *report_out)
{
    ew_config config;
    ew_status status = config_of(method, base, &config);
    if (status == EW_OK)
        status = ew_sim_call(&what->problem, what->num_ranks, &config, &what->options,
                             report_out);
    if (status == EW_ERR_MEMORY)
        cli_json_lack(); /* others say something about the method */
    return status;
}

static ew_status set_case(const cli_settings *settings, forecast *f)
{
    const int num_ranks = (int)cli_value_or(&settings->ranks, 8);
    ew_status status = ew_sim_describe(NULL, num_ranks, &f->hardware);
    const ew_problem shape = cli_settings_problem(
        settings, cli_value_or(&settings->rows, 8192), cli_value_or(&settings->cols, 8192),
        cli_value_or(&settings->depth, 2048),
        (ew_dtype)cli_value_or(&settings->dtypes, f->hardware.is_cpu ? EW_FP32 : EW_BF16));
    f->what = (sim_case){shape, num_ranks, EW_SIM_OPTIONS_INIT};
    f->what.options.sampled_ranks = SAMPLED_RANKS;
    if (settings->link_gbs > 0) {
        f->what.options.link_gbs = settings->link_gbs;
        f->what.options.link_us =
            settings->link_latency_us >= 0 ? settings->link_latency_us : 1;
        f->what.options.link_header_bytes = settings->link_header_bytes;
    }
    f->link_gbs = settings->link_gbs > 0 ? settings->link_gbs : f->hardware.link_gbs;
    return status;
}

/* Every method that exists; what cannot run says why. */
static void run_methods(const cli_settings *settings, forecast *f)
{
    for (const char *const *name = ew_method_list(); *name && f->num_methods < MAX_METHODS;
         name++) {
        method_view *view = &f->methods[f->num_methods++];
        view->name = *name;
        view->status = call_method(&f->what, *name, &settings->config, &view->report);
        if (view->status)
            snprintf(view->why, sizeof view->why, "%.*s",
                     (int)strcspn(ew_last_error(), "\n"), ew_last_error());
    }
}

static const method_view *find_method(const forecast *f, const char *name)
{
    for (int at = 0; at < f->num_methods; at++)
        if (strcmp(f->methods[at].name, name) == 0 && f->methods[at].status == EW_OK)
            return &f->methods[at];
    return NULL;
}

static void derive(forecast *f)
{
    const method_view *sequential = find_method(f, "sequential");
    const method_view *blas = find_method(f, "blas"), *baseline = sequential;
    if (blas && (!sequential || blas->report.time_us < sequential->report.time_us))
        baseline = blas;
    if (!baseline)
        baseline = &f->methods[0];
    f->baseline = baseline->name;
    f->baseline_us = baseline->report.time_us;
    /* The one has flags of the whole output behind it, the other reducers beside it. */
    f->gemm_us =
        sequential ? fmin(sequential->report.gemm_us, f->best.gemm_us) : f->best.gemm_us;
    f->link_us = f->best.link_us;
    f->floor_us = fmax(f->gemm_us, f->link_us);
    f->breq_gbs = cli_remote_gbs(&f->what.problem, f->what.num_ranks, f->gemm_us);
}

/* ---- What would change the answer ---- */

static double baseline_of(const sim_case *what, const ew_config *asked)
{
    ew_sim_report report;
    double least = INFINITY;
    static const char *const names[] = {"sequential", "blas"};
    for (size_t at = 0; at < 2; at++)
        if (call_method(what, names[at], asked, &report) == EW_OK && report.time_us < least)
            least = report.time_us;
    return least;
}

/* The best config where it still fits, else the built-in choice. */
static void add_change(forecast *f, const sim_case *what, const ew_config *config)
{
    ew_sim_report report;
    change_view *change = &f->changes[f->num_changes];
    if (call_method(what, "entwine", config, &report) &&
        call_method(what, "entwine", f->asked, &report))
        return;
    change->best_us = report.time_us;
    change->baseline_us = baseline_of(what, f->asked);
    if (isfinite(change->baseline_us))
        f->num_changes++;
}

/* One thing changed, by a factor; false where it makes no sense. */
static bool change_case(const forecast *f, const char *what, double factor,
                        sim_case *changed, ew_config *config, char *text, size_t bytes)
{
    ew_problem *p = &changed->problem;
    if (strcmp(what, "link") == 0) {
        changed->options.link_gbs = f->link_gbs * factor;
        if (!(f->what.options.link_gbs > 0))
            changed->options.link_us = 1;
        snprintf(text, bytes, "link = %g GB/s", changed->options.link_gbs);
        return f->link_gbs > 0;
    }
    if (strcmp(what, "NIC") == 0) {
        changed->options.nic_gbs = f->hardware.nic_gbs * factor;
        snprintf(text, bytes, "NIC = %g GB/s", changed->options.nic_gbs);
        return f->hardware.nodes > 1;
    }
    if (strcmp(what, "x") == 0) {
        config->budget = (int32_t)(config->budget * factor);
        snprintf(text, bytes, "x = %d", (int)config->budget);
        return config->budget > 0;
    }
    int64_t *size = *what == 'M' ? &p->max_m : &p->k;
    const double wanted = (double)*size * factor;
    if (!(wanted >= 64 && wanted < 0x1p62))
        return false;
    *size = (int64_t)wanted / 8 * 8;
    snprintf(text, bytes, "%s = %" PRId64, what, *size);
    return *what != 'M' || factor > 1 || f->what.problem.max_m >= 1024;
}

static void find_changes(forecast *f)
{
    static const struct {
        const char *what;
        double factor;
    } changes[] = {{"M", 0.25}, {"M", 2},     {"K", 0.5}, {"K", 2},   {"link", 0.5},
                   {"link", 2}, {"NIC", 0.5}, {"NIC", 2}, {"x", 0.25}};
    for (size_t at = 0;
         at < sizeof changes / sizeof changes[0] && (double)f->best.events <= most_events;
         at++) {
        sim_case changed = f->what;
        ew_config config = f->best.config;
        change_view *change = &f->changes[f->num_changes];
        if (change_case(f, changes[at].what, changes[at].factor, &changed, &config,
                        change->what, sizeof change->what))
            add_change(f, &changed, &config);
    }
}

/* ---- Printing ---- */

static void print_method(const forecast *f, const char *name, const ew_sim_report *report)
{
    char config[EW_CONFIG_TEXT_BYTES];
    if (ew_config_print(&report->config, config, sizeof config))
        config[0] = '\0';
    printf("  %-13s %11.1f %11.1f %10.1f %8.3f  %s\n", name, report->time_us,
           report->gemm_us, report->tail_us, f->baseline_us / report->time_us,
           config + strlen("backend=sim,"));
}

static void print_answer(const forecast *f)
{
    const double gain = f->baseline_us / f->best.time_us;
    printf("answer    overlap %s: %.3f x as fast as %s",
           gain > 1.02 ? "pays" : "does not pay", gain, f->baseline);
    printf(", %.3f x as long as the floor, %.1f us of %.1f us communication hidden\n",
           f->best.time_us / f->floor_us, fmax(0, f->baseline_us - f->best.time_us),
           fmax(0, f->baseline_us - f->gemm_us));
    printf("bound by  the %s\n", f->link_us > f->gemm_us
                                     ? "link: more budget or a better order "
                                       "cannot help, a larger K can"
                                     : "GEMM");
    if (f->num_changes == 0)
        return;
    puts("what would change the answer   baseline    entwine  speedup");
    for (int at = 0; at < f->num_changes; at++) {
        const change_view *change = &f->changes[at];
        printf("  %-26s %10.1f %10.1f %8.3f\n", change->what, change->baseline_us,
               change->best_us, change->baseline_us / change->best_us);
    }
}

static void print_forecast(const forecast *f)
{
    const ew_problem *p = &f->what.problem;
    char text[192];
    cli_sim_text(NULL, f->what.num_ranks, text, sizeof text);
    printf("# %s\n%s", text, cli_op_text(p->op));
    printf("problem   M=%" PRId64 " N=%" PRId64 " K=%" PRId64 " per rank, W=%d, %s\n",
           p->max_m, p->n, p->k, f->what.num_ranks, ew_dtype_name(p->dtype));
    printf("floor     %.1f us: GEMM alone %.1f us, link alone %.1f us\n", f->floor_us,
           f->gemm_us, f->link_us);
    printf("B_req     %.1f GB/s per rank hides all communication (Eq. 4); ", f->breq_gbs);
    if (f->link_gbs > 0)
        printf("the link has %g", f->link_gbs);
    else
        printf("there is no link, memory alone");
    if (f->hardware.nodes > 1)
        printf(", a NIC %g", f->hardware.nic_gbs);
    putchar('\n');
    printf("  %-13s %11s %11s %10s %8s\n", "method", "time (us)", "gemm (us)", "tail (us)",
           "speedup");
    for (int at = 0; at < f->num_methods; at++)
        if (f->methods[at].status == EW_OK)
            print_method(f, f->methods[at].name, &f->methods[at].report);
        else
            printf("  %-13s skipped: %s\n", f->methods[at].name, f->methods[at].why);
    print_method(f, "entwine best", &f->best);
    printf("          best of %d schedules; speedup is over %s\n", f->tried, f->baseline);
    if (f->hardware.nodes > 1)
        printf("crossing  %.2f MiB between %d nodes, all ranks together\n",
               (double)f->best.crossed_bytes / 0x1p20, (int)f->hardware.nodes);
    if (f->best.config.levels == 2 && !f->hardware.is_cpu)
        puts("note      no GPU engine runs levels=2 yet: times of a schedule to be built");
    print_answer(f);
}

static json_t *report_json(const forecast *f, const char *name, const ew_sim_report *report)
{
    char config[EW_CONFIG_TEXT_BYTES];
    if (ew_config_print(&report->config, config, sizeof config))
        config[0] = '\0';
    return json_pack("{ss ss sf sf sf sf ss sI}", "method", name, "status", "EW_OK",
                     "time_us", report->time_us, "gemm_us", report->gemm_us, "tail_us",
                     report->tail_us, "speedup", f->baseline_us / report->time_us, "config",
                     config, "crossed_bytes", (json_int_t)report->crossed_bytes);
}

static json_t *methods_json(const forecast *f)
{
    json_t *array = json_array();
    for (int at = 0; at < f->num_methods; at++) {
        const method_view *view = &f->methods[at];
        json_array_append_new(array, view->status == EW_OK
                                         ? report_json(f, view->name, &view->report)
                                         : json_pack("{ss ss ss}", "method", view->name,
                                                     "status", ew_status_name(view->status),
                                                     "error", view->why));
    }
    return array;
}

static json_t *changes_json(const forecast *f)
{
    json_t *array = json_array();
    for (int at = 0; at < f->num_changes; at++)
        json_array_append_new(
            array,
            json_pack("{ss sf sf sf}", "what", f->changes[at].what, "baseline_us",
                      f->changes[at].baseline_us, "best_us", f->changes[at].best_us,
                      "speedup", f->changes[at].baseline_us / f->changes[at].best_us));
    return array;
}

static void print_forecast_json(const forecast *f)
{
    const double gain = f->baseline_us / f->best.time_us;
    cli_json_print(json_pack(
        "{ss sb ss so s{si si si sf sf} s{sf sf sf} sf so so si ss sb sf "
        "so}",
        "schema", "entwine-forecast/1", "simulated", 1, "profile", f->hardware.name,
        "params", cli_problem_json(&f->what.problem, f->what.num_ranks), "hardware", "gpus",
        (int)f->hardware.gpus, "nodes", (int)f->hardware.nodes, "sms_per_rank",
        (int)f->hardware.sms, "link_gbs", f->link_gbs, "nic_gbs", f->hardware.nic_gbs,
        "floor", "time_us", f->floor_us, "gemm_us", f->gemm_us, "link_us", f->link_us,
        "breq_gbs", f->breq_gbs, "methods", methods_json(f), "best",
        report_json(f, "entwine", &f->best), "simulations", (int)f->tried, "baseline",
        f->baseline, "overlap_pays", (int)(gain > 1.02), "speedup", gain, "changes",
        changes_json(f)));
}

cli_exit cli_plan_profile(const cli_settings *settings)
{
    forecast f = {.asked = &settings->config};
    ew_config config = EW_CONFIG_INIT;
    ew_status status = set_case(settings, &f);
    if (status == EW_OK)
        status = config_of("entwine", &settings->config, &config);
    if (status == EW_OK)
        status = ew_sim_search(&f.what.problem, f.what.num_ranks, &config, &f.what.options,
                               &f.best, &f.tried);
    if (status)
        return cli_fail_status(status, ew_last_error());
    run_methods(settings, &f);
    derive(&f);
    find_changes(&f);
    if (settings->format == CLI_FORMAT_JSON)
        print_forecast_json(&f);
    else
        print_forecast(&f);
    return CLI_EXIT_OK;
}
