/* Config as text and back, and which configs are chosen, kept or refused.  All pure
 * functions, so no ranks are started. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"
#include "plan/spec.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static const ewx_machine eight_cores = {.cores = 8};

/* ---- Config as text ---- */

static void expect_same_config(const ew_config *a, const ew_config *b, const char *text)
{
    if (memcmp(a, b, sizeof *a) != 0)
        fail_msg("not the same config after a round trip: %s", text);
}

static void every_key_round_trips(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "backend=cpu",
        "backend=cuda",
        "backend=sim",
        "producer=own",
        "producer=blas",
        "block=128x256",
        "block=2147483520x128",
        "order=interleaved",
        "order=default",
        "order=contiguous",
        "group=3",
        "release=tile",
        "release=7",
        "release=partition",
        "release=output",
        "x=1",
        "x=2147483647",
        "b=12",
        "pool=shared",
        "pool=static",
        "pool=after",
        "transport=pull",
        "transport=push",
        "transport=copy",
        "transport=add",
        "transport=tma-add",
        "release=16,first=4,last=8",
        "launches=unit",
        "workers=64",
        "kernel=sm80",
        "kernel=sm90",
        "ctas=persistent",
        "ctas=block",
        "cluster=2",
        "launches=once",
        "levels=1",
        "levels=2",
        "epilogue=fused",
        "epilogue=after",
        "epilogue=separate",
        "shots=1",
        "shots=2",
        "invariant=8",
        "backend=cpu,producer=own,block=128x256,order=interleaved,group=1,release=tile,x=2,"
        "b=1,pool=shared,transport=pull,workers=2",
        "backend=cuda,producer=own,block=128x256,order=interleaved,group=1,release=tile,"
        "x=16,b=256,pool=shared,transport=pull,workers=1,kernel=sm90,ctas=persistent,"
        "cluster=2,launches=once",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        ew_config config = EW_CONFIG_INIT, again = EW_CONFIG_INIT;
        char printed[EW_CONFIG_TEXT_BYTES];
        assert_int_equal(ew_config_parse(texts[i], &config), EW_OK);
        assert_int_equal(ew_config_print(&config, printed, sizeof printed), EW_OK);
        assert_string_equal(printed, texts[i]);
        assert_int_equal(ew_config_parse(printed, &again), EW_OK);
        expect_same_config(&config, &again, texts[i]);
    }
}

static void parsing_means_what_it_says(void **state)
{
    (void)state;
    ew_config config = EW_CONFIG_INIT;
    assert_int_equal(ew_config_parse("workers=5,x=3,b=2,release=output,block=256x384,"
                                     "group=4,order=contiguous,pool=static,transport=push,"
                                     "producer=blas,backend=sim,cluster=6,ctas=block,"
                                     "kernel=sm90,launches=unit",
                                     &config),
                     EW_OK);
    assert_int_equal(config.struct_size, sizeof config);
    assert_int_equal(config.workers, 5);
    assert_int_equal(config.budget, 3);
    assert_int_equal(config.batch, 2);
    assert_int_equal(config.release, EW_RELEASE_OUTPUT);
    assert_int_equal(config.block_m, 256);
    assert_int_equal(config.block_n, 384);
    assert_int_equal(config.group, 4);
    assert_int_equal(config.order, EW_ORDER_CONTIGUOUS);
    assert_int_equal(config.pool, EW_POOL_STATIC);
    assert_int_equal(config.transport, EW_TRANSPORT_PUSH);
    assert_int_equal(config.producer, EW_PRODUCER_BLAS);
    assert_int_equal(config.backend, EW_BACKEND_SIM);
    assert_int_equal(config.kernel, EW_KERNEL_SM90);
    assert_int_equal(config.ctas, EW_CTAS_BLOCK);
    assert_int_equal(config.cluster, 6);
    assert_int_equal(config.launches, EW_LAUNCHES_UNIT);
    assert_int_equal(ew_config_parse("block=autox384", &config), EW_OK);
    assert_int_equal(config.block_m, 0); /* open */
    assert_int_equal(config.block_n, 384);
    assert_int_equal(ew_config_parse("pool=after", &config), EW_OK);
    assert_int_equal(config.pool, EW_POOL_AFTER);
    assert_int_equal(ew_config_parse("release=tile", &config), EW_OK);
    assert_int_equal(config.release, 1);
    assert_int_equal(config.workers, 0); /* open */
    assert_int_equal(ew_config_parse("invariant=8", &config), EW_OK);
    assert_int_equal(config.invariant, 8);
    assert_int_equal(ew_config_parse("invariant=off", &config), EW_OK);
    assert_int_equal(config.invariant, 0);
    assert_int_equal(ew_config_parse("invariant=0", &config), EW_OK);
    assert_int_equal(config.invariant, 0);
}

