/* The store of tuning entries: one small JSON file each.  Files come from outside: every
 * byte is checked, and anything but an intact entry with the right key is ignored. */
#include "plan/tuning.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"
#include "plan/backend_traits.h"
#include "plan/policy.h"

#define SCHEMA "entwine-tuning/1"
#define MOST_FILE_BYTES 4096
/* Doublings; beyond, a call has other waves, and an entry says nothing about it. */
#define FARTHEST_BUCKET 1

/* ---- Keys ---- */

int64_t ewx_tuning_bucket(int64_t rows)
{
    int64_t bucket = 1;
    while (bucket < rows)
        bucket *= 2;
    return bucket;
}

char ewx_tuning_plain(char letter)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                "0123456789-._/";
    return strchr(plain, letter) ? letter : '_';
}

static void add_plain(ewx_text *text, const char *name)
{
    for (; *name; name++)
        ewx_text_add(text, "%c", ewx_tuning_plain(*name));
}

void ewx_tuning_key(const ew_problem *problem, int num_ranks, ew_backend backend,
                    const char *device, int64_t bucket, ewx_text *text)
{
    const ew_config named = {.backend = backend};
    ewx_text_add(text,
                 "op=%s,m=%" PRId64 ",n=%" PRId64 ",k=%" PRId64 ",ranks=%d,type=%s,"
                 "weight=%s,",
                 ew_op_name(problem->op), bucket, problem->n, problem->k, num_ranks,
                 ew_dtype_name(problem->dtype),
                 problem->weight_layout == EW_WEIGHT_NK ? "nk" : "kn");
    ewx_config_print_key(&named, "backend", text);
    ewx_text_add(text, ",device=");
    add_plain(text, device);
    ewx_text_add(text, ",version=%s", ew_version());
    if (ewx_traits_of(backend)->kernels_id)
        ewx_text_add(text, ",kernels=%08" PRIx32, *ewx_traits_of(backend)->kernels_id);
}

bool ewx_tuning_serves(const ew_config *request)
{
    ew_config open = EW_CONFIG_INIT;
    open.struct_size = request->struct_size;
    open.backend = request->backend;
    open.producer = request->producer == EW_PRODUCER_OWN ? EW_PRODUCER_OWN : (ew_producer)0;
    open.epilogue = request->epilogue; /* entries are of bare calls */
    return memcmp(&open, request, sizeof open) == 0;
}

/* ---- Text ---- */

/* Whether an array that a caller fills holds a text of plain letters. */
static bool is_plain(const char *text, size_t bytes)
{
    const size_t length = strnlen(text, bytes);
    for (size_t at = 0; at < length; at++)
        if (text[at] < 0x20 || text[at] > 0x7e || text[at] == '"' || text[at] == '\\')
            return false;
    return length < bytes;
}

/* From what the printed digits can hold to eleven days; anything else counts as missing. */
static bool is_time(double us)
{
    return us >= 0.001 && us <= 1e12;
}

/* Refuses what could be printed but not read again. */
static ew_status check_entry(const ew_tuning *tuning)
{
    if (!is_plain(tuning->key, sizeof tuning->key) || strncmp(tuning->key, "op=", 3) != 0)
        return ewx_fail(EW_ERR_ARGUMENT, "the tuning entry's key is malformed\n"
                                         "  fix: use what ew_tuning_key gives");
    if (!memchr(tuning->profile, '\0', sizeof tuning->profile))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "the name of the tuning entry's profile has no end\n"
                        "  fix: close it with a zero");
    if (!is_time(tuning->time_us) || !is_time(tuning->default_us) || tuning->when < 0)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "the tuning entry has the times %g and %g us, of second %" PRId64
                        "\n  fix: use 0.001 to 1e12 us, and seconds since 1970",
                        tuning->time_us, tuning->default_us, tuning->when);
    return EW_OK;
}

/* What an entry's file ends in: a hash of all that stands before it. */
#define TAIL ",\n \"sum\": \"%016" PRIx64 "\"\n}\n"
#define TAIL_BYTES (sizeof ",\n \"sum\": \"0123456789abcdef\"\n}\n" - 1)

