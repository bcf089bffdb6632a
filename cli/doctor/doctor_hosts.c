/* Under mpirun: the cores of the ranks, which MPI, how many hosts, and how quickly bytes
 * go from rank 0 to the lowest rank of each other host.  Every rank comes here; rank 0
 * tells. */
#include "doctor/doctor.h"
#include "base/text.h"

#include <sched.h>
#include <stdlib.h>

enum { PING, BULK, NUM_KINDS };
enum { PINGS = 50, BULKS = 4, BULK_BYTES = 4 << 20, MAX_HOSTS = 8 };
static const int64_t patience_ns = 5000000000;

/* Rank 0 and, for each other host, one that answers. */
typedef struct survey {
    const ew_fabric *fabric;
    ew_world *world;
    ew_channel *channel;
    int num_hosts;
    int lowest[MAX_HOSTS];
    void *buffer;
} survey;

/* Where a rank is, and what it may use there. */
typedef struct rank_place {
    int32_t host, usable;
    cpu_set_t bound;
} rank_place;

/* The cores of rank 0's host that its ranks may use together: mpirun binds each to
 * some.  Where a quota of the host's is lower than what a rank is bound to, it counts. */
static int count_cores(const rank_place *all, int num_ranks, int *ranks_here_out)
{
    cpu_set_t together;
    int quota = CPU_SETSIZE;
    CPU_ZERO(&together);
    *ranks_here_out = 0;
    for (int rank = 0; rank < num_ranks; rank++) {
        if (all[rank].host != all[0].host)
            continue;
        CPU_OR(&together, &together, &all[rank].bound);
        if (all[rank].usable < CPU_COUNT(&all[rank].bound))
            quota = all[rank].usable;
        ++*ranks_here_out;
    }
    return CPU_COUNT(&together) < quota ? CPU_COUNT(&together) : quota;
}

/* Finds the hosts, and says how many cores there are. */
static ew_status look_around(cli_doctor *d, survey *s)
{
    const int num_ranks = s->fabric->num_ranks;
    rank_place mine = {.usable = ew_usable_cores()};
    rank_place *all = calloc((size_t)num_ranks, sizeof *all);
    ew_traffic traffic;
    ew_status status = all ? ew_world_traffic(s->world, &traffic) : EW_ERR_MEMORY;
    if (status == EW_OK) {
        s->num_hosts = traffic.num_hosts;
        mine.host = traffic.host;
        sched_getaffinity(0, sizeof mine.bound, &mine.bound);
        status = ew_world_allgather(s->world, &mine, all, sizeof mine);
    }
    for (int rank = num_ranks; status == EW_OK && rank-- > 0;)
        if (all[rank].host < MAX_HOSTS)
            s->lowest[all[rank].host] = rank;
    if (status == EW_OK && s->fabric->rank == 0) {
        int ranks_here, num_cores = count_cores(all, num_ranks, &ranks_here);
        cli_doctor_cores(d, num_cores, ranks_here);
    }
    free(all);
    return status;
}

static int num_answering(const survey *s)
{
    return s->num_hosts < MAX_HOSTS ? s->num_hosts : MAX_HOSTS;
}

/* Everyone opens the same places; those of others stay empty. */
static bool open_channel(survey *s)
{
    ew_place places[MAX_HOSTS * NUM_KINDS];
    const int rank = s->fabric->rank, count = num_answering(s) * NUM_KINDS;
    s->buffer = calloc(2, BULK_BYTES);
    for (int at = 0; at < count; at++) {
        const int answering = s->lowest[at / NUM_KINDS];
        const int src = rank == 0 ? answering : rank == answering ? 0 : -1;
        places[at] = (ew_place){.src = src == rank ? -1 : src,
                                .number = at,
                                .address = (char *)s->buffer + BULK_BYTES,
                                .bytes = at % NUM_KINDS == PING ? 8 : BULK_BYTES};
    }
    return s->buffer &&
           !s->fabric->channel_open(s->fabric->context, places, (size_t)count, &s->channel);
}

