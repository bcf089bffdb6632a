/* The demo's picture, drawn from a trace. */
#include "cmd/demo_strip.h"

#include <string.h>

enum { WIDTH = 62, MAX_RANKS = 4, LATENCY_US = 5 };

static cli_values just(int64_t value)
{
    return (cli_values){.at = {value}, .count = 1};
}

cli_settings cli_strip_settings(const cli_settings *demo, int cores, double link_gbs)
{
    const ew_config open_config = EW_CONFIG_INIT;
    cli_settings s = *demo;
    s.ranks = just(cores < 2 ? 2 : cores > MAX_RANKS ? MAX_RANKS : cores);
    s.rows = just(1024);
    s.cols = s.depth = just(512);
    s.dtypes = just(EW_FP32);
    s.config = open_config;
    s.config.block_m = s.config.block_n = CLI_TILE; /* a block is a tile: one digit */
    s.config.workers = 1;
    s.warmup = 1;
    s.iters = 24;
    s.link_gbs = link_gbs;
    s.link_latency_us = LATENCY_US;
    return s;
}

static int column_of(const ew_timing *timing, int64_t when_ns, double axis_us)
{
    double us = (double)(when_ns - timing->start_ns) * 1e-3;
    int column = (int)(us / axis_us * WIDTH);
    return column < 0 ? 0 : column >= WIDTH ? WIDTH - 1 : column;
}

void cli_strip_print(const cli_trace *trace, double axis_us)
{
    const int rank = trace->num_ranks - 1;
    const ew_timing *timing = &trace->ranks[rank].timing;
    const ew_trace_event *events = cli_trace_events(trace, rank);
    char computed[WIDTH + 1], reduced[WIDTH + 1];
    memset(computed, ' ', WIDTH);
    memset(reduced, ' ', WIDTH);
    computed[WIDTH] = reduced[WIDTH] = '\0';
    for (size_t at = 0; at < trace->ranks[rank].num_events; at++) {
        int column = column_of(timing, events[at].end_ns, axis_us);
        if (events[at].kind == EW_TRACE_REDUCE && events[at].dst == rank)
            reduced[column] = '*';
        if (events[at].kind != EW_TRACE_BLOCK)
            continue;
        while (column < WIDTH && computed[column] != ' ')
            column++; /* blocks of one instant still show one digit each */
        if (column < WIDTH)
            computed[column] = (char)('0' + events[at].dst % 10);
    }
    int end = column_of(timing, timing->end_ns, axis_us);
    if (end < WIDTH - 1)
        computed[end + 1] = reduced[end + 1] = '|';
    printf("  %-11s %s\n  %-11s %s\n",
           trace->config.order == EW_ORDER_CONTIGUOUS ? "contiguous" : "interleaved",
           computed, "", reduced);
}
