/* Ranks as processes: from one all-gather to a mesh of UNIX sockets and a shared control
 * block.  Sockets are abstract and chosen by the kernel, so a killed rank leaves no file
 * behind; who connects is checked by user id (SO_PEERCRED) and by a secret that only the
 * world's all-gather carried. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/inject.h"
#include "base/probe.h"
#include "base/status.h"
#include "base/text.h"
#include "world/world.h"

#define SECRET_BYTES 16
#define SLICE_MS 20 /* how long a wait for a socket may be deaf to an abort */

/* What must be equal on all ranks.  Every value is exact as a double. */
#define CARD_FACTS(X)                                           \
    X(version, ewx_library_version())                           \
    X(byte_order, byte_order())                                 \
    X(card_bytes, sizeof(card))                                 \
    X(control_bytes, ewx_control_bytes(1))                      \
    X(post_bytes, sizeof(ewx_post))                             \
    X(record_bytes, sizeof(ewx_record))                         \
    X(fault_bytes, sizeof(ewx_fault))                           \
    X(problem_bytes, sizeof(ew_problem))                        \
    X(config_bytes, sizeof(ew_config))                          \
    X(pointer_bytes, sizeof(void *))                            \
    X(page_bytes, sysconf(_SC_PAGESIZE))                        \
    X(max_ranks, EWX_MAX_RANKS)                                 \
    X(num_ranks, world->num_ranks)                              \
    X(uid, geteuid())                                           \
    X(timeout_ms, world->timeout_ns / 1000000)                  \
    X(link_gbps, world->link_gbps)                              \
    X(link_latency_us, (double)world->link_latency_ns * 1e-3)

enum {
#define FACT_INDEX(name, value) FACT_##name,
    CARD_FACTS(FACT_INDEX)
#undef FACT_INDEX
        NUM_FACTS
};

static const char *const fact_names[NUM_FACTS] = {
#define FACT_NAME(name, value) #name,
    CARD_FACTS(FACT_NAME)
#undef FACT_NAME
};

/* What a rank tells the others.  Plain data of fixed size: it crosses the caller's
 * all-gather. */
typedef struct card {
    char magic[8]; /* "entwine" */
    double facts[NUM_FACTS];
    int32_t rank;
    uint32_t address_bytes;
    char host[40]; /* the kernel's boot id, or "": equal exactly on one running host */
    unsigned char address[32];
    unsigned char secret[SECRET_BYTES];
} card;

/* First words on a new connection. */
typedef struct hello {
    unsigned char secret[SECRET_BYTES]; /* the listener's */
    int32_t rank;
} hello;

static ew_status fail_system(const char *what)
{
    return ewx_fail(EW_ERR_SYSTEM, "%s failed: %s", what, strerror(errno));
}

/* ---- The card ---- */

static uint32_t byte_order(void)
{
    const unsigned char bytes[4] = {1, 2, 3, 4};
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static ew_status fill_card(const ew_world *world, const struct sockaddr_un *address,
                           socklen_t address_bytes, card *card_out)
{
    card mine = {.magic = "entwine",
                 .rank = world->rank,
                 .address_bytes = (uint32_t)address_bytes,
                 .facts = {
#define FACT_VALUE(name, value) (double)(value),
                     CARD_FACTS(FACT_VALUE)
#undef FACT_VALUE
                 }};
    for (int fact = 0; fact < NUM_FACTS; fact++)
        mine.facts[fact] += EWX_PROBE(EWX_PROBE_CARD, world->rank, fact);
    if (address_bytes > sizeof mine.address)
        return ewx_fail(EW_ERR_SYSTEM, "the kernel chose a socket name of %u bytes",
                        (unsigned)address_bytes);
    memcpy(mine.address, address, address_bytes);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file || !fgets(mine.host, sizeof mine.host, file))
        mine.host[0] = '\0'; /* then connecting has to tell */
    if (file)
        fclose(file);
    if (getrandom(mine.secret, SECRET_BYTES, 0) != SECRET_BYTES)
        return fail_system("getrandom");
    *card_out = mine;
    return EW_OK;
}

