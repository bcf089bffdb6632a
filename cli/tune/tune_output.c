/* Table and JSON of `tune`. */
#include "tune/tune_output.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_file.h"
#include "base/stats.h"
#include "output/output.h"
#include "tune/tuning_files.h"
#include "base/text.h"

static const char *method_of(const cli_settings *settings)
{
    return settings->num_methods ? settings->methods[0] : "entwine";
}

bool cli_tune_stores(const cli_settings *settings)
{
    return !settings->dry_run && strcmp(method_of(settings), "entwine") == 0;
}

cli_exit cli_tune_output_open(cli_tune_output *output, const cli_settings *settings,
                              const cli_job *job, const char *folder, json_t *context)
{
    *output = (cli_tune_output){.settings = settings, .job = job, .folder = folder};
    output->document = json_pack(
        "{ss so ss so sb so s[]}", "schema", "entwine-tune/1", "context", context, "method",
        method_of(settings), "folder", *folder ? cli_text_json(folder) : json_null(),
        "stored", (int)cli_tune_stores(settings), "complete", json_false(), "results");
    output->results = json_object_get(output->document, "results");
    output->regrets = calloc((size_t)job->num_problems + 1, sizeof *output->regrets);
    if (!output->document || !output->regrets)
        return cli_fail_memory("for the results");
    return CLI_EXIT_OK;
}

/* ---- One problem ---- */

static void print_begin(cli_tune_output *output)
{
    if (output->begun)
        return;
    output->begun = true;
    cli_caveats_print(output->job, stdout);
    printf("#%6s %7s %7s %4s %4s %11s %11s %6s %10s config\n", "M", "N", "K", "W", "type",
           "default(us)", "tuned(us)", "gain", "candidates");
}

static void print_row(cli_tune_output *output, const cli_tuned *tuned, const char *config)
{
    const ew_problem *shape = &tuned->problem->problem;
    const ew_tuning *tuning = &tuned->result.tuning;
    print_begin(output);
    printf("%7" PRId64 " %7" PRId64 " %7" PRId64 " %4d %4s", shape->max_m, shape->n,
           shape->k, tuned->problem->num_ranks, ew_dtype_name(shape->dtype));
    if (tuned->kind == CLI_TUNE_SKIPPED) {
        printf("  skipped: %.*s\n", (int)strcspn(tuned->error, "\n"), tuned->error);
        return;
    }
    printf(" %11.1f %11.1f %6.3f", tuning->default_us, tuning->time_us,
           cli_tuning_gain(tuning));
    if (tuned->kind == CLI_TUNED)
        printf(" %10d %s\n", tuned->result.num_candidates, config);
    else
        printf(" %10s %s\n", "resumed", config);
}

static json_t *tuned_json(const cli_tune_output *output, const cli_tuned *tuned,
                          const char *config)
{
    static const char *const kinds[] = {"tuned", "resumed", "skipped"};
    const ew_tuning *tuning = &tuned->result.tuning;
    json_t *object =
        json_pack("{so ss}", "params", cli_params_json(tuned->problem, &output->job->ranks),
                  "outcome", kinds[tuned->kind]);
    if (tuned->kind == CLI_TUNE_SKIPPED) {
        json_object_set_new(object, "error", cli_text_json(tuned->error));
        return object;
    }
    cli_json_merge(object,
                   json_pack("{so ss sf sf so so}", "key", cli_text_json(tuning->key),
                             "config", config, "time_us", tuning->time_us, "default_us",
                             tuning->default_us, "gain",
                             cli_number_json(cli_tuning_gain(tuning)), "default_regret",
                             cli_number_json(cli_tuning_gain(tuning) - 1)));
    if (tuned->kind == CLI_TUNED) {
        const ew_tune_result *result = &tuned->result;
        cli_json_merge(
            object, json_pack("{si si si ss sb}", "candidates", (int)result->num_candidates,
                              "refused", (int)result->num_refused, "left_out",
                              (int)result->num_left_out, "profile", result->profile,
                              "complete", (int)result->complete));
    }
    return object;
}

