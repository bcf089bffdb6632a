/* One rank of a world under mpirun whose GPU is pretended, for tests/mpi/run.sh: the
 * carrier of the CUDA backend, its flags, boxes and control messages, with threads in the
 * place of kernels and ordinary memory in that of a GPU.  What the GPU itself does is the
 * work of gpu_check.
 *
 *     mpirun -np W carrier_check MODULE CASE [ARGUMENT]
 *
 * CARRIER_DIRECT=all: MPI is given the GPU's memory, which it can take, as this is no
 * GPU's; odd: by the ranks with odd numbers.
 *
 * Says "rank R: OK" and "rank R: device memory" or "rank R: staged", or what the world's
 * fault was: "rank R: STATUS: text". */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cuda/cuda_engine.h"
#include "base/epoch.h"
#include "entwine/mpi_module.h"

enum {
    LINGER_US = 1500000,
    TILE_BYTES = EWX_CUDA_TILE_BYTES,
    QUERIES_UNTIL_COPIED = 3,
    LOOKS_UNTIL_SENT = 5
};

#define TRY(expression)                                                                  \
    do {                                                                                 \
        if ((expression) != EW_OK) {                                                     \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #expression, ew_last_error()); \
            return 1;                                                                    \
        }                                                                                \
    } while (0)

/* ---- The runtime, as far as the carrier uses it: linked before the real one ---- */

static const cudaStream_t producing = (void *)1, reducing = (void *)2, carrying = (void *)3;
static atomic_int running[2]; /* kernels: producer, reducer */

/* Copies are made as late as the runtime may make them. */
static struct {
    void *to;
    const void *from;
    size_t bytes;
} copies[EWX_CARRIER_BATCH];
static int num_copies, queries;
static int in_fabric; /* how often the GPU's own context was entered, and not left */
static bool is_flushed;
static ewx_device device;

static void make_copies(void)
{
    for (int i = 0; i < num_copies; i++)
        memcpy(copies[i].to, copies[i].from, copies[i].bytes);
    num_copies = 0;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream)
{
    if (device.direct || kind != cudaMemcpyDeviceToHost || stream != carrying ||
        num_copies == EWX_CARRIER_BATCH)
        return cudaErrorInvalidValue;
    copies[num_copies].to = to;
    copies[num_copies].from = from;
    copies[num_copies++].bytes = bytes;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    (void)event;
    queries = 0;
    return stream == carrying ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    (void)event;
    if (queries++ < QUERIES_UNTIL_COPIED)
        return cudaErrorNotReady;
    make_copies();
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return atomic_load(&running[stream == reducing]) ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (stream == carrying)
        make_copies();
    else
        while (cudaStreamQuery(stream) != cudaSuccess)
            sched_yield();
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    *memory = calloc(1, bytes);
    return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *memory)
{
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    return device.direct ? cudaHostAlloc(memory, bytes, 0) : cudaErrorInvalidValue;
}

