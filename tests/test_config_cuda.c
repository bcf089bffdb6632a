/* Which configs are chosen, kept or refused for a GPU, and what the methods stand for
 * there. Machines are data, so no GPU is needed. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"
#include "plan/policy.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static const ewx_machine eight_cores = {.cores = 8};

#define OWN_CUDA "backend=cuda,producer=own,"
#define SM90(cluster)                                                                    \
    "transport=pull,workers=1,kernel=sm90,ctas=persistent,cluster=" cluster ",launches=" \
    "once"
#define SM80 "transport=pull,workers=1,kernel=sm80,ctas=block,cluster=1,launches=once"

/* What is chosen for 8192 x 8192 x 2048 in bf16. */
static void cuda_choices(void **state)
{
    (void)state;
    static const struct {
        int W, sms, arch;
        const char *asked, *chosen;
    } cases[] = {
        {8, 16, 90, "",
         OWN_CUDA "block=128x256,order=interleaved,group=1,release=tile,x=16,b=256,"
                  "pool=shared," SM90("2")},
        {4, 32, 90, "",
         OWN_CUDA "block=128x256,order=interleaved,group=2,release=tile,x=32,b=256,"
                  "pool=shared," SM90("2")},
        {2, 64, 90, "",
         OWN_CUDA "block=128x256,order=interleaved,group=8,release=tile,x=64,b=256,"
                  "pool=shared," SM90("2")},
        {8, 132, 90, "",
         OWN_CUDA "block=128x256,order=interleaved,group=2,release=tile,x=132,b=256,"
                  "pool=shared," SM90("2")},
        {1, 132, 90, "block=128x128",
         OWN_CUDA "block=128x128,order=interleaved,group=16,release=tile,x=132,b=256,"
                  "pool=shared," SM90("1")},
        {4, 32, 90, "release=output",
         OWN_CUDA "block=128x256,order=interleaved,group=2,release=output,x=64,b=512,"
                  "pool=after," SM90("2")},
        {4, 32, 90, "pool=after",
         OWN_CUDA "block=128x256,order=interleaved,group=2,release=tile,x=64,b=512,"
                  "pool=after," SM90("2")},
        {4, 32, 90, "producer=blas",
         "backend=cuda,producer=blas,block=128x256,order=default,group=2,release=output,"
         "x=64,b=512,pool=after," SM90("2")},
        {8, 16, 90, "pool=static",
         OWN_CUDA "block=128x256,order=interleaved,group=1,release=tile,x=8,b=512,"
                  "pool=static," SM90("2")},
        {8, 16, 90, "launches=unit",
         OWN_CUDA "block=128x256,order=interleaved,group=1,release=8,x=16,b=256,"
                  "pool=shared,transport=pull,workers=1,kernel=sm90,ctas=persistent,"
                  "cluster=2,launches=unit"},
        {8, 16, 90, "transport=add",
         OWN_CUDA "block=128x256,order=interleaved,group=1,release=tile,x=16,b=256,"
                  "pool=shared,transport=add,workers=1,kernel=sm90,ctas=persistent,"
                  "cluster=2,launches=once"},
        {8, 16, 90, "transport=push",
         OWN_CUDA "block=128x256,order=interleaved,group=1,release=tile,x=16,b=256,"
                  "pool=shared,transport=push,workers=1,kernel=sm90,ctas=persistent,"
                  "cluster=2,launches=once"},
        {8, 16, 90, "transport=copy",
         OWN_CUDA "block=128x256,order=contiguous,group=8,release=partition,x=32,b=512,"
                  "pool=after,transport=copy,workers=1,kernel=sm90,ctas=persistent,"
                  "cluster=2,launches=once"},
        {8, 108, 80, "",
         OWN_CUDA "block=128x128,order=interleaved,group=1,release=tile,x=27,b=128,"
                  "pool=shared," SM80},
        {2, 3, 89, "order=contiguous",
         OWN_CUDA "block=128x128,order=contiguous,group=2,release=tile,x=1,b=128,"
                  "pool=shared," SM80},
        {2, 148, 100, "",
         OWN_CUDA "block=128x128,order=interleaved,group=8,release=tile,x=37,b=128,"
                  "pool=shared," SM80},
        {8, 0, 0, "", /* no GPU here: as for a whole H200 */
         OWN_CUDA "block=128x256,order=interleaved,group=2,release=tile,x=132,b=256,"
                  "pool=shared," SM90("2")},
    };
    const ew_problem problem = EW_PROBLEM(8192, 8192, 2048, EW_BF16);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const ewx_machine machine = {.cores = 16,
                                     .gpu_sms = cases[i].sms,
                                     .gpu_arch = cases[i].arch,
                                     .gpu_sharers = cases[i].W};
        ew_config request = EW_CONFIG_INIT, chosen = EW_CONFIG_INIT, again = EW_CONFIG_INIT;
        char text[EW_CONFIG_TEXT_BYTES];
        assert_int_equal(ew_config_parse(cases[i].asked, &request), EW_OK);
        request.backend = EW_BACKEND_CUDA;
        assert_int_equal(
            ewx_config_choose(&problem, cases[i].W, &request, &machine, &chosen), EW_OK);
        assert_int_equal(ew_config_print(&chosen, text, sizeof text), EW_OK);
        assert_string_equal(text, cases[i].chosen);
        /* Rank 0's choice is chosen again by every rank, whatever its GPU. */
        assert_int_equal(
            ewx_config_choose(&problem, cases[i].W, &chosen, &eight_cores, &again), EW_OK);
        assert_memory_equal(&chosen, &again, sizeof chosen);
    }
}

