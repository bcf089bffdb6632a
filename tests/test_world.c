/* The world: how ranks meet, talk and part, whoever started them, and that they leave
 * nothing behind.  Faults in the middle of work are test_faults.c's. */
#include "harness.h"
#include "faultkit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/probe.h"

#define SOME_TIMEOUT_MS 20000 /* never reached unless something hangs */
#define MOST_CARD_BYTES 1024

static ew_world_options options_of(uint32_t timeout_ms)
{
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    return options;
}

/* ---- Collectives ---- */

static unsigned char byte_at(int rank, size_t index)
{
    return (unsigned char)((size_t)rank * 151 + index * 7 + index / 251);
}

static int gather_and_compare(ew_world *world, size_t bytes)
{
    const int rank = ew_world_rank(world), num_ranks = ew_world_size(world);
    const size_t total = bytes * (size_t)num_ranks;
    unsigned char *mine = malloc(bytes + 1), *all = malloc(total + 1);
    for (size_t i = 0; i < bytes; i++)
        mine[i] = byte_at(rank, i);
    all[total] = 0xa5;
    const ew_status status = ew_world_allgather(world, mine, all, bytes);
    int64_t wrong = all[total] != 0xa5;
    for (int src = 0; status == EW_OK && src < num_ranks; src++)
        for (size_t i = 0; i < bytes; i++)
            wrong += all[(size_t)src * bytes + i] != byte_at(src, i);
    free(mine);
    free(all);
    RANK_OK(status);
    RANK_CHECK(wrong == 0, "%lld bytes of %zu", (long long)wrong, bytes);
    return 0;
}

static int gather_sizes(ew_world *world, void *argument)
{
    static const size_t sizes[] = {0, 1, 4096, 4097, 100000};
    (void)argument;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        RANK_TRY(gather_and_compare(world, sizes[i]));
    for (int round = 0; round < 50; round++) {
        RANK_TRY(gather_and_compare(world, 8));
        RANK_OK(ew_world_barrier(world));
    }
    return 0;
}

static void collectives_carry_every_byte(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++)
        for (int num_ranks = 1; num_ranks <= 8; num_ranks++) {
            harness_context("kind %d, W=%d", (int)both_kinds[kind], num_ranks);
            harness_run(both_kinds[kind], num_ranks, gather_sizes, NULL);
        }
}

/* Nobody leaves a barrier before everybody has come. */
static int count_arrivals(ew_world *world, void *argument)
{
    atomic_int *arrived = argument;
    const int num_ranks = ew_world_size(world);
    for (int round = 1; round <= 100; round++) {
        atomic_fetch_add(arrived, 1);
        RANK_OK(ew_world_barrier(world));
        const int seen = atomic_load(arrived);
        RANK_CHECK(seen >= round * num_ranks, "%d of %d", seen, round * num_ranks);
        RANK_OK(ew_world_barrier(world));
    }
    return 0;
}

static void barrier_holds_everyone(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        atomic_int *arrived = harness_share(sizeof *arrived);
        harness_run(both_kinds[kind], 4, count_arrivals, arrived);
        harness_unshare(arrived, sizeof *arrived);
    }
}

/* ---- Ranks that the caller starts ---- */

typedef enum callback_fault {
    FAULT_NONE,
    FAULT_FAIL,      /* returns 7 on rank 1 */
    FAULT_GARBAGE,   /* random bytes in every place */
    FAULT_MIXED,     /* two ranks in each other's place */
    FAULT_WORD,      /* one word of rank 0's card is all ones on rank 1 */
    FAULT_STRANGERS, /* others connect to rank 0 first */
    FAULT_DEAF       /* rank 0's queue is full of strangers and it never looks */
} callback_fault;

typedef struct meeting {
    atomic_int arrived, left;
    callback_fault fault;
    int word; /* of FAULT_WORD; -1 on return: the card has fewer */
    ew_world_options options[8];
    ew_status statuses[8];
    char texts[8][512];
    int fds_before[8], fds_after[8];
    int64_t took_ns[8];
    unsigned char cards[8][MOST_CARD_BYTES];
} meeting;

typedef struct guest {
    meeting *meeting;
    int rank, num_ranks;
} guest;

