/* GPU ranks on several hosts.  ENTWINE_HOSTS makes hosts of one machine, whose ranks then
 * reach each other through MPI alone.  The check starts itself under mpirun, once for each
 * case, and reads what the ranks say: "rank R: OK", or "rank R: STATUS: why".  Where MPI
 * takes device memory all cases are made both ways. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "entwine/mpi_module.h"
#include "gpu_check.h"
#include "gpukit.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])
#define CASE_VARIABLE "GPU_HOSTS_CASE"

enum { LINGER_MS = 1500 }; /* so that mpirun ends nobody who has yet to speak */

/* ---- What a rank does ---- */

/* m changes from call to call; ranks come late by turns, and some own nothing. */
static int compute_often(gpu_job *job, void *argument)
{
    const int64_t most = job->problem.max_m;
    const int64_t rows[] = {most, 1, most / 2, 0, most - 1, job->num_ranks, 129, most};
    (void)argument;
    for (uint32_t call = 0; call < 2 * COUNT(rows); call++) {
        if ((int)call % job->num_ranks == job->rank)
            gpu_sleep_ms(20);
        RANK_TRY(job_compute(job, rows[call % COUNT(rows)], call, NULL));
    }
    return 0;
}

static int run_calls(ew_world *world)
{
    static const char *const configs[] = {"",
                                          "release=3,group=2",
                                          "release=partition,order=contiguous",
                                          "release=output,pool=after",
                                          "launches=unit,release=2,levels=1",
                                          "invariant=12"};
    const int64_t most = 130 * ew_world_size(world) + 1;
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++)
        for (size_t i = 0; i < COUNT(configs); i++) {
            char config[120];
            snprintf(config, sizeof config, "%s%s%s", *kernel, i ? "," : "", configs[i]);
            const int64_t k = i + 1 == COUNT(configs) ? 96 : 72; /* pieces of 16 or 32 */
            harness_context("%s", config);
            RANK_TRY(job_in_world(world,
                                  gpu_problem(most, 520, k, i % 2 ? EW_FP16 : EW_BF16),
                                  config, compute_often, NULL));
        }
    return 0;
}

static int wrap_around(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    (void)argument;
    RANK_OK(ewx_cuda_engine_set_epoch(job_engine(job), UINT32_MAX - 3));
    RANK_OK(ew_world_barrier(world));
    for (uint32_t call = 0; call < 10; call++)
        RANK_TRY(job_compute(job, call % 2 ? job->problem.max_m : 1, call, NULL));
    RANK_CHECK(job_engine(job)->carrier.epoch < 10, "epoch %u did not wrap",
               job_engine(job)->carrier.epoch);
    return 0;
}

static int compute_nothing(gpu_job *job, void *argument)
{
    (void)argument;
    for (uint32_t call = 0; call < 3; call++)
        RANK_TRY(job_compute(job, 0, call, NULL));
    return 0;
}

static int run_empty(ew_world *world)
{
    return job_in_world(world, gpu_problem(0, 264, 72, EW_BF16), "", compute_nothing, NULL);
}

static int run_wrap(ew_world *world)
{
    return job_in_world(world, gpu_problem(700, 264, 72, EW_BF16), "", wrap_around, NULL);
}

/* Between calls MPI must find a context where it may have to copy. */
static int check_lent(const gpu_job *job)
{
    ew_world *world = job->world;
    CUcontext current = NULL;
    RANK_CHECK(job_engine(job)->device->driver->cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
                   (current || !world->takes_device_memory),
               "MPI has no context to copy in");
    return 0;
}

/* More tiles than are copied or asked about at once, calls that follow at once, and what
 * crossed the border: each of W ranks sends its contribution to every row of other hosts.
 */