ew_status ew_tuning_print(const ew_tuning *tuning, char *text, size_t bytes)
{
    char config[EW_CONFIG_TEXT_BYTES];
    ew_config readable = EW_CONFIG_INIT;
    if (!tuning || !text)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_tuning_print needs an entry and a buffer");
    EW_TRY(check_entry(tuning));
    EW_TRY(ew_config_print(&tuning->config, config, sizeof config));
    EW_TRY(ew_config_parse(config, &readable));
    ewx_text out = ewx_text_in(text, bytes);
    ewx_text_add(&out,
                 "{\n \"schema\": \"" SCHEMA
                 "\",\n \"key\": \"%s\",\n \"config\": \"%s\",\n"
                 " \"time_us\": %.3f,\n \"default_us\": %.3f,\n \"when\": %" PRId64,
                 tuning->key, config, tuning->time_us, tuning->default_us, tuning->when);
    if (*tuning->profile) {
        ewx_text_add(&out, ",\n \"profile\": \"");
        add_plain(&out, tuning->profile);
        ewx_text_add(&out, "\"");
    }
    ewx_text_add(&out, TAIL, ewx_text_hash(out.data));
    return out.truncated ? ewx_fail(EW_ERR_ARGUMENT,
                                    "%zu bytes are too few for a tuning entry\n"
                                    "  fix: use EW_TUNING_TEXT_BYTES",
                                    bytes)
                         : EW_OK;
}

/* A flat object of strings without escapes and numbers: all that an entry is. */
typedef struct reader {
    const char *at, *end;
} reader;

static void skip_blanks(reader *r)
{
    while (r->at < r->end && strchr(" \t\r\n", *r->at) && *r->at)
        r->at++;
}

static bool take(reader *r, char wanted)
{
    skip_blanks(r);
    if (r->at == r->end || *r->at != wanted)
        return false;
    r->at++;
    return true;
}

static bool take_string(reader *r, char *text, size_t bytes)
{
    size_t used = 0;
    if (!take(r, '"'))
        return false;
    while (r->at < r->end && *r->at != '"') {
        if (*r->at == '\\' || *r->at < 0x20 || *r->at > 0x7e || used + 1 >= bytes)
            return false;
        text[used++] = *r->at++;
    }
    text[used] = '\0';
    return take(r, '"');
}

static bool take_number(reader *r, double *number_out)
{
    char digits[40], *stop;
    size_t used = 0;
    skip_blanks(r);
    while (r->at < r->end && used + 1 < sizeof digits &&
           (isdigit((unsigned char)*r->at) || strchr("+-.eE", *r->at)) && *r->at)
        digits[used++] = *r->at++;
    digits[used] = '\0';
    *number_out = ewx_text_number(digits, &stop);
    return used > 0 && *stop == '\0' && isfinite(*number_out) && *number_out >= 0;
}

enum {
    SCHEMA_SEEN = 1,
    KEY_SEEN = 2,
    CONFIG_SEEN = 4,
    TIME_SEEN = 8,
    DEFAULT_SEEN = 16,
    ALL_SEEN = 31
};

static const char *take_member(reader *r, ew_tuning *tuning, int *seen)
{
    char name[32], value[EW_TUNING_KEY_BYTES];
    double number = 0;
    if (!take_string(r, name, sizeof name) || !take(r, ':'))
        return "a member has no name";
    skip_blanks(r);
    const bool is_text = r->at < r->end && *r->at == '"';
    if (is_text ? !take_string(r, value, sizeof value) : !take_number(r, &number))
        return "a value is neither a plain string nor a number";
    if (is_text && strcmp(name, "schema") == 0) {
        *seen |= SCHEMA_SEEN;
        return strcmp(value, SCHEMA) == 0 ? NULL : "it is of another schema";
    }
    if (is_text && strcmp(name, "key") == 0) {
        *seen |= KEY_SEEN;
        memcpy(tuning->key, value, sizeof value);
        if (strncmp(value, "op=", 3) != 0)
            return "its key is malformed";
    } else if (is_text && strcmp(name, "config") == 0) {
        *seen |= CONFIG_SEEN;
        tuning->config = (ew_config)EW_CONFIG_INIT;
        if (ew_config_parse(value, &tuning->config) != EW_OK)
            return "its config is not valid";
    } else if (is_text && strcmp(name, "profile") == 0) {
        if (strlen(value) >= sizeof tuning->profile)
            return "its profile's name is too long";
        memcpy(tuning->profile, value, strlen(value) + 1);
    } else if (!is_text && strcmp(name, "time_us") == 0) {
        *seen = is_time(number) ? *seen | TIME_SEEN : *seen & ~TIME_SEEN;
        tuning->time_us = number;
    } else if (!is_text && strcmp(name, "default_us") == 0) {
        *seen = is_time(number) ? *seen | DEFAULT_SEEN : *seen & ~DEFAULT_SEEN;
        tuning->default_us = number;
    } else if (!is_text && strcmp(name, "when") == 0) {
        tuning->when = number < 9e15 ? (int64_t)number : 0;
    }
    return NULL;
}

/* NULL, or what is wrong. */
static const char *read_entry(reader *r, ew_tuning *tuning)
{
    int seen = 0;
    if (!take(r, '{'))
        return "it is not a JSON object";
    do {
        const char *wrong = take_member(r, tuning, &seen);
        if (wrong)
            return wrong;
    } while (take(r, ','));
    if (!take(r, '}'))
        return "it ends too early";
    skip_blanks(r);
    if (r->at != r->end)
        return "something follows it";
    return seen == ALL_SEEN ? NULL : "schema, key, config or a time is missing";
}