static bool meet(atomic_int *counter, int count)
{
    atomic_fetch_add(counter, 1);
    for (const int64_t end = ewx_now_ns() + 20000000000; ewx_now_ns() < end; sched_yield())
        if (atomic_load(counter) >= count)
            return true;
    return false;
}

static bool find_listener(struct sockaddr_un *address, socklen_t *bytes)
{
    for (int fd = 0; fd < 256; fd++) {
        int listening = 0;
        socklen_t size = sizeof listening;
        *bytes = sizeof *address;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening)
            return getsockname(fd, (struct sockaddr *)address, bytes) == 0;
    }
    return false;
}

/* A descriptor travels along with `bytes` bytes of nonsense. */
static void send_with_fds(int socket_fd, size_t bytes, int num_fds)
{
    char data[64] = "nonsense";
    union {
        char bytes[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr align;
    } space = {{0}};
    struct iovec part = {data, bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = space.bytes,
                             .msg_controllen = CMSG_SPACE((size_t)num_fds * sizeof(int))};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN((size_t)num_fds * sizeof(int));
    const int fds[4] = {1, 1, 1, 1};
    memcpy(CMSG_DATA(header), fds, (size_t)num_fds * sizeof(int));
    sendmsg(socket_fd, &message, MSG_NOSIGNAL);
}

/* Connects to our own listener as nobody of the world would. */
static void send_strangers(int count)
{
    struct sockaddr_un address;
    socklen_t bytes;
    if (!find_listener(&address, &bytes))
        return;
    for (int i = 0; i < count; i++) {
        const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connect(fd, (struct sockaddr *)&address, bytes) == 0) {
            if (i % 4 == 0)
                send_with_fds(fd, 20, 2); /* as long as a real greeting */
            else if (i % 4 == 1)
                send_with_fds(fd, 5, 1);
            else if (i % 4 == 2)
                send(fd, "x", 1, MSG_NOSIGNAL);
        }
        close(fd);
    }
}

static int gather_in_memory(void *context, const void *mine, void *all, size_t bytes)
{
    const guest *me = context;
    meeting *m = me->meeting;
    unsigned char *places = all;
    if (bytes > MOST_CARD_BYTES)
        return 99;
    memcpy(m->cards[me->rank], mine, bytes);
    if (m->fault == FAULT_STRANGERS && me->rank == 0)
        send_strangers(3);
    if (m->fault == FAULT_DEAF && me->rank == 0)
        send_strangers(20);
    if (!meet(&m->arrived, me->num_ranks))
        return 98;
    for (int rank = 0; rank < me->num_ranks; rank++) {
        const int from = m->fault == FAULT_MIXED && rank < 2 ? 1 - rank : rank;
        memcpy(places + (size_t)rank * bytes, m->cards[from], bytes);
    }
    harness_random random = harness_seed((uint64_t)me->rank);
    for (size_t i = 0; m->fault == FAULT_GARBAGE && i < bytes * (size_t)me->num_ranks; i++)
        places[i] = (unsigned char)harness_next(&random);
    if (m->fault == FAULT_WORD && me->rank == 1) {
        if ((size_t)m->word * 4 + 4 <= bytes)
            memset(places + m->word * 4, 0xff, 4);
        else
            m->word = -1;
    }
    if (m->fault == FAULT_DEAF && me->rank == 0)
        sleep_ms(3000);
    return m->fault == FAULT_FAIL && me->rank == 1 ? 7 : 0;
}

static int be_guest(const guest *me)
{
    meeting *m = me->meeting;
    ew_world *world = NULL;
    m->fds_before[me->rank] = census_take().fds;
    const int64_t start_ns = ewx_now_ns();
    ew_status status =
        ew_world_create(me->rank, me->num_ranks, gather_in_memory, (void *)(uintptr_t)me,
                        &m->options[me->rank], &world);
    m->took_ns[me->rank] = ewx_now_ns() - start_ns;
    if (status == EW_OK &&
        (ew_world_rank(world) != me->rank || gather_sizes(world, NULL) != 0))
        status = EW_ERR_MISMATCH;
    m->statuses[me->rank] = status;
    snprintf(m->texts[me->rank], sizeof m->texts[0], "%s", ew_last_error());
    meet(&m->left, me->num_ranks); /* nobody's leaving disturbs another's result */
    ew_world_destroy(world);
    m->fds_after[me->rank] = census_take().fds;
    return 0;
}

