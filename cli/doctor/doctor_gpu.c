/* The doctor's look at GPUs.  CUDA is asked in a child, as everywhere in this tool. */
#include "doctor/doctor.h"

#include <stdlib.h>
#include <string.h>

#include "run/gpus.h"
#include "run/mps.h"

enum { MAX_KERNELS = 64 };

typedef struct kernel_call {
    ew_gpu_kernel kernels[MAX_KERNELS];
    int count;
    char why[CLI_ERROR_BYTES];
} kernel_call;

/* ---- None, or which ------------------------------------------------------------------ */

static void say_none(cli_doctor *d, const cli_gpus *gpus)
{
    /* A machine without GPUs is in order; one whose GPU goes unused may not be. */
    bool driver = *gpus->driver != '\0';
    cli_doctor_say(d, driver ? VERDICT_WARN : VERDICT_OK, "gpu",
                   "a driver of release 580 or later, and a build with the CUDA backend",
                   driver ? "none (%s), but driver %s is loaded" : "none (%s)%.0s",
                   gpus->why, gpus->driver);
}

static void check_driver(cli_doctor *d, const cli_gpus *gpus)
{
    const ew_gpu *gpu = &gpus->at[0];
    bool old = gpu->driver_version < gpu->runtime_version;
    cli_doctor_say(d, old ? VERDICT_WARN : VERDICT_OK, "driver",
                   "install a driver as new as the CUDA that Entwine was built with",
                   "%s for CUDA %d.%d, runtime %d.%d, %d GPU%s",
                   *gpus->driver ? gpus->driver : "unknown release",
                   gpu->driver_version / 1000, gpu->driver_version % 1000 / 10,
                   gpu->runtime_version / 1000, gpu->runtime_version % 1000 / 10,
                   gpus->count, gpus->count > 1 ? "s" : "");
}

static void check_gpu(cli_doctor *d, int index, const ew_gpu *gpu)
{
    bool hopper = gpu->arch / 10 == 9;
    cli_doctor_say(d,
                   gpu->arch < 80 ? VERDICT_FAIL
                   : hopper       ? VERDICT_OK
                                  : VERDICT_WARN,
                   "gpu",
                   gpu->arch < 80 ? "use a GPU of compute capability 8.0 or later"
                                  : "right but slower: the sm80 kernels serve it, the fast "
                                    "ones are for 9.0",
                   "%d: %s, %d SMs, compute capability %d.%d, %.1f GiB, up to %d MHz",
                   index, gpu->name, gpu->sms, gpu->arch / 10, gpu->arch % 10,
                   (double)gpu->memory_bytes / 0x1p30, gpu->clock_mhz);
    if (gpu->mig)
        cli_doctor_say(d, VERDICT_WARN, "mig", "nvidia-smi -mig 0 gives the whole GPU back",
                       "GPU %d is a MIG slice: slower, and out of reach of its peers",
                       index);
    if (gpu->exclusive)
        cli_doctor_say(d, VERDICT_WARN, "mode",
                       "nvidia-smi -c DEFAULT, or ranks share the GPU through MPS only",
                       "GPU %d admits one process at a time", index);
}

/* ---- What ranks need around them ----------------------------------------------------- */

static void check_mps(cli_doctor *d)
{
    static const char *const texts[] = {
        [CLI_MPS_NONE] = "no daemon runs, and none can be started",
        [CLI_MPS_RUNNING] = "a daemon runs and is used",
        [CLI_MPS_PRIVATE] = "none runs; entwine starts a private one where ranks share a "
                            "GPU"};
    cli_mps_kind kind = cli_mps_probe();
    cli_doctor_say(d, kind == CLI_MPS_NONE ? VERDICT_WARN : VERDICT_OK, "mps",
                   getenv("CUDA_MPS_PIPE_DIRECTORY")
                       ? "unset CUDA_MPS_PIPE_DIRECTORY: no daemon answers there"
                       : "install nvidia-cuda-mps-control, or use --ranks-as threads; "
                         "else ranks that share a GPU take turns",
                   "%s", texts[kind]);
}

static void check_variable(cli_doctor *d, const char *name, const char *wanted,
                           const char *why)
{
    const char *value = getenv(name);
    char fix[160];
    bool differs = value && strcmp(value, wanted) != 0;
    snprintf(fix, sizeof fix, "unset it, and entwine sets %s: %s", wanted, why);
    if (value)
        cli_doctor_say(d, differs ? VERDICT_WARN : VERDICT_OK, "variable", fix,
                       "%s=%.40s, as you set it", name, value);
    else
        cli_doctor_say(d, VERDICT_OK, "variable", fix,
                       "%s is not set; entwine sets it to %s", name, wanted);
}

/* Ranks export and map GPU memory for real: what the driver promises about peers is not
 * what containers, IOMMUs and MIG make of it. */
