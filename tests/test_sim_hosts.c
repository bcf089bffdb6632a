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
    ew_config wish = EW_CONFIG_INIT, config = EW_CONFIG_INIT;
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

/* ---- CPU hosts ---- */

/* Times that are easy to add up: a tile takes 10 us, a byte 1 ns of the NIC, a message 5 us
 * more, and nothing else takes any time. */
static const char *hosts_text(int nodes, int cores, double nic_cpu_ps_per_byte,
                              double reducer_gbs)
{
    static char text[2048];
    snprintf(text, sizeof text,
             "kind = cpu # -\nnodes = %d # -\ncores = %d # -\nblock_us_128 = 64:10 # -\n"
             "clock = 1 # -\nbf16_time = 1 # -\nblas_time = 1 # -\nmem_gbs = 0 # -\n"
             "reducer_gbs = 1:%g # -\nreducer_us = 0 # -\nlink_gbs = 0 # -\n"
             "link_us = 0 # -\nnic_gbs = 1 # -\nnic_us = 5 # -\nnic_shared = 0 # -\n"
             "nic_cpu_ps_per_byte = %g # -\nstart_us = 0 # -\npublish_us = 0 # -\n"
             "skew_us = 0 # -\njitter = 0 # -\n",
             nodes, cores, reducer_gbs, nic_cpu_ps_per_byte);
    return text;
}

static const char *simple_hosts(int nodes, int cores, double nic_cpu_ps_per_byte)
{
    return hosts_text(nodes, cores, nic_cpu_ps_per_byte, 1e6);
}

enum { TILE_BYTES = 128 * 128 * 4 };

/* Configs with shots are AllReduce's. */
static ew_sim_report call_hosts(const char *profile, int num_ranks, int64_t m, int64_t n,
                                const char *config_text, int nic_shared)
{
    ew_problem problem = EW_PROBLEM(m, n, 64, EW_FP32);
    problem.op = strstr(config_text, "shots") ? EW_OP_GEMM_AR : EW_OP_GEMM_RS;
    ew_sim_options options = EW_SIM_OPTIONS_INIT;
    ew_config config = EW_CONFIG_INIT;
    ew_sim_report report;
    options.profile_text = profile;
    options.nic_shared = nic_shared;
    assert_int_equal(ew_config_parse(config_text, &config), EW_OK);
    if (ew_sim_call(&problem, num_ranks, &config, &options, &report) != EW_OK)
        fail_msg("W=%d, %s: %s", num_ranks, config_text, ew_last_error());
    return report;
}

static void assert_near(double value, double want)
{
    if (fabs(value - want) > 0.01 * want)
        fail_msg("%.3f instead of %.3f", value, want);
}

/* One message each way behind the GEMM, and what shares a way waits. */
static void messages_take_the_nics_time(void **state)
{
    (void)state;
    const double message_us = 8 * TILE_BYTES * 1e-3; /* of 16 tiles, half are the other's */
    const char *config = "release=output";
    const char *two = simple_hosts(2, 1, 0);
    ew_sim_report report = call_hosts(two, 2, 256, 1024, config, 0);
    assert_near(report.gemm_us, 160);
    assert_near(report.time_us, 160 + message_us + 5);
    assert_near(report.link_us, message_us);
    report = call_hosts(two, 2, 256, 1024, config, 1);
    assert_near(report.time_us, 160 + 2 * message_us + 5);
    assert_near(report.link_us, 2 * message_us);
    /* Ranks that share a core take turns, and have one NIC. */
    report = call_hosts(two, 4, 512, 1024, "release=output,levels=1", 0);
    assert_near(report.gemm_us, 2 * 320);
    assert_near(report.time_us, 2 * 320 + 4 * message_us + 5);
    report = call_hosts(two, 4, 512, 1024, "release=output,levels=2", 0);
    assert_near(report.time_us, 2 * 320 + 2 * message_us + 5);
    assert_near(report.link_us, 2 * message_us);
}

