/* entwine plan: the forecast of one problem, as text or JSON. */
#include "cmd/commands.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "run/gpus.h"
#include "run/launcher.h"
#include "run/simulated.h"
#include "base/json_file.h"
#include "base/text.h"

/* What one worker, or one SM, is assumed to reach when no rate is given. */
static const double assumed_gflops_per_worker = 64.0;
static const double assumed_gflops_per_sm = 5000.0;

typedef struct plan_view {
    ew_problem problem;
    int num_ranks;
    const char *method;
    ew_forecast forecast;
    char config[EW_CONFIG_TEXT_BYTES];
    char why[EW_EXPLAIN_BYTES];
    double flops_rate; /* flop/s of one rank */
    bool rate_given;
    double gemm_seconds; /* Eq. 3 */
    double breq;         /* Eq. 4, byte/s */
} plan_view;

static double assumed_gflops(const cli_settings *settings, const plan_view *view)
{
    cli_gpus gpus;
    int workers = view->forecast.config.workers > 0 ? view->forecast.config.workers : 1;
    if (!cli_settings_bed(settings)->on_gpus)
        return assumed_gflops_per_worker * workers;
    cli_gpus_find(&gpus); /* in this very process: a plan starts no ranks */
    return assumed_gflops_per_sm * cli_gpu_sms_per_rank(&gpus, view->num_ranks);
}

static ew_status build_view(const cli_settings *settings, const cli_launch *launch,
                            plan_view *view)
{
    ew_config config = EW_CONFIG_INIT;
    bool on_gpu = cli_settings_bed(settings)->on_gpus;
    int default_ranks = launch->found ? launch->launcher.num_ranks : 2;
    const ew_problem shape = cli_settings_problem(
        settings, cli_value_or(&settings->rows, 1024), cli_value_or(&settings->cols, 1024),
        cli_value_or(&settings->depth, 512),
        (ew_dtype)cli_value_or(&settings->dtypes, on_gpu ? EW_BF16 : EW_FP32));
    view->problem = shape;
    view->num_ranks = (int)cli_value_or(&settings->ranks, default_ranks);
    view->method = settings->num_methods ? settings->methods[0] : "entwine";
    ew_status status = ew_method_config(view->method, &settings->config, &config);
    if (status == EW_OK)
        status = ew_forecast_build(&shape, view->num_ranks, &config, &view->forecast);
    if (status == EW_OK)
        status = ew_forecast_explain(&shape, view->num_ranks, &config, view->why,
                                     sizeof view->why);
    if (status == EW_OK)
        status = ew_config_print(&view->forecast.config, view->config, sizeof view->config);
    if (status)
        return status;
    view->rate_given = settings->gflops > 0;
    view->flops_rate =
        1e9 * (view->rate_given ? settings->gflops : assumed_gflops(settings, view));
    view->gemm_seconds = ew_gemm_seconds(shape.max_m, shape.n, shape.k, view->flops_rate);
    view->breq = view->forecast.remote_bytes / view->gemm_seconds;
    return EW_OK;
}

static void print_bytes(const char *name, double bytes, const char *what)
{
    printf("  %-12s %12.2f MiB  %s\n", name, bytes / 0x1p20, what);
}

static double weight_bytes(const ew_problem *shape)
{
    return (double)shape->n * (double)shape->k * (double)ew_dtype_bytes(shape->dtype);
}

/* Of a plan, what is not its weight's: bound weights (ew_weight_create) share it. */
static double shared_bytes(const ew_forecast *forecast)
{
    return (double)(forecast->total_bytes - forecast->weight_bytes);
}

