/* The strict reader of profiles. */
#include "backend/sim/profile.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/status.h"
#include "base/text.h"

enum { MAX_TEXT = 1 << 16, GPU = 1, CPU = 2, BOTH = GPU | CPU, HOSTS = 4 };

typedef struct field {
    const char *key;
    size_t offset;
    bool is_curve;
    int needed_by; /* GPU, CPU: required for profiles of that kind; HOSTS: required for a
                      cpu with more than one node, optional for others */
    double least, most;
} field;

#define NUMBER(key, kinds, least, most)                                 \
    {                                                                   \
#key, offsetof(ewx_sim_profile, key), false, kinds, least, most \
    }
#define CURVE(key, kinds, least, most)                                 \
    {                                                                  \
#key, offsetof(ewx_sim_profile, key), true, kinds, least, most \
    }

/* Bounds are generous: they catch a slipped unit, not an unusual machine. */
static const field fields[] = {
    NUMBER(gpus, GPU, 1, 1024),
    NUMBER(nodes, BOTH, 1, 4096),
    NUMBER(virtual_node, GPU, 0, 1),
    NUMBER(cores, CPU, 1, 4096),
    NUMBER(sms, GPU, 1, 1024),
    NUMBER(arch, GPU, 80, 999),
    NUMBER(sm_registers, GPU, 1024, 1 << 24),
    NUMBER(sm_shared_bytes, GPU, 1024, 1 << 24),
    NUMBER(sm_threads, GPU, 32, 65536),
    NUMBER(sm_ctas, GPU, 1, 1024),
    CURVE(block_us_128, BOTH, 1e-3, 1e7),
    CURVE(block_us_256, GPU, 1e-3, 1e7),
    NUMBER(clock, BOTH, 0.1, 10),
    NUMBER(bf16_time, BOTH, 0.1, 10),
    NUMBER(blas_time, BOTH, 0.1, 10),
    NUMBER(half_time, GPU, 0.1, 1),
    NUMBER(split_time, GPU, 0.1, 1),
    NUMBER(crowd_time, GPU, 0, 0.9),
    NUMBER(cta_us, GPU, 0, 1e4),
    NUMBER(add_us, GPU, 0, 1e4),
    NUMBER(miss_ps_per_byte, GPU, 0, 1e4),
    NUMBER(steal_ps_per_byte, GPU, 0, 1e4),
    NUMBER(mem_gbs, BOTH, 0, 1e6),
    CURVE(reducer_gbs, BOTH, 1e-3, 1e6),
    NUMBER(reducer_us, BOTH, 0, 1e4),
    NUMBER(shared_time, GPU, 1, 100),
    NUMBER(copy_gbs, GPU, 0, 1e6),
    NUMBER(command_us, GPU, 0, 1e4),
    NUMBER(beside_us, GPU, 0, 1e4),
    NUMBER(link_gbs, BOTH, 0, 1e6),
    NUMBER(link_us, BOTH, 0, 1e5),
    NUMBER(nic_gbs, GPU | HOSTS, 0, 1e6),
    NUMBER(nic_us, GPU | HOSTS, 0, 1e5),
    NUMBER(nic_shared, HOSTS, 0, 1),
    NUMBER(nic_cpu_ps_per_byte, HOSTS, 0, 1e6),
    NUMBER(nccl_gbs, GPU, 0, 1e6),
    NUMBER(nccl_us, GPU, 0, 1e6),
    NUMBER(nccl_sms, GPU, 0, 1023),
    NUMBER(start_us, BOTH, 0, 1e5),
    NUMBER(launch_us, GPU, 0, 1e5),
    NUMBER(publish_us, BOTH, 0, 1e4),
    NUMBER(skew_us, BOTH, 0, 1e5),
    NUMBER(jitter, BOTH, 0, 0.5),
};
enum { NUM_FIELDS = sizeof fields / sizeof fields[0] };

typedef struct reader {
    const char *file;
    int line;
    ewx_sim_profile profile;
    bool seen[NUM_FIELDS];
    bool has_kind;
} reader;

double ewx_sim_curve_at(const ewx_sim_curve *curve, double x)
{
    int piece = 0;
    if (curve->count == 1)
        return curve->y[0];
    while (piece < curve->count - 2 && x > curve->x[piece + 1])
        piece++;
    const double slope =
        (curve->y[piece + 1] - curve->y[piece]) / (curve->x[piece + 1] - curve->x[piece]);
    return curve->y[piece] + slope * (x - curve->x[piece]);
}

/* ---- Values ---- */

