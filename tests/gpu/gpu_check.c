/* gpu_check: runs the checks of the CUDA backend, one process each, and prints one line per
 * check.  This process never starts CUDA, so that one check's crash, hang or sticky error
 * is no other's.  Needs no test framework. */
#include "gpu_check.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_SKIPPED = 77, PROBE_LIMIT_S = 60 };
enum { LONG_TIMES = 12 }; /* so many times as long may a check take with --long */

typedef enum ranks { THREADS = 1, PROCESSES = 2, ON_REQUEST = 4 } ranks;

typedef struct check {
    const char *name;
    void (*run)(void);
    int limit_s;
    ranks ranks;
} check;

static const check checks[] = {
#define GPU_ROW(name, function, seconds, ranks) {name, function, seconds, ranks},
    GPU_CHECKS(GPU_ROW)
#undef GPU_ROW
};
enum { NUM_CHECKS = sizeof checks / sizeof checks[0] };

bool gpu_quick, gpu_long;
uint32_t gpu_seed = 1, gpu_count;
ew_gpu gpu_here;

bool gpu_has_kernel(ew_kernel kernel)
{
    return kernel != EW_KERNEL_SM90 || gpu_here.arch / 10 == 9;
}

void gpu_skip(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    _exit(EXIT_SKIPPED);
}