static int compute_much(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    const ew_problem *p = &job->problem;
    ew_traffic before, after;
    int64_t rows = 0;
    (void)argument;
    RANK_TRY(job_fill(job, 5));
    RANK_TRY(job_poison(job));
    RANK_OK(ew_world_barrier(world));
    RANK_OK(ew_world_traffic(world, &before));
    for (int call = 0; call < 6; call++)
        RANK_OK(ew_gemm_rs(job->plan, p->max_m, job->A, job->B, job->C, NULL));
    RANK_OK(ew_world_traffic(world, &after));
    RANK_TRY(job_verify(job, p->max_m, 5));
    for (int rank = 0; rank < job->num_ranks; rank++) {
        int64_t first = 0, count = 0;
        RANK_OK(ew_owned_rows(p->max_m, job->num_ranks, rank, &first, &count));
        rows += ewx_world_is_local(world, rank) ? 0 : count;
    }
    const int64_t bytes = 6 * rows * p->n * 2;
    RANK_CHECK(after.tile_bytes - before.tile_bytes == bytes, "%lld bytes between hosts",
               (long long)(after.tile_bytes - before.tile_bytes));
    RANK_CHECK(after.device_bytes - before.device_bytes ==
                   (world->takes_device_memory ? bytes : 0),
               "%lld of %lld bytes from device memory, which MPI %s",
               (long long)(after.device_bytes - before.device_bytes), (long long)bytes,
               world->takes_device_memory ? "takes" : "is not to be given");
    return check_lent(job);
}

static int run_much(ew_world *world)
{
    return job_in_world(world, gpu_problem(2048, 2048, 128, EW_BF16), "", compute_much,
                        NULL);
}

static void CUDART_CB hold_back(void *unused)
{
    (void)unused;
    gpu_sleep_ms(3);
}

/* While nothing is published yet, nothing may leave: it would be a tile of another call. */
static int compute_held(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    const int64_t m = job->problem.max_m;
    (void)argument;
    for (uint32_t call = 0; call < 6; call++) {
        RANK_TRY(job_fill(job, call));
        RANK_TRY(job_poison(job));
        RANK_TRY(job_hold_producer(job, hold_back, NULL));
        RANK_OK(ew_world_barrier(world));
        RANK_TRY(job_hold_producer(job, hold_back, NULL));
        RANK_OK(ew_gemm_rs(job->plan, m, job->A, job->B, job->C, NULL));
        RANK_TRY(job_verify(job, m, call));
    }
    return 0;
}

static int run_held(ew_world *world)
{
    return job_in_world(world, gpu_problem(700, 264, 72, EW_FP16), "", compute_held, NULL);
}

static int use_streams(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    (void)argument;
    RANK_TRY(job_stream(job, &stream));
    for (uint32_t call = 0; call < 4; call++)
        RANK_TRY(job_compute(job, job->problem.max_m - call, call, stream));
    RANK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const ew_status captured =
        ew_gemm_rs(job->plan, 1, job->A, job->B, job->C, (ew_stream)stream);
    RANK_CHECK(captured == EW_ERR_UNSUPPORTED &&
                   strstr(ew_last_error(), "cannot be captured"),
               "%s", ew_last_error());
    RANK_CUDA(cudaStreamEndCapture(stream, &graph));
    RANK_CUDA(cudaGraphDestroy(graph));
    RANK_TRY(job_compute(job, job->problem.max_m, 9, stream));
    RANK_CUDA(cudaStreamDestroy(stream));
    return 0;
}

static int run_streams(ew_world *world)
{
    return job_in_world(world, gpu_problem(300, 264, 72, EW_FP16), "", use_streams, NULL);
}

