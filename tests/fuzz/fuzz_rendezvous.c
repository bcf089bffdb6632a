/* What peers and strangers send while a world is made: the hellos of the all-gather, and
 * greetings on a connection.  The sources are included, because none of this is visible
 * outside them.
 *
 * The first byte chooses.  Odd: the rest are pairs of a place and a value to put there in
 * an otherwise good hello.  Even: the rest is sent to a listener as a greeting, with a
 * descriptor when bit 1 is set, with the right secret in front when bit 2 is, and with the
 * job's id behind that when bit 3 is too. */
#include "fuzz.h"

#include "world/sockets.c"

#include "world/bootstrap.c"

static int count_fds(void)
{
    const int fd = dup(0);
    FUZZ_DEMAND(fd >= 0);
    close(fd);
    return fd; /* the lowest free one: it rises when one is left open */
}

static void make_world(ew_world *world)
{
    *world = (ew_world){.num_ranks = 3, .timeout_ns = 1000000000, .stop_fd = -1};
    for (int rank = 0; rank < world->num_ranks; rank++)
        world->sockets[rank] = -1;
}

static void close_sockets(ew_world *world)
{
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (world->sockets[rank] >= 0)
            close(world->sockets[rank]);
}

/* Whatever host it says it is on. */
static void try_host(const hello *mine, const hello *other)
{
    static const ew_fabric fabric = {.name = "none"};
    const hello hellos[] = {*mine, *other, *mine};
    ew_world world;
    make_world(&world);
    world.fabric = &fabric;
    FUZZ_DEMAND(settle(&world, hellos) == EW_OK && ewx_world_is_local(&world, 2));
    FUZZ_DEMAND(world.hosts[1] >= 0 && world.hosts[1] < world.num_hosts);
}

static void try_hello(const hello *mine, const uint8_t *data, size_t bytes)
{
    hello other = *mine;
    ew_world world;
    other.rank = 1;
    for (size_t at = 0; at + 2 < bytes; at += 3)
        ((unsigned char *)&other)[(data[at] << 8 | data[at + 1]) % sizeof other] =
            data[at + 2];
    if (check_hello(mine, &other, 1) != EW_OK)
        return;
    FUZZ_DEMAND(other.rank == 1);
    try_host(mine, &other);
    make_world(&world);
    (void)ewx_sockets_connect(&world, 1,
                              &other.address); /* nobody listens under such a name */
    close_sockets(&world);
}

static void try_greeting(const hello *mine, uint8_t mode, const uint8_t *data, size_t bytes)
{
    unsigned char message[256];
    const unsigned char *secret = mine->address.secret;
    ewx_address ours;
    ew_world world;
    int listener;
    size_t used = 0;
    make_world(&world);
    FUZZ_DEMAND(ewx_sockets_listen(3, &listener, &ours) == EW_OK);
    const int client = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un address;
    memcpy(&address, ours.name, ours.bytes);
    FUZZ_DEMAND(connect(client, (struct sockaddr *)&address, ours.bytes) == 0);
    world.job = mine->job;
    if (mode & 4) {
        memcpy(message, secret, EWX_SECRET_BYTES);
        used = EWX_SECRET_BYTES;
    }
    if ((mode & 12) == 12) {
        memcpy(message + used, &mine->job, sizeof mine->job);
        used += sizeof mine->job;
    }
    if (bytes > sizeof message - used)
        bytes = sizeof message - used;
    memcpy(message + used, data, bytes);
    (void)send_message(client, message, used + bytes, mode & 2 ? client : -1);
    (void)shutdown(client, SHUT_WR); /* an empty message must not cost a wait */
    int rank;
    const ew_status status = ewx_sockets_accept(&world, listener, &mine->address,
                                                ewx_now_ns() + 1000000000, &rank);
    const bool accepted = status == EW_OK && rank >= 0;
    greeting first = {.rank = 0};
    if (used + bytes == sizeof first)
        memcpy(&first, message, sizeof first);
    const bool knows_us = memcmp(first.secret, secret, EWX_SECRET_BYTES) == 0;
    FUZZ_DEMAND(accepted ==
                (knows_us && memcmp(&first.job, &mine->job, sizeof first.job) == 0 &&
                 (first.rank == 1 || first.rank == 2)));
    FUZZ_DEMAND(status == (knows_us && !accepted ? EW_ERR_MISMATCH : EW_OK));
    close_sockets(&world);
    close(client);
    close(listener);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const struct sockaddr_un address = {.sun_family = AF_UNIX,
                                               .sun_path = "\0entwine-fuzz-nobody"};
    ewx_address nowhere = {.bytes = 22};
    static hello mine;
    ew_world world;
    const int fds_before = count_fds();
    if (bytes == 0)
        return 0;
    if (!mine.magic[0]) {
        make_world(&world);
        memcpy(nowhere.name, &address, nowhere.bytes);
        memset(nowhere.secret, 0x5a, EWX_SECRET_BYTES); /* runs must repeat */
        FUZZ_DEMAND(fill_hello(&world, &nowhere, &mine) == EW_OK);
        memset(&mine.job, 0x3c, sizeof mine.job);
    }
    if (data[0] & 1)
        try_hello(&mine, data + 1, bytes - 1);
    else
        try_greeting(&mine, data[0], data + 1, bytes - 1);
    FUZZ_DEMAND(count_fds() == fds_before);
    return 0;
}