static void print_view(const plan_view *view)
{
    const ew_problem *shape = &view->problem;
    const ew_forecast *forecast = &view->forecast;
    fputs(cli_op_text(shape->op), stdout);
    printf("problem   M=%" PRId64 " N=%" PRId64 " K=%" PRId64 " per rank, W=%d, %s\n",
           shape->max_m, shape->n, shape->k, view->num_ranks, ew_dtype_name(shape->dtype));
    printf("method    %s\n", view->method);
    printf("config    %s\n", view->config);
    const bool gathers = shape->op == EW_OP_AG_GEMM;
    printf("grid      %" PRId64 " producer block%s per rank, %" PRId64
           " tile%s of 128 x 128",
           forecast->num_blocks, ewx_text_plural(forecast->num_blocks), forecast->num_tiles,
           ewx_text_plural(forecast->num_tiles));
    if (!gathers)
        printf(", at most %" PRId64 " summed by a rank", forecast->max_owned_tiles);
    printf("\nmemory of one rank's plan\n");
    print_bytes("heap", (double)forecast->heap_bytes,
                gathers ? "the rank's rows and flags, shared"
                        : "contributions and flags, shared");
    print_bytes("weight", (double)forecast->weight_bytes, "packed once");
    print_bytes("workspace", (double)forecast->workspace_bytes, "packed rows and scratch");
    print_bytes("total", (double)forecast->total_bytes, "without A, B and C");
    printf("memory of a layer, on one rank\n");
    print_bytes("weight", weight_bytes(shape), "B as the caller has it");
    print_bytes("packed", (double)forecast->weight_bytes,
                forecast->weight_bytes ? "made of B once; calls read it instead of B"
                                       : "none: B is read where it lies");
    print_bytes("shared", shared_bytes(forecast),
                "heap and workspace, one plan for all layers of this shape");
    printf("work      %.3f GFLOP per rank; %.2f MiB read from peers per rank (Eq. 2)\n",
           forecast->flops * 1e-9, forecast->remote_bytes / 0x1p20);
    printf("at        %.1f GFLOP/s per rank (%s)\n", view->flops_rate * 1e-9,
           view->rate_given ? "--gflops" : "assumed; give --gflops");
    printf("  GEMM       %10.1f us (Eq. 3)\n", view->gemm_seconds * 1e6);
    printf("  B_req      %10.3f GB/s per rank hides all communication (Eq. 4)\n",
           view->breq * 1e-9);
    printf("why\n");
    for (const char *line = view->why; *line;) {
        int length = (int)strcspn(line, "\n");
        printf("  %.*s\n", length, line);
        line += length;
        line += *line == '\n';
    }
}

static void print_view_json(const plan_view *view)
{
    const ew_forecast *forecast = &view->forecast;
    cli_json_print(json_pack(
        "{ss so ss ss s{sI sI sI} s{sI sI sI sI} s{sI sI sI} sf sf s{sf sb sf sf} "
        "ss ss}",
        "schema", "entwine-plan/1", "params",
        cli_problem_json(&view->problem, view->num_ranks), "method", view->method, "config",
        view->config, "grid", "blocks", (json_int_t)forecast->num_blocks, "tiles",
        (json_int_t)forecast->num_tiles, "max_owned_tiles",
        (json_int_t)forecast->max_owned_tiles, "memory_bytes", "heap",
        (json_int_t)forecast->heap_bytes, "weight", (json_int_t)forecast->weight_bytes,
        "workspace", (json_int_t)forecast->workspace_bytes, "total",
        (json_int_t)forecast->total_bytes, "layer_bytes", "weight",
        (json_int_t)weight_bytes(&view->problem), "packed",
        (json_int_t)forecast->weight_bytes, "shared", (json_int_t)shared_bytes(forecast),
        "flops", forecast->flops, "remote_bytes", forecast->remote_bytes, "rate", "gflops",
        view->flops_rate * 1e-9, "given", (int)view->rate_given, "gemm_us",
        view->gemm_seconds * 1e6, "breq_gbs", view->breq * 1e-9, "profile",
        forecast->profile, "why", view->why));
}

cli_exit cli_plan_main(const cli_settings *settings, int argc, char **argv)
{
    cli_launch launch;
    (void)argc;
    (void)argv;
    cli_launch_detect(&launch);
    if (launch.found && launch.launcher.rank != 0)
        return CLI_EXIT_OK; /* one plan is enough */
    if (settings->num_methods && cli_method_needs_mpi(settings->methods[0]))
        return cli_fail_usage("--method entwine, sequential or blas",
                              "method '%s' has no plan: MPI does its work",
                              settings->methods[0]);
    if (cli_settings_bed(settings)->is_simulated)
        return cli_plan_profile(settings);
    plan_view *view = calloc(1, sizeof *view);
    if (!view)
        return cli_fail_memory("for the plan");
    cli_exit result = CLI_EXIT_OK;
    ew_status status = build_view(settings, &launch, view);
    if (status)
        result = cli_fail_status(status, ew_last_error());
    else if (settings->format == CLI_FORMAT_JSON)
        print_view_json(view);
    else
        print_view(view);
    free(view);
    return result;
}
