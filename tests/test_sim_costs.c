/* What single numbers of a GPU's profile cost a call, in closed form. */
#include <stddef.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "sim_trial.h"

/* One GPU for all ranks, in slices of 8 SMs. */
static ewx_sim_profile shared_gpu(int num_ranks)
{
    ewx_sim_profile profile = sim_trial_gpu();
    profile.gpus = 1;
    profile.virtual_node = 1;
    profile.sms = 8 * num_ranks;
    return profile;
}

static void launches_take_turns(void **state)
{
    (void)state;
    const char *config = "release=output,pool=after,x=64";
    ewx_sim_profile alone = sim_trial_gpu(), shared = shared_gpu(2);
    alone.launch_us = shared.launch_us = 5;
    alone.skew_us = shared.skew_us = 3;
    const double tail_us = sim_trial_run(&alone, 256, 512, 2, config, 0).tail_us;
    sim_trial_near(sim_trial_run(&shared, 256, 512, 2, config, 0).tail_us, tail_us + 3);
}

/* The kernel of a GEMM that releases its whole output ends behind the fence, which is one
 * for all owners. */
static void one_fence_is_for_all_owners(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    profile.publish_us = 2;
    for (int num_ranks = 2; num_ranks <= 4; num_ranks++) {
        const sim_outcome o =
            sim_trial_run(&profile, 128 * num_ranks, 256, num_ranks, "release=output", 0);
        sim_trial_near(o.gemm_us, 10 + 2);
        sim_trial_near(o.tail_us, 1);
        sim_trial_near(
            sim_trial_run(&profile, 128 * num_ranks, 256, num_ranks, "", 0).gemm_us, 10);
    }
}

/* Ranks compute one partition after the other, the own one last, and copy while they
 * compute the next: what a copy takes beyond that is left for the tail. */
static void copies_hide_behind_the_next_partition(void **state)
{
    (void)state;
    const double bytes = 128 * 512 * 2;
    ewx_sim_profile profile = sim_trial_gpu();
    const sim_outcome free = sim_trial_run(&profile, 256, 512, 2, "transport=copy", 0);
    sim_trial_near(free.gemm_us, 10 + 10); /* two blocks each, which one wave would hold */
    profile.copy_gbs = bytes / 7e3;
    sim_trial_near(sim_trial_run(&profile, 256, 512, 2, "transport=copy", 0).time_us,
                   free.time_us);
    profile.copy_gbs = bytes / 17e3;
    sim_trial_near(sim_trial_run(&profile, 256, 512, 2, "transport=copy", 0).time_us,
                   free.time_us + 7);
}

/* The GEMM of the next partition is a command behind the last one's, which takes the longer
 * the more ranks share the GPU.  A copy comes behind the GEMM's event, and on an emulated
 * link behind its booking; its announcement follows. */
static void commands_follow_each_other(void **state)
{
    (void)state;
    ewx_sim_profile alone = sim_trial_gpu(), shared = shared_gpu(2);
    alone.command_us = shared.command_us = 3;
    sim_trial_near(sim_trial_run(&alone, 256, 512, 2, "transport=copy", 0).gemm_us,
                   10 + 3 + 10);
    sim_trial_near(sim_trial_run(&shared, 256, 512, 2, "transport=copy", 0).gemm_us,
                   10 + 2 * 3 + 10);
    alone.command_us = shared.command_us = 10;
    sim_trial_near(sim_trial_run(&alone, 256, 512, 2, "transport=copy", 0).time_us,
                   10 + 3 * 10 + 1);
    sim_trial_near(sim_trial_run(&alone, 256, 512, 2, "transport=copy", 1e6).time_us,
                   10 + 3 * 10 + 1);
    sim_trial_near(sim_trial_run(&shared, 256, 512, 2, "transport=copy", 1e6).time_us,
                   10 + 4 * 2 * 10 + 1);
}

/* Half a wave, and the SMs that a pool keeps free, leave the others more of the GPU. */
static void few_blocks_are_quick(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    profile.crowd_time = 0.4;
    sim_trial_near(sim_trial_run(&profile, 512, 256, 1, "", 0).gemm_us, 10);
    sim_trial_near(sim_trial_run(&profile, 256, 256, 1, "", 0).gemm_us, 8);
    sim_trial_near(sim_trial_run(&profile, 768, 256, 1, "", 0).gemm_us, 10 + 8);
    const char *apart = "pool=static,x=4,b=512,cluster=1"; /* one of four SMs */
    sim_trial_near(sim_trial_run(&profile, 384, 256, 1, apart, 0).gemm_us, 9);
}

