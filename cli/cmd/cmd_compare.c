/* entwine compare: two result files of bench, paired by problem and method, and what the
 * second one is to the first: a gate for regressions. */
#include "cmd/commands.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/stats.h"
#include "base/text.h"
#include "output/result_file.h"

enum { NUM_RESAMPLES = 2000 };

typedef enum verdict { FASTER, SAME, SLOWER, REGRESSION, NUM_VERDICTS } verdict;
static const char *const verdict_names[] = {"faster", "same", "slower", "REGRESSION"};

typedef struct pair {
    const cli_measured *before, *after;
    double ratio, low, high; /* of the medians, after over before, and its interval */
    verdict found;
} pair;

typedef struct comparison {
    const cli_settings *settings;
    cli_result_file files[2];
    pair *pairs;
    int num_pairs;
    int num_verdicts[NUM_VERDICTS];
    double geomean;
    bool same_machine;
} comparison;

/* ---- Statistics ---- */

/* The median of as many draws with replacement: counted, since the samples are sorted. */
static double resampled_median(const cli_measured *result, uint64_t *random)
{
    int drawn[EW_BENCH_MAX_SAMPLES] = {0};
    const int count = result->num_samples;
    for (int at = 0; at < count; at++)
        drawn[cli_draw(random, count)]++;
    return cli_counted_median(result->samples_us, drawn, count);
}

/* Percentile bootstrap, the same draws in every run. */
static void judge_pair(pair *p, double threshold)
{
    double ratios[NUM_RESAMPLES];
    uint64_t random = 1;
    for (int at = 0; at < NUM_RESAMPLES; at++) {
        double before = resampled_median(p->before, &random);
        ratios[at] = resampled_median(p->after, &random) / before;
    }
    cli_percentiles(ratios, NUM_RESAMPLES, &p->low, &p->high);
    p->ratio = p->after->median_us / p->before->median_us;
    p->found = p->low > 1 + threshold ? REGRESSION
               : p->low > 1           ? SLOWER
               : p->high < 1          ? FASTER
                                      : SAME;
}

/* ---- Pairing ---- */

static bool is_same_case(const cli_measured *a, const cli_measured *b)
{
    return strcmp(a->op, b->op) == 0 && a->m == b->m && a->n == b->n && a->k == b->k &&
           a->ranks == b->ranks && strcmp(a->dtype, b->dtype) == 0 &&
           strcmp(a->weight, b->weight) == 0 && strcmp(a->link, b->link) == 0 &&
           strcmp(a->profile, b->profile) == 0 && strcmp(a->method, b->method) == 0;
}

/* The first with the first: a problem may be there twice. */
static cli_measured *find_partner(cli_result_file *file, const cli_measured *wanted)
{
    for (int at = 0; at < file->num_results; at++) {
        cli_measured *result = &file->results[at];
        if (result->ran && !result->paired && is_same_case(result, wanted))
            return result;
    }
    return NULL;
}

/* What stands before the name of its profile. */
static const char *origin_of(const cli_measured *result)
{
    return *result->profile ? "SIMULATED with profile " : "measured";
}

/* Why nothing of one file is in the other, as their first results have it. */
static cli_exit fail_unpaired(const cli_result_file *before, const cli_result_file *after)
{
    const cli_measured *a = before->results, *b = after->results;
    const bool known = before->num_results > 0 && after->num_results > 0;
    if (known && strcmp(a->op, b->op) != 0)
        return cli_fail_usage("compare results of one operation",
                              "%.100s is of %.40s, %.100s of %.40s", before->path, a->op,
                              after->path, b->op);
    if (known && strcmp(a->profile, b->profile) != 0)
        return cli_fail_usage(
            "compare measurements with each other, and simulations of one profile",
            "%.100s is %s%.60s, %.100s is %s%.60s", before->path, origin_of(a), a->profile,
            after->path, origin_of(b), b->profile);
    return cli_fail_usage("bench the same problems and methods twice",
                          "%.100s and %.100s have no problem and method in common",
                          before->path, after->path);
}

static cli_exit make_pairs(comparison *c)
{
    cli_result_file *before = &c->files[0];
    double log_sum = 0.0;
    c->pairs = calloc((size_t)before->num_results + 1, sizeof *c->pairs);
    if (!c->pairs)
        return cli_fail_memory("for the pairs");
    for (int at = 0; at < before->num_results; at++) {
        cli_measured *result = &before->results[at];
        cli_measured *partner = result->ran ? find_partner(&c->files[1], result) : NULL;
        if (!partner)
            continue;
        result->paired = partner->paired = true;
        pair *made = &c->pairs[c->num_pairs++];
        *made = (pair){.before = result, .after = partner};
        judge_pair(made, c->settings->threshold);
        c->num_verdicts[made->found]++;
        log_sum += log(made->ratio);
    }
    if (c->num_pairs == 0)
        return fail_unpaired(before, &c->files[1]);
    c->geomean = exp(log_sum / c->num_pairs);
    return CLI_EXIT_OK;
}