/* NULL, or what is wrong. */
static const char *parse_entry(const char *text, size_t bytes, ew_tuning *tuning_out)
{
    ew_tuning tuning = {.config = EW_CONFIG_INIT};
    reader r = {text, text + bytes};
    const char *wrong = read_entry(&r, &tuning);
    if (!wrong)
        *tuning_out = tuning;
    return wrong;
}

static ew_status fail_invalid(const char *wrong)
{
    return wrong ? ewx_fail(EW_ERR_ARGUMENT,
                            "not a valid tuning entry: %s\n"
                            "  fix: tune again, or remove it",
                            wrong)
                 : EW_OK;
}

ew_status ew_tuning_parse(const char *text, size_t bytes, ew_tuning *tuning_out)
{
    if (!text || !tuning_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_tuning_parse needs a text and an entry");
    return fail_invalid(parse_entry(text, bytes, tuning_out));
}

/* ---- Files ---- */

ew_status ew_tuning_folder(char *path, size_t bytes)
{
    const char *own = secure_getenv("ENTWINE_CACHE_DIR"),
               *cache = secure_getenv("XDG_CACHE_HOME");
    const char *home = secure_getenv("HOME");
    int length = -1;
    if (!path)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_tuning_folder needs a buffer");
    if (own && *own)
        length = snprintf(path, bytes, "%s", own);
    else if (cache && *cache == '/')
        length = snprintf(path, bytes, "%s/entwine", cache);
    else if (home && *home == '/')
        length = snprintf(path, bytes, "%s/.cache/entwine", home);
    else
        return ewx_fail(EW_ERR_SYSTEM,
                        "neither ENTWINE_CACHE_DIR nor an absolute HOME is set\n"
                        "  fix: set HOME, or ENTWINE_CACHE_DIR");
    return length >= 0 && (size_t)length < bytes
               ? EW_OK
               : ewx_fail(EW_ERR_ARGUMENT, "the path of the tuning entries is too long");
}

ew_status ew_tuning_path(const char *key, char *path, size_t bytes)
{
    char folder[PATH_MAX];
    if (!key || !path)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_tuning_path needs a key and a buffer");
    EW_TRY(ew_tuning_folder(folder, sizeof folder));
    return snprintf(path, bytes, "%s/%016" PRIx64 ".json", folder, ewx_text_hash(key)) <
                   (int)bytes
               ? EW_OK
               : ewx_fail(EW_ERR_ARGUMENT, "the path of the tuning entries is too long");
}

ew_status ew_tuning_store(const ew_tuning *tuning)
{
    char path[PATH_MAX], text[EW_TUNING_TEXT_BYTES];
    if (!tuning)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_tuning_store needs an entry");
    EW_TRY(ew_tuning_print(tuning, text, sizeof text));
    EW_TRY(ew_tuning_path(tuning->key, path, sizeof path));
    const char *why = ewx_file_replace(path, text, strlen(text));
    return why ? ewx_fail(
                     EW_ERR_SYSTEM,
                     "the tuning entry %s cannot be written: %s\n  fix: make its folder "
                     "writable, make room, or name another in ENTWINE_CACHE_DIR",
                     path, why)
               : EW_OK;
}

/* Files suffer what texts do not: every byte of one must be as it was written. */
static bool has_sum(const char *text, size_t bytes)
{
    char body[MOST_FILE_BYTES + 1], tail[TAIL_BYTES + 1];
    if (bytes < TAIL_BYTES)
        return false;
    memcpy(body, text, bytes - TAIL_BYTES);
    body[bytes - TAIL_BYTES] = '\0';
    snprintf(tail, sizeof tail, TAIL, ewx_text_hash(body));
    return memcmp(tail, text + bytes - TAIL_BYTES, TAIL_BYTES) == 0;
}

/* NULL, or what is wrong with the text of a file. */
static const char *parse_file(const char *text, size_t bytes, ew_tuning *tuning_out)
{
    return has_sum(text, bytes) ? parse_entry(text, bytes, tuning_out)
                                : "the checksum does not match";
}

ew_status ew_tuning_load(const char *path, ew_tuning *tuning_out)
{
    char text[MOST_FILE_BYTES];
    size_t bytes;
    if (!path || !tuning_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_tuning_load needs a path and an entry");
    const char *why = ewx_file_read(path, text, sizeof text, &bytes);
    if (why)
        return ewx_fail(EW_ERR_SYSTEM,
                        "the tuning entry %s cannot be read: %s\n  fix: tune again", path,
                        why);
    return fail_invalid(parse_file(text, bytes, tuning_out));
}

/* ---- Finding ---- */

__attribute__((format(printf, 2, 3))) static void ignore(ewx_tuning_origin *origin,
                                                         const char *format, ...)
{
    va_list args;
    va_start(args, format);
    ewx_text_print(origin->ignored, sizeof origin->ignored, format, args);
    va_end(args);
}

/* An entry can make every call slower: it must be of this process's user or of root. */
static bool is_trusted(const char *path, const char *what, ewx_tuning_origin *origin)
{
    struct stat facts;
    if (stat(path, &facts) != 0)
        return false;
    if (facts.st_uid == geteuid() || facts.st_uid == 0)
        return true;
    ignore(origin, "its %s belongs to another user (uid %u)", what, (unsigned)facts.st_uid);
    return false;
}

static bool find_in_bucket(const ew_problem *problem, int num_ranks, ew_backend backend,
                           const char *device, int64_t bucket, ew_tuning *tuning,
                           ewx_tuning_origin *origin)
{
    char key[EW_TUNING_KEY_BYTES], path[PATH_MAX], file[MOST_FILE_BYTES];
    size_t bytes;
    ewx_text text = ewx_text_in(key, sizeof key);
    ewx_tuning_key(problem, num_ranks, backend, device, bucket, &text);
    if (text.truncated || ew_tuning_path(key, path, sizeof path) != EW_OK ||
        access(path, F_OK) != 0 || !is_trusted(path, "file", origin))
        return false;
    const char *wrong = ewx_file_read(path, file, sizeof file, &bytes);
    if (!wrong)
        wrong = parse_file(file, bytes, tuning);
    if (wrong)
        ignore(origin, "its file cannot be used: %s", wrong);
    return !wrong && strcmp(tuning->key, key) == 0; /* two keys may share a hash */
}

bool ewx_tuning_fits(const ewx_spec *spec, const ewx_machine *machine,
                     ewx_tuning_origin *origin)
{
    const ew_config *config = &spec->config;
    const bool on_gpu = ewx_is_gpu(config, machine);
    const int share = ewx_cores_each(machine, spec->num_ranks);
    const int64_t most_workers = share > 2 ? share : 2;
    const int64_t most_reducers =
        on_gpu ? EWX_TUNED_MOST_CTAS * (int64_t)ewx_machine_planned(machine).gpu_sms
               : config->workers;
    if (config->workers > most_workers)
        ignore(origin, "workers=%d is more than %d cores have for %d ranks",
               config->workers, machine->cores, spec->num_ranks);
    else if (config->budget > most_reducers)
        ignore(origin, "x=%d is more than the %" PRId64 " that can reduce here",
               config->budget, most_reducers);
    else if (config->block_m > EWX_TUNED_MOST_BLOCK ||
             config->block_n > EWX_TUNED_MOST_BLOCK)
        ignore(origin, "block=%dx%d is larger than a tuning tries", config->block_m,
               config->block_n);
    else if (!on_gpu && config->batch > EWX_TUNED_MOST_BATCH)
        ignore(origin, "b=%d is more than the %d that a tuning tries", config->batch,
               EWX_TUNED_MOST_BATCH);
    else
        return true;
    return false;
}

ew_status ewx_tuning_wanted(bool *wanted_out)
{
    const char *wish = secure_getenv("ENTWINE_TUNING");
    const bool is_off = wish && strcmp(wish, "off") == 0;
    if (wish && *wish && !is_off && strcmp(wish, "on") != 0)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ENTWINE_TUNING=%s is not known\n"
                        "  fix: set it to on or off, or unset it, which means on",
                        wish);
    *wanted_out = !is_off;
    return EW_OK;
}

bool ewx_tuning_find(const ew_problem *problem, int num_ranks, ew_backend backend,
                     const char *device, ew_config *config_out,
                     ewx_tuning_origin *origin_out)
{
    char folder[PATH_MAX];
    if (ew_tuning_folder(folder, sizeof folder) != EW_OK || access(folder, R_OK) != 0 ||
        !is_trusted(folder, "folder", origin_out))
        return false;
    const int64_t own = ewx_tuning_bucket(problem->max_m);
    ew_tuning tuning;
    for (int distance = 0; distance <= FARTHEST_BUCKET; distance++)
        for (int down = 0; down <= (distance > 0); down++) {
            const int64_t bucket = down ? own >> distance : own << distance;
            if (bucket < 1 || bucket > ((int64_t)1 << 40) ||
                !find_in_bucket(problem, num_ranks, backend, device, bucket, &tuning,
                                origin_out))
                continue;
            *config_out = tuning.config;
            origin_out->bucket = bucket;
            origin_out->time_us = tuning.time_us;
            origin_out->default_us = tuning.default_us;
            memcpy(origin_out->profile, tuning.profile, sizeof tuning.profile);
            return true;
        }
    return false;
}