static ew_status check_card(const card *mine, const card *other, int rank)
{
    if (memcmp(mine->magic, other->magic, sizeof mine->magic) != 0)
        return ewx_fail(EW_ERR_MISMATCH,
                        "what came from rank %d is not Entwine's\n"
                        "  fix: check the all-gather callback",
                        rank);
    for (int fact = 0; fact < NUM_FACTS; fact++)
        if (mine->facts[fact] != other->facts[fact])
            return ewx_fail(EW_ERR_MISMATCH,
                            "ranks disagree: rank %d has %s=%.10g, rank %d has %s=%.10g\n"
                            "  fix: start all ranks with the same library and options",
                            mine->rank, fact_names[fact], mine->facts[fact], rank,
                            fact_names[fact], other->facts[fact]);
    if (other->rank != rank)
        return ewx_fail(EW_ERR_MISMATCH,
                        "the all-gather put rank %d in place %d\n"
                        "  fix: check the all-gather callback",
                        other->rank, rank);
    if (other->address_bytes <= sizeof(sa_family_t) ||
        other->address_bytes > sizeof other->address)
        return ewx_fail(EW_ERR_MISMATCH,
                        "rank %d gave a socket name of %u bytes\n"
                        "  fix: check the all-gather callback",
                        rank, (unsigned)other->address_bytes);
    if (mine->host[0] && other->host[0] &&
        strncmp(mine->host, other->host, sizeof mine->host) != 0)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "rank %d runs on another host than rank %d\n"
                        "  fix: start all ranks on one host",
                        rank, mine->rank);
    return EW_OK;
}

/* ---- Bounded socket calls ---- */

/* `abort` may be NULL: before there is a control block nobody can abort. */
static ew_status await_readable(int fd, const _Atomic uint64_t *abort, int64_t deadline_ns)
{
    for (;;) {
        if (abort && atomic_load_explicit(abort, memory_order_acquire))
            return EW_ERR_ABORTED;
        const int64_t left_ms = (deadline_ns - ewx_now_ns()) / 1000000;
        if (left_ms <= 0)
            return EW_ERR_TIMEOUT;
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        const int ready = poll(&entry, 1, left_ms > SLICE_MS ? SLICE_MS : (int)left_ms);
        if (ready > 0)
            return EW_OK;
        if (ready < 0 && errno != EINTR)
            return fail_system("poll");
    }
}

/* Sends `bytes` bytes, with a descriptor when fd >= 0. */
static ew_status send_message(int socket_fd, const void *data, size_t bytes, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } space = {{0}};
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = space.bytes;
        message.msg_controllen = sizeof space.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    ssize_t sent;
    do
        sent = sendmsg(socket_fd, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)bytes ? EW_OK : fail_system("sendmsg");
}

/* Receives exactly one message of `bytes` bytes; *fd_out is -1 when it carried none. */
static ew_status receive_message(int socket_fd, void *data, size_t bytes,
                                 const _Atomic uint64_t *abort, int64_t deadline_ns,
                                 int *fd_out)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } space = {{0}};
    struct iovec part = {.iov_base = data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = space.bytes,
                             .msg_controllen = CMSG_LEN(sizeof(int))}; /* one, no more */
    *fd_out = -1;
    EW_TRY(await_readable(socket_fd, abort, deadline_ns));
    ssize_t received;
    do
        received = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
    while (received < 0 && errno == EINTR);
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (received >= 0 && header && header->cmsg_type == SCM_RIGHTS)
        memcpy(fd_out, CMSG_DATA(header), sizeof *fd_out);
    /* A longer message, or one with more descriptors, was cut to what there is room for. */
    if (received == (ssize_t)bytes && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        return EW_OK;
    if (*fd_out >= 0)
        close(*fd_out);
    *fd_out = -1;
    return received == 0 ? EW_ERR_PEER_DIED : EW_ERR_SYSTEM;
}

/* ---- The mesh ---- */

static ew_status open_listener(int num_ranks, int *fd_out, struct sockaddr_un *address_out,
                               socklen_t *bytes_out)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fail_system("socket");
    struct sockaddr_un any = {.sun_family = AF_UNIX};
    *bytes_out = sizeof *address_out;
    /* Binding the bare family asks the kernel for an unused abstract name. */
    if (bind(fd, (struct sockaddr *)&any, sizeof any.sun_family) != 0 ||
        listen(fd, num_ranks) != 0 ||
        getsockname(fd, (struct sockaddr *)address_out, bytes_out) != 0) {
        const ew_status status = fail_system("bind");
        close(fd);
        return status;
    }
    *fd_out = fd;
    return EW_OK;
}

