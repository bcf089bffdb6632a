/* Config as text and back.  One table names every key; printing, parsing and the error
 * messages all read it. */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/text.h"
#include "base/versioned.h"
#include "plan/spec.h"

typedef struct choice {
    const char *name;
    int32_t value;
} choice;

static const choice backends[] = {
    {"cpu", EW_BACKEND_CPU}, {"cuda", EW_BACKEND_CUDA}, {"sim", EW_BACKEND_SIM}, {0}};
static const choice producers[] = {
    {"own", EW_PRODUCER_OWN}, {"blas", EW_PRODUCER_BLAS}, {0}};
static const choice orders[] = {{"interleaved", EW_ORDER_INTERLEAVED},
                                {"default", EW_ORDER_DEFAULT},
                                {"contiguous", EW_ORDER_CONTIGUOUS},
                                {0}};
static const choice releases[] = {
    {"tile", 1}, {"partition", EW_RELEASE_PARTITION}, {"output", EW_RELEASE_OUTPUT}, {0}};
static const choice pools[] = {
    {"shared", EW_POOL_SHARED}, {"static", EW_POOL_STATIC}, {"after", EW_POOL_AFTER}, {0}};
static const choice transports[] = {
    {"pull", EW_TRANSPORT_PULL},       {"push", EW_TRANSPORT_PUSH},
    {"copy", EW_TRANSPORT_COPY},       {"add", EW_TRANSPORT_ADD},
    {"tma-add", EW_TRANSPORT_TMA_ADD}, {0}};
static const choice kernels[] = {{"sm80", EW_KERNEL_SM80}, {"sm90", EW_KERNEL_SM90}, {0}};
static const choice ctas[] = {
    {"persistent", EW_CTAS_PERSISTENT}, {"block", EW_CTAS_BLOCK}, {0}};
static const choice launches[] = {
    {"once", EW_LAUNCHES_ONCE}, {"unit", EW_LAUNCHES_UNIT}, {0}};
static const choice one_or_two[] = {{"1", 1}, {"2", 2}, {0}};
static const choice off[] = {{"off", 0}, {"0", 0}, {0}};
static const choice epilogues[] = {{"fused", EW_EPILOGUE_FUSED},
                                   {"after", EW_EPILOGUE_AFTER},
                                   {"separate", EW_EPILOGUE_SEPARATE},
                                   {0}};

/* A key's value is one of `names`, or a count when `counts` says so; block is the one
 * key that holds two fields. */
typedef struct config_key {
    const char *name;
    const choice *names;
    bool counts;
    size_t offset;
    const char *hint;
} config_key;

#define FIELD(field) offsetof(ew_config, field)
static const config_key keys[] = {
    {"backend", backends, false, FIELD(backend), "cpu, cuda or sim"},
    {"producer", producers, false, FIELD(producer), "own or blas"},
    {"block", NULL, true, FIELD(block_m), "ROWSxCOLS, multiples of 128, such as 128x256"},
    {"order", orders, false, FIELD(order), "interleaved, default or contiguous"},
    {"group", NULL, true, FIELD(group), "a count from 1 to 2147483647"},
    {"release", releases, true, FIELD(release),
     "tile, a count of tiles, partition or output"},
    {"first", NULL, true, FIELD(release_first), "a count of tiles from 1 to 2147483647"},
    {"last", NULL, true, FIELD(release_last), "a count of tiles from 1 to 2147483647"},
    {"x", NULL, true, FIELD(budget), "a count from 1 to 2147483647"},
    {"b", NULL, true, FIELD(batch), "a count from 1 to 2147483647"},
    {"pool", pools, false, FIELD(pool), "shared, static or after"},
    {"transport", transports, false, FIELD(transport), "pull, push, copy, add or tma-add"},
    {"workers", NULL, true, FIELD(workers), "a count from 1 to 2147483647"},
    {"kernel", kernels, false, FIELD(kernel), "sm80 or sm90"},
    {"ctas", ctas, false, FIELD(ctas), "persistent or block"},
    {"cluster", NULL, true, FIELD(cluster), "a count from 1 to 2147483647"},
    {"launches", launches, false, FIELD(launches), "once or unit"},
    {"levels", one_or_two, false, FIELD(levels), "1 or 2"},
    {"epilogue", epilogues, false, FIELD(epilogue), "fused, after or separate"},
    {"shots", one_or_two, false, FIELD(shots), "1 or 2"},
    {"invariant", off, true, FIELD(invariant), "off, or a count of pieces of K such as 8"},
};
#define NUM_KEYS (sizeof keys / sizeof keys[0])
_Static_assert(NUM_KEYS <= 32, "parse_item has a bit for each");

