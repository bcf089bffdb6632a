/* block_bench: a whole MLP block, a seam between two half layers, or a training step of
 * four projections, on one GPU as a virtual node, against cuBLAS with our collectives and
 * against our own kernels one after the other.  docs/EVALUATION.md says what the figures
 * mean.
 *
 * Ranks are processes under MPS, which can replay graphs side by side; as threads they
 * enqueue every call. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "block.h"

#include "base/interrupt.h"
#include "base/stats.h"
#include "run/context.h"
#include "run/mps.h"

static const char usage[] =
    "usage: block_bench [--case mlp|o-up|down-qkv|training] [--method entwine,...]\n"
    "  -W RANKS  -m ROWS  --hidden N  --inner N  --qkv N  --attention N   of the model\n"
    "  --link GB/S (0: none)  --ranks-as processes|threads  -w WARM-UPS  -n SAMPLES\n"
    "  --rounds N  --calls N (in a row, in each round)  --idle X  --seed N\n"
    "  --gather-config TEXT  --scatter-config TEXT   of method entwine\n"
    "  --limit SECONDS (of the whole run)  -o table|json\n";

typedef struct settings {
    block_options options;
    char methods[64];
    int limit_s;
    bool json;
} settings;

/* ---- Options ---- */

typedef struct number_option {
    const char *name;
    double *place; /* one of the next three */
    int64_t *large;
    int *small;
    double least, most;
} number_option;

static bool set_number(const number_option *table, size_t count, const char *name,
                       const char *text)
{
    for (size_t i = 0; i < count; i++) {
        const number_option *option = &table[i];
        char *end;
        if (strcmp(option->name, name) != 0)
            continue;
        const double value = strtod(text, &end);
        if (*end || end == text || !(value >= option->least && value <= option->most)) {
            fprintf(stderr, "block_bench: %s '%s' is not a number from %g to %g\n", name,
                    text, option->least, option->most);
            exit(CLI_EXIT_USAGE);
        }
        if (option->place)
            *option->place = value;
        if (option->large)
            *option->large = (int64_t)value;
        if (option->small)
            *option->small = (int)value;
        return true;
    }
    return false;
}

static bool set_text(settings *s, const char *name, const char *text)
{
    block_options *o = &s->options;
    if (strcmp(name, "--case") == 0)
        o->name = text;
    else if (strcmp(name, "--method") == 0 && strlen(text) < sizeof s->methods)
        strcpy(s->methods, text);
    else if (strcmp(name, "--gather-config") == 0)
        o->gather_config = text;
    else if (strcmp(name, "--scatter-config") == 0)
        o->scatter_config = text;
    else if (strcmp(name, "--ranks-as") == 0 && strcmp(text, "threads") == 0)
        o->ranks_as = EW_RANKS_AS_THREADS;
    else if (strcmp(name, "--ranks-as") == 0 && strcmp(text, "processes") == 0)
        o->ranks_as = EW_RANKS_AS_PROCESSES;
    else if (strcmp(name, "-o") == 0)
        s->json = strcmp(text, "json") == 0;
    else
        return false;
    return true;
}

static void read_options(settings *s, int argc, char **argv)
{
    block_options *o = &s->options;
    double seed = o->seed;
    const double most = 1 << 24;
    const number_option numbers[] = {
        {"-W", NULL, NULL, &o->num_ranks, 2, EWX_CUDA_MAX_RANKS},
        {"-m", NULL, &o->m, NULL, 1, most},
        {"--hidden", NULL, &o->hidden, NULL, 8, most},
        {"--inner", NULL, &o->inner, NULL, 8, most},
        {"--qkv", NULL, &o->qkv, NULL, 8, most},
        {"--attention", NULL, &o->attention, NULL, 8, most},
        {"--link", &o->link_gbs, NULL, NULL, 0, 1e4},
        {"-w", NULL, NULL, &o->warmup, 0, MAX_SAMPLES},
        {"-n", NULL, NULL, &o->samples, 1, MAX_SAMPLES},
        {"--rounds", NULL, NULL, &o->rounds, 0, MAX_SAMPLES},
        {"--calls", NULL, NULL, &o->calls, 1, 100},
        {"--idle", &o->idle, NULL, NULL, 0, 100},
        {"--seed", &seed, NULL, NULL, 0, most},
        {"--limit", NULL, NULL, &s->limit_s, 1, 3600},
    };
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc &&
            (set_number(numbers, sizeof numbers / sizeof *numbers, argv[i], argv[i + 1]) ||
             set_text(s, argv[i], argv[i + 1])))
            continue;
        fprintf(stderr, "block_bench: '%s' is unknown, or has no such value\n%s", argv[i],
                usage);
        exit(CLI_EXIT_USAGE);
    }
    o->seed = (uint32_t)seed;
}

