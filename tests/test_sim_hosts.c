/* Simulated links, and hosts with links between them: closed forms, and what crosses. */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/sim.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static ew_sim_report call(const char *profile, const char *method, const char *config_text,
                          int num_ranks, const ew_problem *problem, double link_gbs)
{
    ew_sim_options options = EW_SIM_OPTIONS_INIT;
    ew_config wish, config;
    ew_sim_report report;
    options.profile = profile;
    options.link_gbs = link_gbs;
    assert_int_equal(ew_config_parse(config_text, &wish), EW_OK);
    wish.backend = EW_BACKEND_SIM;
    assert_int_equal(ew_method_config(method, &wish, &config), EW_OK);
    if (ew_sim_call(problem, num_ranks, &config, &options, &report) != EW_OK)
        fail_msg("%s, %s, %s: %s", profile, method, config_text, ew_last_error());
    return report;
}

/* An emulated link carries a vendor's bytes too. */
static void links_bound_nccl(void **state)
{
    (void)state;
    static const double rates[] = {10, 46, 170};
    const ew_problem problem = EW_PROBLEM(8192, 8192, 512, EW_BF16);
    const double bytes = ew_remote_bytes(8192, 8192, 8, 2);
    const ew_sim_report own = call("h200-8", "blas", "", 8, &problem, 0);
    for (size_t i = 0; i < COUNT(rates); i++) {
        const ew_sim_report report = call("h200-8", "blas", "", 8, &problem, rates[i]);
        assert_true(report.gemm_us == own.gemm_us);
        assert_true(report.tail_us > own.tail_us);
        assert_true(report.tail_us >= bytes / rates[i] * 1e-3);
        assert_true(report.tail_us - own.tail_us <= bytes / rates[i] * 1e-3);
    }
    assert_true(call("h200-8", "blas", "", 8, &problem, 5000).time_us == own.time_us);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_bound_nccl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