static int run_refusals(ew_world *world)
{
    static const struct {
        const char *config, *fix;
    } refused[] = {{"transport=push", "transport=pull"},
                   {"transport=copy", "transport=pull"},
                   {"levels=2", "levels=1"},
                   {"producer=blas", "producer=own"}};
    const ew_problem problem = gpu_problem(300, 264, 72, EW_BF16);
    for (size_t i = 0; i < COUNT(refused); i++) {
        ew_config config = EW_CONFIG_INIT;
        ew_plan *plan = NULL;
        RANK_OK(ew_config_parse(refused[i].config, &config));
        config.backend = EW_BACKEND_CUDA;
        const ew_status status = ew_plan_create(world, &problem, &config, &plan);
        RANK_CHECK(status == EW_ERR_UNSUPPORTED && strstr(ew_last_error(), refused[i].fix),
                   "%s: %s: %s", refused[i].config, ew_status_name(status),
                   ew_last_error());
    }
    return 0;
}

/* Only says what MPI takes. */
static int run_way(ew_world *world)
{
    if (world->takes_device_memory)
        printf("rank %d: takes device memory\n", world->rank);
    return 0;
}

/* ---- Misfortunes: the last rank's ---- */

static int call_until_fault(gpu_job *job, void *argument)
{
    const char *kind = argument;
    ew_world *world = job->world;
    ew_status status = EW_OK;
    RANK_TRY(job_fill(job, 1));
    for (int call = 0; call < 400 && status == EW_OK; call++) {
        const bool now = job->rank == job->num_ranks - 1 && call == 3;
        if (now && strcmp(kind, "killed") == 0)
            raise(SIGKILL);
        if (now && strcmp(kind, "abort") == 0)
            ew_world_abort(world);
        const int64_t m = now && strcmp(kind, "rows") == 0 ? 599 : 600;
        status = ew_gemm_rs(job->plan, m, job->A, job->B, job->C, NULL);
    }
    printf("rank %d: %s: %s\n", job->rank, ew_status_name(status),
           status == EW_OK ? "no fault" : ew_last_error());
    fflush(stdout);
    return 0;
}

static int run_misfortune(ew_world *world, const char *kind)
{
    char text[20];
    snprintf(text, sizeof text, "%s", kind);
    return job_in_world(world, gpu_problem(600, 264, 72, EW_BF16), "", call_until_fault,
                        text);
}

static int run_killed(ew_world *world)
{
    return run_misfortune(world, "killed");
}

static int run_abort(ew_world *world)
{
    return run_misfortune(world, "abort");
}

static int run_rows(ew_world *world)
{
    return run_misfortune(world, "rows");
}

/* ---- The rank ---- */

static const struct hosts_case {
    const char *name;
    int (*run)(ew_world *world);
    const char *fault; /* what the survivors say; NULL: all is well */
    bool dies;
} cases[] = {
    {"calls", run_calls, NULL, false},
    {"empty", run_empty, NULL, false},
    {"wrap", run_wrap, NULL, false},
    {"much", run_much, NULL, false},
    {"held", run_held, NULL, false},
    {"streams", run_streams, NULL, false},
    {"refusals", run_refusals, NULL, false},
    {"rows", run_rows, "EW_ERR_MISMATCH: ranks disagree", false},
    {"abort", run_abort, "EW_ERR_ABORTED: rank 3 aborted the world", false},
    {"killed", run_killed, "EW_ERR_PEER_DIED: rank 3 died (noticed by rank 2)", true}};

static const struct hosts_case way = {"way", run_way, NULL, false};

static const struct hosts_case *find_case(const char *name)
{
    if (name && strcmp(name, way.name) == 0)
        return &way;
    for (size_t i = 0; name && i < COUNT(cases); i++)
        if (strcmp(cases[i].name, name) == 0)
            return &cases[i];
    return NULL;
}

static const ew_mpi_module *load_module(void)
{
    ew_mpi_module_getter getter = NULL;
    void *handle = NULL;
#ifdef EW_MPI_MODULE
    handle = dlopen(EW_MPI_MODULE, RTLD_NOW | RTLD_GLOBAL);
#endif
    if (handle)
        *(void **)&getter = dlsym(handle, "ew_mpi_module_get");
    if (!getter)
        harness_fail("the MPI module cannot be loaded: %s", handle ? "" : dlerror());
    return getter();
}

