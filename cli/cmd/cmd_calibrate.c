/* entwine calibrate: measures this machine's profile and writes it. */
#include "cmd/commands.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "sim/calibrate.h"
#include "run/context.h"
#include "entwine/sim.h"
#include "entwine/tune.h"
#include "base/interrupt.h"
#include "run/job.h"
#include "base/out_file.h"
#include "run/simulated.h"

enum { SLICED_RANKS = 8 }; /* on a machine with one GPU */
/* The quiet gate of calls on a cpu, where every rank has a core. */
static const double quiet_ms = 0.1;

/* Probes of one shape. */
typedef struct shape {
    int first; /* of the probes */
    cli_problem problem;
    cli_job job;
} shape;

typedef struct calibrator {
    const cli_settings *settings;
    cli_settings job_settings; /* with the ranks chosen */
    cli_job job;               /* what all shapes have in common */
    cli_context context;
    cli_out_file file;
    char path[PATH_MAX];
    char date[16];
    char command[256];
    bool uses_nccl;
    calibration c;
    shape shapes[CALIBRATE_PROBES];
    int num_shapes;
} calibrator;

/* ---- The machine ---- */

/* The name before the cores in a tuning key. */
static void name_cpu(calibrate_machine *m)
{
    const ew_problem any = EW_PROBLEM(128, 128, 128, EW_FP32);
    char key[EW_TUNING_KEY_BYTES];
    const char *name = NULL, *end = NULL;
    if (ew_tuning_key(&any, m->num_ranks, EW_BACKEND_CPU, key, sizeof key) == EW_OK)
        name = strstr(key, ",device=");
    if (name) {
        name += strlen(",device=");
        end = strchr(name, '/');
    }
    if (end && (size_t)(end - name) < sizeof m->device)
        snprintf(m->device, sizeof m->device, "%.*s", (int)(end - name), name);
}

static void find_cuda(const calibrator *k, const cli_gpus *gpus, calibrate_machine *m)
{
    const ew_gpu *gpu = &gpus->at[0];
    m->num_ranks = k->settings->ranks.count ? (int)k->settings->ranks.at[0]
                   : gpus->count > 1        ? gpus->count
                                            : SLICED_RANKS;
    m->sharers = cli_gpu_sharers(gpus, m->num_ranks);
    m->gpus = m->sharers > 1 ? gpus->count : m->num_ranks;
    m->sms = gpu->sms;
    m->sms_per_rank = cli_gpu_sms_per_rank(gpus, m->num_ranks);
    m->arch = gpu->arch;
    snprintf(m->device, sizeof m->device, "%s", gpu->name);
}

static ew_status find_simulated(const calibrator *k, calibrate_machine *m)
{
    ew_sim_hardware whole, share;
    ew_status status = ew_sim_describe(NULL, 1, &whole);
    if (status)
        return status;
    m->is_gpu = !whole.is_cpu;
    m->num_ranks = k->settings->ranks.count ? (int)k->settings->ranks.at[0]
                   : whole.is_cpu           ? 2
                   : whole.gpus > 1         ? (whole.gpus < 8 ? (int)whole.gpus : 8)
                                            : SLICED_RANKS;
    status = ew_sim_describe(NULL, m->num_ranks, &share);
    m->cores = whole.sms;
    m->gpus = share.sharers > 1 ? whole.gpus : m->num_ranks;
    m->sharers = share.sharers;
    m->sms = whole.sms;
    m->sms_per_rank = share.sms;
    m->arch = whole.arch;
    return status;
}

static cli_exit find_machine(calibrator *k)
{
    const ew_backend backend = cli_settings_backend(k->settings);
    calibrate_machine m = {.num_ranks = 2, .cores = ew_usable_cores()};
    if (backend == EW_BACKEND_CUDA) {
        cli_gpus gpus;
        cli_gpus_survey(&gpus);
        m.is_gpu = true;
        if (gpus.count == 0)
            return cli_fail(EW_ERR_UNSUPPORTED, "entwine doctor says more", "%s", gpus.why);
        find_cuda(k, &gpus, &m);
    } else if (backend == EW_BACKEND_SIM) {
        ew_status status = find_simulated(k, &m);
        if (status)
            return cli_fail_status(status, ew_last_error());
    } else {
        if (k->settings->ranks.count)
            m.num_ranks = (int)k->settings->ranks.at[0];
        name_cpu(&m);
    }
    if (m.num_ranks < 2)
        return cli_fail_usage("-W 2 or more", "one rank has no one to reduce with");
    calibrate_plan(&k->c, &m);
    return CLI_EXIT_OK;
}

/* ---- Measuring ---- */

static bool same_shape(const calibrate_probe *one, const calibrate_probe *other)
{
    const ew_problem *a = &one->problem, *b = &other->problem;
    return a->max_m == b->max_m && a->n == b->n && a->k == b->k && a->dtype == b->dtype &&
           one->num_ranks == other->num_ranks;
}

