/* The library's files under bad conditions: writers that are killed, files that were cut or
 * flipped, folders that are read-only, full or missing, any umask, links that somebody
 * planted, and pipes, sockets, devices and folders in place of files.  What the tool reads
 * and writes is in cli/check_files.py. */
#include "faultkit.h"
#include "harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/status.h"
#include "entwine/measure.h"
#include "entwine/sim.h"
#include "entwine/tune.h"

static char folder[] = "/tmp/entwine-files-XXXXXX";

static ew_tuning entry_of(int which, int version)
{
    ew_tuning tuning = {.time_us = 10.0 + version, .default_us = 20.0, .when = version};
    snprintf(tuning.key, sizeof tuning.key, "op=gemm-rs,m=%d", which);
    ew_config_parse("backend=cpu,block=128x512,group=2,x=1,b=2", &tuning.config);
    return tuning;
}

static void path_of(int which, char *path)
{
    const ew_tuning tuning = entry_of(which, 0);
    assert_int_equal(ew_tuning_path(tuning.key, path, PATH_MAX), EW_OK);
}

/* Removes what is in the folder; returns how many files were left half-written. */
static int clear_folder(void)
{
    DIR *listing = opendir(folder);
    int leftovers = 0;
    for (struct dirent *entry; listing && (entry = readdir(listing));) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        leftovers += strstr(entry->d_name, ".tmp-") != NULL;
        if (entry->d_name[0] != '.')
            unlink(path);
    }
    if (listing)
        closedir(listing);
    return leftovers;
}

/* ---- Writers that are killed ---- */

enum { WRITERS = 16, ROUNDS = 4, UPDATES = 40, SHARED_ENTRY = 1000 };

typedef struct board {
    atomic_int stored[WRITERS]; /* the newest version of a writer's own entry */
    atomic_int stop;
} board;

/* A child that this test does not outlive, also when it fails half-way. */
static pid_t fork_child(void)
{
    const pid_t child = fork();
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return child;
}

/* Its own entry and one that all write. */
_Noreturn static void write_entries(board *b, int writer)
{
    for (int version = atomic_load(&b->stored[writer]) + 1, last = version + UPDATES;
         version < last; version++) {
        const ew_tuning own = entry_of(writer, version);
        const ew_tuning shared = entry_of(SHARED_ENTRY, version);
        if (ew_tuning_store(&own) != EW_OK || ew_tuning_store(&shared) != EW_OK)
            _exit(1);
        atomic_store(&b->stored[writer], version);
    }
    _exit(0);
}

_Noreturn static void read_entries(const board *b)
{
    char path[PATH_MAX];
    int reads = 0, bad = 0;
    while (!atomic_load(&b->stop))
        for (int which = 0; which <= WRITERS; which++) {
            ew_tuning tuning;
            path_of(which < WRITERS ? which : SHARED_ENTRY, path);
            if (access(path, F_OK) == 0) {
                bad += ew_tuning_load(path, &tuning) != EW_OK;
                reads++;
            }
        }
    _exit(bad ? 1 : reads > 0 ? 0 : 2);
}

static void killed_writers_lose_and_corrupt_nothing(void **state)
{
    (void)state;
    board *b = harness_share(sizeof *b);
    harness_random random = harness_seed(5);
    const pid_t reader = fork_child();
    if (reader == 0)
        read_entries(b);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t writers[WRITERS];
        for (int i = 0; i < WRITERS; i++)
            if ((writers[i] = fork_child()) == 0)
                write_entries(b, i);
        for (int i = 0; i < WRITERS; i++) {
            sleep_ms(harness_between(&random, 0, 10));
            if (round < ROUNDS - 1 && i % 2)
                kill(writers[i], SIGKILL);
        }
        for (int i = 0; i < WRITERS; i++) {
            int status;
            waitpid(writers[i], &status, 0);
            assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        }
    }
    int status;
    atomic_store(&b->stop, 1);
    waitpid(reader, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (int i = 0; i < WRITERS; i++) { /* what was stored is there, or something newer */
        char path[PATH_MAX];
        ew_tuning tuning;
        path_of(i, path);
        assert_int_equal(ew_tuning_load(path, &tuning), EW_OK);
        assert_true(tuning.when >= atomic_load(&b->stored[i]));
        assert_true(tuning.when <= atomic_load(&b->stored[i]) + 1);
    }
    clear_folder();
    harness_unshare(b, sizeof *b);
}