/* Where a case has a rival's kernels for all of its steps. */
static const char *default_methods(const char *name)
{
    return strcmp(name, "training") == 0 ? "entwine,sequential" : "entwine,sequential,blas";
}

static void take_methods(settings *s)
{
    block_options *o = &s->options;
    char *rest = NULL;
    if (!*s->methods)
        strcpy(s->methods, default_methods(o->name));
    for (char *name = strtok_r(s->methods, ",", &rest); name;
         name = strtok_r(NULL, ",", &rest)) {
        if (o->num_methods == MAX_METHODS ||
            (strcmp(name, "entwine") != 0 && strcmp(name, "sequential") != 0 &&
             strcmp(name, "blas") != 0)) {
            fprintf(stderr,
                    "block_bench: method '%s'\n  fix: use entwine, sequential and "
                    "blas, each once\n",
                    name);
            exit(CLI_EXIT_USAGE);
        }
        o->methods[o->num_methods++] = name;
    }
}

static void check_options(const block_options *o)
{
    const int64_t unit = 8 * o->num_ranks;
    bool known = false;
    for (const char *const *name = block_cases; *name; name++)
        known |= strcmp(*name, o->name) == 0;
    if (!known) {
        fprintf(stderr, "block_bench: case '%s' is unknown\n%s", o->name, usage);
        exit(CLI_EXIT_USAGE);
    }
    if (o->inner % unit || o->qkv % unit || o->attention % unit || o->hidden % 8) {
        fprintf(stderr,
                "block_bench: --inner %lld, --qkv %lld or --attention %lld is no multiple "
                "of 8 W = %lld, or --hidden %lld none of 8\n",
                (long long)o->inner, (long long)o->qkv, (long long)o->attention,
                (long long)unit, (long long)o->hidden);
        exit(CLI_EXIT_USAGE);
    }
}

/* ---- Figures ---- */

static const block_result *result_of(const block_results *r, const char *method)
{
    for (int i = 0; i < r->options->num_methods; i++)
        if (strcmp(r->options->methods[i], method) == 0)
            return &r->methods[i];
    return NULL;
}

/* What no schedule of single steps can beat, and none that joins them. */
typedef struct floors {
    double sum_us;   /* of max(own GEMM alone, bytes / link) */
    double chain_us; /* max(all GEMMs, all bytes / link) */
} floors;

/* Our GEMM alone is that of the method in which nothing runs beside it; gradients are in
 * neither floor.  NAN without that method. */
static floors find_floors(const block_results *r)
{
    const block_result *alone = result_of(r, "sequential");
    double sum_us = 0, gemm_us = 0, link_us = 0;
    for (int i = 0; i < r->num_steps && alone; i++) {
        sum_us += fmax(alone->steps[i].gemm_us, r->steps[i].link_us);
        gemm_us += alone->steps[i].gemm_us;
        link_us += r->steps[i].link_us;
    }
    return alone ? (floors){sum_us, fmax(gemm_us, link_us)} : (floors){NAN, NAN};
}

static bool has_gradients(const block_results *r)
{
    for (int i = 0; i < r->num_steps; i++)
        if (!r->steps[i].has_plan)
            return true;
    return false;
}

static double variation(const block_result *result)
{
    double sum = 0, squares = 0;
    const int count = result->num_samples;
    for (int i = 0; i < count; i++)
        sum += result->samples_us[i];
    for (int i = 0; i < count; i++)
        squares +=
            (result->samples_us[i] - sum / count) * (result->samples_us[i] - sum / count);
    return count > 1 ? sqrt(squares / (count - 1)) / (sum / count) : 0;
}

/* From the end of one step to the beginning of the next. */
static double seam_us(const block_result *result, int at)
{
    return result->steps[at + 1].begin_us - result->steps[at].end_us;
}

/* ---- Table ---- */

static void print_steps(const block_results *r)
{
    for (int which = 0; which < r->options->num_methods; which++) {
        const block_result *result = &r->methods[which];
        for (int i = 0; i < r->num_steps; i++)
            if (r->steps[i].has_plan)
                printf("%-11s %-12s begins %10.1f us  GEMM %10.1f  ends %10.1f  link "
                       "%8.1f  %s\n",
                       r->options->methods[which], r->steps[i].name,
                       result->steps[i].begin_us, result->steps[i].gemm_us,
                       result->steps[i].end_us, r->steps[i].link_us, result->notes[i]);
    }
}