static void check_peers(cli_doctor *d, const cli_gpus *gpus)
{
    int num_ranks = gpus->count > 2 ? gpus->count : 2;
    cli_selftest test;
    ew_status status = cli_selftest_run_cuda(num_ranks, d->settings->timeout_s, &test);
    if (cli_doctor_interrupted(d, "peers"))
        return;
    if (status)
        cli_doctor_say(d, VERDICT_FAIL, "peers",
                       cli_doctor_fix(test.error,
                                      "run `entwine run --backend cuda` with this "
                                      "W and report its output"),
                       "W=%d processes on %d GPU%s: %s: %.*s", num_ranks, gpus->count,
                       gpus->count > 1 ? "s" : "", ew_status_name(status),
                       (int)strcspn(test.error, "\n"), test.error);
    else
        cli_doctor_say(d, test.wrong ? VERDICT_FAIL : VERDICT_OK, "peers",
                       "results are wrong: please report this output",
                       "W=%d processes on %d GPU%s map each other's memory: %d problems in "
                       "%.1f s%s%s, #wrong = %lld",
                       num_ranks, gpus->count, gpus->count > 1 ? "s" : "",
                       test.num_problems, test.seconds, *test.mps ? ", " : "", test.mps,
                       (long long)test.wrong);
}

/* ---- Kernels ----------------------------------------------------------------------- */

static void ask_kernels(void *argument)
{
    kernel_call *call = argument;
    if (ew_gpu_kernels(0, call->kernels, MAX_KERNELS, &call->count))
        snprintf(call->why, sizeof call->why, "%s", ew_last_error());
}

static void print_kernel(const ew_gpu_kernel *kernel)
{
    printf("  %-38s %7d %9d %9d %6d %7d", kernel->name, kernel->threads, kernel->registers,
           kernel->shared_bytes, kernel->spill_bytes, kernel->ctas_per_sm);
    if (kernel->reducers_beside[0] >= 0)
        printf("   %d / %d / %d", kernel->reducers_beside[0], kernel->reducers_beside[1],
               kernel->reducers_beside[2]);
    putchar('\n');
}

static json_t *kernel_json(const ew_gpu_kernel *kernel)
{
    json_t *beside = json_null();
    if (kernel->reducers_beside[0] >= 0)
        beside =
            json_pack("[iii]", (int)kernel->reducers_beside[0],
                      (int)kernel->reducers_beside[1], (int)kernel->reducers_beside[2]);
    return json_pack("{ss si si si si si so}", "name", kernel->name, "threads",
                     (int)kernel->threads, "registers", (int)kernel->registers,
                     "shared_bytes", (int)kernel->shared_bytes, "spill_bytes",
                     (int)kernel->spill_bytes, "ctas_per_sm", (int)kernel->ctas_per_sm,
                     "reducers_beside", beside);
}

static void show_kernels(cli_doctor *d)
{
    kernel_call call = {.count = 0};
    if (cli_run_in_child(ask_kernels, &call, sizeof call) || *call.why) {
        cli_doctor_say(d, VERDICT_WARN, "kernels", "please report this output",
                       "cannot be examined: %.*s", (int)strcspn(call.why, "\n"), call.why);
        return;
    }
    int count = call.count < MAX_KERNELS ? call.count : MAX_KERNELS;
    d->kernels = json_array();
    if (!d->as_json)
        printf("kernels on GPU 0 %31s %9s %9s %6s %7s   %s\n", "threads", "registers",
               "shared B", "spill", "per SM", "reducers beside, b=128/256/512");
    for (int at = 0; at < count; at++) {
        json_array_append_new(d->kernels, kernel_json(&call.kernels[at]));
        if (!d->as_json)
            print_kernel(&call.kernels[at]);
    }
}

void cli_doctor_gpus(cli_doctor *d)
{
    cli_gpus gpus;
    bool usable = false;
    cli_gpus_survey(&gpus);
    if (gpus.count == 0) {
        say_none(d, &gpus);
        return;
    }
    check_driver(d, &gpus);
    for (int at = 0; at < gpus.count && at < CLI_MAX_GPUS; at++) {
        check_gpu(d, at, &gpus.at[at]);
        usable = usable || gpus.at[at].arch >= 80;
    }
    check_mps(d);
    check_variable(d, "CUDA_DEVICE_MAX_CONNECTIONS", "32",
                   "streams of ranks as threads that share a queue wait for each other");
    check_variable(d, "CUDA_MODULE_LOADING", "EAGER",
                   "a kernel loaded while another waits for it is a deadlock");
    fflush(stdout);
    if (usable)
        check_peers(d, &gpus);
    if (usable && d->settings->verbose && !cli_interrupted())
        show_kernels(d);
}
