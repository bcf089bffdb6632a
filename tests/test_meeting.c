/* How ranks meet that somebody else started: by the caller's all-gather, past callbacks
 * that fail, hellos that lie, strangers at the door and options that differ; and what the
 * variables of launchers say. */
#include "faultkit.h"
#include "harness.h"

#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/clock.h"
#include "world/sockets.h"

#define SOME_TIMEOUT_MS 20000 /* never reached unless something hangs */
#define MOST_HELLO_BYTES 1024

typedef enum callback_fault {
    FAULT_NONE,
    FAULT_FAIL,      /* returns 7 on rank 1 */
    FAULT_GARBAGE,   /* random bytes in every place */
    FAULT_MIXED,     /* two ranks in each other's place */
    FAULT_WORD,      /* one word of rank 0's hello is all ones on rank 1 */
    FAULT_JOB,       /* rank 1 gets another job's id in rank 0's hello */
    FAULT_CONTROL,   /* rank 0 is an impostor with another job's control block */
    FAULT_TWIN,      /* rank 1 connects to rank 0 twice, by all it must know */
    FAULT_NO_RANK,   /* ... as a rank that there is not */
    FAULT_STRANGERS, /* others connect to rank 0 first */
    FAULT_DEAF       /* rank 0's queue is full of strangers and it never looks */
} callback_fault;

