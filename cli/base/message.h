/* What the tool says on stderr, how it quotes, and how it exits.  Every error has one
 * shape,
 *
 *     entwine: error[CODE]: what happened, with the offending value
 *       fix: what to do
 *
 * and this file is the only place that prints it. */
#ifndef ENTWINE_CLI_MESSAGE_H
#define ENTWINE_CLI_MESSAGE_H

#include <stddef.h>
#include <stdio.h>

#include "entwine/entwine.h"

typedef enum cli_exit {
    CLI_EXIT_OK = 0,
    CLI_EXIT_WRONG = 1,       /* a computed value differs from the exact result */
    CLI_EXIT_USAGE = 2,       /* command line, file or shape */
    CLI_EXIT_PEER = 3,        /* a rank died, stalled or aborted */
    CLI_EXIT_REGRESSION = 4,  /* slower than allowed, or measurements that are not stable */
    CLI_EXIT_ENVIRONMENT = 5, /* memory, operating system, installation */
    CLI_EXIT_SKIPPED = 77,    /* what was asked for is not available here */
    CLI_EXIT_INTERRUPTED = 130
} cli_exit;

/* All ranks of a launcher meet the same errors, and one speaks for them: the others are
 * muted, which leaves their standard error to /dev/null until they are unmuted. */
void cli_mute(void);
void cli_unmute(void);

/* The end of a muted process that has met an error: first waits for a second, in which the
 * one that speaks can print the same, since launchers end all of them when one has failed.
 * Then prints it as that of `who`, unless this is NULL. */
void cli_say_unsaid(const char *who);

/* Prints error[USAGE] and returns CLI_EXIT_USAGE, so that callers can `return` it. */
cli_exit cli_fail_usage(const char *fix, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Prints error[EW_...] with a text that ends in its own fix line (ew_last_error() or
 * what a rank left behind) and returns the exit status that belongs to it. */
cli_exit cli_fail_status(ew_status status, const char *text);

/* The same with the text made here. */
cli_exit cli_fail(ew_status status, const char *fix, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* `purpose`: "for the results". */
cli_exit cli_fail_memory(const char *purpose);

cli_exit cli_exit_of(ew_status status);

/* One line `entwine: warning: ...`. */
void cli_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* fprintf for what names files or quotes others: what would steer a terminal is shown as
 * question marks, and so is every line break but that at the end of the format. */
void cli_print(FILE *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The entry of a NULL-terminated list that `word` is most likely a misspelling of, or
 * NULL when none is near. */
const char *cli_closest(const char *word, const char *const *list);

/* ", did you mean 'x'?" for the entry found by cli_closest, or "". */
void cli_suggestion(const char *word, const char *const *list, char *text, size_t bytes);

#endif