__attribute__((format(printf, 3, 4))) static ew_status refuse(const reader *r,
                                                              const char *key,
                                                              const char *format, ...)
{
    char why[256];
    va_list args;
    va_start(args, format);
    ewx_text_print(why, sizeof why, format, args);
    va_end(args);
    return ewx_fail(EW_ERR_ARGUMENT, "%.200s:%d: %.60s %s", r->file, r->line, key, why);
}

/* One number that ends where `ending` or the text ends; *at moves behind it. */
static ew_status read_number(const reader *r, const field *f, const char **at, char ending,
                             double least, double most, double *number_out)
{
    char *end;
    const double number = ewx_text_number(*at, &end);
    if (end == *at || (*end && *end != ending) || !isfinite(number))
        return refuse(r, f->key, "= '%.40s' is not a number\n  fix: %s", *at,
                      f->is_curve ? "write points as 1024:12.5 2048:25"
                                  : "write one number");
    if (number < least || number > most)
        return refuse(r, f->key, "has %g\n  fix: use %g to %g", number, least, most);
    *number_out = number;
    *at = *end ? end + 1 : end;
    return EW_OK;
}

static ew_status read_curve(const reader *r, const field *f, const char *value,
                            ewx_sim_curve *curve_out)
{
    ewx_sim_curve curve = {0};
    do {
        if (curve.count == EWX_SIM_POINTS)
            return refuse(r, f->key, "has too many points\n  fix: use at most %d",
                          EWX_SIM_POINTS);
        double *x = &curve.x[curve.count], *y = &curve.y[curve.count];
        EW_TRY(read_number(r, f, &value, ':', 1, 1e9, x));
        EW_TRY(read_number(r, f, &value, ' ', f->least, f->most, y));
        if (curve.count > 0 && *x <= x[-1])
            return refuse(r, f->key, "has %g after %g\n  fix: let the points increase", *x,
                          x[-1]);
        curve.count++;
        value += strspn(value, " \t");
    } while (*value);
    *curve_out = curve;
    return EW_OK;
}

static ew_status read_kind(reader *r, const char *value)
{
    const bool is_cpu = strcmp(value, "cpu") == 0;
    if (r->has_kind)
        return refuse(r, "kind", "is given twice\n  fix: keep one of the lines");
    if (!is_cpu && strcmp(value, "gpu") != 0)
        return refuse(r, "kind", "= '%.40s' is unknown\n  fix: use gpu or cpu", value);
    r->profile.is_cpu = is_cpu;
    r->has_kind = true;
    return EW_OK;
}

/* The one key that may be missing: the profile then describes no particular machine. */
static ew_status read_device(reader *r, const char *value)
{
    char *device = r->profile.device;
    if (*device)
        return refuse(r, "device", "is given twice\n  fix: keep one of the lines");
    if (!*value || strlen(value) >= sizeof r->profile.device)
        return refuse(r, "device", "= '%.80s' is not a name\n  fix: use 1 to %d bytes",
                      value, EWX_SIM_NAME_BYTES - 1);
    memcpy(device, value, strlen(value) + 1);
    ewx_text_disarm(device); /* it is shown */
    return EW_OK;
}

static ew_status read_field(reader *r, const char *key, const char *value)
{
    if (strcmp(key, "kind") == 0)
        return read_kind(r, value);
    if (!r->has_kind)
        return refuse(r, key, "comes before the kind\n  fix: begin with kind = gpu or cpu");
    if (strcmp(key, "device") == 0)
        return read_device(r, value);
    const int kind = r->profile.is_cpu ? CPU : GPU;
    int at = 0;
    while (at < NUM_FIELDS && strcmp(fields[at].key, key) != 0)
        at++;
    if (at == NUM_FIELDS || !(fields[at].needed_by & (kind | (kind == CPU ? HOSTS : 0))))
        return refuse(r, key,
                      "is not a key of a %s's profile\n  fix: docs/SIMULATOR.md lists them",
                      kind == CPU ? "cpu" : "gpu");
    if (r->seen[at])
        return refuse(r, key, "is given twice\n  fix: keep one of the lines");
    r->seen[at] = true;
    void *place = (char *)&r->profile + fields[at].offset;
    if (fields[at].is_curve)
        return read_curve(r, &fields[at], value, place);
    return read_number(r, &fields[at], &value, '\0', fields[at].least, fields[at].most,
                       place);
}

/* ---- Lines ---- */

/* Cuts blanks off both ends, in place. */
static char *trim(char *text)
{
    text += strspn(text, " \t\r");
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r", text[length - 1]))
        length--;
    text[length] = '\0';
    return text;
}

