/* Facts about the machine, gathered from the library, uname and /proc. */
#include "run/context.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "run/ranks.h"
#include "base/text.h"

/* The text after `key` and its colon in a file of `key : value` lines. */
static bool find_in_file(const char *path, const char *key, char *text, size_t bytes)
{
    char line[512];
    bool found = false;
    FILE *file = fopen(path, "r");
    while (file && !found && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(text, bytes, "%s", colon);
        found = true;
    }
    if (file)
        fclose(file);
    return found;
}

/* arm64 kernels give no model name, only the designer's part number. */
static const char *arm_part_name(long part)
{
    static const struct {
        long part;
        const char *name;
    } parts[] = {{0xd03, "Cortex-A53"},  {0xd07, "Cortex-A57"},  {0xd08, "Cortex-A72"},
                 {0xd0b, "Cortex-A76"},  {0xd0c, "Neoverse-N1"}, {0xd40, "Neoverse-V1"},
                 {0xd49, "Neoverse-N2"}, {0xd4f, "Neoverse-V2"}, {0xd84, "Neoverse-V3"}};
    for (size_t at = 0; at < sizeof parts / sizeof parts[0]; at++)
        if (parts[at].part == part)
            return parts[at].name;
    return NULL;
}

static void find_cpu(char *text, size_t bytes)
{
    char part[64];
    if (find_in_file("/proc/cpuinfo", "model name", text, bytes) && *text)
        return;
    const bool found = find_in_file("/proc/cpuinfo", "CPU part", part, sizeof part);
    const char *name = found ? arm_part_name(strtol(part, NULL, 16)) : "unknown";
    snprintf(text, bytes, name ? "%s" : "ARM part %s", name ? name : part);
}

static void ask_library(void *argument)
{
    cli_context *context = argument;
    const char *blas = ew_blas_name(), *refusal = ew_cpu_kernel_refusal(EW_BF16);
    snprintf(context->fp32_kernel, CLI_TEXT_BYTES, "%s", ew_cpu_kernel_name(EW_FP32));
    snprintf(context->bf16_kernel, CLI_TEXT_BYTES, "%s", ew_cpu_kernel_name(EW_BF16));
    snprintf(context->fp16_kernel, CLI_TEXT_BYTES, "%s", ew_cpu_kernel_name(EW_FP16));
    snprintf(context->kernel_refusal, CLI_TEXT_BYTES, "%s", refusal ? refusal : "");
    snprintf(context->blas, CLI_TEXT_BYTES, "%s", blas ? blas : "");
    context->cores_usable = ew_usable_cores();
}

void cli_context_init(cli_context *context)
{
    struct utsname system;
    char memory[64];
    time_t now = time(NULL);
    struct tm utc;
    *context = (cli_context){.host = "unknown", .kernel = "unknown", .arch = "unknown"};
    if (uname(&system) == 0) {
        snprintf(context->host, CLI_TEXT_BYTES, "%s", system.nodename);
        snprintf(context->kernel, CLI_TEXT_BYTES, "%.40s %.80s", system.sysname,
                 system.release);
        snprintf(context->arch, CLI_TEXT_BYTES, "%s", system.machine);
    }
    find_cpu(context->cpu, sizeof context->cpu);
    if (find_in_file("/proc/meminfo", "MemTotal", memory, sizeof memory))
        context->memory_bytes = strtod(memory, NULL) * 1024.0;
    if (gmtime_r(&now, &utc))
        strftime(context->time, sizeof context->time, "%Y-%m-%dT%H:%M:%SZ", &utc);
    /* In a child, because naming the BLAS loads it. */
    (void)cli_run_in_child(ask_library, context, sizeof *context);
}

static json_t *text_or_null(const char *text)
{
    return *text ? json_string(text) : json_null();
}

