/* Ranks as processes: from one all-gather to a world.  Every rank contributes a
 * hello; comparing these shows which ranks share a host, without guessing from a
 * launcher's variables.  The ranks of a host then connect to each other by sockets. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/build_id.h"
#include "base/inject.h"
#include "base/probe.h"
#include "base/status.h"
#include "base/text.h"
#include "base/versioned.h"
#include "world/local_ranks.h"
#include "world/remote_ranks.h"

/* What must be equal on all ranks.  Every value is exact as a double. */
#define HELLO_FACTS(X)                                        \
    X(version, ewx_library_version())                         \
    X(build, ewx_build_id)                                    \
    X(byte_order, byte_order())                               \
    X(hello_bytes, sizeof(hello))                             \
    X(control_bytes, ewx_control_bytes(1))                    \
    X(mailbox_bytes, sizeof(ewx_mailbox))                     \
    X(record_bytes, sizeof(ewx_record))                       \
    X(fault_bytes, sizeof(ewx_fault))                         \
    X(problem_bytes, sizeof(ew_problem))                      \
    X(config_bytes, sizeof(ew_config))                        \
    X(pointer_bytes, sizeof(void *))                          \
    X(page_bytes, sysconf(_SC_PAGESIZE))                      \
    X(max_ranks, EWX_MAX_RANKS)                               \
    X(num_ranks, world->num_ranks)                            \
    X(uid, geteuid())                                         \
    X(fabric, fabric_hash(world))                             \
    X(timeout_ms, world->timeout_ns / 1000000)                \
    X(link_gbps, world->link_gbps)                            \
    X(link_latency_us, (double)world->link_latency_ns * 1e-3) \
    X(link_header_bytes, world->link_header_bytes)

enum {
#define FACT_INDEX(name, value) FACT_##name,
    HELLO_FACTS(FACT_INDEX)
#undef FACT_INDEX
        NUM_FACTS
};

static const char *const fact_names[NUM_FACTS] = {
#define FACT_NAME(name, value) #name,
    HELLO_FACTS(FACT_NAME)
#undef FACT_NAME
};

/* What a rank says of itself.  Plain data of fixed size: it crosses the caller's
 * all-gather. */
typedef struct hello {
    char magic[8];  /* "entwine" */
    ewx_job_id job; /* from rank 0 */
    double facts[NUM_FACTS];
    uint64_t pid_space; /* equal where pids mean the same processes; 0: unknown */
    int64_t pid;
    int32_t rank;
    char host[96]; /* equal exactly on one host; "": unknown */
    ewx_address address;
} hello;

/* ---- The hello ---- */

static uint32_t byte_order(void)
{
    const unsigned char bytes[4] = {1, 2, 3, 4};
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

/* 0: all ranks have come without one.  52 bits, to be exact as a double. */
static uint64_t fabric_hash(const ew_world *world)
{
    return world->fabric ? 1 + (ewx_text_hash(world->fabric->name) >> 12) : 0;
}

/* For tests of what crosses hosts: where there is a fabric, ENTWINE_HOSTS=H makes H of one,
 * each with its share of consecutive ranks. */
static ew_status emulated_host(const ew_world *world, int *host_out)
{
    const char *text = secure_getenv("ENTWINE_HOSTS");
    *host_out = 0;
    if (!world->fabric || !text || !*text)
        return EW_OK;
    char *end;
    errno = 0;
    const long count = strtol(text, &end, 10);
    if (errno || *end || count < 1 || count > EWX_MAX_RANKS)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ENTWINE_HOSTS=%s is not a number of hosts\n"
                        "  fix: use 1 to %d, or unset it",
                        text, EWX_MAX_RANKS);
    *host_out = (int)(world->rank * count / world->num_ranks);
    return EW_OK;
}

/* ENTWINE_DEVICE_MPI=off: for an MPI that wrongly claims CUDA support, and for
 * comparisons. */
static ew_status settle_device_memory(ew_world *world)
{
    const char *wish = secure_getenv("ENTWINE_DEVICE_MPI");
    world->takes_device_memory = world->fabric && world->fabric->takes_device_memory;
    if (!world->fabric || !wish || !*wish)
        return EW_OK;
    if (strcmp(wish, "off") != 0)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ENTWINE_DEVICE_MPI=%s is not known\n"
                        "  fix: use off, or unset it: MPI is then given device memory "
                        "where it says that it takes it",
                        wish);
    world->takes_device_memory = false;
    return EW_OK;
}