/* In one shot all 16 tiles cross each way; in two, 8 contributions and then 8 results. */
static void allreduces_take_the_nics_time(void **state)
{
    (void)state;
    const double message_us = TILE_BYTES * 1e-3;
    const char *two = simple_hosts(2, 1, 0);
    for (int shots = 1; shots <= 2; shots++) {
        char config[64];
        snprintf(config, sizeof config, "release=output,shots=%d", shots);
        ew_sim_report report = call_hosts(two, 2, 256, 1024, config, 0);
        assert_near(report.gemm_us, 160);
        assert_near(report.time_us, 160 + 16 * message_us + 5);
        assert_near(report.link_us, 16 * message_us);
        report = call_hosts(two, 2, 256, 1024, config, 1);
        assert_near(report.time_us, 160 + 32 * message_us + 5);
    }
    /* Of four ranks each sends 64 KiB x 32 tiles to two others, or half of that. */
    ew_sim_report report = call_hosts(two, 4, 512, 1024, "release=output,shots=1", 0);
    assert_near(report.time_us, 2 * 320 + 128 * message_us + 5);
    report = call_hosts(two, 4, 512, 1024, "release=output,shots=2", 0);
    assert_near(report.time_us, 2 * 320 + 64 * message_us + 5);
}

/* Each end's core pays for each byte: tiles take longer, or the wait does. */
static void networks_cost_core_time(void **state)
{
    (void)state;
    const char *config = "release=1,order=interleaved,block=128x128";
    const double bytes = 128 * TILE_BYTES; /* sent, and received */
    const double before =
        call_hosts(simple_hosts(2, 1, 0), 2, 2048, 2048, config, 0).gemm_us;
    const ew_sim_report after =
        call_hosts(simple_hosts(2, 1, 100), 2, 2048, 2048, config, 0);
    const double arrived = fmin(1, after.gemm_us / (bytes * 1e-3)); /* the wire is slower */
    assert_near(before, 2560);
    assert_true(after.gemm_us > before + bytes * 100e-6);
    assert_true(after.gemm_us < before + (1 + arrived) * bytes * 100e-6 + 20);
    /* Waiting cores are slower than the wire here: 3 ns for each byte out and in. */
    const ew_sim_report slow =
        call_hosts(simple_hosts(2, 1, 3000), 2, 256, 1024, "release=output", 0);
    assert_near(slow.time_us, 160 + 2 * 8 * TILE_BYTES * 3e-3);
}

/* Two ranks on each of two hosts, a tile for each.  One rank of a host makes both of its
 * sums (two contributions, the sum, a copy), which leave one after the other; their owner
 * sums its host's contributions, then the hosts' sums. */
static void sums_take_their_time(void **state)
{
    (void)state;
    const double byte_us = TILE_BYTES * 1e-4, wire_us = TILE_BYTES * 1e-3;
    const ew_sim_report report =
        call_hosts(hosts_text(2, 2, 0, 10), 4, 512, 128, "release=output,levels=2", 0);
    assert_near(report.time_us, 40 + 5 * byte_us + 2 * wire_us + 5 + (3 + 3) * byte_us);
}

/* What tests/mpi/run.sh expects of the engine, to the byte. */
static void engines_send_as_much(void **state)
{
    (void)state;
    static const struct {
        int ranks, hosts;
        const char *config;
        int64_t bytes;
    } cases[] = {{4, 2, "levels=1", 4194304},
                 {4, 2, "levels=2", 2097152},
                 {6, 3, "levels=2", 4194304}};
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_int_equal(call_hosts(simple_hosts(cases[i].hosts, 2, 0), cases[i].ranks,
                                    1024, 512, cases[i].config, 0)
                             .crossed_bytes,
                         cases[i].bytes);
}

