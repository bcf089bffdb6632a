/* The flight recorder: what ranks did stays readable, from inside, from outside, after a
 * death and whatever the memory holds; dumps appear where asked and nowhere else. */
#include "faultkit.h"
#include "harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "backend/cpu/cpu_engine.h"
#include "base/clock.h"
#include "base/probe.h"
#include "entwine/measure.h"
#include "exchange/plan_reports.h"
#include "stress.h"
#include "api/testing.h"
#include "world/recording_json.h"
#include "world/world.h"

static char folder[] = "/tmp/entwine-recorder-XXXXXX";

/* ---- Files of the folder ---- */

/* The number of dumps, and the text of the last one. */
static int read_dumps(char **text_out)
{
    DIR *listing = opendir(folder);
    int count = 0;
    *text_out = NULL;
    for (struct dirent *entry; listing && (entry = readdir(listing));) {
        char path[PATH_MAX];
        struct stat file;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        FILE *stream = fopen(path, "re");
        assert_non_null(stream);
        assert_int_equal(fstat(fileno(stream), &file), 0);
        assert_int_equal(file.st_mode & 0777, 0600);
        free(*text_out);
        *text_out = calloc(1, (size_t)file.st_size + 1);
        assert_int_equal(fread(*text_out, 1, (size_t)file.st_size, stream), file.st_size);
        fclose(stream);
        unlink(path);
        count++;
    }
    if (listing)
        closedir(listing);
    return count;
}

static int occurrences(const char *text, const char *word)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, word)); at++)
        count++;
    return count;
}

static void expect_words(const char *text, const char *word, ...)
{
    va_list words;
    va_start(words, word);
    for (; word; word = va_arg(words, const char *))
        if (!strstr(text, word))
            fail_msg("no '%s' in:\n%.3000s", word, text);
    va_end(words);
}

/* ---- What is recorded ---- */

static int call_and_dump(ew_world *world, void *argument)
{
    const int calls = *(const int *)argument;
    duty d;
    char path[PATH_MAX];
    const ew_problem problem = EW_PROBLEM(64, 200, 16, EW_FP32);
    RANK_OK(duty_open(&d, world, problem, ""));
    for (int call = 0; call < calls; call++)
        RANK_OK(duty_call(&d, 1 + call % 64, 1));
    RANK_OK(ew_world_barrier(world));
    snprintf(path, sizeof path, "%s/asked.json", folder);
    if (ew_world_rank(world) == 0)
        RANK_OK(ew_world_dump(world, path));
    RANK_OK(ew_world_barrier(world));
    duty_close(&d);
    return 0;
}

static void operations_are_recorded(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        int calls = 3;
        char *text;
        harness_run(both_kinds[kind], 3, call_and_dump, &calls);
        assert_int_equal(read_dumps(&text), 1);
        expect_words(
            text, "\"schema\": \"entwine-recording/1\"", "\"num_ranks\": 3",
            "\"fault\": null", "\"kind\": \"plan\", \"state\": \"done\"",
            "\"sequence\": 4, \"kind\": \"call\", \"state\": \"done\", \"status\": "
            "\"EW_OK\", \"m\": 3, \"n\": 200, \"k\": 16",
            "\"last_step\": {\"kind\": \"tile\"", "\"waits_for\": null",
            kind == 0 ? "\"ranks_as\": \"processes\"" : "\"ranks_as\": \"threads\"", NULL);
        assert_int_equal(occurrences(text, "\"sequence\": 4, \"kind\""), 3);
        assert_int_equal(occurrences(text, "\"process\": \"alive\""), 3);
        free(text);
    }
}

static void the_newest_1024_stay(void **state)
{
    (void)state;
    int calls = 1100;
    char *text;
    harness_run(EW_RANKS_AS_THREADS, 2, call_and_dump, &calls);
    assert_int_equal(read_dumps(&text), 1);
    assert_int_equal(occurrences(text, "\"kind\": \"call\""), 2 * 1024);
    assert_null(strstr(text, "\"sequence\": 77, \"kind\""));
    assert_int_equal(occurrences(text, "\"sequence\": 78, \"kind\""), 2);
    assert_int_equal(occurrences(text, "\"sequence\": 1101, \"kind\""), 2);
    free(text);
}

/* ---- What it costs: figures, not verdicts ---- */

enum { COST_ROUNDS = 200000, COST_CALLS = 5000 };

typedef struct cost {
    double record_ns[2], call_ns[2]; /* of each rank */
} cost;

