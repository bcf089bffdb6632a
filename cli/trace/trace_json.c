/* A recorded call as trace events, written one by one: a process for each rank, a thread
 * for each worker, slices for blocks, reductions and copied results, and arrows from every
 * contribution to the reductions that read it and from every result to its copies. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "output/output.h"
#include "base/json_file.h"
#include "run/simulated.h"
#include "trace/trace.h"

typedef struct writer {
    const cli_trace *trace;
    FILE *stream;
    int64_t start_ns; /* the earliest of any rank: zero on the axis */
    int64_t num_flows;
    bool any; /* an event was written: the next one follows a comma */
    /* Blocks, or sums, of one source, by part and first tile. */
    const ew_trace_event **sources;
} writer;

/* Phase and place.  Numbers start at 1, since viewers take process and thread 0 for the
 * idle task. */
static void begin_event(writer *w, const char *phase, int rank, int worker)
{
    fprintf(w->stream, "%s{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d", w->any ? ",\n" : "", phase,
            rank + 1, worker + 1);
    w->any = true;
}

static void write_us(const writer *w, const char *name, int64_t ns)
{
    fprintf(w->stream, ",\"%s\":%" PRId64 ".%03d", name, ns / 1000, (int)(ns % 1000));
}

static void write_names(writer *w, int rank)
{
    const ew_trace_event *events = cli_trace_events(w->trace, rank);
    int workers = 1;
    for (size_t at = 0; at < w->trace->ranks[rank].num_events; at++)
        if (events[at].worker >= workers)
            workers = events[at].worker + 1;
    begin_event(w, "M", rank, 0);
    fprintf(w->stream, ",\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}}", rank);
    begin_event(w, "M", rank, 0);
    fprintf(w->stream, ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}}",
            rank);
    for (int worker = 0; worker < workers; worker++) {
        begin_event(w, "M", rank, worker);
        fprintf(w->stream, ",\"name\":\"thread_name\",\"args\":{\"name\":\"worker %d\"}}",
                worker);
    }
}

static void write_name(const writer *w, const ew_trace_event *event)
{
    if (event->kind == EW_TRACE_REDUCE)
        fprintf(w->stream, ",\"cat\":\"reduce\",\"name\":\"reduce tile (%d,%d)\"",
                event->row, event->col);
    else if (event->kind == EW_TRACE_COLLECT)
        fprintf(w->stream,
                ",\"cat\":\"collect\",\"name\":\"collect tile (%d,%d) of rank %d\"",
                event->row, event->col, event->dst);
    else if (w->trace->num_parts == 1)
        fprintf(w->stream, ",\"cat\":\"block\",\"name\":\"block p=%" PRId64 "\"",
                event->position);
    else if (w->trace->problem.op == EW_OP_AG_GEMM)
        fprintf(w->stream,
                ",\"cat\":\"block\",\"name\":\"block p=%" PRId64 " of rank %d's rows\"",
                event->position, event->dst);
    else
        fprintf(w->stream, ",\"cat\":\"block\",\"name\":\"block p=%" PRId64 " -> rank %d\"",
                event->position, event->dst);
}

static void write_slice(writer *w, int rank, const ew_trace_event *event)
{
    begin_event(w, "X", rank, event->worker);
    write_us(w, "ts", event->begin_ns - w->start_ns);
    write_us(w, "dur", event->end_ns - event->begin_ns);
    write_name(w, event);
    fprintf(w->stream,
            ",\"args\":{\"position\":%" PRId64 ",\"dst\":%d,\"row\":%d,\"col\":%d",
            event->position, event->dst, event->row, event->col);
    if (event->published_ns)
        write_us(w, "published_us", event->published_ns - w->start_ns);
    fputs("}}", w->stream);
}

/* ---- Arrows ---- */

static size_t num_places(const cli_trace *trace)
{
    return (size_t)(trace->num_parts * trace->tile_rows * trace->tile_cols);
}

/* NULL: there is no such tile. */
static const ew_trace_event **source_place(const writer *w, int dst, int64_t row,
                                           int64_t col)
{
    const cli_trace *trace = w->trace;
    const int part = trace->num_parts == 1 ? 0 : dst;
    if (part < 0 || part >= trace->num_parts || row < 0 || row >= trace->tile_rows ||
        col < 0 || col >= trace->tile_cols)
        return NULL;
    return &w->sources[(part * trace->tile_rows + row) * trace->tile_cols + col];
}

static void find_sources(writer *w, int src, ew_trace_kind kind)
{
    const cli_trace *trace = w->trace;
    const ew_trace_event *events = cli_trace_events(trace, src);
    memset(w->sources, 0, num_places(trace) * sizeof *w->sources);
    for (size_t at = 0; at < trace->ranks[src].num_events; at++) {
        const ew_trace_event *event = &events[at], **place = NULL;
        if (event->kind == kind)
            place = source_place(w, event->dst, event->row, event->col);
        if (place)
            *place = event;
    }
}

/* Whose first tile is at most this far before the tile: calls of few rows have smaller
 * blocks than the config says.  NULL: there is none. */
static const ew_trace_event *find_source(const writer *w, int dst,
                                         const ew_trace_event *tile, int rows, int cols)
{
    for (int above = 0; above < rows; above++)
        for (int before = 0; before < cols; before++) {
            const ew_trace_event **place =
                source_place(w, dst, tile->row - above, tile->col - before);
            if (place && *place)
                return *place;
        }
    return NULL;
}