/* Blocks of a wave that leaves half of the SMs idle are split, a tile for each. */
static void short_last_waves_are_split(void **state)
{
    (void)state;
    const char *persistent = "block=128x256,ctas=persistent,cluster=1";
    ewx_sim_profile profile = sim_trial_gpu();
    profile.split_time = 0.6;
    sim_trial_near(sim_trial_run(&profile, 512, 256, 1, persistent, 0).gemm_us, 10);
    sim_trial_near(sim_trial_run(&profile, 768, 256, 1, persistent, 0).gemm_us, 10 + 6);
    sim_trial_near(sim_trial_run(&profile, 896, 256, 1, persistent, 0).gemm_us, 10 + 10);
    sim_trial_near(sim_trial_run(&profile, 768, 128, 1, persistent, 0).gemm_us, 10 + 10);
    const char *by_block = "block=128x256,ctas=block,cluster=1";
    sim_trial_near(sim_trial_run(&profile, 768, 256, 1, by_block, 0).gemm_us, 10 + 10);
}

/* Eight rows each of four ranks lie in one row of tiles, not in four; what a rank reads and
 * when it has it stays the same. */
static void few_rows_share_tiles(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    const char *together = "block=128x256,ctas=block,x=4";
    const char *apart = "block=128x256,ctas=block,x=4,order=contiguous";
    const sim_outcome one = sim_trial_run(&profile, 32, 1024, 4, together, 0);
    const sim_outcome four = sim_trial_run(&profile, 32, 1024, 4, apart, 0);
    sim_trial_near(one.gemm_us, 10);
    sim_trial_near(four.gemm_us, 4 * 10);
    sim_trial_near(one.tail_us, 2); /* two of its eight tasks for each reducer */
    const char *after = "block=128x256,ctas=block,x=4,release=output,pool=after";
    sim_trial_near(sim_trial_run(&profile, 32, 1024, 4, after, 0).time_us, 10 + 2);
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(one.ranks[rank].remote_bytes, four.ranks[rank].remote_bytes);
}

/* Threads that add a tile at its owner are at it longer than the copy unit. */
static void adding_takes_threads_their_time(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    profile.add_us = 2;
    sim_trial_near(sim_trial_run(&profile, 512, 256, 4, "transport=add", 0).gemm_us, 12);
    sim_trial_near(sim_trial_run(&profile, 512, 256, 4, "transport=tma-add", 0).gemm_us,
                   10);
}

/* 768 rows of operands: in a quarter of the time in which a block is computed, in four
 * times as long, and in the same time, in which each waits for the other. */
static void operands_come_from_the_memory(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    profile.mem_gbs = 768 * 1024 * 2 / 2.5e3;
    sim_trial_near(sim_trial_run(&profile, 512, 256, 1, "", 0).gemm_us, 10);
    profile.mem_gbs /= 16;
    sim_trial_near(sim_trial_run(&profile, 512, 256, 1, "", 0).gemm_us, 40);
    profile.mem_gbs *= 4;
    sim_trial_near(sim_trial_run(&profile, 512, 256, 1, "", 0).gemm_us, 14);
}

/* A wave and a half of blocks: the half one brings half of the other's operands. */
static void a_wave_loads_its_own_operands(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    profile.mem_gbs = 1024 * 1024 * 2 / 90e3;
    sim_trial_near(sim_trial_run(&profile, 768, 256, 1, "", 0).gemm_us,
                   60 + 30 * (1 + 0.4 / 81));
}

/* Two columns of tiles for each CTA.  It multiplies the rows that there are, padded as the
 * kernel does it, and its loads run further ahead than those of a GEMM of blocks. */