/* Starts the guests as plain children of this test and waits for them. */
static meeting *hold_meeting(int num_ranks, callback_fault fault, int word,
                             uint32_t timeout_ms)
{
    meeting *m = harness_share(sizeof *m);
    m->fault = fault;
    m->word = word;
    for (int rank = 0; rank < num_ranks; rank++)
        m->options[rank] = options_of(timeout_ms);
    return m;
}

static void run_meeting(meeting *m, int num_ranks)
{
    pid_t pids[8];
    for (int rank = 0; rank < num_ranks; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0)
            _exit(be_guest(&(guest){m, rank, num_ranks}));
    }
    for (int rank = 0; rank < num_ranks; rank++) {
        int status;
        assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
        if (status != 0)
            fail_msg("rank %d of %d ended with wait status %d", rank, num_ranks, status);
        assert_int_equal(m->fds_after[rank], m->fds_before[rank]);
    }
}

static void callback_worlds_work(void **state)
{
    (void)state;
    for (int num_ranks = 1; num_ranks <= 8; num_ranks++) {
        meeting *m = hold_meeting(num_ranks, FAULT_NONE, 0, SOME_TIMEOUT_MS);
        run_meeting(m, num_ranks);
        for (int rank = 0; rank < num_ranks; rank++)
            if (m->statuses[rank] != EW_OK)
                fail_msg("W=%d rank %d: %s", num_ranks, rank, m->texts[rank]);
        harness_unshare(m, sizeof *m);
    }
}

static void expect_text(const meeting *m, int rank, ew_status status, const char *word)
{
    if (m->statuses[rank] != status || !strstr(m->texts[rank], word))
        fail_msg("rank %d got %s, \"%s\"; wanted %s with \"%s\"", rank,
                 ew_status_name(m->statuses[rank]), m->texts[rank], ew_status_name(status),
                 word);
}

static void bad_callbacks_are_refused(void **state)
{
    (void)state;
    meeting *m = hold_meeting(3, FAULT_FAIL, 0, 300);
    run_meeting(m, 3);
    expect_text(m, 1, EW_ERR_ABORTED, "code 7");
    expect_text(m, 0, EW_ERR_TIMEOUT, "rank 1");
    assert_int_not_equal(m->statuses[2], EW_OK);
    harness_unshare(m, sizeof *m);

    m = hold_meeting(3, FAULT_GARBAGE, 0, 300);
    run_meeting(m, 3);
    for (int rank = 0; rank < 3; rank++)
        expect_text(m, rank, EW_ERR_MISMATCH, "not Entwine's");
    harness_unshare(m, sizeof *m);

    m = hold_meeting(2, FAULT_MIXED, 0, 300);
    run_meeting(m, 2);
    expect_text(m, 0, EW_ERR_MISMATCH, "put rank 1 in place 0");
    expect_text(m, 1, EW_ERR_MISMATCH, "put rank 1 in place 0");
    harness_unshare(m, sizeof *m);
}

/* A card with one word overwritten: whatever the word meant, nobody crashes and the rank
 * that read it never takes part. */
static void damaged_cards_are_refused(void **state)
{
    (void)state;
    int words = 0;
    for (;; words++) {
        meeting *m = hold_meeting(2, FAULT_WORD, words, 150);
        run_meeting(m, 2);
        const bool past_the_end = m->word < 0;
        const bool joined = m->statuses[1] == EW_OK;
        const int64_t slowest =
            m->took_ns[0] > m->took_ns[1] ? m->took_ns[0] : m->took_ns[1];
        harness_unshare(m, sizeof *m);
        if (past_the_end)
            break;
        if (joined && words < 10) /* later words may be padding or unused name bytes */
            fail_msg("a card with a wrong word %d was accepted", words);
        assert_true(slowest < 10000000000);
    }
    assert_true(words > 20);
}

