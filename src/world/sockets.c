/* Connections between the ranks of a host, over which they pass memory to each other; in
 * which order they are made is local_ranks.c's matter.  Sockets are abstract and chosen by
 * the kernel, so a killed rank leaves no file behind; who connects is checked by user id
 * (SO_PEERCRED) and by a secret that only the world's all-gather carried. */
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

#define SLICE_MS 100 /* of a wait, so that a freeze counts as one */
/* Between connecting and the first words nothing happens, but a rank may be stopped there.
 */
#define LEAST_GREETING_NS 75000000
#define MOST_GREETING_NS 1000000000

/* First words on a new connection. */
typedef struct greeting {
    unsigned char secret[EWX_SECRET_BYTES]; /* the listener's */
    ewx_job_id job;
    int32_t rank;
} greeting;

static ew_status fail_system(const char *what)
{
    const bool is_full = errno == EMFILE || errno == ENFILE;
    return ewx_fail(EW_ERR_SYSTEM, "%s failed: %s%s", what, strerror(errno),
                    is_full ? "\n  fix: raise the limit of open files (ulimit -n)" : "");
}

/* ---- Bounded socket calls ---- */

/* EW_ERR_TIMEOUT, without a text, when nothing has come by then. */
static ew_status await_readable(int fd, int64_t deadline_ns)
{
    const int64_t left_ns = deadline_ns - ewx_now_ns();
    ewx_timer timer = ewx_timer_begin(left_ns > 0 ? left_ns : 0);
    for (;;) {
        const bool is_over = ewx_timer_is_over(&timer);
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        const int ready =
            poll(&entry, 1, is_over ? 0 : ewx_timer_sleep_ms(&timer, SLICE_MS));
        if (ready > 0)
            return EW_OK;
        if (ready < 0 && errno != EINTR)
            return fail_system("poll");
        if (is_over)
            return EW_ERR_TIMEOUT;
    }
}

static bool has_hung_up(void)
{
    return errno == EPIPE || errno == ECONNRESET || errno == ECONNREFUSED;
}

/* Sends `bytes` bytes, with a descriptor when fd >= 0.  Never waits: the few short messages
 * of a meeting or a plan fit into any socket.  EW_ERR_PEER_DIED, without a text: the peer
 * is gone. */
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
        sent = sendmsg(socket_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)bytes)
        return EW_OK;
    return has_hung_up() ? EW_ERR_PEER_DIED : fail_system("sendmsg");
}

/* The kernel delivers a message without its descriptor when this process cannot have one
 * more. */
static ew_status fail_descriptor(int socket_fd)
{
    const int spare = fcntl(socket_fd, F_DUPFD_CLOEXEC, 0);
    if (spare < 0)
        return ewx_fail(EW_ERR_SYSTEM,
                        "no room for the descriptor of a peer's memory: %s\n"
                        "  fix: raise the limit of open files (ulimit -n)",
                        strerror(errno));
    close(spare);
    return ewx_fail(EW_ERR_SYSTEM, "a message of a peer is not what was expected");
}

/* Receives exactly one message of `bytes` bytes; *fd_out is -1 when it carried none.
 * EW_ERR_TIMEOUT and EW_ERR_PEER_DIED (it has hung up) come without a text. */
static ew_status receive_message(int socket_fd, void *data, size_t bytes,
                                 int64_t deadline_ns, int *fd_out)
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
    EW_TRY(await_readable(socket_fd, deadline_ns));
    ssize_t received;
    int resets = 0;
    do /* a reset is reported once, before what the peer sent until then */
        received = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (received < 0 && (errno == EINTR || (errno == ECONNRESET && resets++ == 0)));
    if (received == 0 || (received < 0 && (has_hung_up() || (resets && errno == EAGAIN))))
        return EW_ERR_PEER_DIED;
    if (received < 0)
        return fail_system("recvmsg");
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_type == SCM_RIGHTS)
        memcpy(fd_out, CMSG_DATA(header), sizeof *fd_out);
    /* A longer message, or one with more descriptors, was cut to what there is room for. */
    if (received == (ssize_t)bytes && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        return EW_OK;
    if (*fd_out >= 0)
        close(*fd_out);
    *fd_out = -1;
    return fail_descriptor(socket_fd);
}

ew_status ewx_sockets_send_fd(const ew_world *world, int rank, int fd)
{
    return send_message(world->sockets[rank], "f", 1, fd);
}

ew_status ewx_sockets_receive_fd(const ew_world *world, int rank, int64_t deadline_ns,
                                 int *fd_out)
{
    char note;
    EW_TRY(receive_message(world->sockets[rank], &note, 1, deadline_ns, fd_out));
    return *fd_out >= 0 ? EW_OK : fail_descriptor(world->sockets[rank]);
}

bool ewx_sockets_hung_up(const ew_world *world, int rank)
{
    struct pollfd entry = {.fd = world->sockets[rank], .events = POLLRDHUP};
    return poll(&entry, 1, 0) > 0; /* it skips negative descriptors */
}

/* ---- Connections ---- */