static void few_rows_stream(void **state)
{
    (void)state;
    static const struct {
        int64_t m;
        int padded;
    } cases[] = {{1, 8}, {16, 16}, {33, 64}, {64, 64}, {65, 128}, {150, 160}, {208, 208}};
    const char *streams = "block=128x256,ctas=persistent";
    const char *blocks = "block=128x256,ctas=block";
    ewx_sim_profile profile = sim_trial_gpu();
    profile.split_time = 0.6;
    profile.cta_us = 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        sim_trial_near(sim_trial_run(&profile, cases[i].m, 1024, 1, streams, 0).gemm_us,
                       2 * (6 * cases[i].padded / 128.0 + 1));
    sim_trial_near(sim_trial_run(&profile, 208, 640, 1, streams, 0).gemm_us,
                   2 * (6 * 208 / 128.0 + 1)); /* the fifth column, alone */
    sim_trial_near(sim_trial_run(&profile, 209, 1024, 1, streams, 0).gemm_us, 2 * 10);
    sim_trial_near(sim_trial_run(&profile, 0, 1024, 1, streams, 0).gemm_us, 0);
    profile.mem_gbs = (64 + 1024) * 1024 * 2 / 8e3; /* as long as the tensor cores */
    sim_trial_near(sim_trial_run(&profile, 64, 1024, 1, streams, 0).gemm_us, 1.2 * 8);
    profile.mem_gbs = (64 + 1024) * 1024 * 2 / 11e3;
    sim_trial_near(sim_trial_run(&profile, 64, 1024, 1, blocks, 0).gemm_us, 1.4 * 11);
}

/* The CTAs of a cluster load for each other: half a block goes at its own pace beside
 * another half, and between the two beside a whole one. */
static void half_blocks_wait_for_whole_ones(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    profile.half_time = 0.6;
    const char *pairs = "block=128x256,ctas=block,cluster=2,order=contiguous";
    const char *alone = "block=128x256,ctas=block,cluster=1,order=contiguous";
    sim_trial_near(sim_trial_run(&profile, 128, 512, 2, pairs, 0).gemm_us, 6);
    profile.sms = 2; /* each has a whole block and half a one */
    sim_trial_near(sim_trial_run(&profile, 192, 512, 1, alone, 0).gemm_us, 10 + 6);
    sim_trial_near(sim_trial_run(&profile, 192, 512, 1, pairs, 0).gemm_us, 10 + 8);
}

/* Each of four tiles takes 5 us, of which the memory is busy for 3. */
static void sums_take_turns_in_the_memory(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    profile.reducer_us = 5;
    profile.mem_gbs = 2 * 128 * 128 * 2 / 3e3;
    sim_trial_near(
        sim_trial_run(&profile, 256, 256, 1, "release=output,pool=after,x=64", 0).tail_us,
        3 * 3 + 5);
}

/* A pool leaves whole clusters to the GEMM: two SMs of the three beside the reducers'. */
static void clusters_are_whole(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    const char *config = "pool=static,x=4,b=512,cluster=2,ctas=persistent";
    sim_trial_near(sim_trial_run(&profile, 768, 256, 1, config, 0).gemm_us, 30);
}

/* One of two SMs reduces, and the other holds no cluster: no wave has any block. */
static void a_pool_that_leaves_no_cluster_is_refused(void **state)
{
    (void)state;
    const char *config = "block=128x256,pool=static,x=1,b=512,cluster=2,ctas=persistent";
    ewx_sim_profile profile = sim_trial_gpu();
    sim_outcome o;
    profile.sms = 2;
    profile.split_time = 0.6;
    assert_int_equal(sim_trial_try(&profile, 768, 256, 1, config, 0, -1, NULL, &o),
                     EW_ERR_CONFIG);
}

/* A BLAS fills the SMs whatever the shape, and starts behind the kernel that opens the
 * call. */
static void a_blas_has_no_waves(void **state)
{
    (void)state;
    ewx_sim_profile alone = sim_trial_gpu();
    sim_trial_near(sim_trial_run(&alone, 640, 256, 2, "producer=blas", 0).gemm_us, 12.5);
    alone.launch_us = 4;
    sim_trial_near(sim_trial_run(&alone, 512, 256, 2, "producer=blas", 0).gemm_us, 4 + 10);
    sim_trial_near(sim_trial_run(&alone, 512, 256, 2, "", 0).gemm_us, 10);
}