/* As few launches as a call may have, whatever the sizes of the first and last units. */
static void cuda_units_of_large_outputs(void **state)
{
    (void)state;
    static const char *const asked[] = {"launches=unit", "launches=unit,first=1",
                                        "launches=unit,first=1,last=1",
                                        "launches=unit,last=40000"};
    const ew_problem problem = EW_PROBLEM(65536, 65536, 2048, EW_BF16);
    const ewx_machine machine = {.cores = 16, .gpu_sms = 16, .gpu_arch = 90};
    for (size_t i = 0; i < COUNT(asked); i++) {
        ew_config request = EW_CONFIG_INIT, chosen = EW_CONFIG_INIT;
        assert_int_equal(ew_config_parse(asked[i], &request), EW_OK);
        request.backend = EW_BACKEND_CUDA;
        if (ewx_config_choose(&problem, 8, &request, &machine, &chosen) != EW_OK)
            fail_msg("%s: %s", asked[i], ew_last_error());
    }
}

/* Panels side by side, and movers, where rows are gathered: few panels of a narrow output,
 * for which the link is the limit, and always pairs of them.  Movers are on every other SM,
 * and on every one where tiles span owners and follow their rows: 1152 rows, of which each
 * rank has 144, but neither 1024 (a tile each) nor 512 (all tiles hold rows of two). */
static void cuda_widths_for_gathered_rows(void **state)
{
    (void)state;
    static const struct {
        int m, sms, n, group, budget;
    } cases[] = {{8192, 16, 1280, 2, 8},    {8192, 16, 7168, 8, 8},
                 {8192, 132, 1280, 26, 66}, {8192, 132, 7168, 4, 66},
                 {1152, 16, 7168, 8, 16},   {1024, 16, 7168, 8, 8},
                 {512, 16, 7168, 8, 8}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        const ewx_machine machine = {
            .cores = 16, .gpu_sms = cases[i].sms, .gpu_arch = 90, .gpu_sharers = 8};
        ew_problem problem = EW_PROBLEM(cases[i].m, cases[i].n, 8192, EW_BF16);
        ew_config request = EW_CONFIG_INIT, chosen = EW_CONFIG_INIT;
        problem.op = EW_OP_AG_GEMM;
        request.backend = EW_BACKEND_CUDA;
        assert_int_equal(ewx_config_choose(&problem, 8, &request, &machine, &chosen),
                         EW_OK);
        assert_int_equal(chosen.group, cases[i].group);
        assert_int_equal(chosen.budget, cases[i].budget);
    }
}

static void expect_cuda_refusal(const ew_problem *problem, int W, const ew_config *request,
                                ew_status status, const char *text)
{
    const ewx_machine machine = {
        .cores = 16, .gpu_sms = 16, .gpu_arch = 90, .gpu_sharers = 8};
    ewx_spec spec;
    harness_expect_error(ewx_spec_build(problem, W, request, &machine, &spec), status, text,
                         text);
}