static ew_status read_line(reader *r, char *line)
{
    char *comment = strchr(line, '#'), *equals;
    if (comment)
        *comment++ = '\0';
    line = trim(line);
    if (!*line)
        return EW_OK;
    equals = strchr(line, '=');
    if (!equals)
        return refuse(
            r, line,
            "is not a \"key = value\" line\n  fix: write key = value  # source, date");
    *equals = '\0';
    const char *key = trim(line);
    if (!comment || !*trim(comment))
        return refuse(r, key,
                      "has no source\n  fix: say where the value comes from, after a #");
    return read_field(r, key, trim(equals + 1));
}

static ew_status check_complete(const reader *r)
{
    const int kind = r->profile.is_cpu ? CPU : GPU;
    if (!r->has_kind)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "%.200s:%d: kind is missing\n  fix: begin with "
                        "kind = gpu or cpu",
                        r->file, r->line);
    const int needed = kind == CPU && r->profile.nodes > 1 ? kind | HOSTS : kind;
    for (int at = 0; at < NUM_FIELDS; at++)
        if ((fields[at].needed_by & needed) && !r->seen[at])
            return refuse(r, fields[at].key,
                          "is missing at the end of the file\n"
                          "  fix: add the line; docs/SIMULATOR.md says what it means");
    if (r->profile.nodes > 1 && !(r->profile.nic_gbs > 0))
        return refuse(r, "nic_gbs", "is 0 with more than one node\n  fix: give its rate");
    return EW_OK;
}

static void set_name(reader *r)
{
    const char *slash = strrchr(r->file, '/'), *base = slash ? slash + 1 : r->file;
    ewx_text name = ewx_text_in(r->profile.name, sizeof r->profile.name);
    size_t length = strlen(base);
    if (length > 8 && strcmp(base + length - 8, ".profile") == 0)
        length -= 8;
    ewx_text_add(&name, "%.*s", (int)(length < 60 ? length : 60), base);
}

ew_status ewx_sim_profile_parse(const char *file, const char *text,
                                ewx_sim_profile *profile_out)
{
    reader r = {.file = file};
    char line[512];
    while (*text) {
        const size_t length = strcspn(text, "\n");
        r.line++;
        if (length >= sizeof line)
            return refuse(&r, "the line", "is too long\n  fix: keep it below 512 bytes");
        memcpy(line, text, length);
        line[length] = '\0';
        EW_TRY(read_line(&r, line));
        text += length + (text[length] == '\n');
    }
    EW_TRY(check_complete(&r));
    set_name(&r);
    *profile_out = r.profile;
    return EW_OK;
}

/* ---- Files and names ---- */

static bool is_path(const char *name)
{
    const size_t length = strlen(name);
    return strchr(name, '/') || (length > 8 && strcmp(name + length - 8, ".profile") == 0);
}

static ew_status load_builtin(const char *name, char *text)
{
    char known[256];
    ewx_text list = ewx_text_in(known, sizeof known);
    for (const ewx_sim_builtin *at = ewx_sim_builtins; at->name; at++) {
        ewx_text_add(&list, "%s%s", at == ewx_sim_builtins ? "" : ", ", at->name);
        if (strcmp(at->name, name) != 0)
            continue;
        ewx_text whole = ewx_text_in(text, MAX_TEXT);
        for (const char *const *line = at->lines; *line; line++)
            ewx_text_add(&whole, "%s\n", *line);
        return EW_OK;
    }
    return ewx_fail(
        EW_ERR_ARGUMENT,
        "profile '%.60s' is unknown\n  fix: use %s, or the path of a .profile file", name,
        known);
}

static ew_status load_file(const char *path, char *text)
{
    size_t bytes = 0;
    const char *why = ewx_file_read(path, text, MAX_TEXT - 1, &bytes);
    if (!why && memchr(text, '\0', bytes))
        why = "it holds a zero byte";
    if (why)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "cannot read profile '%.200s': %s\n  fix: give a text file, or the "
                        "name of a built-in profile",
                        path, why);
    text[bytes] = '\0';
    return EW_OK;
}

ew_status ewx_sim_profile_load(const char *name, ewx_sim_profile *profile_out)
{
    const char *variable = secure_getenv("ENTWINE_PROFILE");
    if (!name)
        name = variable && *variable ? variable : EWX_SIM_DEFAULT;
    char *text = malloc(MAX_TEXT);
    if (!text)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a profile");
    ew_status status = is_path(name) ? load_file(name, text) : load_builtin(name, text);
    if (status == EW_OK)
        status = ewx_sim_profile_parse(name, text, profile_out);
    free(text);
    return status;
}