/* Records as a call makes them, and the smallest calls there are. */
static int measure_cost(ew_world *world, void *argument)
{
    cost *c = argument;
    const int rank = ew_world_rank(world);
    const ewx_operation operation = {
        .kind = EWX_RECORD_CALL, .shape = {1, 1, 1}, .plan = 1};
    const ew_problem problem = EW_PROBLEM(1, 1, 1, EW_FP32);
    duty d;
    RANK_OK(duty_open(&d, world, problem, ""));
    RANK_OK(duty_call(&d, 1, 1));
    RANK_OK(ew_world_barrier(world));
    int64_t start_ns = ewx_now_ns();
    for (int call = 0; call < COST_CALLS; call++)
        RANK_OK(ew_gemm_rs(d.plan, 1, d.A, d.B, d.C, NULL));
    c->call_ns[rank] = (double)(ewx_now_ns() - start_ns) / COST_CALLS;
    RANK_OK(ew_world_barrier(world));
    start_ns = ewx_now_ns();
    for (int round = 0; round < COST_ROUNDS; round++) {
        RANK_OK(ewx_recorder_begin(world, &operation));
        ewx_recorder_end(world, EW_OK, false);
    }
    c->record_ns[rank] = (double)(ewx_now_ns() - start_ns) / COST_ROUNDS;
    RANK_OK(ew_world_barrier(world));
    duty_close(&d);
    return 0;
}

static void recording_costs_little(void **state)
{
    (void)state;
    for (int num_ranks = 1; num_ranks <= 2; num_ranks++) {
        cost *c = harness_share(sizeof *c);
        harness_run(EW_RANKS_AS_PROCESSES, num_ranks, measure_cost, c);
        stress_tell(num_ranks == 1 ? "ns_alone" : "ns_of_two", "%.1f",
                    c->record_ns[num_ranks - 1]);
        stress_tell(num_ranks == 1 ? "smallest_call_ns_alone" : "smallest_call_ns_of_two",
                    "%.0f", c->call_ns[num_ranks - 1]);
        assert_true(c->record_ns[0] > 0);
        harness_unshare(c, sizeof *c);
    }
    stress_figure("recorder");
}

/* ---- Dumps on a fault ---- */

typedef enum trouble { KILLED, STUCK, ABORTED, DISAGREE } trouble;

static trouble current;

static int make_trouble(void *context, ewx_probe_point point, int rank, int64_t where)
{
    static atomic_int hits;
    (void)context;
    (void)where;
    if (point != EWX_PROBE_BLOCK || rank != 1 || atomic_fetch_add(&hits, 1) != 5)
        return 0;
    if (current == KILLED)
        raise(SIGKILL);
    if (current == STUCK)
        sleep_ms(1000);
    return 0;
}

static int work_into_trouble(ew_world *world, void *argument)
{
    duty d;
    (void)argument;
    const ew_problem problem = EW_PROBLEM(128, 512, 64, EW_FP32);
    ew_status status = duty_open(&d, world, problem, "");
    for (int call = 0; status == EW_OK && call < 1000; call++) {
        if (current == ABORTED && call == 7 && ew_world_rank(world) == 1)
            ew_world_abort(world);
        status = duty_call(
            &d, current == DISAGREE && ew_world_rank(world) == 1 ? 100 - call : 100, 1);
    }
    duty_close(&d);
    return status == EW_OK ? 0 : 3;
}

static void run_into(trouble what)
{
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = 300;
    current = what;
    ewx_probe_install(make_trouble, NULL);
    assert_int_not_equal(harness_run_failing(EW_RANKS_AS_PROCESSES, 3, &options,
                                             work_into_trouble, NULL, NULL),
                         EW_OK);
    ewx_probe_install(NULL, NULL);
}

static void faults_leave_one_dump_where_asked(void **state)
{
    static const char *const words[][2] = {
        [KILLED] = {"\"status\": \"EW_ERR_PEER_DIED\", \"culprit\": 1",
                    "\"process\": \"ended\""},
        [STUCK] = {"\"status\": \"EW_ERR_TIMEOUT\", \"culprit\": 1", "\"tile\": [0, "},
        [ABORTED] = {"\"status\": \"EW_ERR_ABORTED\", \"culprit\": 1", "\"rank\": 2"},
        [DISAGREE] = {"\"status\": \"EW_ERR_MISMATCH\"", "\"m\": 99"},
    };
    (void)state;
    for (int what = KILLED; what <= DISAGREE; what++) {
        char *text;
        harness_context("trouble %d", what);
        run_into((trouble)what);
        assert_int_equal(read_dumps(&text), 0); /* nobody asked */
        setenv("ENTWINE_DUMP_DIR", folder, 1);
        run_into((trouble)what);
        unsetenv("ENTWINE_DUMP_DIR");
        assert_int_equal(read_dumps(&text), 1);
        expect_words(text, words[what][0], words[what][1], NULL);
        assert_int_equal(occurrences(text, "\"records\": ["), 3); /* the dead one's too */
        assert_true(occurrences(text, "\"kind\": \"plan\"") == 3);
        free(text);
    }
}