static void options_that_differ_are_refused(void **state)
{
    (void)state;
    for (int field = 0; field < 3; field++) {
        meeting *m = hold_meeting(3, FAULT_NONE, 0, 1000);
        ew_world_options *odd = &m->options[2];
        if (field == 0)
            odd->timeout_ms = 2000;
        for (int rank = 0; rank < 3; rank++) {
            m->options[rank].link_gbps = field == 1 && rank == 2 ? 2.5 : 10.0;
            m->options[rank].link_latency_us = field == 2 && rank == 2 ? 7.0 : 3.0;
        }
        static const char *const mine[] = {"rank 0 has timeout_ms=1000",
                                           "rank 0 has link_gbps=10",
                                           "rank 0 has link_latency_us=3"};
        static const char *const theirs[] = {"rank 2 has timeout_ms=2000",
                                             "rank 2 has link_gbps=2.5",
                                             "rank 2 has link_latency_us=7"};
        run_meeting(m, 3);
        expect_text(m, 0, EW_ERR_MISMATCH, mine[field]);
        for (int rank = 0; rank < 3; rank++)
            expect_text(m, rank, EW_ERR_MISMATCH, theirs[field]);
        harness_unshare(m, sizeof *m);
    }
}

static void strangers_are_dropped(void **state)
{
    (void)state;
    meeting *m = hold_meeting(3, FAULT_STRANGERS, 0, SOME_TIMEOUT_MS);
    run_meeting(m, 3);
    for (int rank = 0; rank < 3; rank++)
        if (m->statuses[rank] != EW_OK)
            fail_msg("rank %d: %s", rank, m->texts[rank]);
    harness_unshare(m, sizeof *m);

    m = hold_meeting(2, FAULT_DEAF, 0, 300);
    run_meeting(m, 2);
    expect_text(m, 1, EW_ERR_TIMEOUT, "rank 0");
    assert_true(m->took_ns[1] < 2500000000);
    harness_unshare(m, sizeof *m);
}

/* ---- What a launcher's variables say ---- */

static void clear_launchers(void)
{
    static const char *const names[] = {"ENTWINE_RANK",
                                        "ENTWINE_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

static void launchers_are_recognised(void **state)
{
    static const char *const pairs[][2] = {{"ENTWINE_RANK", "ENTWINE_WORLD_SIZE"},
                                           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"PMI_RANK", "PMI_SIZE"},
                                           {"RANK", "WORLD_SIZE"},
                                           {"SLURM_PROCID", "SLURM_NTASKS"}};
    static const char *const bad[][2] = {
        {"x", "4"},   {"", "4"},   {"-1", "4"}, {"4", "4"}, {"0", "0"},
        {"0", "257"}, {"1 ", "4"}, {"0", "4x"}, {"0", ""},  {"0", "99999999999999999999"}};
    ew_launcher found;
    (void)state;
    clear_launchers();
    assert_int_equal(ew_launcher_detect(&found), EW_ERR_UNSUPPORTED);
    assert_true(error_has("fix:", NULL));
    assert_int_equal(ew_launcher_detect(NULL), EW_ERR_ARGUMENT);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        setenv(pairs[i][0], "3", 1);
        assert_int_equal(ew_launcher_detect(&found), EW_ERR_UNSUPPORTED); /* half a pair */
        setenv(pairs[i][1], "4", 1);
        assert_int_equal(ew_launcher_detect(&found), EW_OK);
        assert_int_equal(found.rank, 3);
        assert_int_equal(found.num_ranks, 4);
        assert_string_equal(found.source, pairs[i][0]);
        for (size_t j = 0; j < sizeof bad / sizeof *bad; j++) {
            setenv(pairs[i][0], bad[j][0], 1);
            setenv(pairs[i][1], bad[j][1], 1);
            found.rank = 77;
            if (ew_launcher_detect(&found) != EW_ERR_ARGUMENT || found.rank != 77 ||
                !strstr(ew_last_error(), pairs[i][0]) +
                        !strstr(ew_last_error(), pairs[i][1]) ==
                    2)
                fail_msg("%s=%s %s=%s: \"%s\"", pairs[i][0], bad[j][0], pairs[i][1],
                         bad[j][1], ew_last_error());
        }
        clear_launchers();
    }
    /* Our own variables come first, whoever started us. */
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_NTASKS", "2", 1);
    setenv("ENTWINE_RANK", "1", 1);
    setenv("ENTWINE_WORLD_SIZE", "2", 1);
    assert_int_equal(ew_launcher_detect(&found), EW_OK);
    assert_int_equal(found.rank, 1);
    clear_launchers();
}