static void impossible_cuda_configs_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *asked, *text;
        ew_status status;
    } cases[] = {
        {"transport=push,producer=blas", "fix: use transport=pull", EW_ERR_CONFIG},
        {"transport=copy,producer=blas", "fix: use transport=pull", EW_ERR_CONFIG},
        {"transport=copy,order=interleaved", "moves whole partitions", EW_ERR_CONFIG},
        {"transport=copy,release=tile", "moves whole partitions", EW_ERR_CONFIG},
        {"transport=copy,pool=shared", "moves whole partitions", EW_ERR_CONFIG},
        {"transport=add,producer=blas", "fix: use transport=pull", EW_ERR_CONFIG},
        {"transport=add,invariant=8", "adds in any order", EW_ERR_UNSUPPORTED},
        {"transport=tma-add,kernel=sm80", "tma-add needs kernel=sm90", EW_ERR_CONFIG},
        {"first=2", "config first=2 is the size", EW_ERR_CONFIG},
        {"release=partition,last=2", "fix: use release=2 or more", EW_ERR_CONFIG},
        {"launches=unit,release=2,last=1", "would launch 257 reducers", EW_ERR_CONFIG},
        {"launches=unit,release=2,last=1", "fix: use release=3 or more", EW_ERR_CONFIG},
        {"pool=static,ctas=block", "fix: use ctas=persistent", EW_ERR_CONFIG},
        {"launches=unit,release=1", "would launch 512 reducers", EW_ERR_CONFIG},
        {"launches=unit,release=1", "fix: use release=2 or more", EW_ERR_CONFIG},
        {"producer=blas,pool=shared", "fix: use pool=after", EW_ERR_CONFIG},
        {"producer=blas,release=tile", "fix: use release=output", EW_ERR_CONFIG},
        {"block=256x128", "block=256x128 has no kernel", EW_ERR_CONFIG},
        {"block=128x384", "fix: use block=128x128 or block=128x256", EW_ERR_CONFIG},
        {"block=128x100", "block columns=100", EW_ERR_CONFIG},
        {"cluster=3", "cluster=3", EW_ERR_CONFIG},
        {"cluster=2,kernel=sm80", "cluster=2 needs kernel=sm90", EW_ERR_CONFIG},
        {"b=1", "b=1 ", EW_ERR_CONFIG},
        {"b=384", "fix: use 128, 256 or 512", EW_ERR_CONFIG},
        {"x=65537", "x=65537", EW_ERR_CONFIG},
    };
    const ew_problem problem = EW_PROBLEM(8192, 8192, 2048, EW_FP16);
    ew_config request = EW_CONFIG_INIT;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(ew_config_parse(cases[i].asked, &request), EW_OK);
        request.backend = EW_BACKEND_CUDA;
        expect_cuda_refusal(&problem, 8, &request, cases[i].status, cases[i].text);
    }
}

static void adding_is_for_fp16_sums_with_sm80(void **state)
{
    (void)state;
    ew_problem other = EW_PROBLEM(8192, 8192, 2048, EW_BF16);
    ew_config request = EW_CONFIG_INIT;
    assert_int_equal(ew_config_parse("backend=cuda,kernel=sm80,transport=add", &request),
                     EW_OK);
    expect_cuda_refusal(&other, 8, &request, EW_ERR_UNSUPPORTED, "fix: use fp16");
    other.op = EW_OP_GEMM_AR;
    expect_cuda_refusal(&other, 8, &request, EW_ERR_UNSUPPORTED, "is for gemm-rs");
}

/* Which no text can ask for. */
static void impossible_numbers_are_refused(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(8192, 8192, 2048, EW_FP16);
    ew_config request = EW_CONFIG_INIT;
    assert_int_equal(ew_config_parse("backend=cuda", &request), EW_OK);
    request.release = 4;
    request.release_first = -1;
    expect_cuda_refusal(&problem, 8, &request, EW_ERR_CONFIG, "first=-1");
    request.release_first = 0;
    request.release_last = -2;
    expect_cuda_refusal(&problem, 8, &request, EW_ERR_CONFIG, "last=-2");
    request.release_first = 3;
    expect_cuda_refusal(&problem, 8, &request, EW_ERR_CONFIG, "last=-2");
    request.release = request.release_first = request.release_last = 0;
    request.kernel = (ew_kernel)3;
    expect_cuda_refusal(&problem, 8, &request, EW_ERR_CONFIG, "kernel=3");
    request.kernel = (ew_kernel)0;
    request.ctas = (ew_ctas)9;
    expect_cuda_refusal(&problem, 8, &request, EW_ERR_CONFIG, "ctas=9");
    request.ctas = (ew_ctas)0;
    request.launches = (ew_launches)3;
    expect_cuda_refusal(&problem, 8, &request, EW_ERR_CONFIG, "launches=3");
    request.launches = (ew_launches)0;
    request.cluster = -2;
    expect_cuda_refusal(&problem, 8, &request, EW_ERR_CONFIG, "cluster=-2");
}

