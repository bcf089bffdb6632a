/* One rank of a world under mpirun, for tests/mpi/run.sh: tries one case and says how it
 * went.  With ENTWINE_HOSTS one machine stands for several, and all that crosses its
 * borders goes through MPI.
 *
 *     mpirun -np W mpi_check MODULE CASE [ARGUMENT]
 *
 * Says "rank R: OK", or what the world's fault was: "rank R: STATUS: text"; also to the end
 * of the file MPI_CHECK_LOG, since mpirun hears nothing from a host that is cut off. */
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/probe.h"
#include "mpi_cases.h"

enum { LINGER_US = 1500000 }; /* so that mpirun ends nobody who has yet to speak */

void say(const char *format, ...)
{
    const char *path = getenv("MPI_CHECK_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    char text[1200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (log) {
        fputs(text, log);
        fclose(log);
    }
    fputs(text, stdout);
    fflush(stdout);
}

/* ---- Control messages that need help ---- */

/* Rank 0's leave when it looks at the fabric after so long. */
enum { HELD_NS = 30000000, MOST_HELD = 64, AWAY_US = 900000 };
static ew_fabric swift; /* which takes them then */
static struct {
    size_t count;
    struct {
        int64_t until_ns;
        int dst;
        size_t bytes;
        unsigned char message[EW_CONTROL_BYTES];
    } at[MOST_HELD];
} held;

static int hold(void *context, int dst, const void *message, size_t bytes)
{
    (void)context;
    if (held.count == MOST_HELD)
        return 1;
    held.at[held.count].until_ns = ew_now_ns() + HELD_NS;
    held.at[held.count].dst = dst;
    held.at[held.count].bytes = bytes;
    memcpy(held.at[held.count++].message, message, bytes);
    return 0;
}

static int help(void *context)
{
    if (held.count == 0 || ew_now_ns() < held.at[0].until_ns)
        return 0;
    const int failed =
        swift.send_control(context, held.at[0].dst, held.at[0].message, held.at[0].bytes);
    memmove(&held.at[0], &held.at[1], --held.count * sizeof held.at[0]);
    return failed;
}

static int help_and_receive(void *context, int *src_out, void *message, size_t *bytes_out)
{
    *src_out = -1;
    return help(context) || swift.receive_control(context, src_out, message, bytes_out);
}

static int help_and_count(void *context, size_t *count_out)
{
    const int failed = help(context) || swift.unsent_control(context, count_out);
    *count_out += held.count;
    return failed;
}

static const ew_fabric *in_need_of_help(const ew_fabric *fabric)
{
    static ew_fabric slow;
    swift = slow = *fabric;
    slow.send_control = hold;
    slow.receive_control = help_and_receive;
    slow.unsent_control = help_and_count;
    return fabric->rank == 0 ? &slow : fabric;
}

/* Every rank stays away for longer than the timeout, after a call and after a barrier. */
static int run_away(ew_world *world, const char *config)
{
    duty d;
    RANK_OK(open_duty(&d, world, (ew_problem)EW_PROBLEM(300, 200, 24, EW_FP32), config));
    RANK_OK(duty_call(&d, 300, 1));
    usleep(AWAY_US);
    RANK_CHECK(duty_wrong(&d, 300, 1) == 0, "wrong");
    RANK_OK(ew_world_barrier(world));
    usleep(AWAY_US);
    RANK_OK(ew_world_barrier(world));
    duty_close(&d);
    return 0;
}

/* ---- The rank ---- */

typedef enum manner {
    ORDINARY,
    WITHOUT_FABRIC, /* ew_world_create, as on one host */
    SLOW,           /* control messages need help */
    ENDED,          /* MPI ends before the world does */
    AGAIN,          /* several worlds on one fabric, one after the other */
    REOPENED,       /* no world, but one fabric after the other */
    FAILING,        /* the world ends in a fault */
    ABSENT          /* ... already while ranks join */
} manner;

static const struct {
    const char *name;
    int (*run)(ew_world *world, const char *argument);
    manner manner;
} cases[] = {{"conformance", run_conformance, ORDINARY},
             {"wrap", run_wrap, ORDINARY},
             {"late", run_late, ORDINARY},
             {"again", run_wrap, AGAIN},
             {"reopened", NULL, REOPENED},
             {"bits", run_bits, ORDINARY},
             {"rows", run_rows, ORDINARY},
             {"cramped", run_cramped, ORDINARY},
             {"traffic", run_traffic, ORDINARY},
             {"layer", run_layer, ORDINARY},
             {"crawl", run_crawl, ORDINARY},
             {"frozen", run_frozen, ORDINARY},
             {"device-memory", run_device_memory, ORDINARY},
             {"plain", run_plain, WITHOUT_FABRIC},
             {"away", run_away, SLOW},
             {"ended", run_ended, ENDED},
             {"misfortune", run_misfortune, FAILING},
             {"swap", run_swap, FAILING},
             {"meet", run_meet, FAILING},
             {"tardy", run_tardy, FAILING},
             {"absent", run_plain, ABSENT}};