/* ---- How ranks end ---- */

static int end_as_told(ew_world *world, void *argument)
{
    const int code = ((const int *)argument)[ew_world_rank(world)];
    if (code >= 2000)
        exit(code - 2000);
    if (code >= 1000)
        raise(code - 1000);
    return code;
}

static void exits_are_reported(void **state)
{
    static const struct {
        int codes[3], exits[3];
        ew_status status;
        const char *text;
    } cases[] = {
        {{0, 0, 0}, {0, 0, 0}, EW_OK, ""},
        {{0, 5, 0}, {0, 5, 0}, EW_ERR_ABORTED, "rank 1 returned 5"},
        {{0, 200, 0}, {0, 200, 0}, EW_ERR_ABORTED, "rank 1 returned 200"},
        {{0, 0, 125}, {0, 0, 125}, EW_ERR_ABORTED, "rank 2 returned 125"},
        {{0, 0, 256}, {0, 0, 1}, EW_ERR_ABORTED, "rank 2 returned 1"},
        {{0, -1, 0}, {0, 255, 0}, EW_ERR_ABORTED, "rank 1 returned 255"},
        {{1000 + SIGKILL, 0, 0},
         {128 + SIGKILL, 0, 0},
         EW_ERR_PEER_DIED,
         "rank 0 was killed by signal 9"},
        {{3, 1000 + SIGTERM, 0},
         {3, 128 + SIGTERM, 0},
         EW_ERR_PEER_DIED,
         "rank 1 was killed by signal 15"},
        {{0, 2000 + 9, 0}, {0, 9, 0}, EW_ERR_ABORTED, "rank 1 returned 9"},
        {{0, 2000, 0}, {0, 0, 0}, EW_OK, ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int codes[3], exits[3] = {-1, -1, -1};
        memcpy(codes, cases[i].codes, sizeof codes);
        const ew_status status =
            ew_run_ranks(EW_RANKS_AS_PROCESSES, 3, NULL, end_as_told, codes, exits);
        if (status != cases[i].status || !strstr(ew_last_error(), cases[i].text) ||
            memcmp(exits, cases[i].exits, sizeof exits) != 0)
            fail_msg("case %zu: %s \"%s\", exits %d %d %d", i, ew_status_name(status),
                     ew_last_error(), exits[0], exits[1], exits[2]);
    }
    int codes[3] = {0, 5, 0}, exits[3];
    assert_int_equal(ew_run_ranks(EW_RANKS_AS_THREADS, 3, NULL, end_as_told, codes, exits),
                     EW_ERR_ABORTED);
    assert_int_equal(exits[1], 5);
    assert_int_equal(ew_run_ranks(EW_RANKS_AS_THREADS, 3, NULL, end_as_told, codes, NULL),
                     EW_ERR_ABORTED);
}

/* A rank that does not follow is ended after the grace, and not called the cause. */
static int outstay(ew_world *world, void *argument)
{
    (void)argument;
    if (ew_world_rank(world) == 2)
        raise(SIGKILL);
    if (ew_world_rank(world) == 0)
        sleep_ms(60000);
    return 0;
}

static void the_cause_is_blamed(void **state)
{
    (void)state;
    int exits[3];
    const int64_t start_ns = ewx_now_ns();
    assert_int_equal(ew_run_ranks(EW_RANKS_AS_PROCESSES, 3, NULL, outstay, NULL, exits),
                     EW_ERR_PEER_DIED);
    assert_true(error_has("rank 2 was killed by signal 9", NULL));
    assert_int_equal(exits[0], 128 + SIGKILL);
    assert_true(ewx_now_ns() - start_ns < 20000000000);
}

static void ignored_sigchld_is_no_hang(void **state)
{
    (void)state;
    int codes[3] = {0}, exits[3];
    void (*before)(int) = signal(SIGCHLD, SIG_IGN);
    const ew_status status =
        ew_run_ranks(EW_RANKS_AS_PROCESSES, 3, NULL, end_as_told, codes, exits);
    signal(SIGCHLD, before);
    assert_int_equal(status, EW_ERR_SYSTEM);
    assert_true(error_has("SIGCHLD", "fix:", NULL));
}

/* ---- Descriptors ---- */

typedef struct fd_list {
    char links[256][128];
} fd_list;

static int audit_fds(ew_world *world, void *argument)
{
    const fd_list *known = argument;
    int pidfds = 0;
    RANK_OK(ew_world_barrier(world));
    for (int fd = 0; fd < 256; fd++) {
        char path[64], link[128] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, link, sizeof link - 1) < 0)
            continue;
        if (strcmp(known->links[fd], link) == 0)
            continue;
        pidfds += strstr(link, "pidfd") != NULL;
        RANK_CHECK(strncmp(link, "socket:", 7) == 0 || strncmp(link, "/memfd:", 7) == 0 ||
                       strncmp(link, "anon_inode:", 11) == 0,
                   "descriptor %d is %s", fd, link);
        int domain = AF_UNIX;
        socklen_t bytes = sizeof domain;
        getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes);
        RANK_CHECK(domain == AF_UNIX, "descriptor %d is a socket of family %d", fd, domain);
        int listening = 0;
        bytes = sizeof listening;
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes);
        RANK_CHECK(!listening, "descriptor %d still listens", fd);
        RANK_CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC, "descriptor %d (%s) survives exec", fd,
                   link);
    }
    RANK_CHECK(pidfds < ew_world_size(world), "%d pidfds for %d ranks", pidfds,
               ew_world_size(world));
    RANK_OK(ew_world_barrier(world));
    return 0;
}