/* A job for each shape, whose probes are measured side by side.  All are checked before the
 * first measurement: ranks as threads start CUDA in this process, whose children cannot ask
 * about a GPU then. */
static cli_exit make_shapes(calibrator *k)
{
    const calibration *c = &k->c;
    cli_exit failed = CLI_EXIT_OK;
    for (int at = 0; at < c->num_probes && !failed; at++) {
        const calibrate_probe *p = &c->probes[at];
        ew_config config;
        if (at == 0 || !same_shape(p, p - 1)) {
            shape *new = &k->shapes[k->num_shapes++];
            *new = (shape){.first = at, .job = k->job};
            new->problem = (cli_problem){.problem = p->problem, .num_ranks = p->num_ranks};
            new->job.problems = &new->problem;
        }
        const ew_status status = ew_config_parse(p->config, &config);
        if (status)
            return cli_fail_status(status, ew_last_error());
        config = cli_config_merge(&k->settings->config, &config);
        failed =
            cli_job_add_entry(&k->shapes[k->num_shapes - 1].job, p->method, NULL, &config);
    }
    for (int at = 0; at < k->num_shapes && !failed; at++)
        failed = cli_job_check(&k->shapes[at].job);
    return failed;
}

static cli_exit keep_results(calibrator *k, const shape *s, const ew_bench_result *results)
{
    for (int at = 0; at < s->job.num_entries; at++) {
        const ew_bench_result *r = &results[at];
        calibrate_probe *p = &k->c.probes[s->first + at];
        if (r->check.wrong > 0) {
            cli_fail(EW_ERR_SYSTEM, "entwine doctor looks for the reason",
                     "%lld wrong values: nothing was calibrated",
                     (long long)r->check.wrong);
            return CLI_EXIT_WRONG;
        }
        p->ran = r->status == EW_OK;
        p->used = r->config;
        p->gemm_us = r->gemm_us;
        p->tail_us = r->tail_us;
        p->time_us = r->time_us;
        k->uses_nccl = k->uses_nccl || s->job.entries[at].uses_nccl;
    }
    return CLI_EXIT_OK;
}

static cli_exit measure(calibrator *k)
{
    ew_bench_result *results = calloc(CLI_MAX_METHODS, sizeof *results);
    char error[CLI_ERROR_BYTES];
    cli_exit result =
        results ? make_shapes(k)
                : cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for the results");
    if (!result) {
        k->job.gpus = k->shapes[0].job.gpus;
        cli_job_prepare(&k->job);
    }
    for (int at = 0; at < k->num_shapes && !result; at++) {
        const shape *s = &k->shapes[at];
        const ew_status status = cli_job_run(&s->job, &s->problem, results, error);
        if (cli_interrupted())
            result = CLI_EXIT_INTERRUPTED;
        else
            result = status ? cli_fail_status(status, error) : keep_results(k, s, results);
    }
    free(results);
    return result;
}

/* ---- The file ---- */

/* Where tunings look for it: beside the entries that they make. */
static cli_exit choose_path(calibrator *k)
{
    const bool on_gpu = cli_settings_backend(k->settings) == EW_BACKEND_CUDA;
    char folder[PATH_MAX - 32];
    if (k->settings->output_path) {
        snprintf(k->path, sizeof k->path, "%s", k->settings->output_path);
        return CLI_EXIT_OK;
    }
    if (cli_settings_backend(k->settings) == EW_BACKEND_SIM)
        return cli_fail_usage("-o FILE", "a simulated machine's profile has no place");
    ew_status status = ew_tuning_folder(folder, sizeof folder);
    if (status)
        return cli_fail_status(status, ew_last_error());
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(folder, 0777);
        *slash = '/';
    }
    (void)mkdir(folder, 0777); /* opening the file tells what is wrong */
    snprintf(k->path, sizeof k->path, "%s/%s.profile", folder, on_gpu ? "cuda" : "cpu");
    return CLI_EXIT_OK;
}

static void print_profile(const calibrator *k, const char *text)
{
    const bool simulated = k->job.backend == EW_BACKEND_SIM;
    const calibrate_machine *m = &k->c.machine;
    FILE *out = k->file.stream;
    char what[192];
    cli_sim_text(NULL, m->num_ranks, what, sizeof what);
    fprintf(out, "# %s, %s\n", k->command, k->date);
    if (simulated)
        fprintf(out, "# %s\n", what);
    else if (m->is_gpu)
        fprintf(out, "# %s, %d of %d SMs per rank, %d ranks\n", m->device, m->sms_per_rank,
                m->sms, m->num_ranks);
    else
        fprintf(out, "# %s, %d usable cores, %d ranks\n", k->context.cpu, m->cores,
                m->num_ranks);
    fprintf(out, "# entwine %s, commit %s\n%s", ew_version(), cli_commit(), text);
}

