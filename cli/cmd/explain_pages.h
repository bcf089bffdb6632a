/* One page for each code.  The compiler sees to it that no status is without one: the pages
 * are found by name from the library's list of statuses (cmd_explain.c). */
#ifndef ENTWINE_CLI_EXPLAIN_PAGES_H
#define ENTWINE_CLI_EXPLAIN_PAGES_H

/* clang-format off */

#define PAGE_USAGE \
    "The command line, or a file that it names, cannot be understood. Nothing was run.\n" \
    "\n" \
    "  - A misspelt command or option: the message suggests the nearest name.\n" \
    "  - A value out of range: the fix line says what is accepted.\n" \
    "  - A results, suite or entries file that is damaged or of another version: the\n" \
    "    message names the file and the place. Write it again.\n"

#define PAGE_OK \
    "The call did what it should.\n"

#define PAGE_ERR_ARGUMENT \
    "A function was given something that cannot be right. It did nothing, and everything\n" \
    "stays usable.\n" \
    "\n" \
    "  - A NULL pointer, a rank outside 0..W-1, or a struct that was not initialised by its\n" \
    "    macro (EW_PROBLEM, EW_CONFIG_INIT, EW_WORLD_OPTIONS_INIT), so that struct_size is 0.\n" \
    "  - B is NULL although no weight was bound: call ew_plan_set_weight once, or pass B.\n" \
    "  - A stream with the cpu backend: pass NULL.\n" \
    "  - On a GPU: a matrix that does not start at an aligned address.\n"

#define PAGE_ERR_SHAPE \
    "The shape does not fit the plan, or no plan of it can exist. Nothing was computed, and\n" \
    "everything stays usable.\n" \
    "\n" \
    "  - m of a call is larger than the plan's max_m: make the plan for the largest m.\n" \
    "  - On a GPU N and K must be multiples of 8: pad the weight with zeros.\n" \
    "  - Sizes whose product does not fit the address space: check for swapped arguments.\n"

#define PAGE_ERR_CONFIG \
    "The schedule that was asked for does not exist or cannot run. Nothing was run.\n" \
    "\n" \
    "  - A misspelt key or value in --config, --variant or ew_config_parse: the message\n" \
    "    lists the valid ones.\n" \
    "  - Fields that exclude each other, for example pool=static with a single worker.\n" \
    "  - A budget x that could keep the GEMM from finishing: the message names the largest\n" \
    "    safe one.\n" \
    "  Leave fields open (0, or no key) and they are chosen; entwine plan says how and why.\n"

#define PAGE_ERR_UNSUPPORTED \
    "Right, but not possible in this build or on this machine. The tool exits with 77.\n" \
    "\n" \
    "  - No cuda backend in this build: make CUDA=1 where nvcc is installed.\n" \
    "  - No GPU, or one before compute capability 8.0.\n" \
    "  - An element type or method that the backend does not have.\n" \
    "  - Ranks on several hosts: start them with mpirun (docs/CLUSTER.md); CPU plans only.\n" \
    "  - No BLAS for the blas method: install libblis4 or libopenblas0, or set ENTWINE_BLAS.\n" \
    "  entwine doctor shows what this machine offers.\n"

#define PAGE_ERR_MISMATCH \
    "Ranks disagree about something that must be equal; the message names both and their\n" \
    "values. The world ends when it happens in a call.\n" \
    "\n" \
    "  - Another shape, type, config or m: every rank must make the same calls in the same\n" \
    "    order. Look for a branch that only some ranks take.\n" \
    "  - Another version of the library: an older libentwine.so.0 is found first on one of\n" \
    "    them (LD_LIBRARY_PATH, ENTWINE_LIBRARY).\n" \
    "  - Another timeout or emulated link: set ENTWINE_TIMEOUT_MS on all ranks or on none.\n"

#define PAGE_ERR_MEMORY \
    "No memory for what was asked for. Nothing is lost but this object.\n" \
    "\n" \
    "  - A plan holds its contributions twice, M x N elements each, plus the packed weight:\n" \
    "    entwine plan prints the bytes. Make max_m smaller, or use fewer ranks.\n" \
    "  - A container's memory limit counts the heap, which is shared memory, to its ranks.\n" \
    "  - On a GPU: other programs, or an allocator that caches, hold its memory (nvidia-smi).\n"

#define PAGE_ERR_SYSTEM \
    "The operating system, or the driver, refused something; the message says what and why.\n" \
    "\n" \
    "  - Too many processes, threads or open files: ulimit -u, ulimit -n.\n" \
    "  - A sandbox that forbids memfd_create, pidfd_open or UNIX sockets, or ranks of different\n" \
    "    users or containers.\n" \
    "  - No HOME for the tuning entries: set ENTWINE_CACHE_DIR.\n" \
    "  - On a GPU: the driver's own error, in its words.\n" \
    "  entwine doctor tries each of them and names the one that fails.\n"

#define PAGE_ERR_TIMEOUT \
    "A rank made no progress for the whole timeout; the message names it, and where it was\n" \
    "missed. The world is over on all ranks: destroy it and start again.\n" \
    "\n" \
    "  - The rank is busy elsewhere, stopped (Ctrl-Z, a debugger) or swapped out.\n" \
    "  - It never made the call: ranks must make the same calls in the same order.\n" \
    "  - It is merely slow: raise the timeout (-T, ENTWINE_TIMEOUT_MS, timeout_ms); the\n" \
    "    default is 30 seconds without any progress, not per call.\n" \
    "  - On a GPU: another program keeps the SMs, or a kernel in front of this one in the\n" \
    "    caller's stream does not end.\n"

#define PAGE_ERR_PEER_DIED \
    "A rank ended, or left the world, while others still needed it; the message names it. The\n" \
    "world is over on all ranks.\n" \
    "\n" \
    "  - It crashed or was killed: look at its own output first. Signal 9 without a reason is\n" \
    "    mostly the kernel, out of memory (dmesg).\n" \
    "  - It left early: it returned, or destroyed its world, before the calls that the others\n" \
    "    still make.\n"

#define PAGE_ERR_ABORTED \
    "A rank told all others to stop; the message names it. The world is over on all ranks.\n" \
    "\n" \
    "  - ew_world_abort was called, Ctrl-C was pressed, or a rank's function returned non-zero:\n" \
    "    the reason is in that rank's output.\n" \
    "  - The all-gather callback of ew_world_create failed.\n"

#endif