static int32_t random_count(harness_random *random)
{
    return (int32_t)harness_between(random, 1,
                                    ((int64_t)1 << harness_between(random, 1, 31)) - 1);
}

static ew_config random_config(harness_random *random)
{
    ew_config config = EW_CONFIG_INIT;
    config.backend = (ew_backend)harness_between(random, 0, 3);
    config.producer = (ew_producer)harness_between(random, 0, 2);
    config.order = (ew_order)harness_between(random, 0, 3);
    config.pool = (ew_pool)harness_between(random, 0, 3);
    config.transport = (ew_transport)harness_between(random, 0, 5);
    config.kernel = (ew_kernel)harness_between(random, 0, 2);
    config.ctas = (ew_ctas)harness_between(random, 0, 2);
    config.launches = (ew_launches)harness_between(random, 0, 2);
    int32_t *const counts[] = {&config.block_m,       &config.group,       &config.budget,
                               &config.batch,         &config.workers,     &config.cluster,
                               &config.release_first, &config.release_last};
    for (size_t i = 0; i < COUNT(counts); i++)
        if (harness_between(random, 0, 2) > 0)
            *counts[i] = random_count(random);
    if (harness_between(random, 0, 2) > 0)
        config.block_n = random_count(random);
    if (harness_between(random, 0, 2) > 0)
        config.release = (int32_t)harness_between(random, -2, 4);
    return config;
}

static void random_configs_round_trip(void **state)
{
    (void)state;
    harness_random random = harness_seed(3);
    for (int i = 0; i < 20000; i++) {
        const ew_config config = random_config(&random);
        ew_config again = EW_CONFIG_INIT;
        char text[EW_CONFIG_TEXT_BYTES];
        assert_int_equal(ew_config_print(&config, text, sizeof text), EW_OK);
        if (ew_config_parse(text, &again) != EW_OK)
            fail_msg("%s: %s", text, ew_last_error());
        expect_same_config(&config, &again, text);
    }
}

static void the_longest_text_fits(void **state)
{
    (void)state;
    static const char longest[] =
        "backend=cuda,producer=blas,block=2147483647x2147483647,order=interleaved,"
        "group=2147483647,release=2147483647,first=2147483647,last=2147483647,"
        "x=2147483647,b=2147483647,pool=shared,transport=pull,"
        "workers=2147483647,kernel=sm90,ctas=persistent,cluster=2147483647,"
        "launches=once,levels=2,epilogue=separate,shots=2,invariant=2147483647";
    ew_config config = EW_CONFIG_INIT;
    char text[EW_CONFIG_TEXT_BYTES];
    assert_int_equal(ew_config_parse(longest, &config), EW_OK);
    assert_int_equal(ew_config_print(&config, text, sizeof text), EW_OK);
    assert_string_equal(text, longest);
}

static void printing_needs_room(void **state)
{
    (void)state;
    ew_config config = EW_CONFIG_INIT;
    char text[32];
    assert_int_equal(ew_config_parse("order=interleaved", &config), EW_OK);
    assert_int_equal(ew_config_print(&config, text, 18), EW_OK);
    for (size_t bytes = 0; bytes < 18; bytes++) {
        memset(text, '#', sizeof text);
        harness_expect_error(ew_config_print(&config, text, bytes), EW_ERR_ARGUMENT, NULL,
                             "print");
        assert_int_equal(text[bytes], '#'); /* nothing beyond the buffer */
    }
}