static cli_exit refuse(const char *why)
{
    cli_fail(
        EW_ERR_SYSTEM,
        "calibrate again on a quiet machine, with a core for every rank; -n takes more "
        "samples",
        "%s: the profile was not stored", why);
    return CLI_EXIT_REGRESSION;
}

static cli_exit solve_and_write(calibrator *k, bool *written)
{
    char how[64], why[192], *text = malloc(CALIBRATE_TEXT);
    if (!text)
        return cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for the profile");
    if (!k->uses_nccl)
        calibrate_drop_nccl(&k->c);
    ew_status status = calibrate_solve(&k->c);
    if (status || !calibrate_check(&k->c, why, sizeof why)) {
        free(text);
        return status ? cli_fail_status(status, ew_last_error()) : refuse(why);
    }
    snprintf(how, sizeof how, "%s %s",
             k->job.backend == EW_BACKEND_SIM ? "SIMULATED" : "measured", k->date);
    calibrate_print(&k->c, how, text);
    print_profile(k, text);
    free(text);
    *written = fflush(k->file.stream) == 0 && !ferror(k->file.stream);
    return *written ? CLI_EXIT_OK : cli_out_file_fail(&k->file);
}

static void print_summary(const calibrator *k)
{
    const calibration *c = &k->c;
    const ew_problem *p = &c->judge->problem;
    int told = 0, assumed = 0;
    for (int at = 0; at < c->num_numbers; at++) {
        told += c->numbers[at].probe && c->numbers[at].probe->ran;
        assumed += c->numbers[at].probe && !c->numbers[at].probe->ran;
    }
    printf("# Profile : %s, %d numbers %s, %d could not be\n", k->path, told,
           k->job.backend == EW_BACKEND_SIM ? "SIMULATED" : "measured", assumed);
    if (c->judge->ran)
        printf("# Check : entwine at M=%lld N=%lld K=%lld, W=%d takes %.1f us, SIMULATED "
               "with the profile %.1f us\n",
               (long long)p->max_m, (long long)p->n, (long long)p->k, c->machine.num_ranks,
               c->judge->time_us, calibrate_time_us(c, c->judge));
}

/* ---- The command ---- */

static void describe_command(calibrator *k, int argc, char **argv)
{
    size_t used = (size_t)snprintf(k->command, sizeof k->command, "entwine");
    for (int at = 1; at < argc && used < sizeof k->command; at++)
        used += (size_t)snprintf(k->command + used, sizeof k->command - used, " %.60s",
                                 argv[at]);
    for (char *at = k->command; *at; at++)
        if ((unsigned char)*at < ' ')
            *at = ' ';
    snprintf(k->date, sizeof k->date, "%.10s", k->context.time);
}

static cli_exit calibrate(calibrator *k)
{
    bool written = false;
    cli_exit result = cli_out_file_open(&k->file, "the profile", k->path);
    if (result)
        return result;
    if (!k->settings->quiet) {
        fprintf(stderr, "# %s, %d ranks, %d calls to measure\n",
                *k->c.machine.device ? k->c.machine.device : "simulated hardware",
                k->c.machine.num_ranks, k->c.num_probes);
        cli_environment_warn();
    }
    result = measure(k);
    if (!result)
        result = solve_and_write(k, &written);
    cli_exit failed = cli_out_file_close(&k->file, written && !result);
    if (!result && !failed && k->file.stream != stdout)
        print_summary(k);
    return result ? result : failed;
}

cli_exit cli_calibrate_main(const cli_settings *settings, int argc, char **argv)
{
    cli_exit result = cli_launch_refuse("calibrate", settings);
    calibrator *k = calloc(1, sizeof *k);
    if (!k)
        return cli_fail(EW_ERR_MEMORY, "free some memory", "no memory to calibrate");
    k->settings = settings;
    k->job_settings = *settings;
    if (!result)
        result = find_machine(k);
    if (!result)
        result = choose_path(k);
    if (!result) {
        k->job_settings.ranks = (cli_values){.at = {k->c.machine.num_ranks}, .count = 1};
        if (!k->c.machine.is_gpu && !(settings->gate_ms > 0) &&
            k->c.machine.num_ranks <= k->c.machine.cores)
            k->job_settings.gate_ms = quiet_ms;
        result = cli_job_init(&k->job, &k->job_settings, NULL, "");
    }
    if (!result) {
        cli_context_init(&k->context);
        describe_command(k, argc, argv);
        result = cli_interrupt_open() ? calibrate(k)
                                      : cli_fail(EW_ERR_MEMORY, "free some memory",
                                                 "no memory for the ranks");
        cli_interrupt_close();
    }
    cli_job_fini(&k->job);
    free(k);
    return result;
}
