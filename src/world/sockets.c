/* A UNIX socket between every two ranks of a host, over which they pass memory to each
 * other. Sockets are abstract and chosen by the kernel, so a killed rank leaves no file
 * behind; who connects is checked by user id (SO_PEERCRED) and by a secret that only the
 * world's all-gather carried. */
#include "world/sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/status.h"
#include "base/text.h"
#include "base/timer.h"

#define SLICE_MS 20 /* how long a wait for a socket may be deaf to an abort */

#define GREETING_NS 1000000000 /* how long one that connects may keep us waiting */

/* First words on a new connection. */
typedef struct greeting {
    unsigned char secret[EWX_SECRET_BYTES]; /* the listener's */
    ewx_job_id job;
    int32_t rank;
} greeting;

static ew_status fail_system(const char *what)
{
    return ewx_fail(EW_ERR_SYSTEM, "%s failed: %s", what, strerror(errno));
}

static bool is_peer(const ew_world *world, int rank)
{
    return rank != world->rank && ewx_world_is_local(world, rank);
}

/* ---- Bounded socket calls ---- */

/* `abort` may be NULL: without a control block there is no abort word. */
static ew_status await_readable(int fd, const _Atomic uint64_t *abort, ewx_timer *timer)
{
    for (;;) {
        if (abort && atomic_load_explicit(abort, memory_order_acquire))
            return EW_ERR_ABORTED;
        if (ewx_timer_is_over(timer))
            return EW_ERR_TIMEOUT;
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        const int ready = poll(&entry, 1, ewx_timer_sleep_ms(timer, SLICE_MS));
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
                                 const _Atomic uint64_t *abort, ewx_timer *timer,
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
    EW_TRY(await_readable(socket_fd, abort, timer));
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

/* ---- Connections ---- */

ew_status ewx_sockets_listen(int num_ranks, int *listener_out, ewx_address *address_out)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fail_system("socket");
    *listener_out = fd;
    struct sockaddr_un address, any = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof address;
    /* Binding the bare family asks the kernel for an unused abstract name. */
    if (bind(fd, (struct sockaddr *)&any, sizeof any.sun_family) != 0 ||
        listen(fd, num_ranks) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
        return fail_system("bind");
    if (bytes > sizeof address_out->name)
        return ewx_fail(EW_ERR_SYSTEM, "the kernel chose a socket name of %u bytes",
                        (unsigned)bytes);
    *address_out = (ewx_address){.bytes = (uint32_t)bytes};
    memcpy(address_out->name, &address, bytes);
    if (getrandom(address_out->secret, EWX_SECRET_BYTES, 0) != EWX_SECRET_BYTES)
        return fail_system("getrandom");
    return EW_OK;
}

static ew_status connect_to(ew_world *world, int rank, const ewx_address *peer)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fail_system("socket");
    world->sockets[rank] = fd;
    /* Strangers may fill the peer's queue, and then connect waits for it to accept. */
    const struct timeval patience = {.tv_sec = world->timeout_ns / 1000000000,
                                     .tv_usec = world->timeout_ns % 1000000000 / 1000};
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) != 0)
        return fail_system("setsockopt");
    struct sockaddr_un address;
    memcpy(&address, peer->name, peer->bytes);
    int result;
    do
        result = connect(fd, (struct sockaddr *)&address, peer->bytes);
    while (result != 0 && errno == EINTR);
    if (result != 0)
        return ewx_fail(errno == EAGAIN         ? EW_ERR_TIMEOUT
                        : errno == ECONNREFUSED ? EW_ERR_PEER_DIED
                                                : EW_ERR_SYSTEM,
                        "rank %d cannot be reached: %s", rank, strerror(errno));
    greeting first = {.rank = world->rank, .job = world->job};
    memcpy(first.secret, peer->secret, EWX_SECRET_BYTES);
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

typedef struct id_text {
    char hex[2 * sizeof(ewx_job_id) + 1];
} id_text;

static id_text text_of(const ewx_job_id *job)
{
    id_text made;
    ewx_text text = ewx_text_in(made.hex, sizeof made.hex);
    for (size_t i = 0; i < sizeof job->bytes; i++)
        ewx_text_add(&text, "%02x", job->bytes[i]);
    return made;
}

static ew_status check_job(const ew_world *world, const ewx_job_id *theirs, int rank,
                           pid_t pid)
{
    if (memcmp(&world->job, theirs, sizeof *theirs) == 0)
        return EW_OK;
    return ewx_fail(
        EW_ERR_MISMATCH,
        "ranks of two jobs meet: rank %d (pid %d) has the job id %s, rank %d "
        "(pid %d) has %s\n"
        "  fix: check the all-gather callback: all ranks must get the same bytes",
        world->rank, (int)getpid(), text_of(&world->job).hex, rank, (int)pid,
        text_of(theirs).hex);
}