static void wrong_texts_are_refused_with_a_fix(void **state)
{
    (void)state;
    static const struct {
        const char *text, *value;
    } wrong[] = {
        {"x", "'x'"},
        {"x=", "x="},
        {"x=1,x=2", "'x' is given twice, the second time as 'x=2'"},
        {"x=1,b=2,x=1", "'x' is given twice"},
        {"block=128x128,release=tile,block=128x256", "'block' is given twice"},
        {"x=0", "x=0"},
        {"x=-1", "x=-1"},
        {"x=+1", "x=+1"},
        {"x= 1", "x= 1"},
        {"x=1 ", "x=1 "},
        {"x=1.5", "x=1.5"},
        {"x=2147483648", "x=2147483648"},
        {"x=99999999999999999999", "x=99999999999999999999"},
        {"x=0x10", "x=0x10"},
        {"x=two", "x=two"},
        {"X=1", "'X'"},
        {"y=1", "'y'"},
        {"=1", "''"},
        {"order=Interleaved", "order=Interleaved"},
        {"order=interleave", "order=interleave"},
        {"order=interleavedd", "order=interleavedd"},
        {"order=1", "order=1"},
        {"order=", "order="},
        {"block=128", "block=128"},
        {"block=128x", "block=128x"},
        {"block=x128", "block=x128"},
        {"block=128x256x32", "block=128x256x32"},
        {"block=128*256", "block=128*256"},
        {"block=0x128", "block=0x128"},
        {"block=128x0", "block=128x0"},
        {"block=128,x=256,b", "block=128"},
        {"release=0", "release=0"},
        {"release=-1", "release=-1"},
        {"release=tiles", "release=tiles"},
        {"pool=dynamic", "pool=dynamic"},
        {"kernel=sm100", "kernel=sm100"},
        {"kernel=90", "kernel=90"},
        {"ctas=2", "ctas=2"},
        {"ctas=blocks", "ctas=blocks"},
        {"cluster=0", "cluster=0"},
        {"cluster=two", "cluster=two"},
        {"transport=tcp", "transport=tcp"},
        {"backend=gpu", "backend=gpu"},
        {"producer=mkl", "producer=mkl"},
        {"workers=many", "workers=many"},
        {"x=1,", NULL},
        {",", "''"},
        {",x=1", "''"},
        {"x=1,,b=1", "''"},
        {"x=1;b=1", "x=1;b=1"},
        {"x==1", "x==1"},
        {"x=1,order=sideways,b=2", "order=sideways"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        ew_config config = EW_CONFIG_INIT;
        config.workers = 77;
        harness_expect_error(ew_config_parse(wrong[i].text, &config), EW_ERR_CONFIG,
                             wrong[i].value, wrong[i].text);
        assert_int_equal(config.workers, 77); /* written on success only */
    }
}

/* However long the offending value is, the fix must not be cut off. */
static void long_texts_keep_their_fix(void **state)
{
    (void)state;
    static const char *const heads[] = {"", "x=", "order=", "block=128x"};
    enum { LENGTH = 5000 };
    for (size_t i = 0; i < COUNT(heads); i++)
        for (int with_equals = 0; with_equals < 2; with_equals++) {
            char text[LENGTH + 16];
            memset(text, 'q', sizeof text);
            memcpy(text, heads[i], strlen(heads[i]));
            if (with_equals)
                text[LENGTH / 2] = '=';
            text[LENGTH] = '\0';
            ew_config config = EW_CONFIG_INIT;
            harness_expect_error(ew_config_parse(text, &config), EW_ERR_CONFIG, "qqqq",
                                 heads[i]);
        }
}

/* Random bytes: refused with a message or accepted, and then printable. */
static void random_texts_do_no_harm(void **state)
{
    (void)state;
    static const char alphabet[] = "abxob=,=,1208-+ \tworkerslcdtp";
    harness_random random = harness_seed(17);
    for (int i = 0; i < 200000; i++) {
        char text[40], printed[EW_CONFIG_TEXT_BYTES];
        const int64_t length = harness_between(&random, 0, sizeof text - 1);
        for (int64_t at = 0; at < length; at++)
            text[at] = alphabet[harness_between(&random, 0, sizeof alphabet - 2)];
        text[length] = '\0';
        ew_config config = EW_CONFIG_INIT, again = EW_CONFIG_INIT;
        const ew_status status = ew_config_parse(text, &config);
        if (status != EW_OK) {
            harness_expect_error(status, EW_ERR_CONFIG, NULL, text);
            continue;
        }
        assert_int_equal(ew_config_print(&config, printed, sizeof printed), EW_OK);
        assert_int_equal(ew_config_parse(printed, &again), EW_OK);
        expect_same_config(&config, &again, text);
    }
}

/* ---- Choosing and checking a config ---- */

static void open_fields_are_all_chosen(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(1000, 1000, 100, EW_FP32);
    for (int W = 1; W <= 8; W *= 2)
        for (int cores = 1; cores <= 64; cores *= 4) {
            ewx_spec spec;
            assert_int_equal(
                ewx_spec_build(&problem, W, NULL, &(ewx_machine){.cores = cores}, &spec),
                EW_OK);
            const ew_config *c = &spec.config;
            assert_true(c->backend && c->producer && c->order && c->pool && c->transport);
            assert_true(c->block_m > 0 && c->block_n > 0 && c->group > 0 && c->release);
            assert_true(c->budget > 0 && c->batch > 0 && c->workers > 0);
            assert_true(c->workers == 1 || c->workers * W <= cores);
            assert_true(!c->kernel && !c->ctas && !c->cluster); /* cuda only */
        }
}

/* Where the kernel likes large blocks, and as long as every worker has several. */
static void blocks_are_large_where_that_pays(void **state)
{
    (void)state;
    const ewx_machine machine = {.cores = 4, .cpu_block = {[EW_BF16] = 256}};
    static const struct {
        int64_t m, n;
        ew_dtype dtype;
        int W;
        const char *request;
        int32_t block_m;
    } cases[] = {
        {2048, 4096, EW_BF16, 1, "", 256}, {2048, 4096, EW_FP32, 1, "", 128},
        {2048, 4096, EW_BF16, 8, "", 256}, {2047, 4096, EW_BF16, 8, "", 128},
        {1024, 1024, EW_BF16, 1, "", 256}, {1024, 512, EW_BF16, 1, "", 128},
        {1, 4096, EW_BF16, 1, "", 128},    {2048, 4096, EW_BF16, 1, "block=128x512", 128},
        {2048, 4096, EW_FP16, 1, "", 128},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const ew_problem problem = EW_PROBLEM(cases[i].m, cases[i].n, 1024, cases[i].dtype);
        ew_config request = EW_CONFIG_INIT;
        ewx_spec spec;
        if (*cases[i].request)
            assert_int_equal(ew_config_parse(cases[i].request, &request), EW_OK);
        assert_int_equal(ewx_spec_build(&problem, cases[i].W, &request, &machine, &spec),
                         EW_OK);
        assert_int_equal(spec.config.block_m, cases[i].block_m);
        if (cases[i].block_m == 256)
            assert_int_equal(spec.config.block_n, 256);
    }
}

/* What crowds the cache are panels as the machine's kernel packs them: a type may be
 * packed as it is, or in fp32. */
static void blocks_are_wide_where_packed_panels_crowd(void **state)
{
    const ewx_machine packs_halves = {.cores = 2};
    const ewx_machine packs_fp32 = {
        .cores = 2,
        .cpu_packs = {[EW_FP32] = EW_FP32, [EW_BF16] = EW_FP32, [EW_FP16] = EW_FP32}};
    static const struct {
        int64_t k;
        ew_dtype dtype;
        int32_t halves, fp32;
    } cases[] = {
        {384, EW_FP32, 256, 256},   {385, EW_FP32, 1024, 1024}, {384, EW_BF16, 256, 256},
        {385, EW_BF16, 256, 1024},  {385, EW_FP16, 256, 1024},  {768, EW_FP16, 256, 1024},
        {769, EW_BF16, 1024, 1024},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const ew_problem problem = EW_PROBLEM(2048, 2048, cases[i].k, cases[i].dtype);
        ewx_spec spec;
        assert_int_equal(ewx_spec_build(&problem, 2, NULL, &packs_halves, &spec), EW_OK);
        assert_int_equal(spec.config.block_n, cases[i].halves);
        assert_int_equal(ewx_spec_build(&problem, 2, NULL, &packs_fp32, &spec), EW_OK);
        assert_int_equal(spec.config.block_n, cases[i].fp32);
    }
}

/* Each field that is asked for is kept when all others are open. */
static void asked_fields_are_kept(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(1000, 1000, 100, EW_FP32);
    static const char *const asked[] = {
        "producer=blas", "block=256x384", "order=default",  "order=contiguous",
        "group=5",       "release=9",     "release=output", "x=3",
        "b=7",           "workers=6",
    };
    for (size_t i = 0; i < COUNT(asked); i++) {
        ew_config request = EW_CONFIG_INIT;
        ewx_spec spec;
        char text[EW_CONFIG_TEXT_BYTES + 2] = ",", item[64];
        assert_int_equal(ew_config_parse(asked[i], &request), EW_OK);
        assert_int_equal(ewx_spec_build(&problem, 2, &request, &eight_cores, &spec), EW_OK);
        assert_int_equal(ew_config_print(&spec.config, text + 1, EW_CONFIG_TEXT_BYTES),
                         EW_OK);
        strcat(text, ",");
        snprintf(item, sizeof item, ",%s,", asked[i]);
        if (!strstr(text, item))
            fail_msg("%s was asked for, %s was chosen", asked[i], text);
    }
}

/* Without early release the plain GEMM order serves, unless another is asked for. */
static void late_release_takes_the_default_order(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(1000, 1000, 100, EW_FP32);
    static const struct {
        const char *asked;
        ew_order order;
    } cases[] = {{"release=output", EW_ORDER_DEFAULT},
                 {"producer=blas", EW_ORDER_DEFAULT},
                 {"release=partition", EW_ORDER_INTERLEAVED},
                 {"release=output,order=interleaved", EW_ORDER_INTERLEAVED}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        ew_config request = EW_CONFIG_INIT;
        ewx_spec spec;
        assert_int_equal(ew_config_parse(cases[i].asked, &request), EW_OK);
        assert_int_equal(ewx_spec_build(&problem, 2, &request, &eight_cores, &spec), EW_OK);
        assert_int_equal(spec.config.order, cases[i].order);
    }
}

/* "Zero in any field means choose for me": also in one of the block's two. */
static void half_a_block_is_completed(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(1000, 1000, 100, EW_FP32);
    ewx_spec spec;
    ew_config request = EW_CONFIG_INIT;
    request.block_m = 256;
    assert_int_equal(ewx_spec_build(&problem, 2, &request, &eight_cores, &spec), EW_OK);
    assert_int_equal(spec.config.block_m, 256);
    assert_true(spec.config.block_n > 0);
    request.block_m = 0;
    request.block_n = 512;
    assert_int_equal(ewx_spec_build(&problem, 2, &request, &eight_cores, &spec), EW_OK);
    assert_int_equal(spec.config.block_n, 512);
    assert_true(spec.config.block_m > 0);
}

static void expect_config_refused(const ew_config *request, const char *what)
{
    const ew_problem problem = EW_PROBLEM(1000, 1000, 100, EW_FP32);
    ew_forecast forecast;
    const ew_status status = ew_forecast_build(&problem, 2, request, &forecast);
    if (status != EW_ERR_CONFIG && status != EW_ERR_UNSUPPORTED)
        fail_msg("%s: got %s", what, ew_status_name(status));
    if (!strstr(ew_last_error(), "fix: "))
        fail_msg("%s: no fix: %s", what, ew_last_error());
}

static void impossible_configs_are_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "block=64x128",
        "block=128x100",
        "block=129x128",
        "workers=1025",
        "pool=static,x=1,workers=1",
        "pool=static,x=4,workers=4",
        "producer=blas,release=tile",
        "backend=cuda",
        "backend=sim",
        "transport=push",
        "pool=after",
        "kernel=sm90",
        "ctas=block",
        "cluster=1",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        ew_config request = EW_CONFIG_INIT;
        assert_int_equal(ew_config_parse(texts[i], &request), EW_OK);
        expect_config_refused(&request, texts[i]);
    }
    int32_t values[] = {-1, INT32_MIN};
    for (size_t i = 0; i < COUNT(values); i++)
        for (int field = 0; field < 6; field++) {
            ew_config request = EW_CONFIG_INIT;
            int32_t *const fields[] = {&request.block_m, &request.block_n,
                                       &request.group,   &request.budget,
                                       &request.batch,   &request.workers};
            request.block_m = request.block_n = 128;
            *fields[field] = values[i];
            expect_config_refused(&request, "a negative field");
        }
    ew_config request = EW_CONFIG_INIT;
    request.release = -3;
    expect_config_refused(&request, "release=-3");
    /* x is at least 1, so with one worker only more of them help. */
    assert_int_equal(ew_config_parse("pool=static,workers=1", &request), EW_OK);
    expect_config_refused(&request, "pool=static,workers=1");
    assert_non_null(strstr(ew_last_error(), "fix: use more workers than x"));
}