cudaError_t cudaFree(void *memory)
{
    return cudaFreeHost(memory);
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(enum cudaFlushGPUDirectRDMAWritesTarget from,
                                               enum cudaFlushGPUDirectRDMAWritesScope to)
{
    is_flushed = from == cudaFlushGPUDirectRDMAWritesTargetCurrentDevice &&
                 to == cudaFlushGPUDirectRDMAWritesToOwner;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = (void *)1;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    (void)event;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

static CUresult write_words(CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops,
                            unsigned flags)
{
    if (stream != carrying || count == 0 || count >= 256 || flags != 0 || in_fabric != 0 ||
        is_flushed != device.flushes)
        return CUDA_ERROR_INVALID_VALUE;
    is_flushed = false;
    for (unsigned i = 0; i < count; i++)
        __atomic_store_n((uint32_t *)(uintptr_t)ops[i].writeValue.address,
                         ops[i].writeValue.value, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

static CUresult push_context(CUcontext context)
{
    in_fabric += context == device.primary;
    return CUDA_SUCCESS;
}

static CUresult pop_context(CUcontext *context)
{
    *context = device.primary;
    in_fabric--;
    return CUDA_SUCCESS;
}

static const ewx_driver driver = {.cuStreamBatchMemOp = write_words,
                                  .cuCtxPushCurrent = push_context,
                                  .cuCtxPopCurrent = pop_context};

/* ---- The fabric: MPI, called in the right context, and sending as late as it may ---- */

static const ew_fabric *mpi_fabric;
static struct {
    int dst;
    int32_t number;
    const void *address;
    size_t bytes;
    bool confirmed;
} late[1024];
static int num_late, looks;

static int put(ew_channel *channel, int dst, int32_t number, const void *address,
               size_t bytes, bool confirmed)
{
    (void)channel;
    if (in_fabric != device.direct || num_late == sizeof late / sizeof late[0])
        return 1;
    late[num_late].dst = dst;
    late[num_late].number = number;
    late[num_late].address = address;
    late[num_late].bytes = bytes;
    late[num_late++].confirmed = confirmed;
    return 0;
}

static int unsent(ew_channel *channel, size_t *count, int *dst)
{
    if (num_late > 0 && ++looks % LOOKS_UNTIL_SENT == 0) {
        for (int i = 0; i < num_late; i++)
            if (mpi_fabric->put(channel, late[i].dst, late[i].number, late[i].address,
                                late[i].bytes, late[i].confirmed))
                return 1;
        num_late = 0;
    }
    const int failed = mpi_fabric->unsent(channel, count, dst);
    *count += (size_t)num_late;
    if (num_late > 0)
        *dst = late[0].dst;
    return failed;
}

static int arrivals(ew_channel *channel, const size_t *asked, size_t num_asked,
                    size_t *filled, size_t *bytes, size_t *num_filled)
{
    return in_fabric != device.direct ||
           mpi_fabric->arrivals(channel, asked, num_asked, filled, bytes, num_filled);
}

static ew_fabric fabric_for(int rank)
{
    const char *direct = getenv("CARRIER_DIRECT");
    ew_fabric fabric = *mpi_fabric;
    fabric.put = put;
    fabric.unsent = unsent;
    fabric.arrivals = arrivals;
    fabric.takes_device_memory = direct && (strcmp(direct, "all") == 0 || rank % 2);
    return fabric;
}

/* ---- A rank ---- */

static ewx_cuda_engine engine;
static ewx_cuda_report report;
static ewx_spec spec;
static ew_world *world;
static int W, me;
/* Of the call: */
static ewx_grid grid;
static uint32_t epoch;
static bool gate;
static atomic_int stop, wrong;

static ewx_cuda_segment *segment(int rank)
{
    return (void *)engine.heap.segments[rank];
}

static uint32_t *flag_of(int owner, int64_t unit, int source)
{
    return (uint32_t *)(void *)(engine.heap.segments[owner] + spec.layout.flags_offset) +
           unit * W + source;
}

static int64_t unit_of(int64_t task)
{
    return spec.config.release > 0 ? task / spec.config.release : 0;
}

static size_t place_of(int dst, int64_t task)
{
    return spec.layout.slice_offset[epoch & 1] +
           (size_t)ewx_layout_slot(&spec.layout, dst, ewx_task_tile(&grid, dst, task)) *
               spec.layout.slot_bytes;
}

/* Of all pieces of K. */
static size_t bytes_of(int dst, int64_t task)
{
    return (size_t)(spec.layout.num_pieces - 1) * TILE_BYTES +
           (size_t)ewx_tile_height(&grid, dst, ewx_task_tile(&grid, dst, task)) *
               EWX_TILE_N * 2;
}

/* What a tile of this call begins with.  Each byte of it is 3 more than the one before. */
static unsigned char first_byte_of(int src, int dst, int64_t task)
{
    return (unsigned char)(37 * src + 101 * dst + 13 * task + 7 * epoch);
}

static void fill(unsigned char *tile, size_t bytes, unsigned char first)
{
    for (size_t at = 0; at < bytes; at++)
        tile[at] = (unsigned char)(first + 3 * at);
}

static bool is_filled(const unsigned char *tile, size_t bytes, unsigned char first)
{
    unsigned char differing = 0;
    for (size_t at = 0; at < bytes; at++)
        differing |= (unsigned char)(tile[at] ^ (first + 3 * at));
    return differing == 0;
}

/* ---- Kernels, as kernels/protocol.cuh has them ---- */

static void give_up(ewx_cuda_place place, int culprit, uint32_t wanted, uint32_t seen)
{
    if (atomic_exchange(&stop, 1))
        return;
    report.culprit = culprit;
    report.wanted = wanted;
    report.seen = seen;
    report.epoch = epoch;
    report.aborted = atomic_load(&world->control->abort) != 0;
    __atomic_store_n(&report.place, (int32_t)place, __ATOMIC_RELEASE);
}

static bool await_epoch(const uint32_t *word, uint32_t wanted, ewx_cuda_place place,
                        int culprit)
{
    const int64_t naps = world->timeout_ns / 50000;
    for (int64_t nap = 0; !atomic_load(&stop); nap++) {
        const uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        if (ewx_epoch_reached(seen, wanted))
            return true;
        if (nap > naps || atomic_load(&world->control->abort))
            give_up(place, culprit, wanted, seen);
        usleep(50);
    }
    return false;
}

static void publish(int dst, int64_t task)
{
    const int64_t next = task + 1;
    if (next == ewx_part_tiles(&grid, dst) || unit_of(next) != unit_of(task))
        __atomic_store_n(flag_of(dst, unit_of(task), me), epoch, __ATOMIC_RELEASE);
}

static bool open_call(void)
{
    for (int rank = 0; rank < W; rank++) {
        __atomic_store_n(&segment(rank)->calls[epoch % EWX_CUDA_CALLS][me],
                         (uint64_t)epoch << 32 | (uint64_t)grid.rows, __ATOMIC_RELEASE);
        if (gate)
            __atomic_store_n(&segment(rank)->gate[me], epoch, __ATOMIC_RELEASE);
    }
    for (int rank = 0; rank < W; rank++)
        if ((gate && !await_epoch(&segment(me)->gate[rank], epoch, EWX_CUDA_GATE, rank)) ||
            !await_epoch(&segment(me)->done[rank], epoch - 2, EWX_CUDA_READERS, rank))
            return false;
    return true;
}

static void *produce(void *unused)
{
    const bool opened = open_call();
    for (int64_t task = 0; opened && task < ewx_part_tiles(&grid, 0); task++)
        for (int dst = 0; dst < W; dst++) {
            if (task >= ewx_part_tiles(&grid, dst))
                continue;
            fill(engine.heap.segments[me] + place_of(dst, task), bytes_of(dst, task),
                 first_byte_of(me, dst, task));
            publish(dst, task);
        }
    atomic_store(&running[0], 0);
    return unused;
}

static bool rows_agree(void)
{
    for (int rank = 0; rank < W; rank++) {
        const uint64_t *word = &segment(me)->calls[epoch % EWX_CUDA_CALLS][rank];
        if (!await_epoch((const uint32_t *)(const void *)word + 1, epoch, EWX_CUDA_CALL,
                         rank))
            return false;
        const uint64_t call = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        if ((uint32_t)(call >> 32) == epoch && (uint32_t)call != (uint32_t)grid.rows)
            give_up(EWX_CUDA_ROWS, rank, (uint32_t)grid.rows, (uint32_t)call);
    }
    return !atomic_load(&stop);
}

static bool read_tile(int src, int64_t task)
{
    if (!await_epoch(flag_of(me, unit_of(task), src), epoch, EWX_CUDA_TILE, src))
        return false;
    const unsigned char *tile =
        (ewx_world_is_local(world, src) ? engine.heap.segments[src]
                                        : ewx_carrier_source(&engine, src)) +
        place_of(me, task);
    if (!is_filled(tile, bytes_of(me, task), first_byte_of(src, me, task)))
        atomic_fetch_add(&wrong, 1);
    return true;
}

static void *reduce(void *unused)
{
    const int64_t tasks = ewx_part_tiles(&grid, me);
    bool ok = tasks == 0 || rows_agree();
    for (int64_t task = 0; ok && task < tasks; task++)
        for (int src = 0; ok && src < W; src++)
            ok = read_tile(src, task);
    for (int rank = 0; ok && rank < W; rank++)
        __atomic_store_n(&segment(rank)->done[me], epoch, __ATOMIC_RELEASE);
    atomic_store(&running[1], 0);
    return unused;
}

static ew_status call(int64_t m)
{
    pthread_t kernels[2];
    ewx_carrier_begin(&engine, m);
    grid = ewx_grid_build(m, spec.problem.n, W, &spec.config);
    epoch++;
    for (int i = 0; i < 2; i++) {
        atomic_store(&running[i], 1);
        if (pthread_create(&kernels[i], NULL, i ? reduce : produce, NULL))
            abort();
    }
    const ew_status status = ewx_carrier_drive(&engine);
    if (status != EW_OK) {
        ew_world_abort(world);
        ewx_remotes_progress(world);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(kernels[i], NULL);
    if (status == EW_OK && num_late > 0) /* from memory that the next call may write */
        atomic_fetch_add(&wrong, num_late);
    return status;
}

/* ---- Plans ---- */

static void *map(int fd)
{
    void *memory =
        mmap(NULL, spec.layout.segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return memory;
}

/* The heap as ewx_cuda_heap_open makes it, and the first, empty call. */
static int open_plan(int64_t max_m, const char *config)
{
    const ew_problem problem = EW_PROBLEM(max_m, 1304, 64, EW_BF16);
    const ewx_machine machine = {
        .cores = 2, .hosts = world->num_hosts, .gpu_sms = 132, .gpu_arch = 90};
    ew_config request = EW_CONFIG_INIT;
    int fds[EWX_MAX_RANKS];
    TRY(ew_config_parse(config, &request));
    request.backend = EW_BACKEND_CUDA;
    TRY(ewx_spec_build(&problem, W, &request, &machine, &spec));
    engine = (ewx_cuda_engine){.world = world,
                               .spec = &spec,
                               .device = &device,
                               .report = &report,
                               .timeout_ns = world->timeout_ns};
    const int fd = memfd_create("carrier-check", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)spec.layout.segment_bytes))
        return 1;
    TRY(ewx_world_exchange_fds(world, fd, fds));
    close(fd);
    for (int rank = 0; rank < W; rank++)
        engine.heap.segments[rank] = ewx_world_is_local(world, rank)
                                         ? map(fds[rank])
                                         : calloc(1, spec.layout.slice_offset[0]);
    epoch = 0;
    TRY(ewx_carrier_open(&engine));
    TRY(call(0));
    return 0;
}

static int close_plan(void)
{
    TRY(ew_world_barrier(world));
    ewx_carrier_close(&engine);
    for (int rank = 0; rank < W; rank++)
        if (ewx_world_is_local(world, rank))
            munmap(engine.heap.segments[rank], spec.layout.segment_bytes);
        else
            free(engine.heap.segments[rank]);
    return 0;
}

static int set_epoch(uint32_t last)
{
    TRY(ew_world_barrier(world)); /* what was told of the first call has been heard */
    for (int rank = 0; rank < W; rank++) {
        segment(me)->done[rank] = segment(me)->gate[rank] = last;
        for (int i = 0; i < EWX_CUDA_CALLS; i++)
            segment(me)->calls[i][rank] = (uint64_t)last << 32;
        for (int64_t unit = 0; unit < spec.layout.slots_per_part; unit++)
            *flag_of(me, unit, rank) = last;
    }
    ewx_carrier_set_epoch(&engine, epoch = last);
    TRY(ew_world_barrier(world));
    return 0;
}

/* ---- Cases ---- */

static bool went_its_way(void)
{
    const ew_traffic *t = &world->traffic;
    return t->tile_bytes > 0 && t->device_bytes == (device.direct ? t->tile_bytes : 0) &&
           t->staged_bytes == (device.direct ? 0 : t->tile_bytes);
}

/* m changes, ranks come late by turns, and those that own nothing run ahead. */
static int run_calls(const char *config)
{
    const int64_t most = 260 * W + 1;
    const int64_t rows[] = {most, 1, most / 2, 0, 1, 1, 1, most - 1, W, 129, most};
    const int count = sizeof rows / sizeof rows[0];
    gate = strstr(config, "group") != NULL;
    if (open_plan(most, config) || set_epoch(UINT32_MAX - 3))
        return 1;
    for (int i = 0; i < 2 * count; i++) {
        if (i % W == me)
            usleep(10000);
        TRY(call(rows[i % count]));
    }
    const bool failed = wrong > 0 || epoch > (uint32_t)(2 * count) || !went_its_way();
    if (failed)
        printf("rank %d: %d wrong tiles, epoch %u\n", me, wrong, epoch);
    return failed || close_plan() || in_fabric != 0;
}

/* A plan for no rows has no tile to send, not even a first one. */
static int run_empty(void)
{
    if (open_plan(0, ""))
        return 1;
    for (int i = 0; i < 3; i++)
        TRY(call(0));
    return close_plan() || world->traffic.tile_messages != 0 || in_fabric != 0;
}

/* The last rank's. */
static int run_misfortune(const char *kind)
{
    ew_status status = EW_OK;
    if (open_plan(600, ""))
        return 1;
    for (int i = 0; i < 50 && status == EW_OK; i++) {
        const bool now = me == W - 1 && i == 5;
        if (now && strcmp(kind, "kill") == 0)
            raise(SIGKILL);
        if (now && strcmp(kind, "abort") == 0)
            ew_world_abort(world);
        if (now && strcmp(kind, "stall") == 0)
            sleep(60); /* until the launcher ends it */
        status = call(now && strcmp(kind, "rows") == 0 ? 599 : 600);
    }
    printf("rank %d: %s: %s\n", me, ew_status_name(status),
           status == EW_OK ? "no fault" : ew_last_error());
    ewx_carrier_close(&engine);
    return 0;
}

static const ew_mpi_module *load(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    ew_mpi_module_getter getter = NULL;
    if (handle)
        *(void **)&getter = dlsym(handle, "ew_mpi_module_get");
    return getter ? getter() : NULL;
}

int main(int argc, char **argv)
{
    const ew_mpi_module *mpi = argc > 2 ? load(argv[1]) : NULL;
    const bool failing = argc > 2 && strcmp(argv[2], "misfortune") == 0;
    const char *argument = argc > 3 ? argv[3] : "";
    device.driver = &driver;
    device.primary = (void *)4;
    device.producing = producing;
    device.reducing = reducing;
    device.carrying = carrying;
    if (!mpi || mpi->open(&me, &W) || mpi->fabric_open(NULL, &mpi_fabric))
        return 2;
    const ew_fabric fabric = fabric_for(me);
    TRY(ew_world_join(&fabric, NULL, &world));
    device.direct = device.flushes = world->takes_device_memory;
    const int failed = failing                         ? run_misfortune(argument)
                       : strcmp(argv[2], "empty") == 0 ? run_empty()
                                                       : run_calls(argument);
    ew_world_destroy(world);
    printf("rank %d: %s\n", me, failed ? "FAILED" : "OK");
    printf("rank %d: %s\n", me, device.direct ? "device memory" : "staged");
    fflush(stdout);
    mpi->fabric_close(mpi_fabric, failing || failed);
    if (failing || failed) { /* MPI_Finalize would wait for ranks that are gone */
        usleep(LINGER_US);
        _exit(failed);
    }
    mpi->close();
    return 0;
}