typedef struct meeting {
    atomic_int arrived, left;
    callback_fault fault;
    int word; /* of FAULT_WORD; -1 on return: the hello has fewer */
    ew_world_options options[8];
    ew_status statuses[8];
    char texts[8][512];
    int fds_before[8], fds_after[8];
    int64_t took_ns[8];
    atomic_size_t hello_bytes;
    unsigned char hellos[8][MOST_HELLO_BYTES];
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

/* The first words that a rank says. */
typedef struct greeting {
    char secret[16], job[16];
    int32_t rank;
} greeting;

/* A message of `bytes` bytes, along with copies of a descriptor. */
static void send_words(int socket_fd, const void *data, size_t bytes, int num_fds, int fd)
{
    union {
        char bytes[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr align;
    } space = {{0}};
    struct iovec part = {(void *)(uintptr_t)data, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    const int fds[4] = {fd, fd, fd, fd};
    if (num_fds > 0) {
        message.msg_control = space.bytes;
        message.msg_controllen = CMSG_SPACE((size_t)num_fds * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN((size_t)num_fds * sizeof(int));
        memcpy(CMSG_DATA(header), fds, (size_t)num_fds * sizeof(int));
    }
    sendmsg(socket_fd, &message, MSG_NOSIGNAL);
}

/* Connects to our own listener as nobody of the world would. */
static void send_strangers(int count, int32_t last_rank)
{
    static const struct {
        size_t bytes;
        int num_fds;
    } greetings[] = {{36, 0}, {36, 2}, {5, 1}, {1, 0}, {0, 0}};
    const greeting guess = {"a good guess", "another one", last_rank};
    struct sockaddr_un address;
    socklen_t bytes;
    if (!find_listener(&address, &bytes))
        return;
    for (int i = 0; i < count; i++) {
        const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connect(fd, (struct sockaddr *)&address, bytes) == 0 && greetings[i % 5].bytes)
            send_words(fd, &guess, greetings[i % 5].bytes, greetings[i % 5].num_fds, 1);
        close(fd);
    }
}

/* A hello begins with 8 characters and the job's id, and ends with the rank, the host's
 * name in 96 bytes and the address. */
#define HELLO_JOB 8
#define HELLO_RANK(bytes) ((bytes) - sizeof(ewx_address) - 96 - sizeof(int32_t))

/* Connects to our own listener with our own hello's secret. */
static void send_twin(const unsigned char *hello, size_t bytes, int32_t rank)
{
    greeting words = {.rank = rank};
    struct sockaddr_un address;
    socklen_t address_bytes;
    memcpy(words.secret, hello + bytes - sizeof words.secret, sizeof words.secret);
    memcpy(words.job, hello + HELLO_JOB, sizeof words.job);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (find_listener(&address, &address_bytes) &&
        connect(fd, (struct sockaddr *)&address, address_bytes) == 0)
        send_words(fd, &words, sizeof words, 0, -1);
    close(fd);
}

static int gather_in_memory(void *context, const void *mine, void *all, size_t bytes)
{
    const guest *me = context;
    meeting *m = me->meeting;
    unsigned char *places = all;
    if (bytes > MOST_HELLO_BYTES)
        return 99;
    memcpy(m->hellos[me->rank], mine, bytes);
    if (m->fault == FAULT_STRANGERS && me->rank == 0)
        send_strangers(me->num_ranks, me->num_ranks - 1);
    if (m->fault == FAULT_DEAF && me->rank == 0)
        send_strangers(20, me->num_ranks - 1);
    if ((m->fault == FAULT_TWIN || m->fault == FAULT_NO_RANK) && me->rank == 0)
        for (int twin = 0; twin < 2; twin++)
            send_twin(mine, bytes, m->fault == FAULT_TWIN ? 1 : 77);
    m->hello_bytes = bytes;
    if (!meet(&m->arrived, me->num_ranks))
        return 98;
    for (int rank = 0; rank < me->num_ranks; rank++) {
        const int from = m->fault == FAULT_MIXED && rank < 2 ? 1 - rank : rank;
        memcpy(places + (size_t)rank * bytes, m->hellos[from], bytes);
    }
    harness_random random = harness_seed((uint64_t)me->rank);
    for (size_t i = 0; m->fault == FAULT_GARBAGE && i < bytes * (size_t)me->num_ranks; i++)
        places[i] = (unsigned char)harness_next(&random);
    if (m->fault == FAULT_JOB && me->rank == 1)
        memcpy(places + HELLO_JOB, "another job's id", 16);
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

/* Takes part as rank 0, with a hello made from rank 1's, and gives it a control block. */
static int be_impostor(meeting *m)
{
    ewx_address address;
    const int32_t rank = 0;
    int listener = -1, control = -1;
    if (ewx_sockets_listen(2, &listener, &address) ||
        ewx_control_create(2, false, &control))
        return 1;
    while (atomic_load(&m->arrived) < 1)
        sleep_ms(1); /* bounded: by the test's own limit */
    const size_t bytes = atomic_load(&m->hello_bytes);
    memcpy(m->hellos[0], m->hellos[1], bytes);
    memcpy(m->hellos[0] + HELLO_JOB, "an impostor's id", 16);
    memcpy(m->hellos[0] + HELLO_RANK(bytes), &rank, sizeof rank);
    memcpy(m->hellos[0] + bytes - sizeof address, &address, sizeof address);
    meet(&m->arrived, 2);
    poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, SOME_TIMEOUT_MS);
    const int fd = accept(listener, NULL, NULL);
    send_words(fd, "f", 1, 1, control);
    meet(&m->left, 2);
    return 0;
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
        (ew_world_rank(world) != me->rank || gather_and_compare(world, 5000) != 0))
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
    for (int rank = 0; rank < num_ranks; rank++) {
        m->options[rank] = (ew_world_options)EW_WORLD_OPTIONS_INIT;
        m->options[rank].timeout_ms = timeout_ms;
    }
    return m;
}

static void run_meeting(meeting *m, int num_ranks)
{
    pid_t pids[8];
    for (int rank = 0; rank < num_ranks; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0)
            _exit(m->fault == FAULT_CONTROL && rank == 0
                      ? be_impostor(m)
                      : be_guest(&(guest){m, rank, num_ranks}));
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
    meeting *m =
        hold_meeting(3, FAULT_FAIL, 0, 2000); /* an eighth of which is rank 0's lead */
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

/* A hello with one word overwritten: whatever the word meant, nobody crashes and the rank
 * that read it never takes part. */
static void damaged_hellos_are_refused(void **state)
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
            fail_msg("a hello with a wrong word %d was accepted", words);
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

/* Who knows the secret of rank 0 without being what rank 0 expects is refused at once: the
 * timeout is never reached. */
static void ranks_of_two_jobs_are_refused(void **state)
{
    static const struct {
        callback_fault fault;
        int rank; /* who notices */
        const char *words[2];
    } cases[] = {
        {FAULT_JOB, 0, {"rank 1 (pid", ") has 616e6f74686572206a6f622773206964\n"}},
        {FAULT_CONTROL,
         1,
         {"has the job id 616e20696d706f73746f722773206964, rank 0",
          ") has 00000000000000000000000000000000\n"}},
        {FAULT_TWIN, 0, {"two processes say that they are rank 1: pid", "and pid"}},
        {FAULT_NO_RANK, 0, {"says to rank 0 that it is rank 77", "fix:"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int num_ranks = cases[i].fault == FAULT_TWIN ? 3 : 2;
        meeting *m = hold_meeting(num_ranks, cases[i].fault, 0, SOME_TIMEOUT_MS);
        run_meeting(m, num_ranks);
        for (int word = 0; word < 2; word++)
            expect_text(m, cases[i].rank, EW_ERR_MISMATCH, cases[i].words[word]);
        if (cases[i].fault != FAULT_CONTROL)
            assert_int_not_equal(m->statuses[1 - cases[i].rank], EW_OK);
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
        for (int given = 0; given < 2; given++) { /* half a pair */
            setenv(pairs[i][given], "3", 1);
            assert_int_equal(ew_launcher_detect(&found), EW_ERR_UNSUPPORTED);
            assert_true(error_has(pairs[i][given], "is set, but", pairs[i][1 - given],
                                  "fix:", NULL));
            unsetenv(pairs[i][given]);
        }
        setenv(pairs[i][0], "3", 1);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(callback_worlds_work),          TIDY(bad_callbacks_are_refused),
        TIDY(damaged_hellos_are_refused),    TIDY(options_that_differ_are_refused),
        TIDY(ranks_of_two_jobs_are_refused), TIDY(strangers_are_dropped),
        TIDY(launchers_are_recognised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
