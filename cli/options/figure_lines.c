/* The table of figures, and the command line that each of them stands for. */
#include "options/figure_lines.h"

#include <string.h>

#include "options/option_rules.h"

enum { VARIANT_BYTES = 64 };

/* A link that is emulated has to be fast enough for the GEMM of the larger K and too slow
 * to be hidden by that of the smallest: on today's cores about this rate. */
#define CPU_LINK "--link 2.5Gb"
#define CPU_METHODS "--method entwine,sequential,blas,wavegroup,chunked"
#define GPU_METHODS                                                            \
    "--method entwine,blas,sequential,wavegroup,chunked,fused-push,fused-add," \
    "fused-tma-add,static"
#define BLAS_BASELINE " --baseline-method blas" /* as in the paper */
#define LAYER_METHODS                                                                \
    "--method entwine+fused,entwine+following,entwine+separate,sequential+separate," \
    "blas+separate,wavegroup+separate,chunked+separate"
#define LAYER_BASELINE " --baseline-method entwine+separate"
#define GPU_LAYER_METHODS LAYER_METHODS ",fused-push+separate" LAYER_BASELINE
#define RELEASES "release=tile release=2 release=4 release=8 release=16"
#define ORDERS "order=interleaved order=default order=contiguous"
#define SLICE_SHAPE \
    "-m 2048 -N 4864 -W 8 -d fp16 " /* 8192 x 8192 by the rule of vnode.suite */
/* So many bytes that latencies are less than a hundredth of their time. */
#define LINK_SHAPE "-m 16K -N 4864 -k 2K -W 8 -d fp16"
#define ISOLATED "release=output,pool=after"
/* Beside the GEMM an SM has room for one reducing CTA of 256 threads, or two of 128. */
#define NARROW_BUDGETS "b=128,x=8 b=128,x=16 b=128,x=24 b=128,x=32"
#define NODE_SHAPE "-m 8K -N 8K -W 8 -d fp16 "

typedef struct setup {
    const char *problems; /* options: a suite, or shapes */
    const char *methods;  /* options; NULL: none */
    const char *policies; /* variants; NULL: none */
    const char *budgets;  /* each policy is measured with each of them; NULL: as it is */
    const char *rest;     /* further options */
} setup;

typedef struct figure {
    const char *name;
    setup cpu, cuda, sim;
} figure;

static const figure figures[] = {
    {.name = "speedup",
     .cpu = {"--suite cpu:main", CPU_METHODS, NULL, NULL, CPU_LINK},
     .cuda = {"--suite vnode:main", GPU_METHODS BLAS_BASELINE, NULL, NULL, ""},
     .sim = {"--suite paper:main", GPU_METHODS BLAS_BASELINE, NULL, NULL, ""}},
    {.name = "layer",
     .cpu = {"--suite layer:cpu", LAYER_METHODS LAYER_BASELINE, NULL, NULL, ""},
     .cuda = {"--suite layer:vnode", GPU_LAYER_METHODS, NULL, NULL, ""},
     .sim = {"--suite layer:node", GPU_LAYER_METHODS, NULL, NULL, ""}},
    {.name = "order",
     .cpu = {"-m 1K -N 1K -k 256,1K", NULL, ORDERS, NULL, CPU_LINK},
     .cuda = {SLICE_SHAPE "-k 512,2K", NULL, ORDERS, "x=4 x=8 x=16 x=32", ""},
     .sim = {NODE_SHAPE "-k 512,2K", NULL, ORDERS, "x=16 x=32 x=64 x=128", ""}},
    {.name = "release",
     .cpu = {"-m 1K -N 1K -k 256,512,1K", "--method sequential",
             RELEASES " release=partition", NULL, CPU_LINK},
     .cuda = {SLICE_SHAPE "-k 2K,4K,8K", "--method sequential",
              RELEASES " release=32 release=partition", "x=8 x=16 x=32", ""},
     .sim = {NODE_SHAPE "-k 2K,4K,8K", "--method sequential",
             RELEASES " release=32 release=partition", "x=16 x=32 x=64", ""}},
    {.name = "pool",
     .cpu = {"-m 1K -N 1K -k 256,1K", NULL, "workers=2,pool=shared workers=2,pool=static",
             "x=1", CPU_LINK},
     .cuda = {SLICE_SHAPE "-k 512,2K", NULL, "pool=shared pool=static",
              "x=2 x=4 x=8 x=16 x=32", ""},
     .sim = {NODE_SHAPE "-k 512,2K", NULL, "pool=shared pool=static",
             "x=16 x=32 x=64 x=128", ""}},
    {.name = "budget",
     .cpu = {"-m 1K -N 1K -k 64,96,128,192,256,384,512,1K", NULL, "workers=4",
             "x=1 x=2 x=3 x=4", CPU_LINK},
     .cuda = {SLICE_SHAPE "-k 512,768,1K,1536,2K,3K,4K,8K", NULL, NULL,
              "x=1 x=2 x=4 x=6 x=8 x=12 x=16 " NARROW_BUDGETS, ""},
     .sim = {NODE_SHAPE "-k 512,768,1K,1536,2K,3K,4K,8K", NULL, NULL,
             "x=4 x=8 x=16 x=24 x=32 x=48 x=64 x=96 x=128", ""}},
    {.name = "bandwidth",
     .cpu = {"-m 2K -N 2K -k 64", NULL, "workers=4,release=output", "x=1 x=2 x=3 x=4", ""},
     .cuda = {SLICE_SHAPE "-k 512", NULL, ISOLATED,
              "x=1 x=2 x=4 x=6 x=8 x=12 x=16 x=24 x=32 x=48", ""},
     .sim = {NODE_SHAPE "-k 512", NULL, ISOLATED,
             "x=4 x=8 x=16 x=24 x=32 x=48 x=64 x=96 x=128", ""}},
    {.name = "required",
     .cpu = {"--suite cpu:main", "--method entwine", NULL, NULL, CPU_LINK},
     .cuda = {"--suite vnode:main", "--method entwine", NULL, NULL, "-W 4,8"},
     .sim = {"--suite paper:main", "--method entwine", NULL, NULL, "-W 4,8"}},
    {.name = "waves",
     .cpu = {"-m 128-4K*2 -N 512 -k 256", CPU_METHODS, NULL, NULL, CPU_LINK},
     .cuda = {"--suite vnode", GPU_METHODS, NULL, NULL, ""},
     .sim = {"--suite paper", GPU_METHODS, NULL, NULL, ""}},
    {.name = "scaling",
     .cpu = {"-m 1K -N 512,1K -k 256,512", CPU_METHODS, NULL, NULL, "-W 2,4,8 " CPU_LINK},
     .cuda = {"--suite vnode:main", GPU_METHODS, NULL, NULL, "-W 2,4,8"},
     .sim = {"--suite paper:main", GPU_METHODS, NULL, NULL, "-W 2,4,8"}},
    {.name = "link",
     .cpu = {"-m 1K -N 1K -k 256", CPU_METHODS, "workers=4,release=output", "x=2 x=4",
             CPU_LINK},
     .cuda = {LINK_SHAPE, GPU_METHODS, ISOLATED, "x=8 x=16 x=32", ""},
     .sim = {LINK_SHAPE, GPU_METHODS, ISOLATED, "x=8 x=16 x=32", ""}},
};
enum { NUM_FIGURES = sizeof figures / sizeof figures[0] };