/* One level: every rank of another host sends its own.  Two: every host sends one sum. */
static void hosts_send_one_sum_for_a_tile(void **state)
{
    (void)state;
    static const struct {
        int nodes, ranks, used; /* hosts that have a rank */
    } cases[] = {{2, 2, 2}, {2, 4, 2}, {3, 6, 3}, {4, 16, 4}, {3, 4, 2}, {64, 512, 64}};
    static const char *const releases[] = {"release=1", "release=3", "release=partition",
                                           "release=output"};
    for (size_t i = 0; i < COUNT(cases); i++)
        for (size_t r = 0; r < COUNT(releases); r++) {
            const int ranks = cases[i].ranks, hosts = cases[i].used;
            const int64_t m = 128 * ranks, n = ranks > 100 ? 256 : 640;
            const char *profile = simple_hosts(cases[i].nodes, 2, 10);
            char one[64], two[64];
            snprintf(one, sizeof one, "%s,levels=1", releases[r]);
            snprintf(two, sizeof two, "%s,levels=2", releases[r]);
            const ew_sim_report flat = call_hosts(profile, ranks, m, n, one, 0);
            const ew_sim_report summed = call_hosts(profile, ranks, m, n, two, 0);
            assert_int_equal(flat.crossed_bytes, (ranks - ranks / hosts) * m * n * 4);
            assert_int_equal(summed.crossed_bytes, (hosts - 1) * m * n * 4);
            assert_int_equal(flat.config.levels, 1);
            assert_int_equal(summed.config.levels, 2);
        }
}

static void hosts_are_what_plans_see(void **state)
{
    (void)state;
    const char *profile = simple_hosts(2, 4, 0);
    assert_int_equal(call_hosts(profile, 4, 512, 512, "", 0).config.levels, 2);
    assert_int_equal(call_hosts(profile, 2, 512, 512, "", 0).config.levels, 1);
    assert_int_equal(call_hosts(profile, 2, 4096, 4096, "", 0).config.release, 4);
    assert_int_equal(call_hosts(profile, 4, 512, 512, "", 0).config.workers, 2);
    const ew_problem problem = EW_PROBLEM(512, 512, 64, EW_FP32);
    ew_sim_options options = EW_SIM_OPTIONS_INIT;
    ew_config config = EW_CONFIG_INIT;
    ew_sim_report report;
    options.profile_text = profile;
    assert_int_equal(ew_config_parse("producer=blas", &config), EW_OK);
    harness_expect_error(ew_sim_call(&problem, 4, &config, &options, &report),
                         EW_ERR_UNSUPPORTED, "2 hosts", "BLAS across hosts");
}

static void expect_refusal(const char *profile, const char *text)
{
    const ew_problem problem = EW_PROBLEM(512, 512, 64, EW_FP32);
    ew_sim_options options = EW_SIM_OPTIONS_INIT;
    ew_sim_report report;
    options.profile_text = profile;
    harness_expect_error(ew_sim_call(&problem, 2, NULL, &options, &report), EW_ERR_ARGUMENT,
                         text, text);
}

static void profiles_of_hosts_are_whole(void **state)
{
    (void)state;
    static const char *const keys[] = {"nic_gbs", "nic_us", "nic_shared",
                                       "nic_cpu_ps_per_byte"};
    for (size_t i = 0; i < COUNT(keys); i++) {
        char text[2048], without[64];
        snprintf(text, sizeof text, "%s", simple_hosts(2, 1, 0));
        char *at = strstr(text, keys[i]), *end = strchr(at, '\n') + 1;
        memmove(at, end, strlen(end) + 1);
        snprintf(without, sizeof without, "%s is missing", keys[i]);
        expect_refusal(text, without);
    }
    char text[2048];
    snprintf(text, sizeof text, "%s", simple_hosts(2, 1, 0));
    memcpy(strstr(text, "nic_gbs = 1"), "nic_gbs = 0", 11);
    expect_refusal(text, "nic_gbs is 0 with more than one node");
}