static void a_folder_that_is_none_changes_no_story(void **state)
{
    (void)state;
    char *text;
    setenv("ENTWINE_DUMP_DIR", "/proc/nowhere", 1);
    run_into(STUCK);
    unsetenv("ENTWINE_DUMP_DIR");
    assert_int_equal(read_dumps(&text), 0);
}

static void wrong_dumps_are_refused(void **state)
{
    (void)state;
    assert_int_equal(ew_world_dump(NULL, "x"), EW_ERR_ARGUMENT);
    assert_int_equal(ew_jobs_read(NULL, NULL), EW_ERR_ARGUMENT);
}

/* ---- From outside ---- */

typedef struct outside {
    atomic_int found;
    pid_t parent;
    char text[65536];
} outside;

static outside *watched;

static void look(void *context, const char *json, size_t bytes)
{
    char pid[48];
    (void)context;
    snprintf(pid, sizeof pid, "\"pid\": %d,", (int)getpid());
    if (strlen(json) == bytes && strstr(json, pid) && bytes < sizeof watched->text) {
        memcpy(watched->text, json, bytes + 1);
        atomic_fetch_add(&watched->found, 1);
    }
}

static int be_seen(ew_world *world, void *argument)
{
    (void)argument;
    RANK_OK(ew_world_barrier(world));
    if (ew_world_rank(world) == 2)
        RANK_OK(ew_jobs_read(look, NULL));
    RANK_OK(ew_world_barrier(world));
    return 0;
}

static void jobs_are_found_once(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        watched = harness_share(sizeof *watched);
        harness_run(both_kinds[kind], 3, be_seen, NULL);
        assert_int_equal(atomic_load(&watched->found), 1);
        expect_words(watched->text, "\"num_ranks\": 3", "\"meetings\": ", NULL);
        assert_int_equal(occurrences(watched->text, "\"process\": \"alive\""), 3);
        harness_unshare(watched, sizeof *watched);
    }
}

static int audit_control(ew_world *world, void *argument)
{
    struct stat file;
    (void)argument;
    RANK_CHECK(fstat(world->control_fd, &file) == 0 && (file.st_mode & 0777) == 0600,
               "mode %o", file.st_mode);
    RANK_CHECK(fcntl(world->control_fd, F_GET_SEALS) ==
                   (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
               "seals");
    RANK_CHECK(fcntl(world->control_fd, F_GETFD) & FD_CLOEXEC, "survives exec");
    RANK_CHECK(ftruncate(world->control_fd, 0) != 0, "it could be shrunk");
    return 0;
}

static void the_memory_is_private_and_sealed(void **state)
{
    (void)state;
    const mode_t masks[] = {0, 022, 0777};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++)
        for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
            const mode_t before = umask(masks[i]);
            harness_run(both_kinds[kind], 2, audit_control, NULL);
            umask(before);
        }
}

/* What a child that writes to a peer's contributions ends with. */
static int write_to_peer(const ewx_cpu_engine *engine)
{
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* cmocka's handler would go on with the next test */
        *(volatile unsigned char *)engine->heap.segments[1 - engine->world->rank] = 1;
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status;
}

static int try_to_write(ew_world *world, void *argument)
{
    duty d;
    (void)argument;
    const ew_problem problem = EW_PROBLEM(64, 200, 16, EW_FP32);
    RANK_OK(duty_open(&d, world, problem, ""));
    const int status = write_to_peer(ewx_plan_state(d.plan));
    RANK_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV,
               "a peer's memory was written, or the child ended with %d", status);
    RANK_OK(ew_world_barrier(world));
    duty_close(&d);
    return 0;
}

static void peers_map_contributions_read_only(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_PROCESSES, 2, try_to_write, NULL);
}

/* ---- Memory that holds nonsense ---- */

static int good_memory(void)
{
    int fd = -1;
    assert_int_equal(ewx_control_create(2, false, &fd), EW_OK);
    return fd;
}

/* A text or a refusal, and nothing out of bounds: the sanitizers watch. */
static bool survives(int fd)
{
    char *json = NULL;
    size_t bytes = 0;
    const ew_status status = ewx_recording_read(fd, &json, &bytes);
    if (status == EW_OK) {
        assert_int_equal(strlen(json), bytes);
        assert_int_equal(json[bytes - 1], '\n');
    } else {
        assert_true(error_has("fix:", NULL));
    }
    free(json);
    return status == EW_OK;
}