/* How much of a bad text an error repeats: its fix must never be cut off. */
static int quoted(size_t length)
{
    return length > 60 ? 60 : (int)length;
}

/* Enums and int32_t fields alike are read and written through their bytes. */
static int32_t get_field(const ew_config *config, size_t offset)
{
    int32_t value;
    memcpy(&value, (const char *)config + offset, sizeof value);
    return value;
}

static void set_field(ew_config *config, size_t offset, int32_t value)
{
    memcpy((char *)config + offset, &value, sizeof value);
}
_Static_assert(sizeof(ew_order) == sizeof(int32_t), "enums are read as int32_t");

static const choice *choice_by_name(const choice *list, const char *name, size_t length)
{
    for (; list && list->name; list++)
        if (strlen(list->name) == length && memcmp(list->name, name, length) == 0)
            return list;
    return NULL;
}

static const choice *choice_by_value(const choice *list, int32_t value)
{
    for (; list && list->name; list++)
        if (list->value == value)
            return list;
    return NULL;
}

/* A decimal count of at least 1 that ends at *text. */
static bool parse_count(const char **text, int32_t *count_out)
{
    char *end;
    if (**text < '0' || **text > '9')
        return false;
    errno = 0;
    const long value = strtol(*text, &end, 10);
    if (errno || value < 1 || value > INT32_MAX)
        return false;
    *text = end;
    *count_out = (int32_t)value;
    return true;
}

/* A side of a block, which may be left open. */
static bool parse_side(const char **text, int32_t *count_out)
{
    static const char open[] = "auto";
    if (strncmp(*text, open, sizeof open - 1) != 0)
        return parse_count(text, count_out);
    *text += sizeof open - 1;
    *count_out = 0;
    return true;
}

static bool parse_block(const char *value, size_t length, ew_config *config)
{
    const char *cursor = value;
    return parse_side(&cursor, &config->block_m) && *cursor++ == 'x' &&
           parse_side(&cursor, &config->block_n) && cursor == value + length;
}

static bool parse_value(const config_key *key, const char *value, size_t length,
                        ew_config *config)
{
    if (key->offset == FIELD(block_m))
        return parse_block(value, length, config);
    const choice *named = choice_by_name(key->names, value, length);
    if (named) {
        set_field(config, key->offset, named->value);
        return true;
    }
    const char *cursor = value;
    int32_t count;
    if (!key->counts || !parse_count(&cursor, &count))
        return false;
    set_field(config, key->offset, count);
    return cursor == value + length;
}

static const config_key *find_key(const char *name, size_t length)
{
    for (size_t i = 0; i < NUM_KEYS; i++)
        if (strlen(keys[i].name) == length && memcmp(keys[i].name, name, length) == 0)
            return &keys[i];
    return NULL;
}

static ew_status fail_unknown_key(const char *name, size_t length)
{
    char list[256];
    ewx_text text = ewx_text_in(list, sizeof list);
    for (size_t i = 0; i < NUM_KEYS; i++)
        ewx_text_add(&text, "%s%s", i ? ", " : "", keys[i].name);
    return ewx_fail(EW_ERR_CONFIG, "config key '%.*s' is unknown\n  fix: the keys are %s",
                    quoted(length), name, list);
}

