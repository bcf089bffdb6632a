/* CUDA reads two variables when it starts: how many hardware queues a process has, and
 * when it loads kernels.  Whatever they say, results are right, or the ranks are refused in
 * one sentence.  Each setting gets a gpu_check of its own, which runs a small check. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu_check.h"
#include "gpukit.h"
#include "trial.h"

enum { ANSWER_BYTES = 4096, SMALL_W = 2, NUM_TRIALS = 4 };
#define QUEUES "CUDA_DEVICE_MAX_CONNECTIONS"
static const char refused[] = "refused: ";

/* ---- In the gpu_check that is run ---- */

typedef struct small {
    ew_status status; /* of the first thing that needs the GPU */
    char text[512];
    trial trials[NUM_TRIALS];
    int count;
} small;

static void list_trials(small *s, ew_ranks_as kind, const ew_world_options *options)
{
    static const char *const configs[NUM_TRIALS] = {
        "kernel=sm80", "kernel=sm90", "transport=copy,kernel=sm80", "pool=static"};
    for (uint32_t i = 0; i < NUM_TRIALS; i++) {
        trial t = {.kind = kind,
                   .num_ranks = SMALL_W,
                   .problem = gpu_problem(300, 264, 72, EW_FP16),
                   .config = EW_CONFIG_INIT,
                   .weight_per_call = i % 2 == 1,
                   .weight_bound = i % 4 == 2,
                   .seed = i,
                   .num_calls = 3,
                   .rows = {300, 1, 299},
                   .options = options};
        if (ew_config_parse(configs[i], &t.config) != EW_OK)
            harness_fail("%s", ew_last_error());
        t.config.backend = EW_BACKEND_CUDA;
        if (gpu_has_kernel(t.config.kernel))
            s->trials[s->count++] = t;
    }
}

static int small_body(ew_world *world, void *argument)
{
    small *s = argument;
    void *memory = NULL;
    const ew_status status = ew_memory_alloc(world, EW_BACKEND_CUDA, 1, &memory);
    if (status != EW_OK) {
        if (ew_world_rank(world) == 0) {
            s->status = status;
            snprintf(s->text, sizeof s->text, "%s", ew_last_error());
        }
        return 0;
    }
    ew_memory_free(world, EW_BACKEND_CUDA, memory);
    for (int i = 0; i < s->count; i++) {
        trial_describe(&s->trials[i]);
        RANK_TRY(trial_body(world, &s->trials[i]));
    }
    return 0;
}

static void run_small(ew_ranks_as kind)
{
    const ew_world_options options = gpu_options(10000);
    small *s = harness_share(sizeof *s);
    list_trials(s, kind, &options);
    harness_run_with(kind, SMALL_W, &options, small_body, s);
    if (s->status == EW_OK)
        return;
    if (s->status == EW_ERR_TIMEOUT || s->status == EW_ERR_PEER_DIED)
        harness_fail("%s: %s", ew_status_name(s->status), s->text);
    gpu_remark("%s%.*s", refused, (int)strcspn(s->text, "\n"), s->text);
}

void check_small_threads(void)
{
    run_small(EW_RANKS_AS_THREADS);
}

void check_small_processes(void)
{
    run_small(EW_RANKS_AS_PROCESSES);
}

/* ---- In the gpu_check that runs it ---- */

typedef struct setting {
    const char *queues, *loading;
} setting;

_Noreturn static void become(const char *check, const setting *s, int output)
{
    setenv(QUEUES, s->queues, 1);
    setenv("CUDA_MODULE_LOADING", s->loading, 1);
    dup2(output, STDOUT_FILENO);
    execl("/proc/self/exe", "gpu_check", "--only", check, (char *)NULL);
    _exit(127);
}

/* Runs it to its end; `answer` gets what it printed, from the beginning. */
static int ask(const char *check, const setting *s, char *answer)
{
    int ends[2], status = 0;
    if (pipe(ends) != 0)
        harness_fail("no pipe");
    const pid_t child = fork();
    if (child < 0)
        harness_fail("no process");
    if (child == 0)
        become(check, s, ends[1]);
    close(ends[1]);
    FILE *output = fdopen(ends[0], "r");
    size_t length = output ? fread(answer, 1, ANSWER_BYTES - 1, output) : 0;
    answer[length] = '\0';
    if (output)
        fclose(output);
    waitpid(child, &status, 0);
    return status;
}