/* One rank under mpirun. */
void check_hosts_rank(void)
{
    const struct hosts_case *c = find_case(getenv(CASE_VARIABLE));
    const ew_world_options options = gpu_options(c && c->fault ? 3000 : 20000);
    const ew_fabric *fabric = NULL;
    ew_world *world = NULL;
    int rank, num_ranks;
    if (!c)
        gpu_skip("a rank of 'hosts', which starts it");
    const ew_mpi_module *mpi = load_module();
    if (mpi->open(&rank, &num_ranks) || mpi->fabric_open(NULL, &fabric))
        harness_fail("MPI does not start");
    if (ew_world_join(fabric, &options, &world) != EW_OK)
        harness_fail("rank %d: %s", rank, ew_last_error());
    const int failed = c->run(world);
    ew_world_destroy(world);
    printf("rank %d: %s\n", rank, failed ? "FAILED" : "OK");
    fflush(NULL);
    mpi->fabric_close(fabric, failed || c->fault);
    if (failed || c->fault) { /* MPI_Finalize would wait for ranks that are gone */
        gpu_sleep_ms(LINGER_MS);
        _exit(failed);
    }
    mpi->close();
}

/* ---- The check ---- */

static char output[20000];

/* This program under mpirun, on two emulated hosts; what it says goes to `output`. */
static void launch(const struct hosts_case *c, int num_ranks)
{
    char self[1024] = "", command[1400];
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        harness_fail("no /proc/self/exe");
    setenv(CASE_VARIABLE, c->name, 1);
    setenv("OMPI_MCA_orte_enable_recovery", c->dies ? "1" : "0", 1);
    snprintf(command, sizeof command,
             "timeout -k 5 110 mpirun -np %d '%s' --here --only hosts-rank 2>&1", num_ranks,
             self);
    FILE *words = popen(command, "r");
    if (!words)
        harness_fail("cannot run %s", command);
    output[fread(output, 1, sizeof output - 1, words)] = '\0';
    pclose(words);
}

static int count_said(int num_ranks, const char *what)
{
    int count = 0;
    for (int rank = 0; rank < num_ranks; rank++) {
        char line[200];
        snprintf(line, sizeof line, "rank %d: %s", rank, what);
        count += strstr(output, line) != NULL;
    }
    return count;
}

static void expect(const struct hosts_case *c, int num_ranks)
{
    const char *what = c->fault ? c->fault : "OK";
    const int wanted = num_ranks - c->dies;
    launch(c, num_ranks);
    const int count = count_said(num_ranks, what);
    if (count != wanted)
        harness_fail("%s, W=%d: %d ranks of %d say '%s':\n%.4000s", c->name, num_ranks,
                     count, wanted, what, output);
}

void check_hosts(void)
{
#ifndef EW_MPI_MODULE
    gpu_skip("gpu_check was built without MPI");
#endif
    if (system("command -v mpirun >/dev/null") != 0)
        gpu_skip("mpirun is not installed");
    setenv("ENTWINE_HOSTS", "2", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
    setenv("OMPI_MCA_plm_rsh_agent", "sh", 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 0); /* as for all ranks as processes */
    unsetenv("ENTWINE_DEVICE_MPI");
    expect(&way, 2);
    const bool takes = count_said(2, "takes device memory") == 2;
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (!cases[i].fault && !gpu_quick)
            expect(&cases[i], 2);
        expect(&cases[i], 4);
    }
    gpu_remark(takes
                   ? "with MPI in device memory, and staged"
                   : "SKIPPED: device memory, which this MPI does not take: staged alone");
    setenv("ENTWINE_DEVICE_MPI", "off", 1);
    for (size_t i = 0; i < COUNT(cases) && takes; i++)
        expect(&cases[i], 4);
}