/* `seen` has a bit for each of the keys that came before. */
static ew_status parse_item(const char *item, size_t length, uint32_t *seen,
                            ew_config *config)
{
    const char *equals = memchr(item, '=', length);
    if (!equals)
        return ewx_fail(EW_ERR_CONFIG,
                        "config item '%.*s' has no '='\n  fix: write key=value,key=value",
                        quoted(length), item);
    const config_key *key = find_key(item, (size_t)(equals - item));
    if (!key)
        return fail_unknown_key(item, (size_t)(equals - item));
    const uint32_t bit = (uint32_t)1 << (key - keys);
    if (*seen & bit)
        return ewx_fail(EW_ERR_CONFIG,
                        "config key '%s' is given twice, the second time as '%.*s'\n"
                        "  fix: give it once",
                        key->name, quoted(length), item);
    *seen |= bit;
    const size_t value_length = length - (size_t)(equals + 1 - item);
    if (!parse_value(key, equals + 1, value_length, config))
        return ewx_fail(EW_ERR_CONFIG, "config %s=%.*s is not valid\n  fix: %s takes %s",
                        key->name, quoted(value_length), equals + 1, key->name, key->hint);
    return EW_OK;
}

ew_status ew_config_parse(const char *text, ew_config *config_out)
{
    if (!text || !config_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_config_parse needs a text and a config");
    ew_config config = EW_CONFIG_INIT;
    uint32_t seen = 0;
    while (*text) {
        const size_t length = strcspn(text, ",");
        EW_TRY(parse_item(text, length, &seen, &config));
        text += length;
        if (*text == ',' && *++text == '\0')
            return ewx_fail(EW_ERR_CONFIG, "the config ends in a comma\n  fix: remove it");
    }
    ewx_config_give(config_out, &config);
    return EW_OK;
}

static bool is_open(const config_key *key, const ew_config *config)
{
    return get_field(config, key->offset) == 0 &&
           (key->offset != FIELD(block_m) || config->block_n == 0);
}

static void print_count(int32_t count, ewx_text *text)
{
    if (count == 0)
        ewx_text_add(text, "auto");
    else
        ewx_text_add(text, "%d", count);
}

static void print_value(const config_key *key, const ew_config *config, ewx_text *text)
{
    const int32_t value = get_field(config, key->offset);
    const choice *named = choice_by_value(key->names, value);
    if (named) {
        ewx_text_add(text, "%s", named->name);
        return;
    }
    print_count(value, text);
    if (key->offset == FIELD(block_m) && !is_open(key, config)) {
        ewx_text_add(text, "x");
        print_count(config->block_n, text);
    }
}

static void print_keys(const ew_config *config, bool open_too, ewx_text *text)
{
    const char *comma = "";
    for (size_t i = 0; i < NUM_KEYS; i++) {
        if (!open_too && is_open(&keys[i], config))
            continue;
        ewx_text_add(text, "%s%s=", comma, keys[i].name);
        print_value(&keys[i], config, text);
        comma = ",";
    }
}

void ewx_config_print_key(const ew_config *config, const char *name, ewx_text *text)
{
    ewx_text_add(text, "%s=", name);
    print_value(find_key(name, strlen(name)), config, text);
}

const char *ewx_transport_name(ew_transport transport)
{
    return choice_by_value(transports, (int32_t)transport)->name;
}

void ewx_config_print_open(const ew_config *config, ewx_text *text)
{
    print_keys(config, true, text);
}

ew_status ew_config_print(const ew_config *config, char *text, size_t bytes)
{
    if (!config || !text)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_config_print needs a config and a buffer");
    ew_config given;
    EW_TRY(ewx_config_take(&given, config));
    ewx_text out = ewx_text_in(text, bytes);
    print_keys(&given, false, &out);
    if (out.truncated)
        return ewx_fail(
            EW_ERR_ARGUMENT,
            "%zu bytes are too few for a config\n  fix: use EW_CONFIG_TEXT_BYTES", bytes);
    return EW_OK;
}
