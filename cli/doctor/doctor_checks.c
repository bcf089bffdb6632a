/* What Entwine relies on, checked one by one, each with a remedy. */
#include "doctor/doctor.h"

#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/interrupt.h"

static const char *const verdict_names[] = {"OK", "WARN", "FAIL"};
static const char *const verdict_colours[] = {"\033[32m", "\033[33m", "\033[31m"};

void cli_doctor_say(cli_doctor *d, cli_verdict found, const char *name, const char *fix,
                    const char *format, ...)
{
    char text[320];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    d->num_verdicts[found]++;
    json_array_append_new(d->checks,
                          json_pack("{ss ss so so}", "verdict", verdict_names[found],
                                    "check", name, "text", cli_text_json(text), "fix",
                                    found == VERDICT_OK ? json_null() : json_string(fix)));
    if (d->as_json)
        return;
    printf("%s%-4s%s", d->colour ? verdict_colours[found] : "", verdict_names[found],
           d->colour ? "\033[0m" : "");
    cli_print(stdout, "  %-10s %s\n", name, text); /* of variables, for example */
    if (found != VERDICT_OK)
        cli_print(stdout, "      fix: %s\n", fix);
}

bool cli_doctor_interrupted(cli_doctor *d, const char *name)
{
    const bool interrupted = cli_interrupted();
    if (interrupted)
        cli_doctor_say(d, VERDICT_WARN, name, "run entwine doctor again",
                       "interrupted: what remained was not checked");
    return interrupted;
}

static void check_version(cli_doctor *d)
{
    char header[32];
    snprintf(header, sizeof header, "%d.%d.%d", EW_VERSION_MAJOR, EW_VERSION_MINOR,
             EW_VERSION_PATCH);
    bool same = strcmp(header, ew_version()) == 0;
    cli_doctor_say(
        d, same ? VERDICT_OK : VERDICT_FAIL, "version",
        "another libentwine.so is found first; check LD_LIBRARY_PATH and ldconfig",
        "tool %s, library %s, commit %s", header, ew_version(), cli_commit());
}

static void check_cpu(cli_doctor *d)
{
    const cli_context *c = &d->context;
    bool known = *c->fp32_kernel != '\0';
    bool slow = strstr(c->fp32_kernel, "portable") != NULL;
    cli_doctor_say(
        d,
        !known ? VERDICT_FAIL
        : slow ? VERDICT_WARN
               : VERDICT_OK,
        "cpu",
        slow ? "results are right but slow: this CPU has no kernel of its own yet"
             : "the library could not choose kernels: reinstall it",
        "%s; kernels %s, %s, %s", c->cpu, c->fp32_kernel, c->bf16_kernel, c->fp16_kernel);
    if (*c->kernel_refusal)
        cli_doctor_say(
            d, VERDICT_WARN, "amx",
            "use Linux 5.16 or later and let arch_prctl through seccomp; without it "
            "bf16 and fp16 are right but slower",
            "%s", c->kernel_refusal);
}

void cli_doctor_cores(cli_doctor *d, int num_cores, int num_ranks)
{
    cli_doctor_say(
        d, num_cores >= num_ranks ? VERDICT_OK : VERDICT_WARN, "cores",
        "ranks will share cores: right but slower; use fewer ranks or allow more cores",
        "%d usable for W=%d (of %ld online CPUs)", num_cores, num_ranks,
        sysconf(_SC_NPROCESSORS_ONLN));
}

const char *cli_doctor_fix(const char *error, const char *otherwise)
{
    static const char mark[] = "\n  fix: ";
    const char *fix = strstr(error, mark);
    return fix ? fix + sizeof mark - 1 : otherwise;
}

static void check_cores(cli_doctor *d)
{
    if (!cli_launch_is_mpi(&d->launch)) /* its ranks may be bound to cores of their own */
        cli_doctor_cores(d, d->context.cores_usable,
                         (int)cli_value_or(&d->settings->ranks, 2));
}

static void check_numa(cli_doctor *d)
{
    const int num_ranks = (int)cli_value_or(&d->settings->ranks, 2);
    ew_numa numa = {0};
    char fix[96] = "apt install libhwloc15, or bind ranks with numactl or mpirun";
    if (ew_numa_describe(num_ranks, &numa))
        return;
    if (numa.unknown) {
        cli_doctor_say(d, VERDICT_WARN, "numa", fix,
                       "several domains, but %s: ranks and memory lie where Linux puts "
                       "them, right but slower",
                       numa.unknown);
        return;
    }
    bool straddles = numa.domains_per_rank > 1;
    snprintf(fix, sizeof fix, "use a rank per domain, W=%d, or allow cores of one domain",
             (int)numa.domains);
    if (numa.domains < 2)
        cli_doctor_say(d, VERDICT_OK, "numa", fix, "one domain");
    else
        cli_doctor_say(d, straddles ? VERDICT_WARN : VERDICT_OK, "numa", fix,
                       straddles ? "W=%d: a rank straddles %d of %d domains, slower"
                                 : "W=%d: each rank stays in %d of %d domains",
                       num_ranks, (int)numa.domains_per_rank, (int)numa.domains);
}