ew_status ewx_sockets_listen(int num_ranks, int *listener_out, ewx_address *address_out)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fail_system("socket");
    *listener_out = fd;
    struct sockaddr_un address, any = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof address;
    /* Binding the bare family asks the kernel for an unused abstract name. */
    if (bind(fd, (struct sockaddr *)&any, sizeof any.sun_family) != 0)
        return fail_system("bind");
    if (listen(fd, num_ranks) != 0)
        return fail_system("listen");
    if (getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
        return fail_system("getsockname");
    if (bytes > sizeof address_out->name)
        return ewx_fail(EW_ERR_SYSTEM, "the kernel chose a socket name of %u bytes",
                        (unsigned)bytes);
    *address_out = (ewx_address){.bytes = (uint32_t)bytes};
    memcpy(address_out->name, &address, bytes);
    if (getrandom(address_out->secret, EWX_SECRET_BYTES, 0) != EWX_SECRET_BYTES)
        return fail_system("getrandom of a secret");
    return EW_OK;
}

static ew_status identify(int fd, struct ucred *peer_out)
{
    socklen_t bytes = sizeof *peer_out;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, peer_out, &bytes) == 0
               ? EW_OK
               : fail_system("getsockopt");
}

static ew_status greet(ew_world *world, int rank, const ewx_address *peer, int fd)
{
    greeting first = {.rank = world->rank, .job = world->job};
    struct ucred other;
    memcpy(first.secret, peer->secret, EWX_SECRET_BYTES);
    EW_TRY(identify(fd, &other));
    if (other.uid != geteuid())
        return ewx_fail(EW_ERR_SYSTEM, "rank %d runs as another user", rank);
    world->pids[rank] = other.pid;
    return send_message(fd, &first, sizeof first, -1);
}

static ew_status reach(int rank, const ewx_address *peer, int *fd_out)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fail_system("socket");
    struct sockaddr_un address;
    memcpy(&address, peer->name, peer->bytes);
    int result;
    do
        result = connect(fd, (struct sockaddr *)&address, peer->bytes);
    while (result != 0 && errno == EINTR);
    if (result == 0) {
        *fd_out = fd;
        return EW_OK;
    }
    const ew_status status = errno == EAGAIN ? EW_ERR_TIMEOUT
                             : has_hung_up()
                                 ? EW_ERR_PEER_DIED
                                 : ewx_fail(EW_ERR_SYSTEM, "rank %d cannot be reached: %s",
                                            rank, strerror(errno));
    close(fd);
    return status;
}

ew_status ewx_sockets_find_pid(ew_world *world, int rank, const ewx_address *peer)
{
    struct ucred other;
    int fd;
    EW_TRY(reach(rank, peer, &fd));
    const ew_status status = identify(fd, &other);
    if (status == EW_OK && other.uid == geteuid())
        world->pids[rank] = other.pid;
    close(fd);
    return status;
}

ew_status ewx_sockets_connect(ew_world *world, int rank, const ewx_address *peer)
{
    int fd;
    EW_TRY(reach(rank, peer, &fd));
    const ew_status status = greet(world, rank, peer, fd);
    if (status == EW_OK)
        world->sockets[rank] = fd;
    else
        close(fd);
    return status;
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

ew_status ewx_sockets_check_job(const ew_world *world, const ewx_job_id *theirs, int rank,
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
    EW_TRY(ewx_sockets_check_job(world, &first->job, first->rank, pid));
    if (first->rank <= world->rank || first->rank >= world->num_ranks ||
        !ewx_is_peer(world, first->rank))
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

/* Less than others give this rank beyond the timeout before they blame it. */
static int64_t greeting_ns(const ew_world *world)
{
    const int64_t ns = world->timeout_ns / 16;
    return ns < LEAST_GREETING_NS  ? LEAST_GREETING_NS
           : ns < MOST_GREETING_NS ? ns
                                   : MOST_GREETING_NS;
}

ew_status ewx_sockets_accept(ew_world *world, int listener, const ewx_address *mine,
                             int64_t deadline_ns, int *rank_out)
{
    *rank_out = -1;
    EW_TRY(await_readable(listener, deadline_ns));
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return errno == EINTR || errno == EAGAIN || errno == ECONNABORTED
                   ? EW_OK
                   : fail_system("accept");
    greeting first;
    struct ucred peer;
    int stray = -1;
    const bool knows_us =
        identify(fd, &peer) == EW_OK && peer.uid == geteuid() &&
        receive_message(fd, &first, sizeof first, ewx_now_ns() + greeting_ns(world),
                        &stray) == EW_OK &&
        memcmp(first.secret, mine->secret, EWX_SECRET_BYTES) == 0;
    const ew_status status = knows_us ? check_greeting(world, &first, peer.pid) : EW_OK;
    if (knows_us && status == EW_OK) {
        world->sockets[first.rank] = fd;
        world->pids[first.rank] = peer.pid;
        *rank_out = first.rank;
    } else {
        close(fd);
    }
    if (stray >= 0)
        close(stray);
    return status;
}
