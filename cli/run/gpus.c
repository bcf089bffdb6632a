/* What the library, /sys and nvidia-smi say about GPUs. */
#include "run/gpus.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/process.h"
#include "run/ranks.h"

static const double smi_seconds = 10.0;

static void find_driver(char *version, size_t bytes)
{
    FILE *file = fopen("/sys/module/nvidia/version", "r");
    if (!file || !fgets(version, (int)bytes, file))
        version[0] = '\0';
    version[strcspn(version, "\n")] = '\0';
    if (file)
        fclose(file);
}

void cli_gpus_find(cli_gpus *gpus_out)
{
    cli_gpus *gpus = gpus_out;
    *gpus = (cli_gpus){.count = ew_gpu_count()};
    find_driver(gpus->driver, sizeof gpus->driver);
    for (int at = 0; at < (gpus->count ? gpus->count : 1) && at < CLI_MAX_GPUS; at++) {
        if (ew_gpu_describe(at, &gpus->at[at]) == EW_OK)
            continue;
        const char *text = ew_last_error();
        snprintf(gpus->why, sizeof gpus->why, "%.*s", (int)strcspn(text, "\n"), text);
        gpus->count = 0;
    }
}

static void find_in_child(void *argument)
{
    cli_gpus_find(argument);
}

void cli_gpus_survey(cli_gpus *gpus_out)
{
    *gpus_out = (cli_gpus){.why = "asking for GPUs ended abnormally"};
    (void)cli_run_in_child(find_in_child, gpus_out, sizeof *gpus_out);
}

int cli_gpu_sharers(const cli_gpus *gpus, int num_ranks)
{
    return gpus->count > 0 ? (num_ranks + gpus->count - 1) / gpus->count : 0;
}

int cli_gpu_sms_per_rank(const cli_gpus *gpus, int num_ranks)
{
    const int sharers = cli_gpu_sharers(gpus, num_ranks), sms = gpus->at[0].sms;
    const char *text = getenv("ENTWINE_GPU_SHARES"); /* the library refuses a bad one */
    const int asked = text ? atoi(text) : 0;
    const int shares = asked > sharers ? asked : sharers;
    return sharers > 1 ? sms / 8 / shares * 8 : sms;
}

void cli_cuda_environment(bool one_process)
{
    /* All ranks of one process share its queues; processes have their own, and 8 x 32 of
     * them are more than MPS can connect. */
    if (one_process)
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

void cli_gpus_text(const cli_gpus *gpus, char *text, size_t bytes)
{
    const ew_gpu *gpu = &gpus->at[0]; /* a world has GPUs of one kind */
    char number[16] = "";
    if (gpus->count > 1)
        snprintf(number, sizeof number, "%d x ", gpus->count);
    snprintf(text, bytes,
             "%s%s, %d SMs of compute capability %d.%d, %.1f GiB, up to %d MHz; driver "
             "%s for CUDA %d.%d, runtime %d.%d",
             number, gpu->name, gpu->sms, gpu->arch / 10, gpu->arch % 10,
             (double)gpu->memory_bytes / 0x1p30, gpu->clock_mhz,
             *gpus->driver ? gpus->driver : "unknown", gpu->driver_version / 1000,
             gpu->driver_version % 1000 / 10, gpu->runtime_version / 1000,
             gpu->runtime_version % 1000 / 10);
}

json_t *cli_gpus_json(const cli_gpus *gpus)
{
    json_t *array = json_array();
    for (int at = 0; at < gpus->count && at < CLI_MAX_GPUS; at++) {
        const ew_gpu *gpu = &gpus->at[at];
        json_array_append_new(
            array,
            json_pack("{ss ss si si si si si sI sb sb ss}", "name", gpu->name, "uuid",
                      gpu->uuid, "sms", (int)gpu->sms, "arch", (int)gpu->arch, "clock_mhz",
                      (int)gpu->clock_mhz, "driver_version", (int)gpu->driver_version,
                      "runtime_version", (int)gpu->runtime_version, "memory_bytes",
                      (json_int_t)gpu->memory_bytes, "mig", (int)gpu->mig, "exclusive",
                      (int)gpu->exclusive, "driver", gpus->driver));
    }
    return array;
}

json_t *cli_gpu_clocks(void)
{
    static const char *const argv[] = {"nvidia-smi", "--query-gpu=" CLI_CLOCKS_QUERY,
                                       "--format=csv,noheader", NULL};
    char text[2048], *rest = NULL;
    if (!cli_process_exists(argv[0]) ||
        cli_process_run(argv, "", smi_seconds, text, sizeof text) != 0)
        return json_null();
    json_t *lines = json_array();
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        json_array_append_new(lines, json_string(line));
    return lines;
}
