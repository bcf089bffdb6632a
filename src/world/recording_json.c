/* From a control block to JSON.  The copy is made by pread, so that no content and no
 * change of the memory can harm the reader. */
#include "world/recording_json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/epoch.h"
#include "base/file.h"
#include "base/status.h"
#include "entwine/measure.h"
#include "world/world.h"

/* ---- The copy ---- */

static bool read_at(int fd, void *data, size_t bytes, size_t offset)
{
    size_t done = 0;
    while (done < bytes) {
        const ssize_t got =
            pread(fd, (char *)data + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

static bool is_header(const ewx_control_header *header, off_t file_bytes)
{
    return memcmp(header->magic, "entwine", 8) == 0 &&
           header->version == ewx_library_version() &&
           header->mailbox_bytes == sizeof(ewx_mailbox) && header->started_ns >= 0 &&
           header->started_ns <= ewx_now_ns() && header->num_ranks >= 1 &&
           header->num_ranks <= EWX_MAX_RANKS &&
           file_bytes >= (off_t)ewx_control_bytes(header->num_ranks);
}

/* A record may be overwritten while it is copied; those that the ranks have reached since
 * are not believed. */
static void forget_overwritten(int fd, ewx_control *copy, int num_ranks)
{
    for (int rank = 0; rank < num_ranks; rank++) {
        ewx_lane *lane = &copy->mailboxes[rank].lane;
        uint64_t newest = 0;
        const size_t place = (size_t)((char *)&lane->sequence - (char *)copy);
        if (!read_at(fd, &newest, sizeof newest, place))
            newest = UINT64_MAX;
        for (size_t i = 0; i < EWX_RECORDS; i++)
            if (lane->records[i].sequence + EWX_RECORDS <= newest)
                lane->records[i].sequence = 0;
    }
}

static ew_status copy_control(int fd, ewx_control **copy_out)
{
    ewx_control_header header;
    struct stat file;
    if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) ||
        !read_at(fd, &header, sizeof header, 0) || !is_header(&header, file.st_size))
        return ewx_fail(EW_ERR_MISMATCH,
                        "this memory is not a control block of entwine %s\n"
                        "  fix: use the tool that belongs to the job's library",
                        ew_version());
    const size_t bytes = ewx_control_bytes(header.num_ranks);
    ewx_control *copy = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (!copy)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a recording of %d ranks",
                        header.num_ranks);
    if (!read_at(fd, copy, bytes, 0)) {
        free(copy);
        return ewx_fail(EW_ERR_SYSTEM, "the control block cannot be read: %s",
                        strerror(errno));
    }
    copy->header = header; /* the one that was checked */
    forget_overwritten(fd, copy, header.num_ranks);
    *copy_out = copy;
    return EW_OK;
}

/* ---- JSON ---- */

static const char *state_name(uint64_t state)
{
    switch (state) {
    case EWX_RECORD_RUNNING:
        return "running";
    case EWX_RECORD_ENQUEUED:
        return "enqueued";
    case EWX_RECORD_DONE:
        return "done";
    case EWX_RECORD_FAILED:
        return "failed";
    default:
        return "unknown";
    }
}

/* Both clocks at the world's start and now, which give the counter's rate. */
typedef struct clocks {
    int64_t start_ns, start_ticks, now_ns, now_ticks;
} clocks;

static int64_t to_ns(const clocks *c, int64_t ticks)
{
    const double rate = c->now_ticks > c->start_ticks
                            ? (double)(c->now_ns - c->start_ns) /
                                  ((double)c->now_ticks - (double)c->start_ticks)
                            : 0;
    const double ns = ((double)ticks - (double)c->start_ticks) * rate;
    return ticks == 0 || ns < -1e17 || ns > 1e17 ? 0 : c->start_ns + (int64_t)ns;
}