/* A C caller can put any number into an enum field. */
static void unknown_enum_values_are_refused(void **state)
{
    (void)state;
    static const int unknown[] = {-1, 9, 1000};
    for (size_t i = 0; i < COUNT(unknown); i++)
        for (int field = 0; field < 5; field++) {
            static const char *const names[] = {"backend", "producer", "order", "pool",
                                                "transport"};
            ew_config request = EW_CONFIG_INIT;
            void *const fields[] = {&request.backend, &request.producer, &request.order,
                                    &request.pool, &request.transport};
            memcpy(fields[field], &unknown[i], sizeof(int));
            expect_config_refused(&request, names[field]);
        }
}

/* More consumers than tiles or workers do no harm, and cost next to nothing. */
static void huge_budgets_cost_no_memory(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(1000, 1000, 100, EW_FP32);
    ew_config request = EW_CONFIG_INIT;
    ew_forecast small, large;
    request.budget = 1;
    assert_int_equal(ew_forecast_build(&problem, 2, &request, &small), EW_OK);
    request.budget = INT32_MAX;
    const ew_status status = ew_forecast_build(&problem, 2, &request, &large);
    if (status == EW_ERR_CONFIG)
        return; /* a refusal is as good */
    assert_int_equal(status, EW_OK);
    assert_true(large.total_bytes < small.total_bytes + (1 << 20));
}