/* A tile may have several readers, so that no producer knows where to write it. */
static void an_allreduce_only_pulls(void **state)
{
    (void)state;
    static const char *const moved[] = {"transport=push", "transport=push,release=output",
                                        "transport=copy"};
    ew_problem problem = EW_PROBLEM(8192, 8192, 2048, EW_BF16);
    ew_config request = EW_CONFIG_INIT;
    problem.op = EW_OP_GEMM_AR;
    for (size_t i = 0; i < COUNT(moved); i++) {
        assert_int_equal(ew_config_parse(moved[i], &request), EW_OK);
        request.backend = EW_BACKEND_CUDA;
        expect_cuda_refusal(&problem, 8, &request, EW_ERR_UNSUPPORTED,
                            "fix: use transport=pull");
    }
}

/* Where the GEMM waits for rows, they are pushed, and its CTAs are counted. */
static void cuda_choices_for_gathered_rows(void **state)
{
    (void)state;
    static const struct {
        const char *asked, *text;
    } refused[] = {{"transport=pull", "transport=pull is not implemented"},
                   {"launches=unit", "launches=unit is not implemented"},
                   {"release=4,first=2", "with ag-gemm"},
                   {"pool=static", "for ag-gemm"},
                   {"kernel=sm80,ctas=block", "ctas=block is not implemented"}};
    ew_problem problem = EW_PROBLEM(8192, 1280, 8192, EW_BF16);
    ew_config request = EW_CONFIG_INIT, chosen;
    problem.op = EW_OP_AG_GEMM;
    for (int arch = 80; arch <= 90; arch += 10) {
        const ewx_machine machine = {.cores = 16, .gpu_sms = 16, .gpu_arch = arch};
        for (int sequential = 0; sequential < 2; sequential++) {
            const char *asked = sequential ? "release=output" : "";
            assert_int_equal(ew_config_parse(asked, &request), EW_OK);
            request.backend = EW_BACKEND_CUDA;
            assert_int_equal(ewx_config_choose(&problem, 8, &request, &machine, &chosen),
                             EW_OK);
            assert_int_equal(chosen.transport, EW_TRANSPORT_PUSH);
            assert_int_equal(chosen.ctas, EW_CTAS_PERSISTENT);
            assert_int_equal(chosen.pool, sequential ? EW_POOL_AFTER : EW_POOL_SHARED);
        }
    }
    for (size_t i = 0; i < COUNT(refused); i++) {
        assert_int_equal(ew_config_parse(refused[i].asked, &request), EW_OK);
        request.backend = EW_BACKEND_CUDA;
        expect_cuda_refusal(&problem, 8, &request, EW_ERR_UNSUPPORTED, refused[i].text);
    }
    problem.n = 65536; /* no release makes launches few enough */
    assert_int_equal(ew_config_parse("backend=cuda,launches=unit,release=1", &request),
                     EW_OK);
    expect_cuda_refusal(&problem, 8, &request, EW_ERR_UNSUPPORTED,
                        "fix: leave launches out");
}

/* What copy engines move: a rank's rows, whole or in chunks, beside either GEMM. */
static void cuda_choices_for_copied_rows(void **state)
{
    (void)state;
    static const struct {
        const char *asked;
        int release, group;
    } chosen_for[] = {{"transport=copy", 8, 2},
                      {"transport=copy,release=partition", EW_RELEASE_PARTITION, 2},
                      {"transport=copy,release=2", 2, 2},
                      {"transport=copy,release=4", 4, 2},
                      {"transport=copy,release=output", EW_RELEASE_OUTPUT, 2},
                      {"transport=copy,producer=blas", EW_RELEASE_PARTITION, 2}};
    static const struct {
        const char *asked, *text;
    } refused[] = {
        {"transport=copy,pool=after", "fix: leave pool, x and b out"},
        {"transport=copy,x=2", "take no SM"},
        {"transport=copy,b=256", "take no SM"},
        {"transport=copy,producer=blas,release=output",
         "fix: use release=partition, or producer=own"},
        {"transport=copy,producer=blas,release=2", "when all of them are copied"},
        {"transport=copy,release=1", "config release=1 would take 224 copies"},
        {"transport=copy,release=1", "fix: use release=2 or more"}};
    ew_problem problem = EW_PROBLEM(32768, 1280, 8192, EW_BF16);
    ew_config request = EW_CONFIG_INIT;
    const ewx_machine machine = {.cores = 16, .gpu_sms = 16, .gpu_arch = 90};
    problem.op = EW_OP_AG_GEMM;
    for (size_t i = 0; i < COUNT(chosen_for); i++) {
        ewx_spec spec;
        assert_int_equal(ew_config_parse(chosen_for[i].asked, &request), EW_OK);
        request.backend = EW_BACKEND_CUDA;
        assert_int_equal(ewx_spec_build(&problem, 8, &request, &machine, &spec), EW_OK);
        assert_int_equal(spec.config.release, chosen_for[i].release);
        assert_int_equal(spec.config.group, chosen_for[i].group);
        assert_int_equal(spec.config.order, EW_ORDER_CONTIGUOUS);
        assert_int_equal(spec.config.pool, EW_POOL_SHARED);
        assert_int_equal(spec.config.budget, 1);
        /* The host, which does not count calls, says where a copy goes. */
        assert_int_equal(spec.layout.slice_offset[0], spec.layout.slice_offset[1]);
    }
    for (size_t i = 0; i < COUNT(refused); i++) {
        assert_int_equal(ew_config_parse(refused[i].asked, &request), EW_OK);
        request.backend = EW_BACKEND_CUDA;
        expect_cuda_refusal(&problem, 8, &request, EW_ERR_CONFIG, refused[i].text);
    }
}

