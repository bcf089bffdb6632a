/* The simulator turned around: number after number is changed until its call takes as long
 * as it was measured to, in rounds, because numbers lean on each other. */
#include "sim/calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "entwine/sim.h"

enum { ROUNDS = 20, STEPS = 8, SAMPLED_RANKS = 8 };
static const double settled = 1e-4, all_settled = 1e-3;

/* ---- Text ---- */

static void add_source(const calibrate_number *n, const char *how, FILE *out)
{
    const calibrate_probe *p = n->probe;
    const bool is_gemm = n->window == CALIBRATE_GEMM;
    if (!p) {
        fputs(n->source, out);
    } else if (!p->ran) {
        fputs("estimate: no call could tell it", out);
    } else {
        fprintf(out, "%s: %s of %s%s%s, W=%d M=%lld N=%lld", how, is_gemm ? "GEMM" : "tail",
                p->method, *p->config ? " " : "", p->config, p->num_ranks,
                (long long)p->problem.max_m, (long long)p->problem.n);
        if (n->x > 0)
            fputs(", a call for each point", out);
        else
            fprintf(out, " K=%lld %s, %.1f us", (long long)p->problem.k,
                    ew_dtype_name(p->problem.dtype), is_gemm ? p->gemm_us : p->tail_us);
    }
}

void calibrate_print(const calibration *c, const char *how, char *text)
{
    FILE *out = fmemopen(text, CALIBRATE_TEXT, "w");
    if (!out) {
        *text = '\0';
        return;
    }
    fprintf(out, "kind = %s  # -\n", c->machine.is_gpu ? "gpu" : "cpu");
    for (int at = 0; at < c->num_numbers; at++) {
        const calibrate_number *n = &c->numbers[at];
        const bool goes_on = at > 0 && n->x > 0 && strcmp(n[-1].key, n->key) == 0;
        const bool more =
            at + 1 < c->num_numbers && n->x > 0 && strcmp(n[1].key, n->key) == 0;
        if (!goes_on)
            fprintf(out, "%s =", n->key);
        if (n->x > 0)
            fprintf(out, " %g:%.5g", n->x, n->value);
        else
            fprintf(out, " %.8g", n->value);
        if (more)
            continue;
        fputs("  # ", out);
        add_source(n, how, out);
        fputc('\n', out);
    }
    if (*c->machine.device)
        fprintf(out, "device = %s  # what was calibrated\n", c->machine.device);
    fclose(out);
}

/* ---- One call ---- */

static ew_status simulate(const calibration *c, const calibrate_probe *p,
                          ew_sim_report *report_out)
{
    char *text = malloc(CALIBRATE_TEXT);
    ew_sim_options options = EW_SIM_OPTIONS_INIT;
    ew_config config = p->used;
    if (!text)
        return EW_ERR_MEMORY;
    calibrate_print(c, "-", text);
    options.profile_text = text;
    options.sampled_ranks = SAMPLED_RANKS;
    config.backend = EW_BACKEND_SIM;
    const ew_status status =
        ew_sim_call(&p->problem, p->num_ranks, &config, &options, report_out);
    free(text);
    return status;
}

double calibrate_time_us(const calibration *c, const calibrate_probe *probe)
{
    ew_sim_report report;
    return probe->ran && simulate(c, probe, &report) == EW_OK ? report.time_us : NAN;
}

/* ---- One number ---- */

static bool is_rate(const calibrate_number *n)
{
    const size_t length = strlen(n->key);
    return length > 4 && strcmp(n->key + length - 4, "_gbs") == 0;
}

/* Times are linear in this, or nearly. */
static double to_linear(const calibrate_number *n, double value)
{
    return is_rate(n) ? 1 / value : value;
}

static double within(const calibrate_number *n, double value)
{
    return fmin(fmax(value, n->least), n->most);
}

static ew_status excess_us(const calibration *c, calibrate_number *n, double value,
                           double *excess_out)
{
    ew_sim_report report;
    n->value = value;
    const ew_status status = simulate(c, n->probe, &report);
    if (status == EW_OK)
        *excess_out = n->window == CALIBRATE_GEMM ? report.gemm_us - n->probe->gemm_us
                                                  : report.tail_us - n->probe->tail_us;
    return status;
}

/* Some way off, to see what difference it makes. */
static double beside(const calibrate_number *n)
{
    const double more = within(n, n->value > 0 ? n->value * 1.05 : 0.1);
    return more > n->value ? more : n->value * 0.95;
}

/* The secant method.  Where a number makes no difference to its call it stays. */
static ew_status solve_number(const calibration *c, calibrate_number *n)
{
    const double wanted_us =
        n->window == CALIBRATE_GEMM ? n->probe->gemm_us : n->probe->tail_us;
    const double first = n->value;
    double before = first, value = beside(n), before_us = 0, now_us = 0;
    ew_status status = excess_us(c, n, before, &before_us);
    if (status == EW_OK && fabs(before_us) <= settled * wanted_us)
        return EW_OK;
    for (int step = 0; step < STEPS && status == EW_OK; step++) {
        status = excess_us(c, n, value, &now_us);
        if (status || fabs(now_us) <= settled * wanted_us)
            break;
        if (now_us == before_us) {
            value = step == 0 ? first : value;
            break;
        }
        const double x0 = to_linear(n, before), x1 = to_linear(n, value);
        const double x = x1 - now_us * (x1 - x0) / (now_us - before_us);
        before = value;
        before_us = now_us;
        value = within(n, is_rate(n) ? (x > 0 ? 1 / x : n->most) : x);
        if (value == before)
            break;
    }
    n->value = value;
    return status;
}

ew_status calibrate_solve(calibration *c)
{
    ew_status status = EW_OK;
    double moved = 1;
    for (int round = 0; round < ROUNDS && moved > all_settled && status == EW_OK; round++) {
        moved = 0;
        for (int at = 0; at < c->num_numbers && status == EW_OK; at++) {
            calibrate_number *n = &c->numbers[at];
            const double before = n->value;
            if (!n->probe || !n->probe->ran)
                continue;
            status = solve_number(c, n);
            moved = fmax(moved, fabs(n->value - before) / fmax(before, 0.01));
        }
    }
    return status;
}

/* ---- The verdict ---- */

static const calibrate_number *find_unbelievable(const calibration *c)
{
    for (int at = 0; at < c->num_numbers; at++) {
        const calibrate_number *n = &c->numbers[at];
        if (n->probe && n->probe->ran &&
            (n->value <= calibrate_least || n->value >= calibrate_most) &&
            n->least == calibrate_least && n->most == calibrate_most)
            return n;
    }
    return NULL;
}

bool calibrate_check(const calibration *c, char *why, size_t bytes)
{
    const calibrate_number *wrong = find_unbelievable(c);
    const double measured = c->judge->time_us, simulated = calibrate_time_us(c, c->judge);
    const double off = fabs(simulated - measured) / measured * 100;
    const bool close = off <= CALIBRATE_TOLERANCE; /* not if one of them is NAN */
    *why = '\0';
    if (wrong)
        snprintf(why, bytes, "%s = %g cannot be true", wrong->key, wrong->value);
    else if (!c->judge->ran)
        snprintf(why, bytes, "the call of the check could not run");
    else if (!close)
        snprintf(why, bytes,
                 "the check is off by %.0f %%, more than %d %%: measured %.1f us, "
                 "SIMULATED with "
                 "the profile %.1f us",
                 off, CALIBRATE_TOLERANCE, measured, simulated);
    return !wrong && c->judge->ran && close;
}