/* True when it was refused. */
static bool try_setting(const char *check, const setting *s, bool must_refuse)
{
    char answer[ANSWER_BYTES];
    const int status = ask(check, s, answer);
    const char *reason = strstr(answer, refused);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        harness_fail("%s=%s CUDA_MODULE_LOADING=%s: %s ended with %d:\n%s", QUEUES,
                     s->queues, s->loading, check, status, answer);
    if (must_refuse && (!reason || !strstr(reason, "hardware queues")))
        harness_fail("%s=%s: %d ranks as threads were not refused:\n%s", QUEUES, s->queues,
                     SMALL_W, answer);
    return reason != NULL;
}

static void try_settings(const char *check, bool needs_queues)
{
    static const setting settings[] = {{"1", "LAZY"},  {"8", "EAGER"}, {"32", "LAZY"},
                                       {"1", "EAGER"}, {"8", "LAZY"},  {"32", "EAGER"}};
    const int count = gpu_long ? 6 : 3;
    int refusals = 0;
    for (int i = 0; i < count; i++)
        refusals += try_setting(check, &settings[i],
                                needs_queues && strcmp(settings[i].queues, "1") == 0);
    gpu_remark("%d settings right, %d refused", count - refusals, refusals);
}

void check_environment_threads(void)
{
    try_settings("small-threads", ew_gpu_count() == 1);
}

void check_environment_processes(void)
{
    try_settings("small-processes", false);
}

/* ---- Shares that no rank has ---- */

enum { SHARES = 8 };
#define SHARES_NAME "ENTWINE_GPU_SHARES"

/* The world learns of its GPU when it first needs one. */
static int first_plan(ew_world *world, ew_status *status_out, char *text)
{
    const ew_problem problem = gpu_problem(300, 264, 72, EW_FP16);
    ew_config config = EW_CONFIG_INIT;
    ew_plan *plan = NULL;
    config.backend = EW_BACKEND_CUDA;
    *status_out = ew_plan_create(world, &problem, &config, &plan);
    if (*status_out == EW_OK)
        RANK_OK(ew_plan_explain(plan, text, EW_EXPLAIN_BYTES));
    else
        snprintf(text, EW_EXPLAIN_BYTES, "%s", ew_last_error());
    ew_plan_destroy(plan);
    return 0;
}

static int share_body(ew_world *world, void *argument)
{
    char text[EW_EXPLAIN_BYTES], wanted[64];
    ew_gpu gpu;
    ew_status status;
    (void)argument;
    RANK_OK(ew_gpu_describe(0, &gpu));
    snprintf(wanted, sizeof wanted, " %d SMs each", gpu.sms / 8 / SHARES * 8);
    RANK_TRY(first_plan(world, &status, text));
    RANK_CHECK(status == EW_OK && strstr(text, wanted), "not%s: %s", wanted, text);
    return 0;
}

static int bad_share_body(ew_world *world, void *argument)
{
    char text[EW_EXPLAIN_BYTES];
    ew_status status;
    RANK_TRY(first_plan(world, &status, text));
    RANK_CHECK(status == EW_ERR_ARGUMENT && strstr(text, argument), "%s: %s",
               ew_status_name(status), text);
    return 0;
}

void check_shares(void)
{
    const ew_world_options options = gpu_options(10000);
    char eight[8];
    if (ew_gpu_count() > 1) {
        gpu_remark("ranks have GPUs of their own");
        return;
    }
    snprintf(eight, sizeof eight, "%d", SHARES);
    setenv(SHARES_NAME, eight, 1);
    harness_run_with(EW_RANKS_AS_THREADS, SMALL_W, &options, share_body, NULL);
    run_small(EW_RANKS_AS_THREADS);
    setenv(SHARES_NAME, "many", 1);
    harness_run_with(EW_RANKS_AS_THREADS, SMALL_W, &options, bad_share_body,
                     SHARES_NAME "=many is not a number of shares");
    unsetenv(SHARES_NAME);
}