static void impossible_cuda_problems_are_refused(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        ew_dtype dtype;
        ew_status status;
        const char *text;
    } cases[] = {
        {64, 64, 64, EW_FP32, EW_ERR_UNSUPPORTED, "computes in bf16 and fp16"},
        {64, 100, 64, EW_BF16, EW_ERR_SHAPE, "fix: use N=96 or N=104, or backend=cpu"},
        {64, 3, 64, EW_BF16, EW_ERR_SHAPE, "fix: use N=8, or backend=cpu"},
        {64, 64, 1023, EW_FP16, EW_ERR_SHAPE, "K=1023 is not a multiple of 8"},
        {(int64_t)1 << 31, 8, 8, EW_BF16, EW_ERR_SHAPE, "M=2147483648"},
        {8, (int64_t)1 << 31, 8, EW_BF16, EW_ERR_SHAPE, "N=2147483648"},
        {8, 8, (int64_t)1 << 31, EW_BF16, EW_ERR_SHAPE, "K=2147483648"},
        {(int64_t)1 << 20, 1 << 17, 8, EW_BF16, EW_ERR_SHAPE, "8388608 tiles"},
        {0x7fffffff, 0x7ffffff8, 8, EW_BF16, EW_ERR_SHAPE, "fix: make M or N smaller"},
    };
    ew_config request = EW_CONFIG_INIT;
    assert_int_equal(ew_config_parse("backend=cuda", &request), EW_OK);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const ew_problem problem =
            EW_PROBLEM(cases[i].m, cases[i].n, cases[i].k, cases[i].dtype);
        expect_cuda_refusal(&problem, 8, &request, cases[i].status, cases[i].text);
    }
    const ew_problem edges[] = {EW_PROBLEM(0, 8, 8, EW_BF16), EW_PROBLEM(1, 8, 8, EW_FP16),
                                EW_PROBLEM((1 << 20) - 1024, 1 << 17, 8, EW_BF16)};
    for (size_t i = 0; i < COUNT(edges); i++) {
        ewx_spec spec;
        assert_int_equal(ewx_spec_build(&edges[i], 8, &request, &eight_cores, &spec),
                         EW_OK);
    }
}

/* What belongs to a GPU is not passed over in silence on the CPU. */
static void cuda_keys_are_refused_on_the_cpu(void **state)
{
    (void)state;
    static const char *const keys[] = {"kernel=sm90", "ctas=block", "cluster=2",
                                       "launches=once", "pool=after"};
    const ew_problem problem = EW_PROBLEM(64, 64, 64, EW_BF16);
    for (size_t i = 0; i < COUNT(keys); i++) {
        ew_config request = EW_CONFIG_INIT;
        char text[64];
        snprintf(text, sizeof text, "%s is for the cuda backend", keys[i]);
        assert_int_equal(ew_config_parse(keys[i], &request), EW_OK);
        expect_cuda_refusal(&problem, 2, &request, EW_ERR_CONFIG, text);
    }
}

/* ---- Methods ---- */