void gpu_remark(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

/* ---- One check in a process of its own ---- */

typedef struct outcome {
    int status; /* of waitpid */
    bool late;
    double seconds;
    char text[6000]; /* what it said */
} outcome;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Its ranks are in its process group: none is left behind. */
static void await_child(pid_t child, int limit_s, outcome *o)
{
    const double started_s = now_s();
    const struct timespec nap = {.tv_nsec = 10000000};
    while (waitpid(child, &o->status, WNOHANG) == 0) {
        if (now_s() - started_s > limit_s && !o->late) {
            o->late = true;
            kill(-child, SIGKILL);
            kill(child, SIGKILL);
        }
        nanosleep(&nap, NULL);
    }
    kill(-child, SIGKILL);
    o->seconds = now_s() - started_s;
}

static void read_text(FILE *file, char *text, size_t bytes)
{
    rewind(file);
    size_t length = fread(text, 1, bytes - 1, file);
    while (length > 0 && text[length - 1] == '\n')
        length--;
    text[length] = '\0';
}

static outcome run_apart(void (*run)(void), int limit_s)
{
    outcome o = {0};
    FILE *words = tmpfile();
    fflush(NULL);
    const pid_t child = words ? fork() : -1;
    if (child < 0) {
        fprintf(stderr, "gpu_check: cannot start a process: %s\n", strerror(errno));
        exit(1);
    }
    if (child == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a check may be run by another gpu_check */
        dup2(fileno(words), STDERR_FILENO);
        run();
        fflush(NULL);
        _exit(0);
    }
    setpgid(child, child); /* whoever is first */
    await_child(child, limit_s, &o);
    read_text(words, o.text, sizeof o.text);
    fclose(words);
    return o;
}

/* ---- What is printed ---- */

static void print_block(const char *text)
{
    for (const char *line = text; *line;) {
        const size_t length = strcspn(line, "\n");
        printf("      %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

static int limit_of(const check *c)
{
    return gpu_long || gpu_count ? LONG_TIMES * c->limit_s : c->limit_s;
}

/* True unless it failed. */
static bool print_outcome(const check *c, const outcome *o)
{
    const int code = WIFEXITED(o->status) && !o->late ? WEXITSTATUS(o->status) : -1;
    const bool ok = code == 0 || code == EXIT_SKIPPED;
    const bool short_text = strlen(o->text) < 100 && !strchr(o->text, '\n');
    char how[80] = "";
    if (o->late)
        snprintf(how, sizeof how, "did not end within %d s", limit_of(c));
    else if (WIFSIGNALED(o->status))
        snprintf(how, sizeof how, "ended by signal %d (%s)", WTERMSIG(o->status),
                 strsignal(WTERMSIG(o->status)));
    printf("%-8s %-22s %6.1f s  %s%s\n",
           code == 0 ? "ok"
           : ok      ? "skipped"
                     : "FAILED",
           c->name, o->seconds, how, short_text ? o->text : "");
    if (!short_text)
        print_block(o->text);
    fflush(stdout);
    return ok;
}

/* ---- Is there a GPU? ---- */

static ew_gpu *found; /* shared with the process that looks */

static void probe(void)
{
    if (ew_gpu_describe(0, found) == EW_OK)
        return;
    fprintf(stderr, "%.*s", (int)strcspn(ew_last_error(), "\n"), ew_last_error());
    _exit(EXIT_SKIPPED);
}

static void print_gpu(const ew_gpu *gpu)
{
    printf("%s, %d SMs, compute capability %d.%d, CUDA %d.%d, driver for %d.%d%s\n",
           gpu->name, gpu->sms, gpu->arch / 10, gpu->arch % 10, gpu->runtime_version / 1000,
           gpu->runtime_version / 10 % 100, gpu->driver_version / 1000,
           gpu->driver_version / 10 % 100, gpu->mig ? ", MIG" : "");
}

static void require_gpu(bool here)
{
    found = mmap(NULL, sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                 -1, 0);
    if (found == MAP_FAILED)
        exit(1);
    outcome o = {0};
    if (here)
        probe();
    else
        o = run_apart(probe, PROBE_LIMIT_S);
    gpu_here = *found;
    if (!o.late && WIFEXITED(o.status) && WEXITSTATUS(o.status) == 0) {
        print_gpu(&gpu_here);
        return;
    }
    printf("gpu_check: %s\n", o.text[0] ? o.text : "CUDA does not start");
    exit(WIFEXITED(o.status) && WEXITSTATUS(o.status) == EXIT_SKIPPED ? EXIT_SKIPPED : 1);
}

/* ---- Arguments ---- */

typedef struct wishes {
    bool only[NUM_CHECKS];
    bool some; /* any of `only` */
    int kinds; /* of ranks, else */
    bool here; /* in this process, for tools that do not follow forks */
} wishes;

_Noreturn static void explain_usage(FILE *to, int code)
{
    fprintf(to, "usage: gpu_check [--list] [--only NAME]... [--threads | --processes] "
                "[--quick | --long] [--seed S] [--count N] [--here]\n"
                "  --only       this check, also one that runs on request alone\n"
                "  --threads    checks whose ranks are threads\n"
                "  --processes  checks whose ranks are processes\n"
                "  --quick      fewer repetitions\n"
                "  --long       as many as the promises are worth, and their figures\n"
                "  --seed       where checks that draw at random begin (else 1)\n"
                "  --count      how many seeds 'invariant' draws (else 64)\n"
                "  --here       no process per check (for compute-sanitizer)\n"
                "exit: 0 all well, 1 a check failed, 2 usage, 77 no GPU\n");
    exit(code);
}

static void wish_for(wishes *w, const char *name)
{
    for (int i = 0; i < NUM_CHECKS; i++)
        if (name && strcmp(checks[i].name, name) == 0) {
            w->only[i] = w->some = true;
            return;
        }
    fprintf(stderr, "gpu_check: there is no check '%s'; --list shows them\n",
            name ? name : "");
    exit(2);
}

_Noreturn static void list_checks(void)
{
    for (int i = 0; i < NUM_CHECKS; i++)
        printf("%-22s %s\n", checks[i].name,
               checks[i].ranks == PROCESSES ? "processes"
               : checks[i].ranks == THREADS ? "threads"
                                            : "on request");
    exit(0);
}

static uint32_t read_number(const char *option, const char *text)
{
    char *end = NULL;
    const unsigned long number = text ? strtoul(text, &end, 10) : 0;
    if (end && end != text && *end == '\0' && *text != '-' && number <= UINT32_MAX)
        return (uint32_t)number;
    fprintf(stderr, "gpu_check: %s needs a number from 0 to 4294967295, not '%s'\n", option,
            text ? text : "");
    exit(2);
}

static wishes read_arguments(int argc, char **argv)
{
    wishes w = {.kinds = THREADS | PROCESSES};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--list") == 0)
            list_checks();
        else if (strcmp(argv[i], "--only") == 0)
            wish_for(&w, argv[++i]);
        else if (strcmp(argv[i], "--threads") == 0)
            w.kinds = THREADS;
        else if (strcmp(argv[i], "--processes") == 0)
            w.kinds = PROCESSES;
        else if (strcmp(argv[i], "--quick") == 0)
            gpu_quick = true;
        else if (strcmp(argv[i], "--long") == 0)
            gpu_long = true;
        else if (strcmp(argv[i], "--seed") == 0)
            gpu_seed = read_number("--seed", argv[++i]);
        else if (strcmp(argv[i], "--count") == 0)
            gpu_count = read_number("--count", argv[++i]);
        else if (strcmp(argv[i], "--here") == 0)
            w.here = true;
        else if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0)
            explain_usage(stdout, 0);
        else
            explain_usage(stderr, 2);
    }
    return w;
}

/* What the tool sets, unless the user has: for ranks as threads a queue for every stream,
 * and no kernel of cuBLAS's loaded while another waits for it. */
static void set_variables(ranks kind)
{
    static const char queues[] = "CUDA_DEVICE_MAX_CONNECTIONS";
    static int given = -1;
    if (given < 0)
        given = getenv(queues) != NULL;
    if (!given && kind == PROCESSES)
        unsetenv(queues);
    else if (!given)
        setenv(queues, "32", 1);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

int main(int argc, char **argv)
{
    const wishes w = read_arguments(argc, argv);
    int ran = 0, failed = 0;
    require_gpu(w.here);
    for (int i = 0; i < NUM_CHECKS; i++) {
        if (w.some ? !w.only[i] : !(checks[i].ranks & w.kinds))
            continue;
        ran++;
        set_variables(checks[i].ranks);
        if (w.here) {
            alarm((unsigned)limit_of(&checks[i]));
            checks[i].run();
            continue;
        }
        const outcome o = run_apart(checks[i].run, limit_of(&checks[i]));
        failed += !print_outcome(&checks[i], &o);
    }
    printf("%d checks, %d failed\n", ran, failed);
    return failed > 0;
}
