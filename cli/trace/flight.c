/* Reading and merging.  Every number and word is checked: files may come from anywhere,
 * and live recordings from memory that any rank may have overwritten. */
#include "trace/flight.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Members ---- */

static bool get_number(const json_t *object, const char *name, int64_t *number_out)
{
    const json_t *value = json_object_get(object, name);
    *number_out = json_integer_value(value);
    return json_is_integer(value);
}

static bool get_int(const json_t *object, const char *name, int least, int most,
                    int *number_out)
{
    int64_t number;
    if (!get_number(object, name, &number) || number < least || number > most)
        return false;
    *number_out = (int)number;
    return true;
}

/* Plain words only: they are printed. */
static bool get_word(const json_t *object, const char *name, char *word)
{
    const char *text = json_string_value(json_object_get(object, name));
    if (!text || strlen(text) >= CLI_WORD_BYTES ||
        strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") !=
            strlen(text))
        return false;
    memcpy(word, text, strlen(text) + 1);
    return true;
}

/* ---- Parsing ---- */

static bool parse_deed(const json_t *object, cli_deed *deed)
{
    char kind[CLI_WORD_BYTES];
    bool whole = get_number(object, "sequence", &deed->sequence) && deed->sequence > 0 &&
                 get_number(object, "m", &deed->m) && get_number(object, "n", &deed->n) &&
                 get_number(object, "k", &deed->k) &&
                 get_number(object, "plan", &deed->plan) &&
                 get_number(object, "begin_ns", &deed->begin_ns) &&
                 get_number(object, "end_ns", &deed->end_ns) &&
                 get_number(object, "steps", &deed->steps) &&
                 get_word(object, "state", deed->state) &&
                 get_word(object, "status", deed->status) &&
                 get_word(object, "config", deed->config) && get_word(object, "kind", kind);
    deed->is_plan = whole && strcmp(kind, "plan") == 0;
    return whole;
}

static bool parse_deeds(const json_t *array, cli_lane *lane)
{
    size_t count = json_array_size(array);
    if (!json_is_array(array) || count > CLI_RECORDS)
        return false;
    lane->deeds = calloc(count + 1, sizeof *lane->deeds);
    if (!lane->deeds)
        return false;
    for (size_t at = 0; at < count; at++) {
        cli_deed *deed = &lane->deeds[at];
        if (!parse_deed(json_array_get(array, at), deed) ||
            deed->sequence > lane->sequence ||
            (at > 0 && deed->sequence <= deed[-1].sequence))
            return false;
        lane->num_deeds++;
    }
    return true;
}

static bool parse_lane(const json_t *object, int num_ranks, cli_lane *lane)
{
    const json_t *wait = json_object_get(object, "waits_for");
    const json_t *step = json_object_get(object, "last_step");
    *lane = (cli_lane){.known = true,
                       .waits_for = -1,
                       .left = json_is_true(json_object_get(object, "left"))};
    if (!get_int(object, "pid", INT32_MIN, INT32_MAX, &lane->pid) ||
        !get_number(object, "sequence", &lane->sequence) || lane->sequence < 0 ||
        !get_number(object, "meetings", &lane->meetings) ||
        !get_word(object, "process", lane->process))
        return false;
    if (json_is_object(wait) &&
        (!get_int(wait, "rank", 0, num_ranks - 1, &lane->waits_for) ||
         !get_word(wait, "at", lane->waits_at)))
        return false;
    if (json_is_object(step) && (!get_word(step, "kind", lane->step) ||
                                 !get_number(step, "position", &lane->position)))
        return false;
    return parse_deeds(json_object_get(object, "records"), lane);
}

static bool parse_ranks(const json_t *array, cli_recording *recording)
{
    size_t count = json_array_size(array);
    if (!json_is_array(array) || count > (size_t)recording->num_ranks)
        return false;
    for (size_t at = 0; at < count; at++) {
        const json_t *object = json_array_get(array, at);
        int rank;
        if (!get_int(object, "rank", 0, recording->num_ranks - 1, &rank) ||
            recording->lanes[rank].known ||
            !parse_lane(object, recording->num_ranks, &recording->lanes[rank]))
            return false;
        recording->lanes[rank].seen_ns = recording->now_ns;
    }
    return true;
}

bool cli_recording_parse(const json_t *root, cli_recording **recording_out, char *why)
{
    const char *schema = json_string_value(json_object_get(root, "schema"));
    const json_t *fault = json_object_get(root, "fault");
    if (!schema || strcmp(schema, "entwine-recording/1") != 0) {
        snprintf(why, CLI_WHY_BYTES, "it is not a flight recording");
        return false;
    }
    cli_recording *recording = calloc(1, sizeof *recording);
    bool whole = recording &&
                 get_int(root, "num_ranks", 1, CLI_MAX_RANKS, &recording->num_ranks) &&
                 get_number(root, "started_ns", &recording->started_ns) &&
                 get_number(root, "now_ns", &recording->now_ns) &&
                 get_word(root, "ranks_as", recording->ranks_as) &&
                 parse_ranks(json_object_get(root, "ranks"), recording);
    if (whole) {
        recording->culprit = -1;
        if (json_is_object(fault) && get_word(fault, "status", recording->fault))
            get_int(fault, "culprit", 0, recording->num_ranks - 1, &recording->culprit);
        *recording_out = recording;
        return true;
    }
    cli_recording_free(recording);
    snprintf(why, CLI_WHY_BYTES, "it is damaged, or there is no memory for it");
    return false;
}

void cli_recording_free(cli_recording *recording)
{
    for (int rank = 0; recording && rank < CLI_MAX_RANKS; rank++)
        free(recording->lanes[rank].deeds);
    free(recording);
}

/* ---- Merging ---- */

static bool is_newer(const cli_lane *lane, const cli_lane *than)
{
    if (!lane->known || !than->known)
        return lane->known;
    if (lane->sequence != than->sequence)
        return lane->sequence > than->sequence;
    return lane->seen_ns > than->seen_ns;
}

void cli_recording_merge(cli_recording *recording, const cli_recording *other)
{
    for (int rank = 0; rank < recording->num_ranks; rank++) {
        cli_lane *mine = &recording->lanes[rank];
        const cli_lane *theirs = &other->lanes[rank];
        if (!is_newer(theirs, mine))
            continue;
        size_t bytes = (size_t)theirs->num_deeds * sizeof *theirs->deeds;
        cli_deed *deeds = malloc(bytes + 1);
        if (!deeds)
            continue; /* the older one is still true */
        memcpy(deeds, theirs->deeds, bytes);
        free(mine->deeds);
        *mine = *theirs;
        mine->deeds = deeds;
    }
    if (!recording->fault[0]) {
        memcpy(recording->fault, other->fault, sizeof recording->fault);
        recording->culprit = other->culprit;
    }
    if (other->now_ns > recording->now_ns)
        recording->now_ns = other->now_ns;
}

/* ---- Deeds ---- */

const cli_deed *cli_lane_last(const cli_lane *lane)
{
    return lane->num_deeds ? &lane->deeds[lane->num_deeds - 1] : NULL;
}

void cli_deed_text(const cli_deed *deed, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s %s=%" PRId64 " N=%" PRId64 " K=%" PRId64,
             deed->is_plan ? "plan" : "call", deed->is_plan ? "M" : "m", deed->m, deed->n,
             deed->k);
}
