/* Takes values as the rows of the option table say. */
#include "options/option_rules.h"

#include <string.h>

#include "base/text.h"

const cli_choice cli_dtype_choices[] = {
    {"fp32", EW_FP32}, {"bf16", EW_BF16}, {"fp16", EW_FP16}, {NULL, 0}};
const cli_choice cli_weight_choices[] = {
    {"nk", EW_WEIGHT_NK}, {"kn", EW_WEIGHT_KN}, {NULL, 0}};
const cli_choice cli_op_choices[] = {{"gemm-rs", EW_OP_GEMM_RS},
                                     {"gemm-ar", EW_OP_GEMM_AR},
                                     {"ag-gemm", EW_OP_AG_GEMM},
                                     {NULL, 0}};

/* ---- Values ---- */

/* A number with one of the endings; returns what it is to be multiplied with. */
static double split_ending(const cli_rule *rule, const char *value, char *digits,
                           size_t bytes)
{
    const size_t length = strlen(value);
    const char *found =
        rule->endings && length > 1 ? strchr(rule->endings, value[length - 1]) : NULL;
    snprintf(digits, bytes, "%.*s", (int)(found ? length - 1 : length), value);
    return !rule->endings ? 1.0 : rule->factors[found ? found - rule->endings : 0];
}

static int take_number(const cli_rule *rule, const char *value, void *place, char *why)
{
    const cli_bounds bounds = {
        (int64_t)rule->least, rule->most < CLI_ANY_COUNT ? (int64_t)rule->most : INT64_MAX};
    char digits[CLI_METHOD_BYTES];
    double real;
    if (rule->kind == CLI_VALUE_COUNT)
        return cli_number_parse(value, bounds, place, why);
    if (rule->kind == CLI_VALUE_LIST)
        return cli_values_parse(value, bounds, place, why);
    const double factor = split_ending(rule, value, digits, sizeof digits);
    if (cli_real_parse(digits, rule->least, rule->most, &real, why))
        return -1;
    *(double *)place = real * factor;
    return 0;
}

const cli_choice *cli_choice_find(const cli_choice *choices, const char *name)
{
    while (choices->name && strcmp(choices->name, name) != 0)
        choices++;
    return choices->name ? choices : NULL;
}

cli_exit cli_choice_pick(const cli_option *option, const cli_choice *choices,
                         const char *name, int *picked_out)
{
    const char *names[CLI_MAX_CHOICES + 1];
    char near[96], fix[128];
    int count = 0;
    const cli_choice *found = cli_choice_find(choices, name);
    if (found) {
        *picked_out = found->value;
        return CLI_EXIT_OK;
    }
    for (; choices->name; choices++)
        names[count++] = choices->name;
    names[count] = NULL;
    cli_names_text(names, fix, sizeof fix);
    /* What users call a backend; it is like no other choice. */
    cli_suggestion(strcmp(name, "gpu") ? name : "cuda", names, near, sizeof near);
    return cli_fail_usage(fix, "--%s does not know '%.60s'%s", option->name, name, near);
}

cli_exit cli_option_take(cli_settings *settings, const cli_option *option,
                         const char *value)
{
    const cli_rule *rule = &option->rule;
    void *place = (char *)settings + rule->offset;
    char why[CLI_WHY_BYTES];
    switch (rule->kind) {
    case CLI_VALUE_SWITCH:
        *(bool *)place = true;
        return CLI_EXIT_OK;
    case CLI_VALUE_TEXT:
        if (!*value)
            return cli_fail_usage("leave the option out instead", "--%s is empty",
                                  option->name);
        *(const char **)place = value;
        return CLI_EXIT_OK;
    case CLI_VALUE_CHOICE:
        return cli_choice_pick(option, rule->choices, value, place);
    case CLI_VALUE_COUNT:
    case CLI_VALUE_LIST:
    case CLI_VALUE_REAL:
        return take_number(rule, value, place, why)
                   ? cli_fail_usage(rule->fix, "--%s: %s", option->name, why)
                   : CLI_EXIT_OK;
    case CLI_VALUE_REFUSED:
        return cli_fail_usage(rule->fix, "--%s: %s", option->name, rule->why);
    case CLI_VALUE_OTHER:
        break;
    }
    return rule->set(settings, option, value);
}

/* ---- Names ---- */

void cli_names_text(const char *const *names, char *text, size_t bytes)
{
    ewx_text list = ewx_text_in(text, bytes);
    ewx_text_add(&list, "one of");
    for (int at = 0; names[at]; at++)
        ewx_text_add(&list, "%s %s", at ? "," : "", names[at]);
}