static const ew_mpi_module *load(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    ew_mpi_module_getter getter = NULL;
    if (handle)
        *(void **)&getter = dlsym(handle, "ew_mpi_module_get");
    else
        fprintf(stderr, "%s\n", dlerror());
    return getter ? getter() : NULL;
}

/* The last rank comes late to the world that all are to join, or dies while they meet. */
static int die_in_the_meeting(void *context, ewx_probe_point point, int rank, int64_t where)
{
    if (point == EWX_PROBE_MEETING && where == *(const int *)context && rank >= 0)
        raise(SIGKILL);
    return 0;
}

static void stay_away(const ew_fabric *fabric, const char *how)
{
    static int where;
    if (fabric->rank < fabric->num_ranks - 1)
        return;
    if (strcmp(how, "late") == 0)
        sleep(60);
    where = atoi(how);
    ewx_probe_install(die_in_the_meeting, &where);
}

static int run_in_world(const ew_mpi_module *mpi, const ew_fabric *fabric, size_t at,
                        const char *argument)
{
    ew_world *world = NULL;
    if (cases[at].manner == ABSENT)
        stay_away(fabric, argument);
    const ew_status joined = cases[at].manner == WITHOUT_FABRIC
                                 ? ew_world_create(fabric->rank, fabric->num_ranks,
                                                   mpi->allgather, NULL, NULL, &world)
                                 : ew_world_join(fabric, NULL, &world);
    if (joined != EW_OK) {
        say("rank %d: %s: %s\n", fabric->rank, ew_status_name(joined), ew_last_error());
        return 1;
    }
    int failed = cases[at].run(world, argument);
    if (cases[at].manner == ENDED && !failed)
        failed = end_mpi(mpi, world);
    ew_world_destroy(world);
    return failed;
}

/* Rank 0 receives `count` numbers of the last rank, in order, and nothing else.  Then the
 * last rank sends what nobody receives any more. */
static int pass_numbers(const ew_mpi_module *mpi, int count, int *rank_out)
{
    enum { TURNS = 5000 };
    const ew_fabric *fabric;
    unsigned char message[EW_CONTROL_BYTES];
    size_t bytes;
    int failed = 0, next = 0, src;
    if (mpi->fabric_open(NULL, &fabric))
        return 1;
    *rank_out = fabric->rank;
    const bool sends = fabric->rank == fabric->num_ranks - 1;
    for (int i = 0; i < count && sends; i++)
        failed |= fabric->send_control(fabric->context, 0, &i, sizeof i);
    for (int turn = 0; fabric->rank == 0 && next < count && !failed; turn++) {
        failed = turn == TURNS ||
                 fabric->receive_control(fabric->context, &src, message, &bytes);
        if (src < 0)
            usleep(1000);
        else if (bytes == sizeof next && memcmp(message, &next, sizeof next) == 0)
            next++;
        else
            failed = 1;
    }
    if (failed)
        say("rank %d: number %d did not come, or something else\n", fabric->rank, next);
    for (int i = 0; i < 3 && sends; i++)
        failed |= fabric->send_control(fabric->context, 0, "last words", 10);
    mpi->fabric_close(fabric, failed);
    return failed;
}

/* What is left of one fabric never comes in the next one, not even in the place of a
 * message that is as many messages behind its beginning. */
static int run_reopened(const ew_mpi_module *mpi)
{
    int failed = 0, rank = -1;
    for (int round = 0; round < 100 && !failed; round++)
        failed = pass_numbers(mpi, round % 2 ? 60 : 20, &rank);
    say("rank %d: %s\n", rank, failed ? "FAILED" : "OK");
    return failed;
}

static int run_case(const ew_mpi_module *mpi, size_t at, const char *argument)
{
    const ew_fabric *fabric;
    const int num_worlds = cases[at].manner == AGAIN ? 8 : 1;
    int failed = 0;
    if (cases[at].manner == REOPENED)
        return run_reopened(mpi);
    if (mpi->fabric_open(NULL, &fabric))
        return 1;
    const ew_fabric *taken = cases[at].manner == SLOW ? in_need_of_help(fabric) : fabric;
    for (int number = 0; number < num_worlds && !failed; number++)
        failed = run_in_world(mpi, taken, at, argument);
    say("rank %d: %s\n", fabric->rank, failed ? "FAILED" : "OK");
    mpi->fabric_close(fabric, cases[at].manner >= FAILING || failed);
    return failed;
}

int main(int argc, char **argv)
{
    int rank, num_ranks;
    const ew_mpi_module *mpi = argc > 2 ? load(argv[1]) : NULL;
    if (!mpi || mpi->open(&rank, &num_ranks))
        return 2;
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++)
        if (strcmp(cases[at].name, argv[2]) == 0) {
            const int failed = run_case(mpi, at, argc > 3 ? argv[3] : "");
            if (failed || cases[at].manner >= FAILING) {
                usleep(LINGER_US); /* MPI_Finalize would wait for ranks that are gone */
                _exit(failed);
            }
            mpi->close();
            return 0;
        }
    fprintf(stderr, "no case is called %s\n", argv[2]);
    return 2;
}
