/* The parser of ENTWINE_FAULT, and what its rules do. */
#include "base/inject.h"

#ifdef EW_TESTING

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/status.h"

/* ---- Words ---- */

enum {
    HAS_RANK = 1,
    HAS_TILE = 2,
    HAS_NTH = 4,
    HAS_DROP = 8,
    HAS_DELAY = 16,
    HAS_PHASE = 32
};

static const struct place {
    const char *name;
    ewx_deal deal;
    ewx_probe_point point;
    unsigned takes, needs, needs_one_of;
    const char *usage;
} places[] = {
    {"publish", EWX_DEAL_DROP, EWX_PROBE_PUBLISH,
     HAS_RANK | HAS_TILE | HAS_NTH | HAS_DROP | HAS_DELAY, 0, HAS_DROP | HAS_DELAY,
     "publish:drop or publish:delay=MS, with rank=R, tile=SLOT, nth=N"},
    {"wait", EWX_DEAL_DELAY, EWX_PROBE_WAIT, HAS_NTH | HAS_DELAY, HAS_DELAY, 0,
     "wait:delay=MS, with nth=N"},
    {"kill", EWX_DEAL_KILL, EWX_PROBE_BLOCK, HAS_RANK | HAS_PHASE | HAS_NTH,
     HAS_RANK | HAS_PHASE, 0, "kill:rank=R,phase=PHASE, with nth=N"},
    {"stop", EWX_DEAL_STOP, EWX_PROBE_BLOCK, HAS_RANK | HAS_PHASE | HAS_NTH,
     HAS_RANK | HAS_PHASE, 0, "stop:rank=R,phase=PHASE, with nth=N"},
    {"memory", EWX_DEAL_NO_MEMORY, EWX_PROBE_BLOCK, HAS_RANK | HAS_NTH, HAS_NTH, 0,
     "memory:nth=N, with rank=R"},
    {"system", EWX_DEAL_NO_SYSTEM, EWX_PROBE_BLOCK, HAS_RANK | HAS_NTH, HAS_NTH, 0,
     "system:nth=N, with rank=R"},
};

static const struct phase {
    const char *name;
    ewx_probe_point point;
} phases[] = {{"bootstrap", EWX_PROBE_BOOTSTRAP},
              {"block", EWX_PROBE_BLOCK},
              {"publish", EWX_PROBE_PUBLISH},
              {"reduce", EWX_PROBE_REDUCE},
              {"teardown", EWX_PROBE_TEARDOWN}};

static const struct key {
    const char *name;
    unsigned bit;
    int64_t least, most; /* of its number */
} keys[] = {{"rank=", HAS_RANK, 0, EWX_MAX_RANKS - 1},
            {"tile=", HAS_TILE, 0, INT32_MAX},
            {"nth=", HAS_NTH, 1, INT32_MAX},
            {"delay=", HAS_DELAY, 0, 60000}};

/* ---- Parsing ---- */

static ew_status fail_item(const char *item, size_t length, const struct place *place)
{
    return ewx_fail(EW_ERR_ARGUMENT,
                    "ENTWINE_FAULT: '%.*s' does not belong to %s\n  fix: write %s",
                    (int)(length > 60 ? 60 : length), item, place->name, place->usage);
}

static bool take_number(const char *text, size_t length, const struct key *key,
                        int64_t *number_out)
{
    int64_t number = 0;
    if (length == 0 || length > 10)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        number = number * 10 + (text[i] - '0');
    }
    *number_out = number;
    return number >= key->least && number <= key->most;
}

static void set_number(ewx_rule *rule, unsigned bit, int64_t number)
{
    if (bit == HAS_RANK)
        rule->rank = (int)number;
    if (bit == HAS_TILE)
        rule->where = number;
    if (bit == HAS_NTH)
        rule->nth = number;
    if (bit == HAS_DELAY) {
        rule->deal = EWX_DEAL_DELAY;
        rule->delay_ms = (int)number;
    }
}

/* The bit of what the item says, 0 when it says nothing valid. */
static unsigned read_item(const char *item, size_t length, ewx_rule *rule)
{
    if (length == 4 && memcmp(item, "drop", 4) == 0)
        return HAS_DROP;
    if (length > 6 && memcmp(item, "phase=", 6) == 0)
        for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
            if (strlen(phases[i].name) == length - 6 &&
                memcmp(item + 6, phases[i].name, length - 6) == 0) {
                rule->point = phases[i].point;
                return HAS_PHASE;
            }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const size_t name = strlen(keys[i].name);
        int64_t number;
        if (length > name && memcmp(item, keys[i].name, name) == 0 &&
            take_number(item + name, length - name, &keys[i], &number)) {
            set_number(rule, keys[i].bit, number);
            return keys[i].bit;
        }
    }
    return 0;
}