static void methods_are_configs(void **state)
{
    (void)state;
    static const struct {
        const char *method, *base, *config;
    } cases[] = {
        {"entwine", "x=3", "producer=own,x=3"},
        {"entwine", "producer=blas", "producer=blas"},
        {"sequential", "producer=blas", "producer=own,release=output"},
        {"sequential", "x=3,order=contiguous", "producer=own,release=output,x=3"},
        {"blas", "workers=2", "producer=blas,release=output,workers=2"},
        {"static", "x=1,pool=shared", "producer=own,x=1,pool=static"},
        {"wavegroup", "", "producer=own,release=4"},
        {"wavegroup", "release=6", "producer=own,release=6"},
        {"wavegroup", "release=output", "producer=own,release=4"},
        {"fused-push", "x=2", "producer=own,release=output,x=2,transport=push"},
        {"chunked", "x=2", "producer=own,order=contiguous,release=partition,x=2"},
        {"sequential", "backend=cuda,x=3,b=256,pool=shared",
         "backend=cuda,producer=own,release=output"},
        {"wavegroup", "backend=cuda,release=16,x=8",
         "backend=cuda,producer=own,release=16,x=8,launches=unit"},
        {"chunked", "backend=cuda,x=8,b=128,block=128x128",
         "backend=cuda,producer=own,block=128x128,order=contiguous,release=partition,"
         "transport=copy"},
        {"blas-chunked", "backend=cuda,x=8,pool=after",
         "backend=cuda,producer=blas,release=partition,transport=copy"},
        {"chunk-signals", "backend=cuda,x=8,b=128",
         "backend=cuda,producer=own,pool=shared,transport=copy"},
        {"chunk-signals", "backend=cuda,release=4",
         "backend=cuda,producer=own,release=4,pool=shared,transport=copy"},
        {"fused-push", "backend=cuda,x=8,order=default",
         "backend=cuda,producer=own,release=output,transport=push"},
        {"fused-add", "backend=cuda,x=8", "backend=cuda,producer=own,x=8,transport=add"},
        {"fused-tma-add", "backend=cuda", "backend=cuda,producer=own,transport=tma-add"},
        {"wavegroup", "backend=cuda,release=16,first=4,last=2",
         "backend=cuda,producer=own,release=16,first=4,last=2,launches=unit"},
        {"fused-push", "backend=cuda,release=16,first=4",
         "backend=cuda,producer=own,release=output,transport=push"},
        {"static", "backend=cuda,x=8", "backend=cuda,producer=own,x=8,pool=static"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        ew_config base = EW_CONFIG_INIT, config = EW_CONFIG_INIT;
        char text[EW_CONFIG_TEXT_BYTES];
        assert_int_equal(ew_config_parse(cases[i].base, &base), EW_OK);
        assert_int_equal(ew_method_config(cases[i].method, &base, &config), EW_OK);
        assert_int_equal(ew_config_print(&config, text, sizeof text), EW_OK);
        assert_string_equal(text, cases[i].config);
    }
}

static bool is_among(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(name, *names) == 0)
            return true;
    return false;
}

/* All but those that another operation has. */
static void plan_methods(ew_op op, const char *const *refused)
{
    ew_problem problem = EW_PROBLEM(8192, 8192, 2048, EW_FP16);
    const ewx_machine machine = {
        .cores = 16, .gpu_sms = 16, .gpu_arch = 90, .gpu_sharers = 8};
    problem.op = op;
    for (const char *const *name = ew_method_list(); *name; name++) {
        ew_config base = EW_CONFIG_INIT, config = EW_CONFIG_INIT;
        ewx_spec spec;
        base.backend = EW_BACKEND_CUDA;
        assert_int_equal(ew_method_config(*name, &base, &config), EW_OK);
        const ew_status status = ewx_spec_build(&problem, 8, &config, &machine, &spec);
        if ((status == EW_OK) == is_among(*name, refused))
            fail_msg("%s, %s: %s", ew_op_name(op), *name, ew_last_error());
    }
}

static void every_method_can_be_planned(void **state)
{
    (void)state;
    static const char *const gathering[] = {"blas-chunked", "chunk-signals", NULL};
    static const char *const reducing[] = {"static", "wavegroup", "fused-add",
                                           "fused-tma-add", NULL};
    plan_methods(EW_OP_GEMM_RS, gathering);
    plan_methods(EW_OP_AG_GEMM, reducing);
}

static void unknown_methods_are_refused(void **state)
{
    (void)state;
    ew_config config = EW_CONFIG_INIT;
    harness_expect_error(ew_method_config("sequentiel", NULL, &config), EW_ERR_ARGUMENT,
                         "sequentiel", "fix: use entwine, sequential");
    harness_expect_error(ew_method_config(NULL, NULL, &config), EW_ERR_ARGUMENT, NULL,
                         "needs a method");
}

/* Of an AllReduce every rank may sum every tile, and has a flag for the sum of each. */
static void allreduce_has_room_for_its_flags(void **state)
{
    (void)state;
    static const int ranks[] = {1, 3, 8};
    const ewx_machine machine = {
        .cores = 16, .gpu_sms = 16, .gpu_arch = 90, .gpu_sharers = 8};
    for (size_t i = 0; i < COUNT(ranks); i++) {
        ew_problem problem = EW_PROBLEM(1000, 520, 64, EW_BF16);
        ew_config request = EW_CONFIG_INIT;
        ewx_spec spec;
        problem.op = EW_OP_GEMM_AR;
        request.backend = EW_BACKEND_CUDA;
        assert_int_equal(ewx_spec_build(&problem, ranks[i], &request, &machine, &spec),
                         EW_OK);
        const ewx_layout *layout = &spec.layout;
        const size_t tiles = 8 * 5, word = sizeof(uint32_t);
        assert_int_equal(layout->slots_per_part, tiles);
        assert_int_equal(layout->results_offset,
                         layout->flags_offset + tiles * (size_t)ranks[i] * word);
        assert_true(layout->results_offset + tiles * word <= layout->slice_offset[0]);
        assert_int_equal(layout->slice_offset[1] - layout->slice_offset[0],
                         tiles * EWX_CUDA_TILE_BYTES);
    }
}