static ew_status connect_to(ew_world *world, const card *peer)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fail_system("socket");
    world->sockets[peer->rank] = fd;
    /* Strangers may fill the peer's queue, and then connect waits for it to accept. */
    const struct timeval patience = {.tv_sec = world->timeout_ns / 1000000000,
                                     .tv_usec = world->timeout_ns % 1000000000 / 1000};
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) != 0)
        return fail_system("setsockopt");
    struct sockaddr_un address;
    memcpy(&address, peer->address, peer->address_bytes);
    int result;
    do
        result = connect(fd, (struct sockaddr *)&address, peer->address_bytes);
    while (result != 0 && errno == EINTR);
    if (result != 0)
        return ewx_fail(errno == EAGAIN         ? EW_ERR_TIMEOUT
                        : errno == ECONNREFUSED ? EW_ERR_PEER_DIED
                                                : EW_ERR_SYSTEM,
                        "rank %d cannot be reached: %s", peer->rank, strerror(errno));
    hello first = {.rank = world->rank};
    memcpy(first.secret, peer->secret, SECRET_BYTES);
    return send_message(fd, &first, sizeof first, -1);
}

static bool is_our_user(int fd, pid_t *pid_out)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 ||
        peer.uid != geteuid())
        return false;
    *pid_out = peer.pid;
    return true;
}

/* Takes one connection; strangers are dropped and do not count. */
static ew_status accept_one(ew_world *world, int listener, const card *mine,
                            int64_t deadline_ns, int *accepted)
{
    EW_TRY(await_readable(listener, NULL, deadline_ns));
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return errno == EINTR || errno == ECONNABORTED ? EW_OK : fail_system("accept");
    hello first;
    pid_t pid;
    int stray = -1;
    if (is_our_user(fd, &pid) &&
        receive_message(fd, &first, sizeof first, NULL, ewx_now_ns() + 1000000000,
                        &stray) == EW_OK &&
        memcmp(first.secret, mine->secret, SECRET_BYTES) == 0 && first.rank > world->rank &&
        first.rank < world->num_ranks && world->sockets[first.rank] < 0) {
        world->sockets[first.rank] = fd;
        ++*accepted;
    } else {
        close(fd);
    }
    if (stray >= 0)
        close(stray);
    return EW_OK;
}

static ew_status fail_missing(const ew_world *world)
{
    char missing[256];
    ewx_text text = ewx_text_in(missing, sizeof missing);
    for (int rank = world->rank + 1; rank < world->num_ranks; rank++)
        if (world->sockets[rank] < 0)
            ewx_text_add(&text, " %d", rank);
    return ewx_fail(EW_ERR_TIMEOUT,
                    "rank %d waited %.3g s for rank%s to connect\n"
                    "  fix: see whether they started, or raise the timeout",
                    world->rank, (double)world->timeout_ns * 1e-9, missing);
}

static ew_status build_mesh(ew_world *world, int listener, const card *cards)
{
    const int64_t deadline_ns = ewx_now_ns() + world->timeout_ns;
    for (int rank = 0; rank < world->rank; rank++)
        EW_TRY(connect_to(world, &cards[rank]));
    for (int accepted = 0; accepted < world->num_ranks - 1 - world->rank;) {
        const ew_status status =
            accept_one(world, listener, &cards[world->rank], deadline_ns, &accepted);
        if (status == EW_ERR_TIMEOUT)
            return fail_missing(world);
        EW_TRY(status);
    }
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (rank != world->rank && !is_our_user(world->sockets[rank], &world->pids[rank]))
            return ewx_fail(EW_ERR_SYSTEM, "rank %d runs as another user", rank);
    return EW_OK;
}

/* ---- Descriptors ---- */

static ew_status receive_fd(ew_world *world, int rank, int *fd_out)
{
    char note;
    ewx_control *control = world->control; /* NULL while it is being shared */
    const ew_status status =
        receive_message(world->sockets[rank], &note, 1, control ? &control->abort : NULL,
                        ewx_now_ns() + world->timeout_ns, fd_out);
    if (status == EW_OK && *fd_out >= 0)
        return EW_OK;
    if (control) /* the reason that all ranks give, if there is one */
        EW_TRY(ewx_world_check(world));
    return ewx_fail(status == EW_OK ? EW_ERR_SYSTEM : status,
                    "rank %d did not get a memory descriptor from rank %d", world->rank,
                    rank);
}

static ew_status send_fd(ew_world *world, int rank, const char *note, int fd)
{
    const ew_status status = send_message(world->sockets[rank], note, 1, fd);
    const bool left = status != EW_OK && (errno == EPIPE || errno == ECONNRESET);
    if (status != EW_OK && world->control) /* the reason that all ranks give, as above */
        EW_TRY(ewx_world_check(world));
    return left ? ewx_fail(EW_ERR_PEER_DIED,
                           "rank %d left before it got a memory descriptor from rank %d",
                           rank, world->rank)
                : status;
}