static cli_exit check_machines(comparison *c)
{
    const cli_result_file *a = &c->files[0], *b = &c->files[1];
    c->same_machine = strcmp(a->cpu, b->cpu) == 0 && strcmp(a->gpus, b->gpus) == 0;
    if (c->same_machine || c->settings->across_machines)
        return CLI_EXIT_OK;
    return cli_fail_usage("measure both on one machine, or give --across-machines",
                          "the results are of different machines\n  %.100s: %.60s%s%.100s\n"
                          "  %.100s: %.60s%s%.100s",
                          a->path, a->cpu, *a->gpus ? ", " : "", a->gpus, b->path, b->cpu,
                          *b->gpus ? ", " : "", b->gpus);
}

static cli_exit check_samples(const cli_result_file *file)
{
    for (int at = 0; at < file->num_results; at++)
        if (file->results[at].ran && file->results[at].num_samples < CLI_LEAST_SAMPLES)
            return cli_fail_usage(
                "measure again",
                "%.200s: result %d (%.60s): it has fewer than %d samples, "
                "too few to judge (bench -n 15)",
                file->path, at + 1, file->results[at].method, CLI_LEAST_SAMPLES);
    return CLI_EXIT_OK;
}

/* ---- Table ---- */

/* A run has one backend, so that any result knows what was simulated; empty: nothing. */
static const char *profile_of(const cli_result_file *file)
{
    return file->num_results > 0 ? file->results[0].profile : "";
}

static void print_file(const char *label, const cli_result_file *file)
{
    const char *profile = profile_of(file);
    cli_print(stdout, "# %s : %s, commit %s, %s, %s%s%s%s%s%s\n", label, file->path,
              file->commit, file->time, file->cpu, *file->gpus ? ", " : "", file->gpus,
              *profile ? ", SIMULATED with profile " : "", profile,
              file->complete ? "" : ", INCOMPLETE");
}

/* What tells a case from its like and has no column. */
static void print_remarks(const cli_measured *result)
{
    const bool simulated = *result->profile, linked = strcmp(result->link, "none") != 0;
    const bool kn = strcmp(result->weight, "nk") != 0;
    if (simulated || linked || kn)
        printf(" (%s%s%s%s%s%s%s)", simulated ? "SIMULATED " : "", result->profile,
               simulated && (linked || kn) ? ", " : "", linked ? "link " : "",
               linked ? result->link : "", linked && kn ? ", " : "", kn ? "weight kn" : "");
}

static void print_pair(const pair *p, int width)
{
    const cli_measured *b = p->before;
    printf("%7" PRId64 " %7" PRId64 " %7" PRId64 " %4" PRId64
           " %4s %-*s %11.1f %11.1f %6.3f [%5.3f, %5.3f]  %s",
           (int64_t)b->m, (int64_t)b->n, (int64_t)b->k, (int64_t)b->ranks, b->dtype, width,
           b->method, b->median_us, p->after->median_us, p->ratio, p->low, p->high,
           verdict_names[p->found]);
    print_remarks(b);
    putchar('\n');
}

static void print_unpaired(const cli_result_file *file)
{
    for (int at = 0; at < file->num_results; at++) {
        const cli_measured *result = &file->results[at];
        if (result->paired)
            continue;
        cli_print(stdout,
                  "# %s %s : %" PRId64 "x%" PRId64 "x%" PRId64 " W=%" PRId64 " %s %s",
                  result->ran ? "only in" : "skipped in", file->path, (int64_t)result->m,
                  (int64_t)result->n, (int64_t)result->k, (int64_t)result->ranks,
                  result->dtype, result->method);
        print_remarks(result);
        putchar('\n');
    }
}