/* ---- Files that were cut or flipped ---- */

static void expect_miss(const char *path, const char *text, size_t bytes, size_t where)
{
    ew_tuning tuning;
    const int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_int_equal(write(fd, text, bytes), bytes);
    close(fd);
    if (ew_tuning_load(path, &tuning) == EW_OK)
        fail_msg("an entry that was changed at %zu was used", where);
    assert_true(error_has("fix:", NULL));
    assert_int_equal(access(path, F_OK), 0); /* kept, to be looked at */
}

static void every_cut_and_every_flip_is_a_miss(void **state)
{
    (void)state;
    const ew_tuning tuning = entry_of(7, 3);
    char path[PATH_MAX], text[EW_TUNING_TEXT_BYTES];
    ew_tuning again;
    assert_int_equal(ew_tuning_store(&tuning), EW_OK);
    assert_int_equal(ew_tuning_print(&tuning, text, sizeof text), EW_OK);
    path_of(7, path);
    assert_int_equal(ew_tuning_load(path, &again), EW_OK);
    const size_t bytes = strlen(text);
    for (size_t cut = 0; cut < bytes; cut++)
        expect_miss(path, text, cut, cut);
    for (size_t bit = 0; bit < bytes * 8; bit++) {
        text[bit / 8] ^= (char)(1 << bit % 8);
        expect_miss(path, text, bytes, bit / 8);
        text[bit / 8] ^= (char)(1 << bit % 8);
    }
    text[bytes] = ' '; /* and nothing may follow */
    expect_miss(path, text, bytes + 1, bytes);
    clear_folder();
}

/* ---- Folders that refuse ---- */

static void expect_no_store(const char *where)
{
    const ew_tuning tuning = entry_of(1, 1);
    const ew_problem problem = EW_PROBLEM(64, 200, 16, EW_FP32);
    ew_forecast forecast;
    harness_expect_error(ew_tuning_store(&tuning), EW_ERR_SYSTEM, NULL, where);
    /* Plans do without: no entry is no error. */
    assert_int_equal(ew_forecast_build(&problem, 2, NULL, &forecast), EW_OK);
}

static void folders_that_refuse_are_no_error_for_plans(void **state)
{
    (void)state;
    const char *home = getenv("HOME");
    char *kept = home ? strdup(home) : NULL;
    setenv("ENTWINE_CACHE_DIR", "/proc/self/nowhere", 1);
    expect_no_store("a folder that cannot be made");
    setenv("ENTWINE_CACHE_DIR", "/dev/null/x", 1);
    expect_no_store("a file where the folder is");
    if (access("/dev/full", W_OK) == 0)
        assert_non_null(ewx_file_replace("/dev/full/x", "y", 1));
    unsetenv("ENTWINE_CACHE_DIR");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    expect_no_store("no HOME");
    setenv("HOME", "relative", 1);
    expect_no_store("a HOME that is no path");
    if (kept)
        setenv("HOME", kept, 1);
    else
        unsetenv("HOME");
    free(kept);
    setenv("ENTWINE_CACHE_DIR", folder, 1);
}

