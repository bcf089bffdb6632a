/* How many CTAs fit on an SM, and how many may wait for others: by counting them out. */
#include <stddef.h>

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/occupancy.h"

enum { MOST_SMS = 4, MOST_BESIDE = 2 };

/* Compute capability 9.0 and 8.0. */
static const ewx_sm_resources hopper = {65536, 233472, 2048, 32};
static const ewx_sm_resources ampere = {65536, 167936, 2048, 32};

static ewx_sm_resources cta(ewx_kernel_needs needs)
{
    return ewx_cta_resources(needs, EWX_RESERVED_SHARED);
}

static void assert_fits(const ewx_sm_resources *sm, ew_kernel kernel, int block_n,
                        int gemms, int beside_128, int beside_256, int beside_512)
{
    const ewx_sm_resources nothing = {0}, gemm = cta(ewx_gemm_needs(kernel, block_n));
    const int beside[] = {beside_128, beside_256, beside_512};
    assert_int_equal(ewx_fits(sm, &nothing, 0, &gemm), gemms);
    for (int i = 0; i < 3; i++) {
        const ewx_sm_resources reducer = cta(ewx_reducer_needs(128 << i));
        assert_int_equal(ewx_fits(sm, &gemm, gemms, &reducer), beside[i]);
    }
}

/* The rooms that docs/DESIGN.md counts on. */
static void test_our_kernels(void **state)
{
    (void)state;
    assert_fits(&hopper, EW_KERNEL_SM90, 256, 1, 2, 1, 1);
    assert_fits(&hopper, EW_KERNEL_SM90, 128, 2, 1, 1, 1);
    assert_fits(&hopper, EW_KERNEL_SM80, 256, 1, 1, 0, 0);
    assert_fits(&hopper, EW_KERNEL_SM80, 128, 2, 0, 0, 0);
    assert_fits(&ampere, EW_KERNEL_SM80, 256, 1, 1, 0, 0);
    assert_fits(&ampere, EW_KERNEL_SM80, 128, 2, 0, 0, 0);
}

static void test_every_resource_binds(void **state)
{
    (void)state;
    const ewx_sm_resources sm = {1000, 1000, 1000, 10}, nothing = {0};
    const ewx_sm_resources kinds[] = {
        {400, 1, 1, 1}, {1, 400, 1, 1}, {1, 1, 400, 1}, {1, 1, 1, 1}};
    const int alone[] = {2, 2, 2, 10}, beside_two[] = {0, 0, 0, 8};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ewx_fits(&sm, &nothing, 0, &kinds[i]), alone[i]);
        assert_int_equal(ewx_fits(&sm, &kinds[i], 2, &kinds[i]), beside_two[i]);
        assert_int_equal(ewx_fits(&sm, &kinds[i], 20, &kinds[i]), 0);
    }
}

static void test_units(void **state)
{
    (void)state;
    const ewx_sm_resources taken = ewx_cta_resources((ewx_kernel_needs){33, 9, 129}, 1024);
    assert_int_equal(taken.registers, 2 * 512);
    assert_int_equal(taken.shared_bytes, 1024 + 256);
    assert_int_equal(taken.threads, 64);
    assert_int_equal(taken.ctas, 1);
}

/* Whether some way to lay `left` waiters on the SMs from `sm` on leaves none of them room
 * for an awaited CTA. */
static bool can_block(int sm, int sms, int left, int beside)
{
    if (sm == sms)
        return true;
    for (int here = beside + 1; here <= left; here++)
        if (can_block(sm + 1, sms, left - here, beside))
            return true;
    return false;
}

static void test_waiters_leave_room(void **state)
{
    (void)state;
    for (int sms = 2; sms <= MOST_SMS; sms++)
        for (int beside = 0; beside <= MOST_BESIDE; beside++) {
            const int most = ewx_most_waiters(beside, sms, 1);
            assert_false(can_block(0, sms, most, beside));
            if (beside == 0) /* and it is the most */
                assert_true(can_block(0, sms, most + 1, beside));
        }
    assert_int_equal(ewx_most_waiters(0, 16, 2), 7); /* each may cost a cluster */
    assert_int_equal(ewx_most_waiters(0, 1, 1), 1);  /* x is at least 1 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_our_kernels),
        cmocka_unit_test(test_every_resource_binds),
        cmocka_unit_test(test_units),
        cmocka_unit_test(test_waiters_leave_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