static void print_record(FILE *out, const clocks *c, const ewx_lane *lane,
                         const ewx_record *record)
{
    const uint64_t outcome = record->outcome, state = outcome >> 8 & 0xff;
    const ew_status status = (ew_status)(int16_t)(uint16_t)(outcome >> 16);
    const bool running = state == EWX_RECORD_RUNNING;
    const char *const *names = ewx_terms_above.shape;
    const uint32_t steps =
        running ? lane->steps - lane->steps_before : (uint32_t)(outcome >> 32);
    fprintf(out,
            "{\"sequence\": %" PRIu64 ", \"kind\": \"%s\", \"state\": \"%s\", "
            "\"status\": \"%s\", \"%s\": %" PRId64 ", \"%s\": %" PRId64 ", \"%s\": %" PRId64
            ", \"plan\": %" PRIu32 ", \"config\": \"%08" PRIx32 "\", \"begin_ns\": %" PRId64
            ", \"end_ns\": %" PRId64 ", \"steps\": %" PRIu32 "}",
            record->sequence,
            ewx_what_kind(ewx_outcome_what(outcome)) == EWX_RECORD_PLAN ? "plan" : "call",
            state_name(state), ew_status_name(status), names[0], record->shape[0], names[1],
            record->shape[1], names[2], record->shape[2], (uint32_t)(record->plan >> 32),
            (uint32_t)record->plan, to_ns(c, record->begin),
            running ? 0 : to_ns(c, record->end), steps);
}

static void print_records(FILE *out, const clocks *c, const ewx_lane *lane)
{
    const uint64_t newest = lane->sequence;
    const char *comma = "";
    for (uint64_t back = EWX_RECORDS; back-- > 0;) {
        const uint64_t sequence = newest - back;
        const ewx_record *record = &lane->records[sequence % EWX_RECORDS];
        if (back >= newest || record->sequence != sequence)
            continue;
        fprintf(out, "%s\n    ", comma);
        print_record(out, c, lane, record);
        comma = ",";
    }
}

/* What the kernel says of a process: one letter, or 'X' when there is none. */
static char process_state(int32_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = pid > 0 ? fopen(path, "re") : NULL;
    if (!file)
        return 'X';
    const size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = '\0';
    const char *close = strrchr(text, ')'); /* a program may have any name */
    return close && close[1] == ' ' && close[2] >= 'A' && close[2] <= 'z' ? close[2] : 'X';
}

static const char *process_name(char state)
{
    switch (state) {
    case 'T':
    case 't':
        return "stopped";
    case 'Z':
    case 'X':
        return "ended";
    default:
        return "alive";
    }
}

/* Whether the rank has written here: one on another host writes there. */
static bool is_here(const ewx_control *copy, int rank)
{
    return copy->mailboxes[rank].lane.pid != 0;
}

/* The first rank that has not entered the meeting in which `rank` is, or -1. */
static int missing_at_meeting(const ewx_control *copy, int rank)
{
    for (int peer = 0; peer < copy->header.num_ranks; peer++)
        if (is_here(copy, peer) &&
            !ewx_epoch_reached(copy->mailboxes[peer].round, copy->mailboxes[rank].round))
            return peer;
    return -1;
}

static void print_wait(FILE *out, const ewx_control *copy, int rank)
{
    const uint64_t waiting = copy->mailboxes[rank].lane.waiting;
    const int missing = missing_at_meeting(copy, rank);
    if (waiting >= 1 && waiting <= (uint64_t)copy->header.num_ranks)
        fprintf(out, "{\"rank\": %d, \"at\": \"%s\"}", (int)waiting - 1,
                ewx_terms_above.awaited);
    else if (missing >= 0 && !copy->mailboxes[rank].departed)
        fprintf(out, "{\"rank\": %d, \"at\": \"meeting\"}", missing);
    else
        fputs("null", out);
}

static void print_step(FILE *out, uint64_t last)
{
    const uint64_t step = last >> 56;
    const size_t known = sizeof ewx_terms_above.steps / sizeof *ewx_terms_above.steps;
    const char *name = step < known ? ewx_terms_above.steps[step] : NULL;
    if (name)
        fprintf(out, "{\"kind\": \"%s\", \"position\": %" PRIu64 "}", name,
                last & 0xffffffffffffff);
    else
        fputs("null", out);
}