/* Abstract sockets and memfds reach as far as one kernel and one network namespace. */
static ew_status name_host(const ew_world *world, char *name, size_t bytes)
{
    char boot[40] = "";
    struct stat network;
    int emulated;
    EW_TRY(emulated_host(world, &emulated));
    ewx_text text = ewx_text_in(name, bytes);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file && fgets(boot, sizeof boot, file) && stat("/proc/self/ns/net", &network) == 0)
        ewx_text_add(&text, "%.36s:%llu:%d", boot, (unsigned long long)network.st_ino,
                     emulated);
    if (file)
        fclose(file);
    return EW_OK;
}

static uint64_t name_pid_space(void)
{
    struct stat space;
    return stat("/proc/self/ns/pid", &space) == 0 ? (uint64_t)space.st_ino : 0;
}

static ew_status fill_hello(const ew_world *world, const ewx_address *address,
                            hello *hello_out)
{
    hello mine = {.magic = "entwine",
                  .pid_space =
                      EWX_PROBE(EWX_PROBE_HELLO, world->rank, -1) ? 0 : name_pid_space(),
                  .pid = getpid(),
                  .rank = world->rank,
                  .address = *address,
                  .facts = {
#define FACT_VALUE(name, value) (double)(value),
                      HELLO_FACTS(FACT_VALUE)
#undef FACT_VALUE
                  }};
    for (int fact = 0; fact < NUM_FACTS; fact++)
        mine.facts[fact] += EWX_PROBE(EWX_PROBE_HELLO, world->rank, fact);
    EW_TRY(name_host(world, mine.host, sizeof mine.host));
    if (world->rank == 0 && getrandom(&mine.job, sizeof mine.job, 0) != sizeof mine.job)
        return ewx_fail(EW_ERR_SYSTEM, "getrandom of the job's id failed: %s",
                        strerror(errno));
    *hello_out = mine;
    return EW_OK;
}

static ew_status check_hello(const hello *mine, const hello *other, int rank)
{
    if (memcmp(mine->magic, other->magic, sizeof mine->magic) != 0)
        return ewx_fail(
            EW_ERR_MISMATCH,
            "the bytes that the all-gather returned for rank %d are not Entwine's\n"
            "  fix: check the all-gather callback",
            rank);
    for (int fact = 0; fact < NUM_FACTS; fact++)
        if (mine->facts[fact] != other->facts[fact])
            return ewx_fail(EW_ERR_MISMATCH,
                            "ranks disagree: rank %d has %s=%.16g, rank %d has %s=%.16g\n"
                            "  fix: start all ranks with the same library and options",
                            mine->rank, fact_names[fact], mine->facts[fact], rank,
                            fact_names[fact], other->facts[fact]);
    if (other->rank != rank)
        return ewx_fail(EW_ERR_MISMATCH,
                        "the all-gather put rank %d in place %d\n"
                        "  fix: check the all-gather callback",
                        other->rank, rank);
    if (other->address.bytes <= sizeof(sa_family_t) ||
        other->address.bytes > sizeof other->address.name)
        return ewx_fail(EW_ERR_MISMATCH,
                        "rank %d gave a socket name of %u bytes\n"
                        "  fix: check the all-gather callback",
                        rank, (unsigned)other->address.bytes);
    return EW_OK;
}

/* ---- Hosts ---- */

static bool on_one_host(const hello *one, const hello *other)
{
    return !one->host[0] || !other->host[0] || /* then connecting decides */
           strncmp(one->host, other->host, sizeof one->host) == 0;
}

static ew_status settle(ew_world *world, const hello *hellos)
{
    int hosts[EWX_MAX_RANKS];
    for (int rank = 0; rank < world->num_ranks; rank++) {
        hosts[rank] = 0;
        while (!on_one_host(&hellos[hosts[rank]], &hellos[rank]))
            hosts[rank]++;
    }
    ewx_world_settle(world, hosts);
    if (world->num_hosts == 1)
        return EW_OK;
    if (!world->fabric)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "ranks run on %d hosts, and nothing carries bytes between them\n"
                        "  fix: start them with mpirun and the MPI module "
                        "(docs/CLUSTER.md), or all on one host",
                        world->num_hosts);
    if (world->link_gbps > 0.0)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "no link (here %g Gb/s) can be emulated for ranks on %d hosts\n"
                        "  fix: leave the link out, or start all ranks on one host",
                        world->link_gbps, world->num_hosts);
    return EW_OK;
}

/* ---- Create ---- */

/* A non-blocking all-gather over a fabric, and the ranks that it still lacks. */
typedef struct roll_call {
    const ew_world *world;
    const hello *mine;
    hello *hellos;
    int result;
    bool missing[EWX_MAX_RANKS];
} roll_call;

