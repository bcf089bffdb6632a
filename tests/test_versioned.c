/* Structs of other releases: what is taken from a caller, and how much is written for one.
 */
#include "faultkit.h"
#include "harness.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/versioned.h"

/* One struct in three releases. */
typedef struct first_release {
    uint32_t struct_size;
    int32_t a;
    double b;
} first_release;

typedef struct second_release {
    uint32_t struct_size;
    int32_t a;
    double b, c;
} second_release;

typedef struct third_release {
    uint32_t struct_size;
    int32_t a;
    double b, c, d;
} third_release;

static const third_release full = {sizeof full, 1, 2.0, 3.0, 4.0};

static ew_status take(void *mine, size_t bytes, const void *theirs)
{
    return ewx_struct_take(mine, bytes, theirs, sizeof(first_release), "the thing",
                           "THING_INIT");
}

static void older_programs_have_zeroes_for_the_rest(void **state)
{
    (void)state;
    const first_release first = {sizeof first, 1, 2.0};
    const second_release second = {sizeof second, 1, 2.0, 3.0};
    third_release mine;
    memset(&mine, 0xa5, sizeof mine);
    assert_int_equal(take(&mine, sizeof mine, &first), EW_OK);
    assert_true(mine.a == 1 && mine.b == 2.0 && mine.c == 0.0 && mine.d == 0.0);
    assert_int_equal(mine.struct_size, sizeof mine);
    memset(&mine, 0xa5, sizeof mine);
    assert_int_equal(take(&mine, sizeof mine, &second), EW_OK);
    assert_true(mine.c == 3.0 && mine.d == 0.0);
    assert_int_equal(take(&mine, sizeof mine, &full), EW_OK);
    assert_memory_equal(&mine, &full, sizeof full);
}

static void newer_programs_may_not_use_what_is_unknown(void **state)
{
    (void)state;
    third_release theirs = full;
    second_release mine = {.a = 7};
    harness_expect_error(take(&mine, sizeof mine, &theirs), EW_ERR_ARGUMENT, "the thing",
                         "a field of a later release");
    assert_true(error_has(ew_version(), "fix:", NULL));
    assert_int_equal(mine.a, 7);
    theirs.d = 0.0;
    assert_int_equal(take(&mine, sizeof mine, &theirs), EW_OK);
    assert_true(mine.a == 1 && mine.c == 3.0);
    assert_int_equal(mine.struct_size, sizeof mine);
}

static void what_was_not_initialised_is_refused(void **state)
{
    static const uint32_t sizes[] = {0, 4, sizeof(first_release) - 1, 1 << 20, UINT32_MAX};
    (void)state;
    third_release mine;
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        third_release theirs = full;
        theirs.struct_size = sizes[at];
        assert_int_equal(take(&mine, sizeof mine, &theirs), EW_ERR_ARGUMENT);
        assert_true(error_has("not initialised", "THING_INIT", NULL));
    }
    assert_int_equal(take(&mine, sizeof mine, NULL), EW_ERR_ARGUMENT);
}

/* Writes to a caller of so many bytes, and looks behind them. */
static void expect_written(uint32_t struct_size, size_t wanted)
{
    unsigned char theirs[2 * sizeof full];
    memset(theirs, 0xa5, sizeof theirs);
    memcpy(theirs, &struct_size, sizeof struct_size);
    ewx_struct_give(theirs, sizeof(first_release), &full, sizeof full);
    uint32_t told;
    memcpy(&told, theirs, sizeof told);
    assert_int_equal(told, wanted);
    assert_memory_equal(theirs + sizeof told, (const char *)&full + sizeof told,
                        wanted - sizeof told);
    for (size_t at = wanted; at < sizeof theirs; at++)
        assert_int_equal(theirs[at], 0xa5);
}

static void no_caller_gets_more_than_it_has_room_for(void **state)
{
    enum { MOST_GROWTH = 4096 }; /* as versioned.c has it */
    (void)state;
    expect_written(sizeof(third_release) + sizeof(double), sizeof(third_release));
    expect_written(sizeof(third_release) + MOST_GROWTH, sizeof(third_release));
    expect_written(sizeof(third_release) + MOST_GROWTH + 1, sizeof(first_release));
    expect_written(sizeof(first_release), sizeof(first_release));
    expect_written(sizeof(second_release), sizeof(second_release));
    expect_written(sizeof(third_release), sizeof(third_release));
    expect_written(0, sizeof(first_release)); /* not initialised */
    expect_written(0xa5a5a5a5, sizeof(first_release));
}

/* ---- The interface ---- */

typedef struct newer_config {
    ew_config known;
    int64_t added;
} newer_config;

static void plans_of_newer_programs(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(64, 64, 64, EW_FP32);
    newer_config newer = {EW_CONFIG_INIT, 0};
    ew_forecast forecast;
    char text[EW_CONFIG_TEXT_BYTES];
    newer.known.struct_size = sizeof newer;
    newer.known.block_n = 256;
    newer.known.block_m = 128;
    assert_int_equal(ew_forecast_build(&problem, 2, &newer.known, &forecast), EW_OK);
    assert_int_equal(forecast.config.struct_size, sizeof(ew_config));
    assert_int_equal(forecast.config.block_n, 256);
    assert_int_equal(ew_config_print(&newer.known, text, sizeof text), EW_OK);
    assert_int_equal(ew_config_parse("shots=2,invariant=8", &newer.known), EW_OK);
    assert_int_equal(newer.known.struct_size, sizeof(ew_config));
    assert_int_equal(newer.known.invariant, 8);
    newer.known.struct_size = sizeof newer;
    newer.added = 1;
    assert_int_equal(ew_forecast_build(&problem, 2, &newer.known, &forecast),
                     EW_ERR_ARGUMENT);
    assert_true(error_has("the config", ew_version(), "fix:", NULL));
    assert_int_equal(ew_config_print(&newer.known, text, sizeof text), EW_ERR_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(older_programs_have_zeroes_for_the_rest),
        cmocka_unit_test(newer_programs_may_not_use_what_is_unknown),
        cmocka_unit_test(what_was_not_initialised_is_refused),
        cmocka_unit_test(no_caller_gets_more_than_it_has_room_for),
        cmocka_unit_test(plans_of_newer_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