static void uninitialised_structs_are_refused(void **state)
{
    (void)state;
    ew_problem problem = {0};
    ew_forecast forecast;
    harness_expect_error(ew_forecast_build(&problem, 2, NULL, &forecast), EW_ERR_ARGUMENT,
                         NULL, "problem");
    harness_expect_error(ew_forecast_build(NULL, 2, NULL, &forecast), EW_ERR_ARGUMENT, NULL,
                         "NULL");
    const ew_problem good = EW_PROBLEM(1, 1, 1, EW_FP32);
    const ew_config config = {0};
    harness_expect_error(ew_forecast_build(&good, 2, &config, &forecast), EW_ERR_ARGUMENT,
                         NULL, "config");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_round_trips),
        cmocka_unit_test(parsing_means_what_it_says),
        cmocka_unit_test(random_configs_round_trip),
        cmocka_unit_test(the_longest_text_fits),
        cmocka_unit_test(printing_needs_room),
        cmocka_unit_test(wrong_texts_are_refused_with_a_fix),
        cmocka_unit_test(long_texts_keep_their_fix),
        cmocka_unit_test(random_texts_do_no_harm),
        cmocka_unit_test(open_fields_are_all_chosen),
        cmocka_unit_test(blocks_are_large_where_that_pays),
        cmocka_unit_test(blocks_are_wide_where_packed_panels_crowd),
        cmocka_unit_test(asked_fields_are_kept),
        cmocka_unit_test(late_release_takes_the_default_order),
        cmocka_unit_test(half_a_block_is_completed),
        cmocka_unit_test(impossible_configs_are_refused),
        cmocka_unit_test(unknown_enum_values_are_refused),
        cmocka_unit_test(huge_budgets_cost_no_memory),
        cmocka_unit_test(uninitialised_structs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