ew_status ewx_world_exchange_fds(ew_world *world, int my_fd, int *fds_out)
{
    ew_status status = EW_OK;
    for (int rank = 0; rank < world->num_ranks; rank++)
        fds_out[rank] = -1;
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (rank != world->rank)
            EW_TRY_TO(status, send_fd(world, rank, "f", my_fd), out);
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (rank != world->rank)
            EW_TRY_TO(status, receive_fd(world, rank, &fds_out[rank]), out);
    fds_out[world->rank] = fcntl(my_fd, F_DUPFD_CLOEXEC, 0);
    if (fds_out[world->rank] < 0)
        status = fail_system("fcntl");
out:
    for (int rank = 0; status != EW_OK && rank < world->num_ranks; rank++)
        if (fds_out[rank] >= 0)
            close(fds_out[rank]);
    if (status != EW_OK)
        ew_world_abort(world); /* or peers would wait for what we did not send */
    return status;
}

/* Rank 0 owns the control block; all ranks may write to it.  Its descriptor stays open, so
 * that `entwine status` can find it. */
static ew_status share_control(ew_world *world)
{
    if (world->rank > 0)
        EW_TRY(receive_fd(world, 0, &world->control_fd));
    else
        EW_TRY(ewx_control_create(world->num_ranks, false, &world->control_fd));
    for (int rank = 1; world->rank == 0 && rank < world->num_ranks; rank++)
        EW_TRY(send_fd(world, rank, "c", world->control_fd));
    return ewx_control_map(world->control_fd, world->num_ranks, &world->control);
}

/* ---- Create ---- */

static ew_status gather_cards(ew_world *world, ew_allgather allgather, void *context,
                              const card *mine, card *cards)
{
    if (world->num_ranks == 1) {
        cards[0] = *mine;
        return EW_OK;
    }
    ewx_fail(EW_OK, "%s", "");
    const int result = allgather(context, mine, cards, sizeof *mine);
    if (result != 0 && ew_last_error()[0]) /* our own launcher explains itself */
        return result < 0 ? (ew_status)result : EW_ERR_ABORTED;
    if (result != 0)
        return ewx_fail(EW_ERR_ABORTED, "the all-gather callback failed with code %d",
                        result);
    for (int rank = 0; rank < world->num_ranks; rank++)
        EW_TRY(check_card(mine, &cards[rank], rank));
    return EW_OK;
}

static ew_status join(ew_world *world, ew_allgather allgather, void *context)
{
    struct sockaddr_un address;
    socklen_t address_bytes = 0;
    int listener = -1;
    card mine;
    card *cards = calloc((size_t)world->num_ranks, sizeof *cards);
    ew_status status = EW_OK;
    if (!cards)
        return ewx_fail(EW_ERR_MEMORY, "no memory for %d ranks", world->num_ranks);
    EW_TRY_TO(status, open_listener(world->num_ranks, &listener, &address, &address_bytes),
              out);
    EW_TRY_TO(status, fill_card(world, &address, address_bytes, &mine), out);
    EW_TRY_TO(status, gather_cards(world, allgather, context, &mine, cards), out);
    EW_TRY_TO(status, build_mesh(world, listener, cards), out);
    EW_TRY_TO(status, share_control(world), out);
    atomic_store(&world->control->posts[world->rank].lane.pid, (int32_t)getpid());
    EW_TRY_TO(status, ewx_watch_start(world), out);
    status = ew_world_barrier(world);
out:
    if (listener >= 0)
        close(listener);
    free(cards);
    return status;
}

ew_status ew_world_create(int rank, int num_ranks, ew_allgather allgather, void *context,
                          const ew_world_options *options, ew_world **world_out)
{
    if (!world_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_world_create needs a place for the world");
    if (num_ranks < 1 || num_ranks > EWX_MAX_RANKS || rank < 0 || rank >= num_ranks)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "rank %d of %d\n  fix: use ranks 0 to W-1 and W from 1 to %d", rank,
                        num_ranks, EWX_MAX_RANKS);
    if (num_ranks > 1 && !allgather)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "W=%d ranks cannot meet without an all-gather\n"
                        "  fix: pass one, or use ew_run_ranks",
                        num_ranks);
    EW_TRY(EWX_INJECT_LOAD(rank));
    ew_world *world = calloc(1, sizeof *world);
    if (!world)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a world");
    for (int peer = 0; peer < num_ranks; peer++)
        world->sockets[peer] = -1;
    world->stop_fd = world->control_fd = -1;
    (void)EWX_PROBE(EWX_PROBE_BOOTSTRAP, rank, 0);
    ew_status status = ewx_world_init(world, rank, num_ranks, options);
    if (status == EW_OK)
        status = join(world, allgather, context);
    if (status != EW_OK) {
        ew_world_destroy(world);
        return status;
    }
    *world_out = world;
    return EW_OK;
}