static ew_status parse_rule(const char *text, size_t length, ewx_rule *rule_out)
{
    const char *colon = memchr(text, ':', length), *end = text + length;
    const size_t name = colon ? (size_t)(colon - text) : length;
    const struct place *place = NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (strlen(places[i].name) == name && memcmp(places[i].name, text, name) == 0)
            place = &places[i];
    if (!place || !colon)
        return ewx_fail(
            EW_ERR_ARGUMENT,
            "ENTWINE_FAULT: '%.*s' is not a place%s\n"
            "  fix: write place:key=value, the place being publish, wait, kill, "
            "stop, memory or system",
            (int)(name > 60 ? 60 : name), text, place ? " with a colon" : "");
    ewx_rule rule = {.deal = place->deal, .point = place->point, .rank = -1, .where = -1};
    unsigned seen = 0;
    for (const char *item = colon + 1; item <= end;) {
        const char *comma = memchr(item, ',', (size_t)(end - item));
        const size_t bytes = (size_t)((comma ? comma : end) - item);
        const unsigned bit = read_item(item, bytes, &rule);
        if (bit == 0 || !(place->takes & bit) || seen & bit)
            return fail_item(item, bytes, place);
        seen |= bit;
        item += bytes + 1;
    }
    if ((seen & place->needs) != place->needs ||
        (place->needs_one_of && (!(seen & place->needs_one_of) ||
                                 (seen & place->needs_one_of) == place->needs_one_of)))
        return fail_item(text, length, place);
    if ((rule.deal == EWX_DEAL_KILL || rule.deal == EWX_DEAL_STOP) && rule.nth == 0)
        rule.nth = 1;
    *rule_out = rule;
    return EW_OK;
}

ew_status ewx_inject_parse(const char *text, ewx_rule rules[EWX_MAX_RULES], int *count_out)
{
    int count = 0;
    *count_out = 0;
    while (*text) {
        const size_t length = strcspn(text, ";");
        if (count == EWX_MAX_RULES)
            return ewx_fail(EW_ERR_ARGUMENT,
                            "ENTWINE_FAULT has more than %d rules\n  fix: use fewer",
                            EWX_MAX_RULES);
        EW_TRY(parse_rule(text, length, &rules[count++]));
        text += length;
        if (*text == ';' && *++text == '\0')
            return ewx_fail(EW_ERR_ARGUMENT,
                            "ENTWINE_FAULT ends in a semicolon\n  fix: remove it");
    }
    *count_out = count;
    return EW_OK;
}

/* ---- Acting ---- */

static struct {
    ewx_rule rules[EWX_MAX_RULES];
    _Atomic int64_t hits[EWX_MAX_RULES];
    int count;
    int self; /* the rank that this process is, or -1 */
} active;

ew_status ewx_inject_load(int rank)
{
    const char *text = secure_getenv("ENTWINE_FAULT");
    active.count = 0;
    active.self = rank;
    for (int i = 0; i < EWX_MAX_RULES; i++)
        atomic_store(&active.hits[i], 0);
    return text ? ewx_inject_parse(text, active.rules, &active.count) : EW_OK;
}

static bool is_time(int at)
{
    const int64_t hit = 1 + atomic_fetch_add(&active.hits[at], 1);
    return active.rules[at].nth == 0 || hit == active.rules[at].nth;
}

int ewx_inject_act(ewx_probe_point point, int rank, int64_t where)
{
    int dropped = 0;
    for (int i = 0; i < active.count; i++) {
        const ewx_rule *rule = &active.rules[i];
        if (rule->deal >= EWX_DEAL_NO_MEMORY || rule->point != point ||
            (rule->rank >= 0 && rule->rank != rank) ||
            (rule->where >= 0 && rule->where != where) || !is_time(i))
            continue;
        if (rule->deal == EWX_DEAL_KILL)
            raise(SIGKILL);
        if (rule->deal == EWX_DEAL_STOP)
            kill(getpid(), SIGSTOP);
        if (rule->deal == EWX_DEAL_DELAY)
            poll(NULL, 0, rule->delay_ms);
        dropped |= rule->deal == EWX_DEAL_DROP;
    }
    return dropped;
}

bool ewx_inject_fails(ewx_deal deal)
{
    bool fails = false;
    for (int i = 0; i < active.count; i++) {
        const ewx_rule *rule = &active.rules[i];
        if (rule->deal == deal && (rule->rank < 0 || rule->rank == active.self))
            fails |= is_time(i);
    }
    return fails;
}

#else
typedef int ewx_inject_is_for_tests;
#endif