static void check_memory(cli_doctor *d)
{
    double available = (double)ew_available_memory();
    if (available == 0) {
        cli_doctor_say(d, VERDICT_WARN, "memory",
                       "mount /proc; until then entwine cannot refuse what does not fit",
                       "how much is available is unknown: /proc/meminfo does not say");
        return;
    }
    cli_doctor_say(
        d, available >= 0x1p30 ? VERDICT_OK : VERDICT_WARN, "memory",
        "close other programs; entwine plan shows what a problem needs",
        "%.1f GiB available of %.1f; no locked memory needed (RLIMIT_MEMLOCK may be 0)",
        available / 0x1p30, d->context.memory_bytes / 0x1p30);
}

static void check_memfd(cli_doctor *d)
{
    const unsigned seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    int fd = memfd_create("entwine-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool works = fd >= 0 && ftruncate(fd, 4096) == 0 &&
                 fcntl(fd, F_ADD_SEALS, seals) == 0 && ftruncate(fd, 8192) != 0;
    if (fd >= 0)
        close(fd);
    cli_doctor_say(d, works ? VERDICT_OK : VERDICT_FAIL, "memfd",
                   "Linux 3.17 or later; in a container allow memfd_create and fcntl seals",
                   works ? "memfd_create and seals work"
                         : "memfd_create or its seals are refused");
}

static void check_pidfd(cli_doctor *d)
{
    long fd = syscall(SYS_pidfd_open, getpid(), 0);
    if (fd >= 0)
        close((int)fd);
    cli_doctor_say(
        d, fd >= 0 ? VERDICT_OK : VERDICT_WARN, "pidfd",
        "Linux 5.3 or later; without it a dead rank is noticed by its closed socket",
        fd >= 0 ? "pidfd_open works" : "pidfd_open is refused");
}

/* Ranks find each other through abstract sockets, whose names the kernel chooses. */
static void check_sockets(cli_doctor *d)
{
    struct sockaddr_un any = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool works = fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof any.sun_family) == 0;
    if (fd >= 0)
        close(fd);
    cli_doctor_say(d, works ? VERDICT_OK : VERDICT_FAIL, "sockets",
                   "allow UNIX sockets in this container, or use --ranks-as threads",
                   "abstract UNIX sockets %s", works ? "work" : "are refused");
}

static void check_launcher(cli_doctor *d)
{
    ew_launcher launcher;
    if (ew_launcher_detect(&launcher) == EW_ERR_ARGUMENT)
        cli_doctor_say(d, VERDICT_WARN, "launcher", cli_doctor_fix(ew_last_error(), ""),
                       "%.*s", (int)strcspn(ew_last_error(), "\n"), ew_last_error());
    else if (d->launch.found)
        cli_doctor_say(d, VERDICT_OK, "launcher", "", "%s: rank %d of %d",
                       d->launch.launcher.source, d->launch.launcher.rank,
                       d->launch.launcher.num_ranks);
    else
        cli_doctor_say(d, VERDICT_OK, "launcher", "",
                       "none; entwine starts local ranks itself");
}

static void check_blas(cli_doctor *d)
{
    bool found = *d->context.blas != '\0';
    const char *asked = getenv("ENTWINE_BLAS");
    cli_doctor_say(
        d, found ? VERDICT_OK : VERDICT_WARN, "blas",
        asked ? "ENTWINE_BLAS must name a library with cblas_sgemm, e.g. libblis.so.4"
              : "only the blas method needs one: apt install libblis4 or libopenblas0",
        "%s", found ? d->context.blas : "none found");
}

static void check_mpi(cli_doctor *d)
{
    char path[PATH_MAX];
    bool found = cli_launch_module_path(path, sizeof path);
    cli_doctor_say(
        d, found ? VERDICT_OK : VERDICT_WARN, "mpi",
        getenv("ENTWINE_MPI_MODULE")
            ? "ENTWINE_MPI_MODULE must be the path of entwine_mpi.so"
            : "only mpirun needs it: apt install libopenmpi-dev, then build again",
        "%s", found ? path : "module entwine_mpi.so not found");
}

static void check_selftest(cli_doctor *d, ew_ranks_as kind)
{
    cli_selftest test;
    const char *name = kind == EW_RANKS_AS_THREADS ? "threads" : "processes";
    ew_status status = cli_selftest_run(kind, d->settings->timeout_s, &test);
    if (cli_doctor_interrupted(d, "self-test"))
        return;
    if (status)
        cli_doctor_say(
            d, VERDICT_FAIL, "self-test",
            cli_doctor_fix(
                test.error,
                "run `entwine run --ranks-as` with this kind and report its output"),
            "ranks as %s: %s: %.*s", name, ew_status_name(status),
            (int)strcspn(test.error, "\n"), test.error);
    else
        cli_doctor_say(d, test.wrong ? VERDICT_FAIL : VERDICT_OK, "self-test",
                       "results are wrong: please report this output",
                       "ranks as %s: %d problems in %.1f s, #wrong = %lld", name,
                       test.num_problems, test.seconds, (long long)test.wrong);
}

void cli_doctor_check(cli_doctor *d)
{
    static void (*const checks[])(cli_doctor *) = {
        check_version,  check_cpu,   check_cores, check_numa,
        check_memory,   check_memfd, check_pidfd, check_sockets,
        check_launcher, check_blas,  check_mpi,   cli_doctor_variables};
    for (size_t at = 0; at < sizeof checks / sizeof checks[0]; at++)
        checks[at](d);
    fflush(stdout);
    cli_doctor_gpus(d);
    if (!cli_interrupted())
        check_selftest(d, EW_RANKS_AS_PROCESSES);
    if (!cli_interrupted())
        check_selftest(d, EW_RANKS_AS_THREADS);
}