static void add_to_summary(cli_tune_output *output, const cli_tuned *tuned)
{
    const double gain = cli_tuning_gain(&tuned->result.tuning);
    output->num_kinds[tuned->kind]++;
    if (tuned->kind != CLI_TUNE_SKIPPED && isfinite(gain))
        output->regrets[output->num_regrets++] = gain - 1;
    if (tuned->kind != CLI_TUNED)
        return;
    output->log_gain_sum += gain > 0 ? log(gain) : 0.0;
    output->num_cut_short += !tuned->result.complete;
    output->num_left_out += tuned->result.num_left_out;
    memcpy(output->profile, tuned->result.profile, sizeof output->profile);
}

void cli_tune_output_problem(cli_tune_output *output, const cli_tuned *tuned)
{
    char config[EW_CONFIG_TEXT_BYTES] = "";
    if (tuned->kind != CLI_TUNE_SKIPPED &&
        ew_config_print(&tuned->result.tuning.config, config, sizeof config))
        config[0] = '\0';
    add_to_summary(output, tuned);
    if (output->settings->format == CLI_FORMAT_JSON)
        json_array_append_new(output->results, tuned_json(output, tuned, config));
    else
        print_row(output, tuned, config);
    fflush(stdout);
}

/* ---- The end ---- */

static void print_stored(const cli_tune_output *output)
{
    if (output->settings->dry_run)
        puts("# Stored : nothing (--dry-run)");
    else if (!cli_tune_stores(output->settings))
        puts("# Stored : nothing (only entwine's configs are)");
    else
        cli_print(stdout, "# Stored : %d entr%s in %s\n", output->num_kinds[CLI_TUNED],
                  output->num_kinds[CLI_TUNED] == 1 ? "y" : "ies", output->folder);
}

/* `median` and `worst` are regrets of the built-in choice. */
static void print_end(const cli_tune_output *output, double median, double worst,
                      bool complete)
{
    const int num_tuned = output->num_kinds[CLI_TUNED];
    if (!output->begun)
        return;
    if (num_tuned > 1)
        printf("# Geomean gain : %.3f over the built-in choice, %d problems\n",
               exp(output->log_gain_sum / num_tuned), num_tuned);
    if (output->num_regrets > 1)
        printf("# Built-in choice : regret %.2f %% median, %.2f %% worst, %d problems\n",
               100 * median, 100 * worst, output->num_regrets);
    if (*output->profile)
        printf(
            "# Planned : %d candidate%s left out, the rest ordered, by the simulator with "
            "profile %s\n",
            output->num_left_out, ewx_text_plural(output->num_left_out), output->profile);
    if (output->num_cut_short)
        printf("# Budget : it ended %d of %d searches early\n", output->num_cut_short,
               num_tuned);
    if (output->num_kinds[CLI_TUNE_RESUMED])
        cli_print(stdout, "# Resumed : %d problem%s had an entry in %s\n",
                  output->num_kinds[CLI_TUNE_RESUMED],
                  ewx_text_plural(output->num_kinds[CLI_TUNE_RESUMED]), output->folder);
    print_stored(output);
    if (!complete)
        printf("# Incomplete : the run ended before all problems were tuned%s\n",
               cli_tune_stores(output->settings) ? "; go on with --resume" : "");
}

cli_exit cli_tune_output_close(cli_tune_output *output, bool complete)
{
    const int count = output->num_regrets;
    const bool any = output->num_kinds[CLI_TUNED] + output->num_kinds[CLI_TUNE_RESUMED] > 0;
    const double median = count ? cli_median(output->regrets, count) : 0.0; /* sorts */
    const double worst = count ? output->regrets[count - 1] : 0.0;
    if (output->document && output->settings->format == CLI_FORMAT_JSON) {
        json_object_set_new(output->document, "complete", json_boolean(complete));
        json_object_set_new(
            output->document, "default_regret",
            json_pack("{si sf sf}", "problems", count, "median", median, "worst", worst));
        cli_json_print(json_incref(output->document));
    } else {
        print_end(output, median, worst, complete);
    }
    json_decref(output->document);
    free(output->regrets);
    return any ? CLI_EXIT_OK : CLI_EXIT_SKIPPED;
}