static void print_table(const block_results *r)
{
    const block_options *o = r->options;
    const floors f = find_floors(r);
    printf("# %s, W=%d m=%lld hidden=%lld inner=%lld bf16, VIRTUAL NODE, link %g GB/s "
           "(EMULATED), %d samples, %d rounds of %d calls\n",
           o->name, o->num_ranks, (long long)o->m, (long long)o->hidden,
           (long long)o->inner, o->link_gbs, o->samples, o->rounds, o->calls);
    printf("%-11s %10s %8s %7s %10s %8s %7s %10s %9s\n", "method", "time ms", "/first",
           "cv", "in a row", "/first", "#wrong", "#different", "by up to");
    for (int i = 0; i < o->num_methods; i++) {
        const block_result *one = &r->methods[i], *first = &r->methods[0];
        printf("%-11s %10.3f %8.3f %6.2f%% %10.3f %8.3f %7lld %10lld %9.3g\n",
               o->methods[i], one->time_us * 1e-3, one->time_us / first->time_us,
               100 * variation(one), one->graph_us * 1e-3,
               first->graph_us > 0 ? one->graph_us / first->graph_us : 0,
               (long long)one->wrong, (long long)one->different, one->worst);
    }
    if (!has_gradients(r))
        printf(
            "sum of floors %.3f ms: %.3f of it %s, %.3f in a row; chained %.3f ms: %.3f\n",
            f.sum_us * 1e-3, r->methods[0].time_us / f.sum_us,
            r->methods[0].in_graph ? "in one graph" : "without a graph",
            r->methods[0].graph_us / f.sum_us, f.chain_us * 1e-3,
            r->methods[0].time_us / f.chain_us);
    print_steps(r);
}

/* ---- Document ---- */

static json_t *numbers_json(const double *values, int count)
{
    json_t *array = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(array, cli_number_json(values[i]));
    return array;
}

static json_t *steps_json(const block_results *r, const block_result *result)
{
    json_t *steps = json_array();
    for (int i = 0; i < r->num_steps; i++) {
        const block_window *window = &result->steps[i];
        if (!r->steps[i].has_plan) {
            json_array_append_new(steps, json_pack("{ss}", "name", r->steps[i].name));
            continue;
        }
        json_t *step = json_pack("{ss ss ss sf sf sf sf}", "name", r->steps[i].name,
                                 "config", result->configs[i], "note", result->notes[i],
                                 "begin_us", window->begin_us, "gemm_us", window->gemm_us,
                                 "end_us", window->end_us, "link_us", r->steps[i].link_us);
        if (i + 1 < r->num_steps && r->steps[i + 1].has_plan)
            json_object_set_new(step, "seam_us", cli_number_json(seam_us(result, i)));
        json_array_append_new(steps, step);
    }
    return steps;
}

static json_t *params_json(const block_results *r)
{
    const block_options *o = r->options;
    return json_pack(
        "{ss si sI sI sI sI sI sf ss si si si si sf sI ss}", "case", o->name, "ranks",
        o->num_ranks, "m", (json_int_t)o->m, "hidden", (json_int_t)o->hidden, "inner",
        (json_int_t)o->inner, "qkv", (json_int_t)o->qkv, "attention",
        (json_int_t)o->attention, "link_gbs", o->link_gbs, "ranks_as",
        o->ranks_as == EW_RANKS_AS_THREADS ? "threads" : "processes", "iters", o->samples,
        "warmup", o->warmup, "rounds", o->rounds, "calls", o->calls, "idle", o->idle,
        "seed", (json_int_t)o->seed, "dtype", "bf16");
}

static json_t *result_json(const block_results *r, int which)
{
    const block_result *result = &r->methods[which];
    const floors f = find_floors(r);
    json_t *object = json_pack(
        "{so ss ss sb sf sf so si so so s{sI} sI so so}", "params", params_json(r),
        "method", r->options->methods[which], "config", "", "in_graph",
        (int)result->in_graph, "time_us", result->time_us, "cv", variation(result),
        "samples_us", numbers_json(result->samples_us, result->num_samples), "discarded",
        result->discarded, "graph_us",
        result->graph_us > 0 ? json_real(result->graph_us) : json_null(), "graphs_us",
        numbers_json(result->graphs_us, result->num_graphs), "check", "wrong",
        (json_int_t)result->wrong, "different", (json_int_t)result->different,
        "different_by", cli_number_json(result->worst), "steps", steps_json(r, result));
    if (!has_gradients(r))
        cli_json_merge(object, json_pack("{so so}", "floors_us", cli_number_json(f.sum_us),
                                         "chain_floor_us", cli_number_json(f.chain_us)));
    return object;
}