/* ---- AllReduce ---- */

static ewx_spec allreduce_spec(const char *config, int num_ranks)
{
    ew_problem problem = EW_PROBLEM(8192, 8192, 2048, EW_BF16);
    problem.op = EW_OP_GEMM_AR;
    ew_config request = EW_CONFIG_INIT;
    ewx_spec spec;
    assert_int_equal(ew_config_parse(config, &request), EW_OK);
    assert_int_equal(ewx_spec_build(&problem, num_ranks, &request, &eight_cores, &spec),
                     EW_OK);
    return spec;
}

/* A GPU takes one shot while what it reads more is quicker than a second wait. */
static void shots_follow_the_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        int num_ranks;
        int64_t m;
        int shots;
    } cases[] = {{"backend=cuda", 8, 1, 1},          {"backend=cuda", 8, 32, 1},
                 {"backend=cuda", 8, 33, 2},         {"backend=cuda", 8, 8192, 2},
                 {"backend=cuda", 4, 112, 1},        {"backend=cuda", 4, 113, 2},
                 {"backend=cuda", 2, 8192, 1},       {"backend=cpu", 8, 4, 1},
                 {"backend=cpu", 8, 5, 2},           {"backend=cuda,shots=2", 8, 1, 2},
                 {"backend=cuda,shots=1", 8, 99, 1}, {"backend=cuda", 72, 1, 1}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        const ewx_spec spec = allreduce_spec(cases[i].config, cases[i].num_ranks);
        assert_int_equal(ewx_allreduce_shots(&spec, cases[i].m), cases[i].shots);
    }
}

/* Layers may cut the rows into parts, for which there is room; few rows stay one part. */
static void layers_find_room(void **state)
{
    (void)state;
    for (int W = 2; W <= 8; W++) {
        const ewx_spec spec = allreduce_spec("backend=cuda", W);
        const int64_t walked = (int64_t)spec.config.group * spec.config.block_m;
        assert_int_equal(ewx_layer_num_parts(&spec.config, W, walked), 1);
        assert_int_equal(ewx_layer_num_parts(&spec.config, W, walked + 1), W);
        const int64_t tile_rows = ewx_div_up(spec.layout.rows_per_rank, EWX_TILE_M);
        assert_true(spec.layout.num_slots >= W * tile_rows * spec.layout.tile_cols);
        assert_true(spec.layout.num_slots >= spec.layout.slots_per_part);
        assert_true(spec.layout.row_results_offset +
                        (size_t)(W * spec.layout.rows_per_rank) * sizeof(uint32_t) <=
                    spec.layout.slice_offset[0]);
        assert_int_equal(spec.layout.slice_offset[1] - spec.layout.slice_offset[0],
                         spec.layout.num_slots * EWX_CUDA_TILE_BYTES);
    }
}

/* ---- The same bits at every W ---- */

/* Pieces are whole tiles, one behind the other in a slot; what kernels need of K, they need
 * of each. */
static void pieces_of_k_find_room(void **state)
{
    (void)state;
    for (int op = EW_OP_GEMM_RS; op <= EW_OP_GEMM_AR; op++)
        for (int W = 1; W <= 8; W *= 2) {
            ew_problem problem = EW_PROBLEM(1000, 520, 8 * 40 / W, EW_BF16);
            ew_config request = EW_CONFIG_INIT;
            ewx_spec plain, spec;
            problem.op = (ew_op)op;
            request.backend = EW_BACKEND_CUDA;
            assert_int_equal(ewx_spec_build(&problem, W, &request, &eight_cores, &plain),
                             EW_OK);
            request.invariant = 8;
            assert_int_equal(ewx_spec_build(&problem, W, &request, &eight_cores, &spec),
                             EW_OK);
            assert_int_equal(spec.layout.num_pieces, 8 / W);
            assert_int_equal(spec.layout.piece_bytes, EWX_CUDA_TILE_BYTES);
            assert_int_equal(spec.layout.slot_bytes, 8 / W * EWX_CUDA_TILE_BYTES);
            assert_int_equal(spec.layout.num_slots, plain.layout.num_slots);
            assert_int_equal(spec.layout.flags_offset, plain.layout.flags_offset);
            assert_int_equal(spec.layout.slice_offset[0], plain.layout.slice_offset[0]);
            assert_int_equal(
                spec.layout.slice_offset[1] - spec.layout.slice_offset[0],
                8 / W *
                    (int64_t)(plain.layout.slice_offset[1] - plain.layout.slice_offset[0]));
        }
}