static bool is_complete(roll_call *call)
{
    const ew_world *world = call->world;
    call->result = world->fabric->gather(world->fabric->context, call->mine, call->hellos,
                                         sizeof *call->mine, call->missing);
    for (int rank = 0; rank < world->num_ranks && call->result == 0; rank++)
        if (call->missing[rank])
            return false;
    return true;
}

static ew_status call_roll(ew_world *world, const hello *mine, hello *hellos)
{
    roll_call call = {.world = world, .mine = mine, .hellos = hellos};
    ewx_wait wait = ewx_world_wait(world);
    ew_status status;
    EWX_AWAIT(status, &wait, is_complete(&call));
    if (status == EW_OK && call.result != 0)
        return ewx_fail(EW_ERR_SYSTEM, "%s cannot gather the ranks (code %d)",
                        world->fabric->name, call.result);
    if (status == EW_OK)
        return EW_OK;
    EW_TRY(ewx_world_check(world)); /* it was cancelled */
    ewx_fault absence = {
        .status = EW_ERR_TIMEOUT, .reporter = world->rank, .code = EWX_FAULT_JOINING};
    for (int rank = world->num_ranks - 1; rank >= 0; rank--)
        if (call.missing[rank]) {
            ewx_fault_add_rank(&absence, rank);
            absence.culprit = rank;
        }
    return ewx_world_raise(world, &absence);
}

/* When it succeeds, a cancellation is left to the meeting, where the others learn of it. */
static ew_status call_back(ew_world *world, ew_allgather allgather, void *context,
                           const hello *mine, hello *hellos)
{
    ewx_fail(EW_OK, "%s", "");
    const int result = allgather(context, mine, hellos, sizeof *mine);
    if (result != 0)
        EW_TRY(ewx_world_check(world));
    if (result != 0 && ew_last_error()[0]) /* our own launcher explains itself */
        return result < 0 ? (ew_status)result : EW_ERR_ABORTED;
    if (result != 0)
        return ewx_fail(EW_ERR_ABORTED, "the all-gather callback failed with code %d",
                        result);
    return EW_OK;
}

static ew_status gather_hellos(ew_world *world, ew_allgather allgather, void *context,
                               const hello *mine, hello *hellos)
{
    if (world->num_ranks == 1) {
        hellos[0] = *mine;
        return EW_OK;
    }
    EW_TRY(world->fabric && world->fabric->gather
               ? call_roll(world, mine, hellos)
               : call_back(world, allgather, context, mine, hellos));
    for (int rank = 0; rank < world->num_ranks; rank++)
        EW_TRY(check_hello(mine, &hellos[rank], rank));
    return EW_OK;
}

/* Pids of another pid namespace are not to be mistaken for ours. */
static void learn_pids(ew_world *world, const hello *hellos)
{
    const uint64_t ours = hellos[world->rank].pid_space;
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (ewx_is_peer(world, rank) && ours && hellos[rank].pid_space == ours)
            world->pids[rank] = (pid_t)hellos[rank].pid;
}

/* Ranks of other hosts may be about to report whom they miss there. */
static ew_status await_all_hosts(ew_world *world)
{
    const int64_t timeout_ns = world->timeout_ns;
    if (world->num_hosts > 1)
        world->timeout_ns += timeout_ns / 6;
    const ew_status status = ewx_world_barrier(world);
    world->timeout_ns = timeout_ns;
    return status;
}

static ew_status meet(ew_world *world, int listener, const hello *hellos)
{
    ewx_address addresses[EWX_MAX_RANKS];
    for (int rank = 0; rank < world->num_ranks; rank++)
        addresses[rank] = hellos[rank].address;
    world->job = hellos[0].job;
    memcpy(&world->stamp, &world->job, sizeof world->stamp);
    EW_TRY(settle(world, hellos));
    learn_pids(world, hellos);
    EW_TRY(ewx_locals_meet(world, listener, addresses));
    EW_TRY(ewx_remotes_open(world));
    atomic_store(&world->control->mailboxes[world->rank].lane.pid, (int32_t)getpid());
    ewx_claims_open(world);
    ewx_place_post(world);
    EW_TRY(ewx_death_watch_start(world));
    return await_all_hosts(world);
}