/* A process that knows our secret has it from the all-gather, so it is a rank. */
static ew_status check_greeting(const ew_world *world, const greeting *first, pid_t pid)
{
    EW_TRY(check_job(world, &first->job, first->rank, pid));
    if (first->rank <= world->rank || first->rank >= world->num_ranks ||
        !is_peer(world, first->rank))
        return ewx_fail(EW_ERR_MISMATCH,
                        "pid %d says to rank %d that it is rank %d, which is not one that "
                        "connects to it\n"
                        "  fix: check the all-gather callback",
                        (int)pid, world->rank, (int)first->rank);
    if (world->sockets[first->rank] >= 0)
        return ewx_fail(EW_ERR_MISMATCH,
                        "two processes say that they are rank %d: pid %d and pid %d\n"
                        "  fix: give every process a rank of its own",
                        (int)first->rank, (int)world->pids[first->rank], (int)pid);
    return EW_OK;
}

/* Takes one connection; strangers are dropped and do not count. */
static ew_status accept_one(ew_world *world, int listener, const ewx_address *mine,
                            ewx_timer *timer, int *accepted)
{
    EW_TRY(await_readable(listener, NULL, timer));
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return errno == EINTR || errno == ECONNABORTED ? EW_OK : fail_system("accept");
    greeting first;
    pid_t pid;
    int stray = -1;
    ewx_timer greeting_timer = ewx_timer_begin(GREETING_NS);
    const bool knows_us =
        is_our_user(fd, &pid) &&
        receive_message(fd, &first, sizeof first, NULL, &greeting_timer, &stray) == EW_OK &&
        memcmp(first.secret, mine->secret, EWX_SECRET_BYTES) == 0;
    const ew_status status = knows_us ? check_greeting(world, &first, pid) : EW_OK;
    if (knows_us && status == EW_OK) {
        world->sockets[first.rank] = fd;
        world->pids[first.rank] = pid;
        ++*accepted;
    } else {
        close(fd);
    }
    if (stray >= 0)
        close(stray);
    return status;
}

static ew_status fail_missing(const ew_world *world)
{
    char missing[256];
    ewx_text text = ewx_text_in(missing, sizeof missing);
    for (int rank = world->rank + 1; rank < world->num_ranks; rank++)
        if (is_peer(world, rank) && world->sockets[rank] < 0)
            ewx_text_add(&text, " %d", rank);
    return ewx_fail(EW_ERR_TIMEOUT,
                    "rank %d waited %.3g s for rank%s to connect\n"
                    "  fix: see whether they started, or raise the timeout",
                    world->rank, (double)world->timeout_ns * 1e-9, missing);
}

ew_status ewx_sockets_connect(ew_world *world, int listener, const ewx_address *addresses)
{
    ewx_timer timer = ewx_timer_begin(world->timeout_ns);
    int awaited = 0;
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (is_peer(world, rank) && rank < world->rank)
            EW_TRY(connect_to(world, rank, &addresses[rank]));
        else
            awaited += is_peer(world, rank);
    for (int accepted = 0; accepted < awaited;) {
        const ew_status status =
            accept_one(world, listener, &addresses[world->rank], &timer, &accepted);
        if (status == EW_ERR_TIMEOUT)
            return fail_missing(world);
        EW_TRY(status);
    }
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (is_peer(world, rank) && !is_our_user(world->sockets[rank], &world->pids[rank]))
            return ewx_fail(EW_ERR_SYSTEM, "rank %d runs as another user", rank);
    return EW_OK;
}

/* ---- Descriptors ---- */

static ew_status receive_fd(ew_world *world, int rank, int *fd_out)
{
    char note;
    ewx_control *control = world->control; /* NULL while it is being shared */
    ewx_timer timer = ewx_timer_begin(world->timeout_ns);
    const ew_status status = receive_message(
        world->sockets[rank], &note, 1, control ? &control->abort : NULL, &timer, fd_out);
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
        if (is_peer(world, rank))
            EW_TRY_TO(status, send_fd(world, rank, "f", my_fd), out);
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (is_peer(world, rank))
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

/* Before it is mapped: a rank that leaves writes into its control block. */
static ew_status receive_control(ew_world *world, int owner)
{
    ewx_control_header header;
    EW_TRY(receive_fd(world, owner, &world->control_fd));
    if (pread(world->control_fd, &header, sizeof header, 0) != sizeof header)
        return fail_system("pread of the control block");
    EW_TRY(check_job(world, &header.job, owner, world->pids[owner]));
    return ewx_control_map(world->control_fd, world->num_ranks, &world->control);
}

static ew_status give_control(ew_world *world)
{
    EW_TRY(ewx_control_create(world->num_ranks, false, &world->control_fd));
    EW_TRY(ewx_control_map(world->control_fd, world->num_ranks, &world->control));
    world->control->header.job = world->job;
    for (int i = 1; i < world->num_locals; i++)
        EW_TRY(send_fd(world, world->locals[i], "c", world->control_fd));
    return EW_OK;
}

ew_status ewx_sockets_share_control(ew_world *world)
{
    const int owner = world->locals[0];
    return world->rank == owner ? give_control(world) : receive_control(world, owner);
}