static bool await(survey *s, int place)
{
    const size_t asked = (size_t)place;
    size_t filled, bytes, count = 0;
    const int64_t deadline_ns = ew_now_ns() + patience_ns;
    while (count == 0 && ew_now_ns() < deadline_ns) {
        if (s->fabric->arrivals(s->channel, &asked, 1, &filled, &bytes, &count))
            return false;
        sched_yield();
    }
    return count > 0 && !s->fabric->rearm(s->channel, asked);
}

static bool send(survey *s, int dst, int place)
{
    size_t unsent = 1;
    int to;
    const int64_t deadline_ns = ew_now_ns() + patience_ns;
    if (s->fabric->put(s->channel, dst, place, s->buffer,
                       place % NUM_KINDS == PING ? 8 : BULK_BYTES, false))
        return false;
    while (unsent > 0 && ew_now_ns() < deadline_ns)
        if (s->fabric->unsent(s->channel, &unsent, &to))
            return false;
    return unsent == 0;
}

/* Messages of one kind, each answered by a short one; seconds of one. */
static bool exchange(survey *s, int host, int kind, int count, double *seconds_out)
{
    const int there = host * NUM_KINDS + kind, back = host * NUM_KINDS + PING;
    const int64_t start_ns = ew_now_ns();
    bool works = true;
    for (int i = 0; i < count && works; i++)
        works = s->fabric->rank == 0 ? send(s, s->lowest[host], there) && await(s, back)
                                     : await(s, there) && send(s, 0, back);
    *seconds_out = (double)(ew_now_ns() - start_ns) * 1e-9 / count;
    return works;
}

static void measure_host(cli_doctor *d, survey *s, int host)
{
    double ping_s, bulk_s, ignored;
    if (s->fabric->rank != 0 && s->fabric->rank != s->lowest[host])
        return;
    const bool works = exchange(s, host, PING, 5, &ignored) && /* connects */
                       exchange(s, host, PING, PINGS, &ping_s) &&
                       exchange(s, host, BULK, BULKS, &bulk_s);
    if (s->fabric->rank != 0)
        return;
    if (works)
        cli_doctor_say(d, VERDICT_OK, "hosts", "",
                       "rank 0 to rank %d on another host: %.0f us, %.2f GB/s",
                       s->lowest[host], ping_s * 5e5,
                       BULK_BYTES * 1e-9 / (bulk_s - ping_s / 2));
    else
        cli_doctor_say(d, VERDICT_FAIL, "hosts",
                       "look at firewalls, and at which network MPI uses (Open MPI: "
                       "btl_tcp_if_include)",
                       "rank %d on another host does not answer", s->lowest[host]);
}

static void measure(cli_doctor *d, survey *s)
{
    if (s->fabric->rank == 0)
        cli_doctor_say(d, VERDICT_OK, "hosts", "", "%d, with %d rank%s, over %s, which %s",
                       s->num_hosts, s->fabric->num_ranks,
                       ewx_text_plural(s->fabric->num_ranks), s->fabric->name,
                       s->fabric->takes_device_memory
                           ? "takes device memory"
                           : "takes host memory: GPUs' tiles are staged");
    if (s->num_hosts < 2 || !open_channel(s))
        return;
    for (int host = 1; host < num_answering(s); host++)
        measure_host(d, s, host);
}

cli_exit cli_doctor_hosts(cli_doctor *d)
{
    const ew_world_options options = EW_WORLD_OPTIONS_INIT;
    if (!cli_launch_is_mpi(&d->launch))
        return CLI_EXIT_OK;
    cli_exit result = cli_launch_join(&d->launch, &options);
    survey s = {.fabric = d->launch.fabric, .world = d->launch.world};
    if (result == CLI_EXIT_OK && look_around(d, &s) != EW_OK)
        result = CLI_EXIT_PEER;
    if (result == CLI_EXIT_OK) {
        measure(d, &s);
        if (ew_world_barrier(s.world) != EW_OK)
            result = CLI_EXIT_PEER;
    }
    if (!s.channel || s.fabric->channel_close(s.channel, result != CLI_EXIT_OK))
        free(s.buffer);
    return result;
}