/* What crosses at W < 8, in units of what crosses without: contributions S/W times, and, in
 * two shots, the sums once. */
static void pieces_of_k_are_counted(void **state)
{
    (void)state;
    for (int W = 2; W <= 8; W *= 2)
        for (int shots = 1; shots <= 2; shots++) {
            char config[64];
            snprintf(config, sizeof config, "backend=cuda,shots=%d", shots);
            const ewx_spec plain = allreduce_spec(config, W);
            snprintf(config, sizeof config, "backend=cuda,shots=%d,invariant=8", shots);
            const ewx_spec spec = allreduce_spec(config, W);
            const double before = ewx_spec_remote_bytes(&plain, 4096);
            const double factor = shots == 1 ? 8.0 / W : (8.0 / W + 1) / 2;
            assert_true(ewx_spec_remote_bytes(&spec, 4096) == factor * before);
        }
}

static void pieces_that_kernels_cannot_take_are_refused(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        int W;
        const char *asked, *text;
        ew_status status;
    } cases[] = {
        {64, 64, 64, 1, "invariant=8", NULL, EW_OK},
        {64, 64, 72, 1, "invariant=8", "into pieces of 9, and", EW_ERR_SHAPE},
        {64, 64, 72, 1, "invariant=8", "fix: use K=64 or K=128", EW_ERR_SHAPE},
        {64, 64, 24, 2, "invariant=8", "fix: use K=32, a smaller", EW_ERR_SHAPE},
        {64, 64, 66, 2, "invariant=8", "fix: use K=64 or K=96, or", EW_ERR_SHAPE},
        {64, 64, 8, 8, "invariant=8", NULL, EW_OK},
        {64, 64, 64, 3, "invariant=8", "W=3", EW_ERR_CONFIG},
        {64, 64, 576, 1, "invariant=72", NULL, EW_OK},
        {64, 64, 80 * 8, 1, "invariant=80", "fix: use at most 72", EW_ERR_UNSUPPORTED},
        {64, 64, 64, 2, "invariant=8,producer=blas", "producer=blas", EW_ERR_UNSUPPORTED},
        {64, 64, 64, 2, "invariant=8,transport=copy", NULL, EW_OK},
        {1 << 19, 1 << 17, 64, 1, "invariant=8", "33554432 contributions", EW_ERR_SHAPE},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const ew_problem problem = EW_PROBLEM(cases[i].m, cases[i].n, cases[i].k, EW_BF16);
        ew_config request = EW_CONFIG_INIT;
        ewx_spec spec;
        assert_int_equal(ew_config_parse(cases[i].asked, &request), EW_OK);
        request.backend = EW_BACKEND_CUDA;
        if (cases[i].status != EW_OK)
            expect_cuda_refusal(&problem, cases[i].W, &request, cases[i].status,
                                cases[i].text);
        else
            assert_int_equal(
                ewx_spec_build(&problem, cases[i].W, &request, &eight_cores, &spec), EW_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuda_choices),
        cmocka_unit_test(cuda_units_of_large_outputs),
        cmocka_unit_test(cuda_widths_for_gathered_rows),
        cmocka_unit_test(allreduce_has_room_for_its_flags),
        cmocka_unit_test(impossible_cuda_configs_are_refused),
        cmocka_unit_test(adding_is_for_fp16_sums_with_sm80),
        cmocka_unit_test(impossible_numbers_are_refused),
        cmocka_unit_test(an_allreduce_only_pulls),
        cmocka_unit_test(cuda_choices_for_gathered_rows),
        cmocka_unit_test(cuda_choices_for_copied_rows),
        cmocka_unit_test(impossible_cuda_problems_are_refused),
        cmocka_unit_test(cuda_keys_are_refused_on_the_cpu),
        cmocka_unit_test(methods_are_configs),
        cmocka_unit_test(every_method_can_be_planned),
        cmocka_unit_test(unknown_methods_are_refused),
        cmocka_unit_test(shots_follow_the_bytes),
        cmocka_unit_test(layers_find_room),
        cmocka_unit_test(pieces_of_k_find_room),
        cmocka_unit_test(pieces_of_k_are_counted),
        cmocka_unit_test(pieces_that_kernels_cannot_take_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
