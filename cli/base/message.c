/* The one printer of errors and warnings, the map from library status to exit status,
 * and the spelling helper behind every "did you mean". */
#include "base/message.h"

#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

enum { MAX_WORD = 64, MAX_LINES = 6, TEXT_BYTES = 1024, SPEAK_LATER_US = 1000000 };

static int voice = -1;              /* standard error of a process that is muted */
static char unsaid[2 * TEXT_BYTES]; /* its first error */
static char unsaid_code[32];

static void print_error(const char *code, char *text, const char *fix)
{
    ewx_text_disarm(text); /* it quotes files and arguments */
    fflush(stdout);
    if (voice >= 0 && !*unsaid) {
        snprintf(unsaid_code, sizeof unsaid_code, "%s", code);
        snprintf(unsaid, sizeof unsaid, "%s%s%s", text, fix ? "\n  fix: " : "",
                 fix ? fix : "");
    }
    fprintf(stderr, "entwine: error[%s]: %s\n", code, text);
    if (fix)
        cli_print(stderr, "  fix: %s\n", fix);
}

void cli_mute(void)
{
    voice = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (voice >= 0 && !freopen("/dev/null", "w", stderr))
        cli_unmute(); /* then all of them print */
}

void cli_unmute(void)
{
    if (voice < 0)
        return;
    fflush(stderr);
    dup2(voice, STDERR_FILENO);
    close(voice);
    voice = -1;
}

void cli_say_unsaid(const char *who)
{
    if (!*unsaid)
        return;
    usleep(SPEAK_LATER_US);
    if (!who)
        return;
    cli_unmute();
    fprintf(stderr, "entwine: error[%s]: on %s: %s\n", unsaid_code, who, unsaid);
}

cli_exit cli_fail_usage(const char *fix, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    print_error("USAGE", text, fix);
    return CLI_EXIT_USAGE;
}

cli_exit cli_fail(ew_status status, const char *fix, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    print_error(ew_status_name(status), text, fix);
    return cli_exit_of(status);
}

cli_exit cli_fail_memory(const char *purpose)
{
    return cli_fail(EW_ERR_MEMORY, "free some memory", "no memory %s", purpose);
}

cli_exit cli_fail_status(ew_status status, const char *text)
{
    char shown[TEXT_BYTES];
    if (!text || !*text)
        text = ew_status_text(status);
    snprintf(shown, sizeof shown, "%s", text);
    /* The promise is at most six lines, whatever a library message holds. */
    char *end = strchr(shown, '\n');
    for (int lines = 1; end && lines < MAX_LINES; lines++)
        end = strchr(end + 1, '\n');
    for (end = end ? end : strchr(shown, '\0'); end > shown && end[-1] == '\n';)
        end--;
    *end = '\0';
    print_error(ew_status_name(status), shown, NULL);
    return cli_exit_of(status);
}

cli_exit cli_exit_of(ew_status status)
{
    switch (status) {
    case EW_OK:
        return CLI_EXIT_OK;
    case EW_ERR_ARGUMENT:
    case EW_ERR_SHAPE:
    case EW_ERR_CONFIG:
    case EW_ERR_MISMATCH:
        return CLI_EXIT_USAGE;
    case EW_ERR_UNSUPPORTED:
        return CLI_EXIT_SKIPPED;
    case EW_ERR_TIMEOUT:
    case EW_ERR_PEER_DIED:
    case EW_ERR_ABORTED:
        return CLI_EXIT_PEER;
    case EW_ERR_MEMORY:
    case EW_ERR_SYSTEM:
        break;
    }
    return CLI_EXIT_ENVIRONMENT;
}

void cli_warn(const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ewx_text_disarm(text);
    fprintf(stderr, "entwine: warning: %s\n", text);
}

void cli_print(FILE *stream, const char *format, ...)
{
    char text[PATH_MAX + TEXT_BYTES];
    const size_t length = strlen(format);
    const bool ends_line = length > 0 && format[length - 1] == '\n';
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (ends_line)
        text[strlen(text) - 1] = '\0';
    ewx_text_disarm_line(text);
    fprintf(stream, "%s%s", text, ends_line ? "\n" : "");
}

/* Levenshtein distance; words longer than MAX_WORD are as far as can be. */
static int edit_distance(const char *left, const char *right)
{
    int row[MAX_WORD + 1];
    size_t rows = strlen(left), cols = strlen(right);
    if (rows > MAX_WORD || cols > MAX_WORD)
        return INT_MAX;
    for (size_t col = 0; col <= cols; col++)
        row[col] = (int)col;
    for (size_t line = 1; line <= rows; line++) {
        int diagonal = row[0];
        row[0] = (int)line;
        for (size_t col = 1; col <= cols; col++) {
            int substitute = diagonal + (left[line - 1] != right[col - 1]);
            diagonal = row[col];
            int changed = (row[col] < row[col - 1] ? row[col] : row[col - 1]) + 1;
            row[col] = changed < substitute ? changed : substitute;
        }
    }
    return row[cols];
}

const char *cli_closest(const char *word, const char *const *list)
{
    /* A third of the letters may be wrong, or all of the missing ones at the end. */
    int best = (int)(strlen(word) / 3 + 1);
    const char *found = NULL;
    for (; *list; list++) {
        int distance = edit_distance(word, *list);
        if (strlen(word) >= 2 && strncmp(word, *list, strlen(word)) == 0)
            distance = 1;
        if (distance <= best && (!found || distance < best)) {
            best = distance;
            found = *list;
        }
    }
    return found;
}

void cli_suggestion(const char *word, const char *const *list, char *text, size_t bytes)
{
    const char *near = cli_closest(word, list);
    text[0] = '\0';
    if (near)
        snprintf(text, bytes, ", did you mean '%s'?", near);
}
