/* CSV: one header line, one line per result, nothing else.  Numbers that do not exist
 * are empty. */
#include "output/output.h"

#include <inttypes.h>
#include <math.h>

void cli_csv_begin(void)
{
    puts("name,m,n,k,ranks,dtype,weight,ranks_as,link_gbs,link_latency_us,link_header_"
         "bytes,seed,method,"
         "config,status,time_us,gemm_us,tail_us,cv,discarded,gflops,algbw_gbs,breq_gbs,"
         "speedup,wrong,max_abs_err,speedup_low,speedup_high,op");
}

static void print_text(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"')
            putchar('"');
        putchar(*text);
    }
    putchar('"');
}

static void print_number(double value)
{
    if (isfinite(value))
        printf(",%.6g", value);
    else
        putchar(',');
}

static void print_params(const cli_row *row)
{
    const ew_problem *shape = &row->problem->problem;
    const cli_ranks *ranks = &row->job->ranks;
    print_text(row->problem->name);
    printf(",%" PRId64 ",%" PRId64 ",%" PRId64 ",%d,%s,%s,%s,%g,%g,%g,%" PRIu32 ",",
           shape->max_m, shape->n, shape->k, row->problem->num_ranks,
           ew_dtype_name(shape->dtype), shape->weight_layout == EW_WEIGHT_NK ? "nk" : "kn",
           cli_ranks_as_name(ranks), ranks->options.link_gbps / 8,
           ranks->options.link_latency_us, ranks->options.link_header_bytes,
           row->job->bench.seed);
}

/* All empty where the method did not run. */
static void print_values(const cli_row *row)
{
    const ew_bench_result *result = row->result;
    if (result->status != EW_OK) {
        fputs(",,,,,,,,,,,,,", stdout);
        return;
    }
    print_number(result->time_us);
    print_number(result->gemm_us);
    print_number(result->tail_us);
    print_number(result->cv);
    printf(",%" PRId32, result->discarded);
    print_number(row->gflops);
    print_number(row->algbw);
    print_number(row->breq);
    print_number(row->speedup);
    if (row->job->bed->is_simulated) {
        fputs(",,,,", stdout); /* no values, so none right or wrong, and no noise */
        return;
    }
    printf(",%" PRId64, result->check.wrong);
    print_number(result->check.max_abs_err);
    print_number(row->over_base.low);
    print_number(row->over_base.high);
}

void cli_csv_row(const cli_row *row)
{
    print_params(row);
    print_text(row->entry->label);
    putchar(',');
    print_text(row->config);
    printf(",%s", ew_status_name(row->result->status));
    print_values(row);
    printf(",%s\n", ew_op_name(row->problem->problem.op));
}