/* On an emulated link a tile's sum begins when its turn comes. */
static void sums_await_their_turn_on_an_emulated_link(void **state)
{
    (void)state;
    const char *config = "release=output,pool=after,x=64";
    const double gbs = 128 * 128 * 2 / 5e3; /* 5 us for each remote contribution */
    const ewx_sim_profile alone = sim_trial_gpu(), shared = shared_gpu(2);
    sim_trial_near(sim_trial_run(&alone, 256, 512, 2, config, gbs).tail_us, 4 * 5);
    ewx_sim_profile slow = shared;
    slow.reducer_us = 8;
    sim_trial_near(sim_trial_run(&shared, 256, 512, 2, config, gbs).tail_us, 4 * 5);
    sim_trial_near(sim_trial_run(&slow, 256, 512, 2, config, gbs).tail_us, 3 * 5 + 8);
    /* With two such nodes and two levels each turn brings as much for the other's sum. */
    const char *summed = "release=output,pool=after,x=64,levels=2";
    slow.nodes = 2;
    slow.nic_gbs = 1e6;
    slow.reducer_us = 18;
    sim_trial_near(sim_trial_run(&slow, 512, 512, 4, config, gbs).tail_us, 3 * 5 + 18);
    sim_trial_near(sim_trial_run(&slow, 512, 512, 4, summed, gbs).tail_us, 3 * 2 * 5 + 18);
}

/* Groups of two tiles of each of two ranks: a call takes 7 us, and 8 for a group's bytes.
 * Beside it the GEMM has all SMs but one, 3 of 4, for 8 blocks: the groups are there after
 * 10, 20, 20 and 30 us, and every call begins behind the one before. */
static void a_vendor_exchanges_groups_in_turn(void **state)
{
    (void)state;
    const char *groups = "launches=unit,release=2,kernel=sm80,block=128x256";
    const char *one_group = "launches=unit,release=8,kernel=sm80,block=128x256";
    ewx_sim_profile profile = sim_trial_gpu();
    const sim_outcome ours = sim_trial_run(&profile, 1024, 256, 2, groups, 0);
    profile.nccl_us = 7;
    profile.nccl_gbs = 128 * 256 * 2 / 8e3;
    /* Nothing says how it would be run: as the engine does it. */
    sim_trial_near(sim_trial_run(&profile, 1024, 256, 2, groups, 0).time_us, ours.time_us);
    profile.nccl_sms = 1;
    const sim_outcome o = sim_trial_run(&profile, 1024, 256, 2, groups, 0);
    sim_trial_near(o.gemm_us, 3 * 10);
    sim_trial_near(o.time_us, 10 + 4 * (7 + 8));
    assert_int_equal(o.ranks[1].remote_bytes, ours.ranks[1].remote_bytes);
    /* One group is a call behind a GEMM that has all SMs. */
    const sim_outcome whole = sim_trial_run(&profile, 1024, 256, 2, one_group, 0);
    sim_trial_near(whole.gemm_us, 2 * 10);
    sim_trial_near(whole.tail_us, 7 + 4 * 8);
    /* The calls after 10 and 25 us start in the midst of the GEMM. */
    profile.beside_us = 2;
    sim_trial_near(sim_trial_run(&profile, 1024, 256, 2, groups, 0).gemm_us,
                   3 * 10 + 2 * 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launches_take_turns),
        cmocka_unit_test(one_fence_is_for_all_owners),
        cmocka_unit_test(copies_hide_behind_the_next_partition),
        cmocka_unit_test(commands_follow_each_other),
        cmocka_unit_test(few_blocks_are_quick),
        cmocka_unit_test(short_last_waves_are_split),
        cmocka_unit_test(adding_takes_threads_their_time),
        cmocka_unit_test(operands_come_from_the_memory),
        cmocka_unit_test(a_wave_loads_its_own_operands),
        cmocka_unit_test(few_rows_stream),
        cmocka_unit_test(half_blocks_wait_for_whole_ones),
        cmocka_unit_test(sums_take_turns_in_the_memory),
        cmocka_unit_test(few_rows_share_tiles),
        cmocka_unit_test(clusters_are_whole),
        cmocka_unit_test(a_pool_that_leaves_no_cluster_is_refused),
        cmocka_unit_test(a_blas_has_no_waves),
        cmocka_unit_test(sums_await_their_turn_on_an_emulated_link),
        cmocka_unit_test(a_vendor_exchanges_groups_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