/* No file, no network socket, nothing that an exec'd program would inherit; also with
 * the most careless umask and with a standard stream closed. */
static void ranks_open_only_private_things(void **state)
{
    (void)state;
    fd_list *known = harness_share(sizeof *known);
    for (int closed_stdin = 0; closed_stdin < 2; closed_stdin++) {
        const int saved = closed_stdin ? dup(0) : -1;
        if (closed_stdin)
            close(0);
        memset(known, 0, sizeof *known);
        for (int fd = 0; fd < 256; fd++) {
            char path[64];
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            if (readlink(path, known->links[fd], sizeof known->links[0] - 1) < 0)
                known->links[fd][0] = '\0';
        }
        const census before = census_take();
        const mode_t mask = umask(0);
        harness_run(EW_RANKS_AS_PROCESSES, 4, audit_fds, known);
        umask(mask);
        const census after = census_take();
        if (closed_stdin) {
            dup2(saved, 0);
            close(saved);
        }
        assert_int_equal(after.fds, before.fds);
    }
    harness_unshare(known, sizeof *known);
}

static int starve_one(void *context, ewx_probe_point point, int rank, int64_t where)
{
    (void)context;
    (void)where;
    if (point == EWX_PROBE_BOOTSTRAP && rank == 1)
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, 3});
    return 0;
}

/* A rank that cannot even make a socket says so; nobody blames the all-gather. */
static void no_descriptors_left_is_explained(void **state)
{
    (void)state;
    int codes[3] = {0};
    ewx_probe_install(starve_one, NULL);
    const ew_status status =
        ew_run_ranks(EW_RANKS_AS_PROCESSES, 3, NULL, end_as_told, codes, NULL);
    ewx_probe_install(NULL, NULL);
    assert_int_equal(status, EW_ERR_SYSTEM);
    assert_true(error_has("rank 1", "Too many open files", NULL));
}

/* ---- Interrupted system calls ---- */

static void on_alarm(int signal_number)
{
    (void)signal_number;
}

static void storm(bool on)
{
    struct sigaction action = {.sa_handler = on_alarm}; /* no SA_RESTART */
    sigaction(SIGALRM, &action, NULL);
    const struct timeval every = {.tv_usec = on ? 1000 : 0};
    setitimer(ITIMER_REAL, &(struct itimerval){every, every}, NULL);
}