static void print_rank(FILE *out, const clocks *c, const ewx_control *copy, int rank)
{
    const ewx_mailbox *mailbox = &copy->mailboxes[rank];
    fprintf(out,
            "  {\"rank\": %d, \"pid\": %" PRId32 ", \"process\": \"%s\", \"left\": %s, "
            "\"sequence\": %" PRIu64 ", \"meetings\": %" PRIu32 ",\n"
            "   \"last_step\": ",
            rank, mailbox->lane.pid, process_name(process_state(mailbox->lane.pid)),
            mailbox->departed ? "true" : "false", mailbox->lane.sequence, mailbox->round);
    print_step(out, mailbox->lane.last);
    fputs(", \"waits_for\": ", out);
    print_wait(out, copy, rank);
    fputs(",\n   \"records\": [", out);
    print_records(out, c, &mailbox->lane);
    fputs("]}", out);
}

static void print_fault(FILE *out, const ewx_control *copy)
{
    if (!copy->abort || !copy->fault_ready) {
        fputs(copy->abort ? "{}" : "null", out);
        return;
    }
    fprintf(out, "{\"status\": \"%s\", \"culprit\": %" PRId32 ", \"reporter\": %" PRId32,
            ew_status_name((ew_status)copy->fault.status), copy->fault.culprit,
            copy->fault.reporter);
    const ewx_fault_text *text = ewx_fault_text_find(copy->fault.code);
    if (text && text->print)
        text->print(out, &copy->fault);
    fputs("}", out);
}

static void print_recording(FILE *out, const ewx_control *copy)
{
    const clocks c = {copy->header.started_ns, copy->header.started_ticks, ewx_now_ns(),
                      ewx_ticks()};
    fprintf(out,
            "{\"schema\": \"entwine-recording/1\", \"version\": \"%s\",\n"
            " \"num_ranks\": %" PRId32 ", \"ranks_as\": \"%s\", \"started_unix\": %" PRId64
            ", \"started_ns\": %" PRId64 ", \"now_ns\": %" PRId64 ",\n \"fault\": ",
            ew_version(), copy->header.num_ranks,
            copy->header.in_threads ? "threads" : "processes", copy->header.started_unix,
            copy->header.started_ns, c.now_ns);
    print_fault(out, copy);
    fputs(",\n \"ranks\": [", out);
    const char *separator = "\n";
    for (int rank = 0; rank < copy->header.num_ranks; rank++)
        if (is_here(copy, rank)) {
            fputs(separator, out);
            print_rank(out, &c, copy, rank);
            separator = ",\n";
        }
    fputs("]}\n", out);
}

ew_status ewx_recording_read(int control_fd, char **json_out, size_t *bytes_out)
{
    ewx_control *copy = NULL;
    EW_TRY(copy_control(control_fd, &copy));
    char *json = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&json, &bytes);
    if (out)
        print_recording(out, copy);
    free(copy);
    const bool whole = out && !ferror(out);
    if (!out || fclose(out) != 0 || !whole) {
        free(json);
        return ewx_fail(EW_ERR_MEMORY, "no memory for a recording");
    }
    *json_out = json;
    *bytes_out = bytes;
    return EW_OK;
}

/* ---- Dumps ---- */

ew_status ew_world_dump(const ew_world *world, const char *path)
{
    char *json;
    size_t bytes;
    if (!world || !path || !*path)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_world_dump needs a world and a path");
    EW_TRY(ewx_handle_check(world, EWX_KIND_WORLD, "ew_world_dump"));
    EW_TRY(ewx_recording_read(world->control_fd, &json, &bytes));
    const char *why = ewx_file_replace(path, json, bytes);
    free(json);
    return why ? ewx_fail(EW_ERR_SYSTEM,
                          "the recording %s cannot be written: %s\n  fix: make its folder "
                          "writable, make room, or choose another",
                          path, why)
               : EW_OK;
}

void ewx_recorder_dump_once(ew_world *world)
{
    const char *folder = secure_getenv("ENTWINE_DUMP_DIR");
    const ewx_control *control = world->control;
    char path[4096];
    if (!folder || !*folder || atomic_exchange(&world->control->dumped, 1))
        return;
    const int length = snprintf(
        path, sizeof path, "%s/entwine-%" PRId64 "-%" PRId32 ".json", folder,
        control->header.started_unix, atomic_load(&control->mailboxes[0].lane.pid));
    if (length > 0 && length < (int)sizeof path)
        (void)ew_world_dump(world, path); /* the fault itself is what must be told */
}