/* bp=e: the arrow belongs to the slice around its end, not to the next one. */
static void write_flow_end(writer *w, const char *phase, const char *name, int rank,
                           int worker, int64_t ns)
{
    begin_event(w, phase, rank, worker);
    write_us(w, "ts", ns - w->start_ns);
    fprintf(w->stream, ",\"cat\":\"%s\",\"name\":\"%s\",\"id\":%" PRId64 ",\"bp\":\"e\"}",
            name, name, w->num_flows);
}

/* The arrow leaves inside the source's slice, or viewers would take the next one: at its
 * end, or before the reader where a tile was released while its block went on. */
static void write_flow(writer *w, int src, const ew_trace_event *source, int dst,
                       const ew_trace_event *reader)
{
    const char *name = reader->kind == EW_TRACE_REDUCE ? "contribution" : "result";
    int64_t left_ns =
        (source->end_ns < reader->begin_ns ? source->end_ns : reader->begin_ns) - 1;
    if (left_ns < source->begin_ns)
        left_ns = source->begin_ns;
    w->num_flows++;
    write_flow_end(w, "s", name, src, source->worker, left_ns);
    write_flow_end(w, "f", name, dst, reader->worker, reader->begin_ns);
}

/* From the sources at hand to what `dst` did with them. */
static void write_flows_to(writer *w, int src, int dst, ew_trace_kind kind)
{
    const cli_trace *trace = w->trace;
    const bool from_blocks = kind == EW_TRACE_REDUCE;
    const int rows = from_blocks ? trace->config.block_m / CLI_TILE : 1;
    const int cols = from_blocks ? trace->config.block_n / CLI_TILE : 1;
    const ew_trace_event *events = cli_trace_events(trace, dst);
    for (size_t at = 0; at < trace->ranks[dst].num_events; at++) {
        const ew_trace_event *event = &events[at];
        if (event->kind != kind || (!from_blocks && event->dst != src))
            continue;
        const ew_trace_event *source = find_source(w, dst, event, rows, cols);
        if (source)
            write_flow(w, src, source, dst, event);
    }
}

static void write_flows_from(writer *w, int src)
{
    find_sources(w, src, EW_TRACE_BLOCK);
    for (int dst = 0; dst < w->trace->num_ranks; dst++)
        write_flows_to(w, src, dst, EW_TRACE_REDUCE);
    find_sources(w, src, EW_TRACE_REDUCE);
    for (int dst = 0; dst < w->trace->num_ranks; dst++)
        write_flows_to(w, src, dst, EW_TRACE_COLLECT);
}

bool cli_trace_write(const cli_trace *trace, const json_t *metadata, FILE *stream)
{
    writer w = {.trace = trace, .stream = stream, .start_ns = INT64_MAX};
    w.sources = calloc(num_places(trace), sizeof *w.sources);
    if (!w.sources)
        return false;
    for (int rank = 0; rank < trace->num_ranks; rank++)
        if (trace->ranks[rank].timing.start_ns < w.start_ns)
            w.start_ns = trace->ranks[rank].timing.start_ns;
    fputs("{\"traceEvents\":[\n", stream);
    for (int rank = 0; rank < trace->num_ranks; rank++) {
        const ew_trace_event *events = cli_trace_events(trace, rank);
        write_names(&w, rank);
        for (size_t at = 0; at < trace->ranks[rank].num_events; at++)
            write_slice(&w, rank, &events[at]);
    }
    for (int src = 0; src < trace->num_ranks; src++)
        write_flows_from(&w, src);
    free(w.sources);
    fputs("],\n\"displayTimeUnit\":\"ns\",\n\"otherData\":", stream);
    bool dumped = json_dumpf(metadata, stream, JSON_INDENT(1)) == 0;
    fputs("}\n", stream);
    return dumped && fflush(stream) == 0 && !ferror(stream);
}

/* ---- What belongs to the events ---- */

static json_t *numbers_json(const cli_trace_numbers *n)
{
    return json_pack("{sf sf sf sf sf sf sf sf sf}", "time_us", n->time_us, "gemm_us",
                     n->gemm_us, "tail_us", n->tail_us, "gemm_alone_us", n->gemm_alone_us,
                     "overlap_efficiency", n->overlap, "tail_share", n->tail_share,
                     "breq_gbs", n->breq, "achieved_gbs", n->achieved, "gemm_slowdown",
                     n->slowdown);
}

json_t *cli_trace_metadata(const cli_job *job, const cli_trace *trace,
                           const cli_trace_numbers *numbers, json_t *context)
{
    json_t *params = cli_problem_json(&trace->problem, trace->num_ranks);
    char link[96];
    cli_link_text(job, link, sizeof link);
    cli_json_merge(params,
                   json_pack("{ss ss sI si si}", "ranks_as", cli_ranks_as_name(&job->ranks),
                             "link", link, "seed", (json_int_t)job->bench.seed, "iters",
                             job->bench.iters, "warmup", job->bench.warmup));
    json_t *metadata =
        json_pack("{ss so ss so sI so}", "schema", "entwine-trace/1", "params", params,
                  "config", numbers->config, "numbers", numbers_json(numbers), "wrong",
                  (json_int_t)numbers->wrong, "context", context);
    if (metadata && job->bed->is_simulated) {
        cli_sim_params(json_object_get(metadata, "params"), trace->num_ranks);
        json_object_del(metadata, "wrong"); /* no values, so none right or wrong */
    }
    return metadata;
}