json_t *cli_context_json(const cli_context *context, const cli_launch *launch, int argc,
                         char **argv)
{
    json_t *words = json_array();
    json_array_append_new(words, json_string("entwine")); /* not the path it lies in */
    for (int at = 1; at < argc; at++)
        json_array_append_new(words, cli_text_json(argv[at]));
    return json_pack(
        "{ss ss ss ss ss ss ss si sf s{so so so} so so so so}", "time", context->time,
        "version", ew_version(), "commit", cli_commit(), "host", context->host, "cpu",
        context->cpu, "arch", context->arch, "kernel", context->kernel, "cores_usable",
        context->cores_usable, "memory_bytes", context->memory_bytes, "micro_kernels",
        "fp32", text_or_null(context->fp32_kernel), "bf16",
        text_or_null(context->bf16_kernel), "fp16", text_or_null(context->fp16_kernel),
        "blas", text_or_null(context->blas), "launcher",
        launch && launch->joined ? json_string(launch->launcher.source) : json_null(),
        "argv", words, "env", cli_environment_json());
}

static void print_context(const cli_context *context, const cli_job *job)
{
    char text[320];
    fprintf(stderr, "# entwine %s, commit %s\n", ew_version(), cli_commit());
    fprintf(stderr, "# %s, %d usable core%s, %.1f GiB, %s %s\n", context->cpu,
            context->cores_usable, ewx_text_plural(context->cores_usable),
            context->memory_bytes / 0x1p30, context->kernel, context->arch);
    if (job->bed->on_gpus) {
        cli_gpus_text(&job->gpus, text, sizeof text);
        fprintf(stderr, "# %s\n", text);
    } else {
        cli_print(stderr, "# kernels %s (fp32), %s (bf16), %s (fp16), BLAS %s\n",
                  context->fp32_kernel, context->bf16_kernel, context->fp16_kernel,
                  *context->blas ? context->blas : "none");
    }
}

/* Ranks that a launcher has bound see fewer cores than there are. */
static void print_crowd(const cli_context *context, const cli_job *job,
                        const cli_settings *settings)
{
    const cli_launch *launch = job->ranks.launch;
    int64_t most = 0;
    for (int at = 0; at < settings->ranks.count; at++)
        most = settings->ranks.at[at] > most ? settings->ranks.at[at] : most;
    if (job->bed->on_cores && !(launch && launch->joined) && most > context->cores_usable)
        fprintf(stderr, "# W=%" PRId64 " ranks share %d core%s: right but slower\n", most,
                context->cores_usable, context->cores_usable > 1 ? "s" : "");
}

void cli_context_announce(const cli_context *context, const cli_job *job,
                          const cli_settings *settings, const char *calls)
{
    const char *mps = cli_mps_text(&job->mps);
    const bool joined = job->ranks.launch && job->ranks.launch->joined;
    ew_numa numa = {0};
    if (job->bed->on_cores && ew_numa_describe(1, &numa) == EW_OK && numa.unknown)
        cli_warn("several NUMA domains, but %s: right but slower", numa.unknown);
    if (job->mps.kind == CLI_MPS_NONE)
        cli_warn("ranks will take turns on the GPU, without MPS: %s", job->mps.why);
    if (settings->quiet)
        return;
    if (settings->format == CLI_FORMAT_TABLE) {
        print_context(context, job);
        fprintf(stderr, "# ranks %s %s%s%s%s\n", joined ? "of a launcher, found in" : "as",
                cli_ranks_as_name(&job->ranks), mps ? ", " : "", mps ? mps : "", calls);
        print_crowd(context, job, settings);
    }
    cli_environment_warn();
}

json_t *cli_context_of_job(const cli_context *context, const cli_job *job, int argc,
                           char **argv)
{
    json_t *object = cli_context_json(context, job->ranks.launch, argc, argv);
    const char *mps = cli_mps_text(&job->mps);
    if (job->bed->on_gpus) {
        json_object_set_new(object, "gpus", cli_gpus_json(&job->gpus));
        json_object_set_new(object, "mps", mps ? json_string(mps) : json_null());
    }
    return object;
}
