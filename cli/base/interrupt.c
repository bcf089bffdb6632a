/* The signal handler may touch only what is async-signal-safe: atomics in a shared
 * mapping, kill(), _exit() and ew_world_abort().  The mapping is inherited by forked
 * ranks, so a rank that starts late sees that it must not. */
#include "base/interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/dump.h"
#include "base/message.h"

typedef struct board {
    atomic_int stop;
    atomic_int handlers_running;
    atomic_int pids[CLI_MAX_RANKS];
    _Atomic(ew_world *) worlds[CLI_MAX_RANKS];
} board;

/* File-scope because a signal handler gets no argument. */
static board *shared_board;
static volatile sig_atomic_t signals_seen;

static const int caught_signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { NUM_CAUGHT = sizeof caught_signals / sizeof caught_signals[0] };

static void on_signal(int number)
{
    board *at = shared_board;
    (void)number;
    if (signals_seen++ || !at)
        _exit(CLI_EXIT_INTERRUPTED); /* no rank to end, nothing measured to write */
    atomic_fetch_add(&at->handlers_running, 1);
    /* Sequentially consistent on purpose: either we see a rank's entry or the rank sees
     * `stop` right after making it. */
    atomic_store(&at->stop, 1);
    for (int rank = 0; rank < CLI_MAX_RANKS; rank++) {
        int pid = atomic_load(&at->pids[rank]);
        ew_world *world = atomic_exchange(&at->worlds[rank], NULL);
        if (pid > 0)
            kill(pid, SIGKILL); /* also ends a stopped rank; ranks own nothing to clean */
        if (world)
            ew_world_abort(world);
    }
    atomic_fetch_sub(&at->handlers_running, 1);
}

/* A launcher passes it on to its first rank, whose memory shows all of them. */
static void on_dump_signal(int number)
{
    board *at = shared_board;
    if (cli_dump_request() || !at)
        return;
    for (int rank = 0; rank < CLI_MAX_RANKS; rank++) {
        int pid = atomic_load(&at->pids[rank]);
        if (pid > 0 && pid != getpid()) {
            kill(pid, number);
            return;
        }
    }
}

static void handle(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

static void set_handlers(void (*handler)(int))
{
    struct sigaction present;
    for (int at = 0; at < NUM_CAUGHT; at++) {
        const int number = caught_signals[at];
        /* Who was started to outlive its terminal, by nohup, does. */
        if (number != SIGHUP || sigaction(number, NULL, &present) != 0 ||
            present.sa_handler != SIG_IGN)
            handle(number, handler);
    }
}

void cli_interrupt_init(void)
{
    set_handlers(on_signal);
    handle(SIGUSR1, SIG_IGN); /* no job runs yet that could be recorded */
}

bool cli_interrupt_open(void)
{
    void *mapping = mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return false;
    shared_board = mapping; /* anonymous memory starts as zeroes: no rank has entered */
    handle(SIGUSR1, on_dump_signal);
    return true;
}

void cli_interrupt_close(void)
{
    board *closed = shared_board;
    handle(SIGUSR1, SIG_IGN);
    shared_board = NULL; /* before it is gone: signals are still caught */
    if (closed)
        munmap(closed, sizeof(board));
}

bool cli_interrupted(void)
{
    return signals_seen != 0 || (shared_board && atomic_load(&shared_board->stop));
}

bool cli_interrupt_enter_process(int rank)
{
    set_handlers(SIG_DFL); /* a rank simply dies */
    atomic_store(&shared_board->pids[rank], (int)getpid());
    return !atomic_load(&shared_board->stop);
}

bool cli_interrupt_enter_world(int rank, ew_world *world)
{
    atomic_store(&shared_board->worlds[rank], world);
    return !atomic_load(&shared_board->stop);
}

void cli_interrupt_leave(int rank)
{
    board *at = shared_board;
    sigset_t caught, before;
    if (atomic_exchange(&at->pids[rank], 0))
        return; /* a process of its own: no other holds its world */
    sigemptyset(&caught);
    for (int index = 0; index < NUM_CAUGHT; index++)
        sigaddset(&caught, caught_signals[index]);
    /* A handler that took our world may still be using it, in another thread: let it
     * finish before the caller destroys the world.  Blocked here, so that it cannot be
     * this very thread that waits for itself. */
    pthread_sigmask(SIG_BLOCK, &caught, &before);
    if (!atomic_exchange(&at->worlds[rank], NULL))
        while (atomic_load(&at->handlers_running))
            usleep(100);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