/* A disk that is full: the old file stays, and nothing lies beside it. */
static void a_full_disk_keeps_the_old_file(void **state)
{
    (void)state;
    char path[PATH_MAX];
    const ew_tuning old = entry_of(9, 1), new = entry_of(9, 2);
    ew_tuning found;
    assert_int_equal(ew_tuning_store(&old), EW_OK);
    path_of(9, path);
    const pid_t child = fork();
    if (child == 0) { /* a limit on file sizes refuses every byte, as a full disk does */
        signal(SIGXFSZ, SIG_IGN);
        const struct rlimit none = {0, 0};
        _exit(setrlimit(RLIMIT_FSIZE, &none) != 0                   ? 2
              : ew_tuning_store(&new) != EW_ERR_SYSTEM              ? 1
              : !error_has(path, "cannot be written", "fix:", NULL) ? 3
                                                                    : 0);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(ew_tuning_load(path, &found), EW_OK);
    assert_int_equal(found.when, 1);
    assert_int_equal(clear_folder(), 0);
}

/* A process of the same id, in a container that is gone, was killed while it wrote. */
static void leftovers_of_the_same_process_id_are_no_obstacle(void **state)
{
    enum { LEFTOVERS = 200 };
    (void)state;
    char path[PATH_MAX], leftover[PATH_MAX + 64];
    const ew_tuning tuning = entry_of(12, 1);
    ew_tuning found;
    path_of(12, path);
    for (int i = 0; i < LEFTOVERS; i++) {
        snprintf(leftover, sizeof leftover, "%s.tmp-%d-%d", path, (int)getpid(), i);
        assert_int_equal(close(open(leftover, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)), 0);
    }
    assert_int_equal(ew_tuning_store(&tuning), EW_OK);
    assert_int_equal(ew_tuning_load(path, &found), EW_OK);
    assert_int_equal(clear_folder(), LEFTOVERS);
}

/* ---- Modes and links ---- */

static void files_are_private_under_any_umask(void **state)
{
    static const mode_t masks[] = {0, 022, 0777};
    (void)state;
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        char inner[64], path[80];
        struct stat file;
        snprintf(inner, sizeof inner, "%s/made-%zu", folder, i);
        snprintf(path, sizeof path, "%s/entry", inner);
        const mode_t before = umask(masks[i]);
        const char *why = ewx_file_replace(path, "x", 1);
        umask(before);
        assert_int_equal(stat(inner, &file), 0);
        assert_int_equal(file.st_mode & 0777, 0700 & ~masks[i]);
        if (!why) {
            assert_int_equal(stat(path, &file), 0);
            assert_int_equal(file.st_mode & 0777, 0600 & ~masks[i]);
        }
        chmod(inner, 0700);
        unlink(path);
        assert_int_equal(rmdir(inner), 0);
    }
}

/* Whoever plants a link under the entry's name sees it replaced, not followed. */
static void planted_links_are_not_followed(void **state)
{
    (void)state;
    char victim[PATH_MAX], path[PATH_MAX], text[32] = "";
    struct stat file;
    const ew_tuning tuning = entry_of(11, 1);
    snprintf(victim, sizeof victim, "%s/victim", folder);
    path_of(11, path);
    assert_null(ewx_file_replace(victim, "precious", 8));
    assert_int_equal(symlink(victim, path), 0);
    assert_int_equal(ew_tuning_store(&tuning), EW_OK);
    size_t bytes;
    assert_null(ewx_file_read(victim, text, sizeof text, &bytes));
    assert_int_equal(bytes, 8);
    assert_memory_equal(text, "precious", 8);
    assert_int_equal(lstat(path, &file), 0);
    assert_true(S_ISREG(file.st_mode));
    clear_folder();
}

/* ---- Other things than files ---- */

/* Under each name of the folder something that is not a file of a few bytes. */
static const char *const oddities[] = {"pipe", "socket", "endless", "folder", "large"};
enum { ODDITIES = sizeof oddities / sizeof oddities[0] };

static void make_oddities(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(mkfifo("pipe", 0600), 0);
    snprintf(address.sun_path, sizeof address.sun_path, "socket");
    assert_int_equal(bind(listener, (const struct sockaddr *)&address, sizeof address), 0);
    close(listener);
    assert_int_equal(symlink("/dev/zero", "endless"), 0);
    assert_int_equal(mkdir("folder", 0700), 0);
    assert_int_equal(close(open("large", O_WRONLY | O_CREAT | O_CLOEXEC, 0600)), 0);
    assert_int_equal(truncate("large", (off_t)1 << 40), 0);
}

static void remove_oddities(void)
{
    for (int i = 0; i < ODDITIES; i++)
        assert_int_equal(remove(oddities[i]), 0);
    assert_int_equal(chdir("/"), 0);
}

static ew_status read_entry(const char *path)
{
    ew_tuning tuning;
    return ew_tuning_load(path, &tuning);
}