static void print_table(const comparison *c)
{
    int width = (int)strlen("sequential");
    for (int at = 0; at < c->num_pairs; at++)
        if ((int)strlen(c->pairs[at].before->method) > width)
            width = (int)strlen(c->pairs[at].before->method);
    print_file("before", &c->files[0]);
    print_file("after", &c->files[1]);
    if (!c->same_machine)
        puts("# DIFFERENT MACHINES : the ratios compare machines as well");
    printf("#%6s %7s %7s %4s %4s %-*s %11s %11s %6s %-14s  %s\n", "M", "N", "K", "W",
           "type", width, "method", "before(us)", "after(us)", "ratio", "95 % interval",
           "verdict");
    for (int at = 0; at < c->num_pairs; at++)
        print_pair(&c->pairs[at], width);
    print_unpaired(&c->files[0]);
    print_unpaired(&c->files[1]);
    printf("# Geomean ratio : %.3f over %d pair%s%s\n", c->geomean, c->num_pairs,
           ewx_text_plural(c->num_pairs),
           *c->pairs[0].before->profile ? ", SIMULATED" : "");
    printf("# Regressions : %d %s (threshold %g %%); %d slower, %d same, %d faster\n",
           c->num_verdicts[REGRESSION], c->num_verdicts[REGRESSION] ? "FAILED" : "OK",
           100 * c->settings->threshold, c->num_verdicts[SLOWER], c->num_verdicts[SAME],
           c->num_verdicts[FASTER]);
}

/* ---- JSON ---- */

/* As in documents of bench: nothing about what was measured. */
static void add_profile(json_t *object, const char *profile)
{
    if (*profile)
        cli_json_merge(object, json_pack("{sb ss}", "simulated", 1, "profile", profile));
}

static json_t *file_json(const cli_result_file *file)
{
    json_t *path = json_string(file->path);
    json_t *object =
        json_pack("{so ss ss ss ss sb}", "path", path ? path : json_string("(not UTF-8)"),
                  "commit", file->commit, "time", file->time, "cpu", file->cpu, "gpus",
                  file->gpus, "complete", (int)file->complete);
    add_profile(object, profile_of(file));
    return object;
}

static json_t *case_json(const cli_measured *result)
{
    json_t *object = json_pack(
        "{s{ss sI sI sI sI ss ss ss} ss}", "params", "op", result->op, "m", result->m, "n",
        result->n, "k", result->k, "ranks", result->ranks, "dtype", result->dtype, "weight",
        result->weight, "link", result->link, "method", result->method);
    add_profile(json_object_get(object, "params"), result->profile);
    return object;
}

static void add_unpaired(const cli_result_file *file, const char *where, json_t *array)
{
    for (int at = 0; at < file->num_results; at++) {
        const cli_measured *result = &file->results[at];
        if (result->paired)
            continue;
        json_t *object = case_json(result);
        json_object_set_new(object, "only_in", json_string(where));
        json_object_set_new(object, "skipped", json_boolean(!result->ran));
        json_array_append_new(array, object);
    }
}

static void print_json(const comparison *c)
{
    json_t *pairs = json_array(), *unpaired = json_array();
    for (int at = 0; at < c->num_pairs; at++) {
        const pair *p = &c->pairs[at];
        json_t *object = case_json(p->before);
        cli_json_merge(object,
                       json_pack("{sf sf sf s[f,f] ss}", "before_us", p->before->median_us,
                                 "after_us", p->after->median_us, "ratio", p->ratio,
                                 "interval", p->low, p->high, "verdict",
                                 verdict_names[p->found]));
        json_array_append_new(pairs, object);
    }
    add_unpaired(&c->files[0], "before", unpaired);
    add_unpaired(&c->files[1], "after", unpaired);
    cli_json_print(json_pack("{ss so so sb sf sf si so so}", "schema", "entwine-compare/1",
                             "before", file_json(&c->files[0]), "after",
                             file_json(&c->files[1]), "same_machine", (int)c->same_machine,
                             "threshold", c->settings->threshold, "geomean_ratio",
                             c->geomean, "regressions", c->num_verdicts[REGRESSION],
                             "pairs", pairs, "unpaired", unpaired));
}

cli_exit cli_compare_main(const cli_settings *settings, int argc, char **argv)
{
    (void)argc, (void)argv;
    if (settings->num_words != 2)
        return cli_fail_usage("entwine compare before.json after.json",
                              "'compare' needs two result files, not %d",
                              settings->num_words);
    comparison c = {.settings = settings};
    cli_exit result = CLI_EXIT_OK;
    for (int at = 0; at < 2 && !result; at++) {
        result = cli_result_file_open(&c.files[at], settings->words[at]);
        if (!result)
            result = check_samples(&c.files[at]);
    }
    if (!result)
        result = check_machines(&c);
    if (!result)
        result = make_pairs(&c);
    if (!result) {
        if (settings->format == CLI_FORMAT_JSON)
            print_json(&c);
        else
            print_table(&c);
        result = c.num_verdicts[REGRESSION] ? CLI_EXIT_REGRESSION : CLI_EXIT_OK;
    }
    free(c.pairs);
    for (int at = 0; at < 2; at++)
        cli_result_file_close(&c.files[at]);
    return result;
}
