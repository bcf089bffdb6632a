/* How much it costs to trust the simulator's choice among configs that were measured. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "output/result_file.h"
#include "sim/sim_pairs.h"

/* A schedule of ours, which a tuner may pick. */
static bool is_candidate(const sim_pair *p, int workload)
{
    return p->workload == workload && !p->skipped &&
           strncmp(p->method, "entwine", strlen("entwine")) == 0;
}

/* Of a config that was measured several times: the mean. */
static double measured_us(const sim_pairs *all, const sim_pair *p)
{
    double sum = 0;
    int count = 0;
    for (int at = 0; at < all->count; at++) {
        const sim_pair *other = &all->at[at];
        if (is_candidate(other, p->workload) && strcmp(other->config, p->config) == 0) {
            sum += other->measured_us;
            count++;
        }
    }
    return sum / count;
}

static sim_choice choose(const sim_pairs *all, int workload)
{
    sim_choice choice = {.workload = workload};
    double least_us = INFINITY, simulated_us = INFINITY;
    const char *first_config = NULL;
    for (int at = 0; at < all->count; at++) {
        const sim_pair *p = &all->at[at];
        if (!is_candidate(p, workload))
            continue;
        if (first_config && strcmp(p->config, first_config) != 0)
            choice.several = true;
        first_config = first_config ? first_config : p->config;
        const double us = measured_us(all, p);
        if (us < least_us) {
            least_us = us;
            choice.best = p;
        }
        if (p->time_us < simulated_us) {
            simulated_us = p->time_us;
            choice.chosen = p;
        }
    }
    if (choice.several)
        choice.regret = measured_us(all, choice.chosen) / least_us - 1;
    return choice;
}

int sim_choices(const sim_pairs *all, sim_choice *choices)
{
    int count = 0;
    for (int workload = 0; workload < all->num_workloads; workload++) {
        choices[count] = choose(all, workload);
        count += choices[count].several;
    }
    return count;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double sim_choices_median(const sim_choice *choices, int count, double *worst_out)
{
    double median = 0, *regrets = malloc((size_t)count * sizeof *regrets + 1);
    *worst_out = 0;
    for (int at = 0; regrets && at < count; at++)
        regrets[at] = choices[at].regret;
    if (regrets && count > 0) {
        qsort(regrets, (size_t)count, sizeof *regrets, compare);
        median = cli_median_of_sorted(regrets, count);
        *worst_out = regrets[count - 1];
    }
    free(regrets);
    return median;
}

void sim_choices_print(const sim_choice *choices, int count)
{
    puts("# SIMULATED choice among the measured configs of entwine, and what it costs over "
         "the measured best");
    for (int at = 0; at < count; at++) {
        const sim_pair *p = choices[at].chosen;
        printf("%7lld %7lld %7lld %4lld %4s %7g %-26.26s %+7.2f%%", (long long)p->m,
               (long long)p->n, (long long)p->k, (long long)p->ranks, p->dtype,
               p->nic_gbps > 0 ? p->nic_gbps : p->link_gbps, p->method,
               100 * choices[at].regret);
        if (choices[at].regret > 0)
            printf("  best: %.40s", choices[at].best->method);
        putchar('\n');
    }
}

json_t *sim_choices_json(const sim_choice *choices, int count)
{
    json_t *array = json_array();
    for (int at = 0; at < count; at++) {
        const sim_pair *p = choices[at].chosen;
        json_array_append_new(
            array, json_pack("{sI sI sI sI ss sf ss ss sf}", "m", p->m, "n", p->n, "k",
                             p->k, "ranks", p->ranks, "dtype", p->dtype, "link_gbps",
                             p->link_gbps, "chosen", p->config, "best",
                             choices[at].best->config, "regret", choices[at].regret));
    }
    return array;
}
