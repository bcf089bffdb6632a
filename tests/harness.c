/* One shared page per run carries the first failure to the parent. */
#include "harness.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { CONTEXT_BYTES = 512 };

typedef struct note {
    atomic_int taken;
    atomic_int written;
    char text[1024];
    char context[CONTEXT_BYTES];
} note;

static note *current; /* of the run in progress; set by the parent alone */
/* The parent's, which forked ranks inherit; a rank may set its own. */
static _Thread_local char context[CONTEXT_BYTES];

void harness_note(ew_world *world, const char *file, int line, const char *format, ...)
{
    char text[900];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!current) { /* a rank that a launcher started */
        fprintf(stderr, "%s:%d: rank %d: %s\n  case: %s\n", file, line,
                world ? ew_world_rank(world) : -1, text, context);
        return;
    }
    if (atomic_exchange(&current->taken, 1))
        return;
    snprintf(current->text, sizeof current->text, "%s:%d: rank %d: %s", file, line,
             world ? ew_world_rank(world) : -1, text);
    memcpy(current->context, context, sizeof context);
    atomic_store(&current->written, 1);
}

void harness_context(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(context, sizeof context, format, arguments);
    va_end(arguments);
}

/* What was noted and in which case, as one text; "" when nothing was. */
static void read_note(const note *noted, char *text, size_t bytes)
{
    text[0] = '\0';
    if (!atomic_load(&noted->taken))
        return;
    const bool whole = atomic_load(&noted->written);
    snprintf(text, bytes, "%s\n  case: %s", whole ? noted->text : "(a note was lost)",
             whole && noted->context[0] ? noted->context : context);
}

ew_status harness_try(ew_ranks_as kind, int num_ranks, const ew_world_options *options,
                      ew_rank_main body, void *argument, int *exits_out, char *text,
                      size_t bytes)
{
    current = harness_share(sizeof *current);
    const ew_status status =
        ew_run_ranks(kind, num_ranks, options, body, argument, exits_out);
    read_note(current, text, bytes);
    harness_unshare(current, sizeof *current);
    current = NULL;
    return status;
}

ew_status harness_run_failing(ew_ranks_as kind, int num_ranks,
                              const ew_world_options *options, ew_rank_main body,
                              void *argument, int *exits_out)
{
    char text[HARNESS_TEXT_BYTES];
    const ew_status status =
        harness_try(kind, num_ranks, options, body, argument, exits_out, text, sizeof text);
    if (text[0])
        harness_fail("%s", text);
    return status;
}

void harness_run_with(ew_ranks_as kind, int num_ranks, const ew_world_options *options,
                      ew_rank_main body, void *argument)
{
    const ew_status status =
        harness_run_failing(kind, num_ranks, options, body, argument, NULL);
    if (status != EW_OK)
        harness_fail("%s: %s\n  case: %s", ew_status_name(status), ew_last_error(),
                     context);
}

void harness_run(ew_ranks_as kind, int num_ranks, ew_rank_main body, void *argument)
{
    harness_run_with(kind, num_ranks, NULL, body, argument);
}

void harness_expect_error(ew_status status, ew_status want, const char *value,
                          const char *what)
{
    if (status != want)
        harness_fail("%s: got %s, want %s", what, ew_status_name(status),
                     ew_status_name(want));
    if (value && !strstr(ew_last_error(), value))
        harness_fail("%s: the message does not show '%s': %s", what, value,
                     ew_last_error());
    if (!strstr(ew_last_error(), "\n  fix: "))
        harness_fail("%s: the message has no fix: %s", what, ew_last_error());
}

void *harness_share(size_t bytes)
{
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        harness_fail("no %zu bytes to share", bytes);
    return memory;
}

void harness_unshare(void *memory, size_t bytes)
{
    munmap(memory, bytes);
}

harness_random harness_seed(uint64_t seed)
{
    /* splitmix64's mixer: never zero but for one seed, which the constant moves away. */
    uint64_t z = seed + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (harness_random){z ? z : 1};
}

uint64_t harness_next(harness_random *random)
{
    uint64_t x = random->state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    random->state = x;
    return x * 0x2545f4914f6cdd1du;
}

int64_t harness_between(harness_random *random, int64_t low, int64_t high)
{
    return low + (int64_t)(harness_next(random) % (uint64_t)(high - low + 1));
}

/* ---- Operations ---- */

ew_status harness_call(ew_op op, ew_plan *plan, int64_t m, const void *A, const void *B,
                       void *C)
{
    switch (op) {
    case EW_OP_GEMM_AR:
        return ew_gemm_ar(plan, m, A, B, C, NULL);
    case EW_OP_AG_GEMM:
        return ew_ag_gemm(plan, m, A, B, C, NULL, NULL);
    case EW_OP_GEMM_RS:
        break;
    }
    return ew_gemm_rs(plan, m, A, B, C, NULL);
}