/* ---- GPU nodes ---- */

/* A sum of each other node instead of all that its ranks have; sampled or not. */
static void nodes_of_gpus_may_sum_first(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(16384, 2048, 1024, EW_BF16);
    const int64_t bytes = 16384 * 2048 * 2;
    const ew_sim_report flat = call("multi-node", "entwine", "levels=1", 64, &problem, 0);
    const ew_sim_report summed = call("multi-node", "entwine", "levels=2", 64, &problem, 0);
    assert_int_equal(flat.crossed_bytes, 56 * bytes);
    assert_int_equal(summed.crossed_bytes, 7 * bytes);
    assert_int_equal(flat.moved_bytes, 63 * bytes);
    assert_int_equal(summed.moved_bytes, 63 * bytes);
    assert_true(summed.time_us < flat.time_us);
    const double nic_us = 7 * (double)bytes / 64 / 46e3;
    assert_true(summed.time_us > nic_us && summed.link_us >= nic_us);

    ew_sim_options options = EW_SIM_OPTIONS_INIT;
    ew_sim_report sample;
    options.profile = "multi-node";
    options.sampled_ranks = 16;
    assert_int_equal(ew_sim_call(&problem, 64, &summed.config, &options, &sample), EW_OK);
    assert_near(sample.time_us, summed.time_us);
    assert_int_equal(sample.crossed_bytes, summed.crossed_bytes);
    assert_int_equal(ew_sim_call(&problem, 512, &summed.config, &options, &sample), EW_OK);
    assert_int_equal(sample.crossed_bytes, 63 * bytes);
    ew_config pushed = summed.config;
    pushed.transport = EW_TRANSPORT_PUSH;
    harness_expect_error(ew_sim_call(&problem, 64, &pushed, &options, &sample),
                         EW_ERR_UNSUPPORTED, "levels=2", "sums of what is pushed");
}

/* Partitions that are copied to ranks of the other node leave by the source's NIC. */
static void copies_cross_nodes(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(16384, 2048, 1024, EW_BF16);
    const int64_t bytes = 16384 * 2048 * 2;
    const ew_sim_report report = call("multi-node", "chunked", "", 16, &problem, 0);
    assert_int_equal(report.crossed_bytes, 8 * bytes);
    assert_int_equal(report.moved_bytes, 15 * bytes);
    assert_true(report.time_us > 8 * (double)bytes / 16 / 46e3);
}

/* Rings cross between nodes over all NICs of a node at once. */
static void nics_bound_nccl_together(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(16384, 8192, 512, EW_BF16);
    const double bytes = ew_remote_bytes(16384, 8192, 64, 2);
    ew_sim_options options = EW_SIM_OPTIONS_INIT;
    ew_sim_report report = call("multi-node", "blas", "", 64, &problem, 0);
    assert_near(report.tail_us, 25 + bytes / 330e3);
    options.profile = "multi-node";
    options.nic_gbs = 10;
    assert_int_equal(ew_sim_call(&problem, 64, &report.config, &options, &report), EW_OK);
    assert_near(report.tail_us, 25 + bytes / 80e3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_bound_nccl),
        cmocka_unit_test(messages_take_the_nics_time),
        cmocka_unit_test(allreduces_take_the_nics_time),
        cmocka_unit_test(networks_cost_core_time),
        cmocka_unit_test(sums_take_their_time),
        cmocka_unit_test(engines_send_as_much),
        cmocka_unit_test(hosts_send_one_sum_for_a_tile),
        cmocka_unit_test(hosts_are_what_plans_see),
        cmocka_unit_test(profiles_of_hosts_are_whole),
        cmocka_unit_test(nodes_of_gpus_may_sum_first),
        cmocka_unit_test(copies_cross_nodes),
        cmocka_unit_test(nics_bound_nccl_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