static ew_status join(ew_world *world, ew_allgather allgather, void *context)
{
    int listener = -1;
    ewx_address address;
    hello mine;
    hello *hellos = calloc((size_t)world->num_ranks, sizeof *hellos);
    ew_status status = EW_OK;
    if (!hellos)
        return ewx_fail(EW_ERR_MEMORY, "no memory for %d ranks", world->num_ranks);
    EW_TRY_TO(status, ewx_sockets_listen(world->num_ranks, &listener, &address), out);
    EW_TRY_TO(status, fill_hello(world, &address, &mine), out);
    EW_TRY_TO(status, gather_hellos(world, allgather, context, &mine, hellos), out);
    status = meet(world, listener, hellos);
    if (status != EW_OK)
        ewx_world_give_up(world, status);
out:
    if (listener >= 0)
        close(listener);
    free(hellos);
    return status;
}

/* Arguments have been checked. */
static ew_status create(int rank, int num_ranks, ew_allgather allgather, void *context,
                        const ew_fabric *fabric, const ew_world_options *options,
                        int *culprit_out, ew_world **world_out)
{
    EW_TRY(EWX_INJECT_LOAD(rank));
    ew_world *world = calloc(1, sizeof *world);
    if (!world)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a world");
    ewx_handle_begin(&world->handle, EWX_KIND_WORLD);
    for (int peer = 0; peer < num_ranks; peer++)
        world->sockets[peer] = world->death_fds[peer] = -1;
    world->stop_fd = world->control_fd = world->blamed = -1;
    if (fabric)
        world->fabric_table = *fabric;
    world->fabric = fabric ? &world->fabric_table : NULL;
    (void)EWX_PROBE(EWX_PROBE_BOOTSTRAP, rank, 0);
    ew_status status = ewx_world_init(world, rank, num_ranks, options);
    if (status == EW_OK)
        status = ewx_use_open(world);
    if (status == EW_OK)
        status = settle_device_memory(world);
    if (status == EW_OK)
        status = ewx_world_check(world);
    if (status == EW_OK)
        status = join(world, allgather, context);
    if (status != EW_OK) {
        *culprit_out = ewx_world_culprit(world);
        ew_world_destroy(world);
        return status;
    }
    world->cancel = NULL;
    *world_out = world;
    return EW_OK;
}

static ew_status check_place(int rank, int num_ranks, ew_world *const *world_out)
{
    if (!world_out)
        return ewx_fail(EW_ERR_ARGUMENT, "a world needs a place to be returned in");
    if (num_ranks < 1 || num_ranks > EWX_MAX_RANKS || rank < 0 || rank >= num_ranks)
        return ewx_fail(
            EW_ERR_ARGUMENT,
            "rank %d of W=%d is out of range\n  fix: use ranks 0 to W-1 and W from 1 to %d",
            rank, num_ranks, EWX_MAX_RANKS);
    return EW_OK;
}

ew_status ewx_world_create(int rank, int num_ranks, ew_allgather allgather, void *context,
                           const ew_world_options *options, int *culprit_out,
                           ew_world **world_out)
{
    EW_TRY(check_place(rank, num_ranks, world_out));
    if (num_ranks > 1 && !allgather)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "W=%d ranks cannot meet without an all-gather\n"
                        "  fix: pass one, or use ew_run_ranks",
                        num_ranks);
    return create(rank, num_ranks, allgather, context, NULL, options, culprit_out,
                  world_out);
}

ew_status ew_world_create(int rank, int num_ranks, ew_allgather allgather, void *context,
                          const ew_world_options *options, ew_world **world_out)
{
    int culprit;
    return ewx_world_create(rank, num_ranks, allgather, context, options, &culprit,
                            world_out);
}

/* What is used before the ranks know whether the fabric carries anything. */
static ew_status check_fabric(const ew_fabric *fabric)
{
    if (!fabric->name)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "the fabric has no name\n"
                        "  fix: set it; messages speak of the fabric by it");
    if (fabric->num_ranks > 1 && !fabric->allgather && !fabric->gather)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "W=%d ranks cannot meet: the fabric %s has no all-gather\n"
                        "  fix: set allgather or gather of the table in entwine/fabric.h",
                        fabric->num_ranks, fabric->name);
    return EW_OK;
}

ew_status ew_world_join(const ew_fabric *fabric, const ew_world_options *options,
                        ew_world **world_out)
{
    ew_fabric given;
    EW_TRY(ewx_struct_take(&given, sizeof given, fabric, EWX_FIRST_FABRIC, "the fabric",
                           "its size, or take it from the MPI module"));
    EW_TRY(check_place(given.rank, given.num_ranks, world_out));
    EW_TRY(check_fabric(&given));
    int culprit;
    return create(given.rank, given.num_ranks, given.allgather, given.context, &given,
                  options, &culprit, world_out);
}