static int storm_from_the_start(void *context, ewx_probe_point point, int rank,
                                int64_t where)
{
    (void)context;
    (void)rank;
    (void)where;
    if (point == EWX_PROBE_BOOTSTRAP)
        storm(true);
    return 0;
}

static int work_in_a_storm(ew_world *world, void *argument)
{
    const int64_t max_m = *(const int64_t *)argument;
    duty d;
    for (int round = 0; round < 100; round++)
        RANK_TRY(gather_and_compare(world, 5000));
    const ew_problem problem = EW_PROBLEM(max_m, 512, 32, EW_FP32);
    RANK_OK(duty_open(&d, world, problem, ""));
    for (uint32_t seed = 1; seed <= 5; seed++) {
        RANK_OK(duty_call(&d, 100, seed));
        RANK_CHECK(duty_wrong(&d, 100, seed) == 0, "seed %u", seed);
    }
    duty_close(&d);
    return 0;
}

/* The small heap shows that every wait and socket call lives with EINTR; the large one
 * needs milliseconds to allocate, during which the kernel gives up at every signal. */
static void signals_do_not_disturb(void **state)
{
    (void)state;
    for (int large = 0; large < 2; large++) {
        int64_t max_m = large ? 16384 : 100; /* 64 MiB each, or little */
        for (int round = 0; round < (large ? 2 : 10); round++) {
            harness_context("%s heap, round %d", large ? "large" : "small", round);
            ewx_probe_install(storm_from_the_start, NULL);
            storm(true);
            harness_run(EW_RANKS_AS_PROCESSES, 3, work_in_a_storm, &max_m);
            storm(false);
            ewx_probe_install(NULL, NULL);
        }
    }
}

/* ---- Without pidfds ---- */

static int forbid_pidfd(void *context, ewx_probe_point point, int rank, int64_t where)
{
    (void)context;
    (void)rank;
    (void)where;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (point == EWX_PROBE_BOOTSTRAP && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    return 0;
}

static int work_then_die(ew_world *world, void *argument)
{
    (void)argument;
    duty d;
    RANK_CHECK(syscall(SYS_pidfd_open, getpid(), 0) < 0, "pidfds are not forbidden");
    for (int round = 0; round < 5; round++) { /* each sends descriptors along the sockets */
        const ew_problem problem = EW_PROBLEM(64, 128, 32, EW_FP32);
        RANK_OK(duty_open(&d, world, problem, ""));
        RANK_OK(duty_call(&d, 64, 1));
        RANK_CHECK(duty_wrong(&d, 64, 1) == 0, "round %d", round);
        duty_close(&d);
    }
    RANK_OK(ew_world_barrier(world));
    if (ew_world_rank(world) == 1)
        raise(SIGKILL);
    RANK_CHECK(ew_world_barrier(world) == EW_ERR_PEER_DIED &&
                   error_has("rank 1 died", NULL),
               "%s", ew_last_error());
    return 3;
}

static void containers_without_pidfd_work(void **state)
{
    (void)state;
    const ew_world_options options = options_of(SOME_TIMEOUT_MS);
    int exits[3];
    ewx_probe_install(forbid_pidfd, NULL);
    const ew_status status =
        harness_run_failing(EW_RANKS_AS_PROCESSES, 3, &options, work_then_die, NULL, exits);
    ewx_probe_install(NULL, NULL);
    assert_int_equal(status, EW_ERR_PEER_DIED);
    assert_int_equal(exits[0], 3);
    assert_int_equal(exits[2], 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(collectives_carry_every_byte),
        TIDY(barrier_holds_everyone),
        TIDY(callback_worlds_work),
        TIDY(bad_callbacks_are_refused),
        TIDY(damaged_cards_are_refused),
        TIDY(options_that_differ_are_refused),
        TIDY(strangers_are_dropped),
        TIDY(launchers_are_recognised),
        TIDY(exits_are_reported),
        TIDY(the_cause_is_blamed),
        TIDY(ignored_sigchld_is_no_hang),
        TIDY(ranks_open_only_private_things),
        TIDY(no_descriptors_left_is_explained),
        TIDY(signals_do_not_disturb),
        TIDY(containers_without_pidfd_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