static ew_status read_profile(const char *path)
{
    ew_sim_hardware hardware;
    char with_slash[64];
    snprintf(with_slash, sizeof with_slash, "./%s", path);
    return ew_sim_describe(with_slash, 1, &hardware);
}

static void readers_refuse_what_is_not_a_file(void **state)
{
    static ew_status (*const readers[])(const char *) = {read_entry, read_profile};
    (void)state;
    make_oddities();
    for (size_t reader = 0; reader < sizeof readers / sizeof readers[0]; reader++)
        for (int i = 0; i < ODDITIES; i++) {
            harness_context("reader %zu of a %s", reader, oddities[i]);
            assert_int_not_equal(readers[reader](oddities[i]), EW_OK);
            assert_true(error_has(oddities[i], "cannot", "read", "fix:", NULL));
        }
    remove_oddities();
}

/* A pipe, a device or a folder is neither written to nor replaced, not even by root. */
static void writers_refuse_what_is_not_a_file(void **state)
{
    (void)state;
    ew_world *world = NULL;
    assert_int_equal(ew_world_create(0, 1, NULL, NULL, NULL, &world), EW_OK);
    make_oddities();
    for (int i = 0; i < ODDITIES - 1; i++) {
        struct stat before, after;
        assert_int_equal(lstat(oddities[i], &before), 0);
        harness_expect_error(ew_world_dump(world, oddities[i]), EW_ERR_SYSTEM, oddities[i],
                             oddities[i]);
        assert_int_equal(lstat(oddities[i], &after), 0);
        assert_true(before.st_ino == after.st_ino && before.st_mode == after.st_mode);
    }
    assert_int_equal(ew_world_dump(world, "large"), EW_OK);
    remove_oddities();
    ew_world_destroy(world);
}

/* ---- Texts ---- */

static void errors_do_not_steer_terminals(void **state)
{
    static const struct {
        const char *in, *out;
    } texts[] = {{"plain\tt\xc3\xa9xt \xe2\x82\xac \xf0\x9f\x8d\x8e\n  fix: go on",
                  "plain\tt\xc3\xa9xt \xe2\x82\xac \xf0\x9f\x8d\x8e\n  fix: go on"},
                 {"a name\nof two lines\n", "a name?of two lines?"},
                 {"\033[31m\x7f\r", "?[31m??"},
                 {"\xc2\x9b"
                  "31m\xc2\x80\xc2\x9f\xc2\xa0",
                  "?31m??\xc2\xa0"},
                 {"\xe2\x80\xaa\xe2\x80\xae\xe2\x80\xaf", "??\xe2\x80\xaf"},
                 {"\xe2\x81\xa6\xe2\x81\xa9\xe2\x80\x8e\xe2\x80\x8f\xd8\x9c", "?????"},
                 {"\x9b"
                  "a\xc3",
                  "?a?"}, /* alone, and cut */
                 {"\xc0\x9b\xe0\x82\x9b\xf8\x88\x80\x80\x80", "??????????"}}; /* overlong */
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_int_equal(ewx_fail(EW_ERR_ARGUMENT, "%s", texts[i].in), EW_ERR_ARGUMENT);
        assert_string_equal(ew_last_error(), texts[i].out);
    }
}

static int set_up(void **state)
{
    (void)state;
    unsetenv("ENTWINE_TUNING");
    return mkdtemp(folder) ? setenv("ENTWINE_CACHE_DIR", folder, 1) : 1;
}

static int tear_down(void **state)
{
    (void)state;
    clear_folder();
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(killed_writers_lose_and_corrupt_nothing),
        TIDY(every_cut_and_every_flip_is_a_miss),
        TIDY(folders_that_refuse_are_no_error_for_plans),
        TIDY(a_full_disk_keeps_the_old_file),
        TIDY(leftovers_of_the_same_process_id_are_no_obstacle),
        TIDY(files_are_private_under_any_umask),
        TIDY(planted_links_are_not_followed),
        TIDY(readers_refuse_what_is_not_a_file),
        TIDY(writers_refuse_what_is_not_a_file),
        TIDY(errors_do_not_steer_terminals),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