static void print_json(const block_results *r, json_t *context)
{
    json_t *results = json_array();
    for (int i = 0; i < r->options->num_methods; i++)
        json_array_append_new(results, result_json(r, i));
    cli_json_print(json_pack("{ss so sb so so}", "schema", "entwine-block/1", "context",
                             context, "complete", 1, "results", results, "clocks",
                             cli_gpu_clocks()));
}

/* ---- The run ---- */

static void on_limit(int number)
{
    static const char text[] = "block_bench: not done within --limit\n";
    (void)number;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(CLI_EXIT_ENVIRONMENT);
    _exit(CLI_EXIT_PEER); /* its ranks die with it, and the MPS daemon ends itself */
}

static json_t *describe_run(const cli_mps *mps, int argc, char **argv, cli_exit *result)
{
    cli_context context;
    cli_gpus gpus;
    cli_gpus_survey(&gpus);
    if (gpus.count == 0) {
        fprintf(stderr, "block_bench: no GPU: %s\n", gpus.why);
        *result = CLI_EXIT_SKIPPED;
    }
    cli_context_init(&context);
    json_t *object = cli_context_json(&context, NULL, argc, argv);
    json_array_set_new(json_object_get(object, "argv"), 0, json_string("block_bench"));
    json_object_set_new(object, "gpus", cli_gpus_json(&gpus));
    json_object_set_new(object, "mps",
                        cli_mps_text(mps) ? json_string(cli_mps_text(mps)) : json_null());
    return object;
}

/* cuBLAS may sum in another order, which costs a rounding here and there; all other methods
 * have the same bits. */
static bool is_right(const block_results *r, int which)
{
    const block_result *result = &r->methods[which];
    const bool may_differ = strcmp(r->options->methods[which], "blas") == 0 ||
                            strcmp(r->options->methods[0], "blas") == 0;
    return result->wrong == 0 &&
           (may_differ ? result->worst <= 1.0 / 64 : result->different == 0);
}

static cli_exit run_ranks(const settings *s, block_results *results)
{
    const block_options *o = &s->options;
    cli_ranks ranks = {.kind = o->ranks_as, .options = EW_WORLD_OPTIONS_INIT};
    char error[CLI_ERROR_BYTES];
    ranks.options.link_gbps = 8 * o->link_gbs;
    const ew_status status =
        cli_ranks_run(&ranks, o->num_ranks, block_measure, results, error);
    if (cli_interrupted())
        return CLI_EXIT_INTERRUPTED;
    if (status != EW_OK)
        return cli_fail_status(status, error);
    for (int i = 0; i < o->num_methods; i++)
        if (!is_right(results, i))
            return CLI_EXIT_WRONG;
    return CLI_EXIT_OK;
}

static cli_exit open_bed(const settings *s, cli_mps *mps)
{
    const bool in_threads = s->options.ranks_as == EW_RANKS_AS_THREADS;
    cli_cuda_environment(in_threads);
    if (in_threads)
        return CLI_EXIT_OK;
    cli_mps_open(mps);
    if (mps->kind != CLI_MPS_NONE)
        return CLI_EXIT_OK;
    fprintf(stderr,
            "block_bench: ranks as processes would take turns on the GPU, without MPS: "
            "%s\n  fix: install it, or use --ranks-as threads\n",
            mps->why);
    return CLI_EXIT_SKIPPED;
}

int main(int argc, char **argv)
{
    settings s = {.limit_s = 300,
                  .options = {.name = "mlp",
                              .num_ranks = 8,
                              .m = 8192,
                              .hidden = 8192,
                              .inner = 28672,
                              .qkv = 10240,
                              .attention = 8192,
                              .link_gbs = 46,
                              .gather_config = "",
                              .scatter_config = "",
                              .ranks_as = EW_RANKS_AS_PROCESSES,
                              .warmup = 2,
                              .samples = 15,
                              .rounds = 5,
                              .calls = 20,
                              .idle = 1,
                              .seed = 1}};
    cli_mps mps = {.kind = CLI_MPS_UNUSED};
    read_options(&s, argc, argv);
    check_options(&s.options);
    take_methods(&s);
    signal(SIGALRM, on_limit);
    alarm((unsigned)s.limit_s);
    cli_json_init();
    block_results *results = cli_shared_alloc(sizeof *results);
    if (!results || !cli_interrupt_open())
        return cli_fail(EW_ERR_MEMORY, "free some", "no memory for results");
    results->options = &s.options;
    cli_exit result = open_bed(&s, &mps);
    json_t *context = result ? NULL : describe_run(&mps, argc, argv, &result);
    if (!result)
        result = run_ranks(&s, results);
    cli_mps_close(&mps);
    if (result == CLI_EXIT_OK || result == CLI_EXIT_WRONG) {
        if (s.json)
            print_json(results, context);
        else
            print_table(results);
    }
    return result;
}
