/* A few ranks that stand for all: what they say beside a simulation of every rank. */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/sim.h"

static ew_status call(const char *profile, int num_ranks, const ew_problem *problem,
                      const char *method, int sampled, ew_sim_report *report)
{
    ew_sim_options options = EW_SIM_OPTIONS_INIT;
    ew_config open = EW_CONFIG_INIT, config = EW_CONFIG_INIT;
    options.profile = profile;
    options.sampled_ranks = sampled;
    open.backend = EW_BACKEND_SIM;
    assert_int_equal(ew_method_config(method, &open, &config), EW_OK);
    return ew_sim_call(problem, num_ranks, &config, &options, report);
}

/* Methods of AllGather-GEMM alone. */
static bool is_for_gathers(const char *method)
{
    return strcmp(method, "blas-chunked") == 0 || strcmp(method, "chunk-signals") == 0;
}

/* Pulls are the same to the last digit where ranks have as many tiles each; pushes and
 * copies queue at an owner in another order. */
static void samples_agree_with_the_whole(void **state)
{
    (void)state;
    static const struct {
        const char *profile;
        int num_ranks;
        int64_t m, n;
    } cases[] = {{"nvl72", 64, 8192, 4096},
                 {"nvl72", 70, 10000, 1000},
                 {"multi-node", 32, 8192, 4096},
                 {"multi-node", 64, 16384, 2048}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (const char *const *method = ew_method_list(); *method; method++) {
            const ew_problem problem = EW_PROBLEM(cases[i].m, cases[i].n, 1024, EW_FP16);
            if (is_for_gathers(*method))
                continue;
            const double most = strncmp(*method, "fused-", 6) == 0 ? 0.04
                                : strcmp(*method, "chunked") == 0  ? 0.1
                                                                   : 0.005;
            ew_sim_report whole, sample;
            assert_int_equal(
                call(cases[i].profile, cases[i].num_ranks, &problem, *method, 0, &whole),
                EW_OK);
            assert_int_equal(
                call(cases[i].profile, cases[i].num_ranks, &problem, *method, 16, &sample),
                EW_OK);
            const double error = fabs(sample.time_us / whole.time_us - 1);
            if (error > most)
                fail_msg("%s, W=%d, %s: %.1f for %.1f us", cases[i].profile,
                         cases[i].num_ranks, *method, sample.time_us, whole.time_us);
            assert_int_equal(sample.moved_bytes, whole.moved_bytes);
            assert_true(sample.events < whole.events);
        }
}

/* Ranks that share a GPU, or cores, wait for each other: all of them are simulated. */
static void sharers_are_all_simulated(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(2048, 2048, 512, EW_FP16);
    ew_sim_report whole, sample;
    assert_int_equal(call("h200-vnode-8", 8, &problem, "entwine", 0, &whole), EW_OK);
    assert_int_equal(call("h200-vnode-8", 8, &problem, "entwine", 2, &sample), EW_OK);
    assert_int_equal(sample.events, whole.events);
    assert_true(sample.time_us == whole.time_us);
}

/* Beyond a node the NIC carries all but the near peers' share of Eq. 2. */
static void many_nodes_are_bound_by_their_nics(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(49152, 8192, 2048, EW_BF16);
    ew_sim_report before = {.time_us = 0}, report;
    for (int num_ranks = 16; num_ranks <= 512; num_ranks *= 2) {
        assert_int_equal(call("multi-node", num_ranks, &problem, "entwine", 16, &report),
                         EW_OK);
        const double far = (double)(num_ranks - 8) / num_ranks;
        const double nic_us = 49152.0 * 8192 / 46e3 * 2 * far;
        assert_true(report.time_us >= nic_us && report.time_us < 1.1 * nic_us + 500);
        assert_true(report.time_us > before.time_us);
        before = report;
    }
    assert_int_equal(call("multi-node", 513, &problem, "entwine", 16, &report),
                     EW_ERR_SHAPE);
    assert_int_equal(call("multi-node", 2000000, &problem, "entwine", 16, &report),
                     EW_ERR_SHAPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_agree_with_the_whole),
        cmocka_unit_test(sharers_are_all_simulated),
        cmocka_unit_test(many_nodes_are_bound_by_their_nics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