static const figure *find(const char *name)
{
    for (int at = 0; at < NUM_FIGURES; at++)
        if (strcmp(figures[at].name, name) == 0)
            return &figures[at];
    return NULL;
}

static const char *const *list_names(void)
{
    static const char *names[NUM_FIGURES + 1];
    for (int at = 0; at < NUM_FIGURES; at++)
        names[at] = figures[at].name;
    return names;
}

/* ---- Its command line ------------------------------------------------------------ */

static void add_word(cli_figure_line *line, const char *word, size_t length)
{
    if (line->count < CLI_FIGURE_WORDS && line->used + length < sizeof line->text) {
        char *place = line->text + line->used;
        memcpy(place, word, length);
        place[length] = '\0';
        line->words[line->count++] = place;
        line->used += length + 1;
    }
}

/* The words of a text, which blanks part. */
static void add_words(cli_figure_line *line, const char *text)
{
    while (text && *text) {
        size_t length = strcspn(text, " ");
        if (length)
            add_word(line, text, length);
        text += length + (text[length] == ' ');
    }
}

/* --variant POLICY,BUDGET for each pair; either list may be missing. */
static void add_variants(cli_figure_line *line, const char *policies, const char *budgets)
{
    const char *policy = policies ? policies : "";
    do {
        size_t policy_length = strcspn(policy, " ");
        const char *budget = budgets ? budgets : "";
        do {
            char variant[VARIANT_BYTES];
            size_t budget_length = strcspn(budget, " ");
            int length = snprintf(variant, sizeof variant, "%.*s%s%.*s", (int)policy_length,
                                  policy, policy_length && budget_length ? "," : "",
                                  (int)budget_length, budget);
            add_words(line, "--variant");
            add_word(line, variant, (size_t)length);
            budget += budget_length + (budget[budget_length] == ' ');
        } while (*budget);
        policy += policy_length + (policy[policy_length] == ' ');
    } while (*policy);
}

/* The figure's options, less what the user's replace as a whole. */
static void build_line(const figure *wanted, const cli_settings *given,
                       cli_figure_line *line)
{
    const cli_bed *bed = cli_settings_bed(given);
    const setup *options = bed->is_simulated ? &wanted->sim
                           : bed->on_gpus    ? &wanted->cuda
                                             : &wanted->cpu;
    const bool has_shape = given->rows.count || given->cols.count || given->depth.count;
    const bool is_suite = strncmp(options->problems, "--suite", strlen("--suite")) == 0;
    if (!given->suite && !(is_suite && has_shape))
        add_words(line, options->problems);
    if (!given->num_methods && !given->num_variants) {
        add_words(line, options->methods);
        if (options->policies || options->budgets)
            add_variants(line, options->policies, options->budgets);
    }
    add_words(line, options->rest);
}

cli_exit cli_figure_apply(const cli_command *command, int argc, char **argv,
                          cli_figure_line *line, cli_settings *settings)
{
    const figure *wanted = find(settings->figure);
    char fix[160], near[96];
    if (!wanted) {
        cli_names_text(list_names(), fix, sizeof fix);
        cli_suggestion(settings->figure, list_names(), near, sizeof near);
        return cli_fail_usage(fix, "there is no figure '%.60s'%s", settings->figure, near);
    }
    *line = (cli_figure_line){.used = 0};
    add_words(line, argv[0]);
    build_line(wanted, settings, line);
    for (int at = 1; at < argc; at++) {
        if (line->count == CLI_FIGURE_WORDS)
            return cli_fail_usage("leave some out", "too many options for a figure");
        line->words[line->count++] = argv[at];
    }
    return cli_options_parse(command, line->count, line->words, settings);
}
