/* entwine explain: what an error's code means, its usual causes and what to do about them.
 */
#include "cmd/commands.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/explain.h"
#include "cmd/explain_pages.h"

typedef struct page {
    const char *code;
    const char *summary;
    ew_status status; /* of USAGE: not used */
    const char *text;
} page;

static const page pages[] = {
    {"USAGE", "the command line or a file cannot be understood", EW_OK, PAGE_USAGE},
#define STATUS_PAGE(name, value, text) {"EW_" #name, text, (ew_status)value, PAGE_##name},
    EW_STATUS_LIST(STATUS_PAGE)
#undef STATUS_PAGE
};
enum { NUM_PAGES = sizeof pages / sizeof pages[0], USAGE_PAGE = 0 };

const char *cli_explain_code(int index)
{
    return index < NUM_PAGES ? pages[index].code : NULL;
}

static bool same_letters(const char *left, const char *right)
{
    while (*left && toupper((unsigned char)*left) == toupper((unsigned char)*right))
        left++, right++;
    return !*left && !*right;
}

/* EW_ERR_SHAPE, ERR_SHAPE, SHAPE, -2 and 2, in capitals or not. */
static const page *find_page(const char *word)
{
    char *end;
    const long number = strtol(word, &end, 10);
    const bool is_number = end != word && !*end;
    for (const page *at = pages; at < pages + NUM_PAGES; at++) {
        const char *code = at->code;
        const bool is_status = at != &pages[USAGE_PAGE];
        if (same_letters(word, code) ||
            (is_status && same_letters(word, code + strlen("EW_"))) ||
            (strncmp(code, "EW_ERR_", 7) == 0 && same_letters(word, code + 7)) ||
            (is_status && is_number && labs(number) == labs((long)at->status)))
            return at;
    }
    return NULL;
}

static cli_exit fail_code(const char *word)
{
    const char *codes[NUM_PAGES + 1];
    char near[96], fix[32 * NUM_PAGES] = "one of";
    for (int at = 0; at < NUM_PAGES; at++) {
        codes[at] = pages[at].code;
        snprintf(fix + strlen(fix), sizeof fix - strlen(fix), "%s %s", at ? "," : "",
                 codes[at]);
    }
    codes[NUM_PAGES] = NULL;
    cli_suggestion(word, codes, near, sizeof near);
    return cli_fail_usage(fix, "no code '%.60s'%s", word, near);
}

static void list_codes(void)
{
    for (const page *at = pages; at < pages + NUM_PAGES; at++)
        printf("%-18s %s\n", at->code, at->summary);
}

cli_exit cli_explain_main(const cli_settings *settings, int argc, char **argv)
{
    (void)argc, (void)argv;
    if (settings->num_words == 0) {
        list_codes();
        return CLI_EXIT_OK;
    }
    const page *found = find_page(settings->words[0]);
    if (!found)
        return fail_code(settings->words[0]);
    if (found == &pages[USAGE_PAGE])
        printf("%s: %s\nexit status %d\n\n%s", found->code, found->summary, CLI_EXIT_USAGE,
               found->text);
    else
        printf("%s (%d): %s\nexit status %d\n\n%s", found->code, (int)found->status,
               found->summary, (int)cli_exit_of(found->status), found->text);
    return CLI_EXIT_OK;
}