static void every_word_of_the_header_counts(void **state)
{
    static const uint32_t nonsense[] = {0xdeadbeef, 0x7fffffff, 3, 0};
    (void)state;
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        int refused = 0;
        for (size_t at = 0; at < sizeof(ewx_control_header); at += 4) {
            const int fd = good_memory();
            assert_int_equal(pwrite(fd, &nonsense[i], sizeof nonsense[i], (off_t)at), 4);
            refused += !survives(fd);
            close(fd);
        }
        assert_true(refused >= 5); /* magic twice, version, size of a mailbox, ranks */
    }
}

static void nonsense_is_read_without_harm(void **state)
{
    (void)state;
    harness_random random = harness_seed(9);
    const size_t total = ewx_control_bytes(2);
    for (int round = 0; round < 50; round++) {
        const int fd = good_memory();
        const size_t from = round < 25 ? sizeof(ewx_control_header) : 0;
        unsigned char *bytes = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_ptr_not_equal(bytes, MAP_FAILED);
        for (size_t at = from; at < total; at += 8) {
            const uint64_t word = harness_next(&random);
            memcpy(bytes + at, &word, total - at < 8 ? total - at : 8);
        }
        /* Records that claim to be the newest ones, or a sequence at its end. */
        ewx_control *control = (void *)bytes;
        for (int rank = 0; rank < 2 && round % 2; rank++) {
            ewx_lane *lane = &control->mailboxes[rank].lane;
            atomic_store(&lane->sequence, round % 4 == 1 ? UINT64_MAX : 5000);
            for (uint64_t back = 0; back < EWX_RECORDS; back++) {
                const uint64_t sequence = atomic_load(&lane->sequence) - back;
                atomic_store(&lane->records[sequence % EWX_RECORDS].sequence, sequence);
            }
        }
        if (!survives(fd) && round < 25)
            fail_msg("round %d: a good header was refused", round);
        munmap(bytes, total);
        close(fd);
    }
}

static void other_files_are_no_recordings(void **state)
{
    (void)state;
    const int empty = memfd_create("entwine-control", MFD_CLOEXEC);
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_false(survives(empty));
    assert_false(survives(null));
    assert_int_equal(ftruncate(empty, (off_t)sizeof(ewx_control_header)), 0);
    assert_false(survives(empty));
    close(empty);
    close(null);
}

/* Details may come from another host: whatever they are, there is a text. */
static void every_fault_of_a_plan_has_a_text(void **state)
{
    static const int32_t codes[] = {EWX_FAULT_OPERATION, EWX_FAULT_TILE,  EWX_FAULT_READERS,
                                    EWX_FAULT_ROWS,      EWX_FAULT_ORDER, EWX_FAULT_FORM,
                                    EWX_FAULT_RESULT,    EWX_FAULT_PANEL};
    static const int64_t values[] = {0, 1, 2, 3, -1, INT64_MIN, INT64_MAX};
    (void)state;
    assert_null(ewx_fault_text_find(EWX_FAULT_MEETING));
    assert_null(ewx_fault_text_find(-1));
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        for (size_t v = 0; v < 7 * 7; v++) {
            const int64_t one = values[v % 7], other = values[v / 7];
            const ewx_fault fault = {.status = EW_ERR_TIMEOUT,
                                     .culprit = 3,
                                     .reporter = 5,
                                     .code = codes[i],
                                     .detail = {one, other, one, other}};
            const ewx_fault_text *text = ewx_fault_text_find(codes[i]);
            assert_non_null(text);
            assert_int_equal(text->explain(&fault, 0.25), EW_ERR_TIMEOUT);
            assert_non_null(strstr(ew_last_error(), "rank 3"));
            assert_non_null(strstr(ew_last_error(), "rank 5"));
            assert_non_null(strstr(ew_last_error(), "\n  fix: "));
        }
}

static int set_up(void **state)
{
    (void)state;
    unsetenv("ENTWINE_DUMP_DIR");
    return mkdtemp(folder) ? 0 : 1;
}

static int tear_down(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(operations_are_recorded),
        TIDY(the_newest_1024_stay),
        TIDY(recording_costs_little),
        TIDY(faults_leave_one_dump_where_asked),
        TIDY(a_folder_that_is_none_changes_no_story),
        TIDY(wrong_dumps_are_refused),
        TIDY(jobs_are_found_once),
        TIDY(the_memory_is_private_and_sealed),
        TIDY(peers_map_contributions_read_only),
        TIDY(every_word_of_the_header_counts),
        TIDY(nonsense_is_read_without_harm),
        TIDY(other_files_are_no_recordings),
        TIDY(every_fault_of_a_plan_has_a_text),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
