#include "backend/cuda/device.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_symmetric.h"

#define GROUP_UNIT 8       /* SMs that a green context comes in */
#define DEFAULT_QUEUES 8   /* hardware queues of a process */
#define MOST_QUEUES 32     /* that it can be given */
#define STREAMS_PER_RANK 3 /* two of ours and the caller's */

/* ---- Which device, and how much of it ---- */

static ew_status device_attributes(int ordinal, int *sms_out, int *arch_out)
{
    int major, minor;
    EW_CUDA_TRY(cudaDeviceGetAttribute(sms_out, cudaDevAttrMultiProcessorCount, ordinal),
                "reading the GPU's SM count");
    EW_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal),
                "reading the GPU's compute capability");
    EW_CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal),
                "reading the GPU's compute capability");
    *arch_out = major * 10 + minor;
    if (major < 8)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "GPU %d has compute capability %d.%d\n"
                        "  fix: use one of 8.0 or later, or backend=cpu",
                        ordinal, major, minor);
    return EW_OK;
}

/* With fewer ranks than shares the other shares stay idle: ranks of one size, however many.
 */
static ew_status shares_of_gpu(int sharers, int *shares_out)
{
    const char *text = secure_getenv("ENTWINE_GPU_SHARES");
    *shares_out = sharers;
    if (!text || !*text)
        return EW_OK;
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (errno || *end || value < 1 || value > EWX_MAX_RANKS)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ENTWINE_GPU_SHARES=%s is not a number of shares\n"
                        "  fix: set it to a number from 1 to %d, or unset it",
                        text, EWX_MAX_RANKS);
    if (sharers > 1 && value > sharers)
        *shares_out = (int)value;
    return EW_OK;
}

static ew_status share_size(int sms, int sharers, int *share_sms_out)
{
    const int groups = sms / GROUP_UNIT;
    int shares;
    EW_TRY(shares_of_gpu(sharers, &shares));
    if (shares > groups)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "%d ranks cannot share a GPU of %d SMs, which has %d groups of %d\n"
                        "  fix: use %d ranks or fewer per GPU",
                        shares, sms, groups, GROUP_UNIT, groups);
    *share_sms_out = shares > 1 ? groups / shares * GROUP_UNIT : sms;
    return EW_OK;
}

ew_status ewx_device_survey(int num_ranks, ewx_machine *machine_out)
{
    const ewx_driver *driver;
    int count, sms, arch;
    EW_TRY(ewx_driver_get(&driver));
    EW_CUDA_TRY(cudaGetDeviceCount(&count), "counting GPUs");
    EW_TRY(device_attributes(0, &sms, &arch));
    const int sharers = (num_ranks + count - 1) / count;
    EW_TRY(share_size(sms, sharers, &machine_out->gpu_sms));
    machine_out->gpu_arch = arch;
    machine_out->gpu_sharers = sharers;
    return EW_OK;
}

static ew_status choose_ordinal(const ewx_driver *driver, int local_index, int *ordinal_out)
{
    CUcontext current = NULL;
    int count;
    driver->cuCtxGetCurrent(&current);
    if (current) {
        EW_CUDA_TRY(cudaGetDevice(ordinal_out), "finding the current GPU");
        return EW_OK;
    }
    EW_CUDA_TRY(cudaGetDeviceCount(&count), "counting GPUs");
    *ordinal_out = local_index % count;
    return EW_OK;
}

typedef struct identity {
    int32_t status;
    char uuid[16];
    int32_t arch, sms;
} identity;

static ew_status identify(ewx_device *device, int local_index, identity *me)
{
    struct cudaDeviceProp properties;
    EW_TRY(ewx_driver_get(&device->driver));
    EW_TRY(choose_ordinal(device->driver, local_index, &device->ordinal));
    EW_TRY(device_attributes(device->ordinal, &device->sms, &device->arch));
    EW_CUDA_TRY(cudaGetDeviceProperties(&properties, device->ordinal), "reading the GPU");
    memcpy(me->uuid, properties.uuid.bytes, sizeof me->uuid);
    me->arch = device->arch;
    me->sms = device->sms;
    return EW_OK;
}

/* Streams beyond the number of the process's hardware queues share one, and then a kernel
 * that waits for another rank may lie in front of that rank's own.  CUDA reads the variable
 * when it starts. */
static ew_status check_queues(const ew_world *world, int sharers)
{
    const char *text = secure_getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const int queues = text ? atoi(text) : DEFAULT_QUEUES;
    const int wanted = STREAMS_PER_RANK * sharers;
#if EW_MUTANT == 13 /* planted bug: what could wait for ever is not refused */
    return EW_OK;
#endif
    if (!world->in_threads || sharers == 1 || queues >= wanted)
        return EW_OK;
    if (wanted > MOST_QUEUES)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "%d ranks as threads on one GPU need %d hardware queues, a process "
                        "has %d at most\n  fix: use processes as ranks, or %d ranks",
                        sharers, wanted, MOST_QUEUES, MOST_QUEUES / STREAMS_PER_RANK);
    return ewx_fail(
        EW_ERR_UNSUPPORTED,
        "%d ranks as threads on one GPU need %d hardware queues, CUDA was given "
        "%d\n  fix: set CUDA_DEVICE_MAX_CONNECTIONS=%d before CUDA starts",
        sharers, wanted, queues, MOST_QUEUES);
}

/* All ranks learn where all ranks are. */
static ew_status place(ewx_device *device, ew_world *world)
{
    identity me = {0}, all[EWX_MAX_RANKS];
    const ew_status mine = identify(device, world->local_index, &me);
    EW_TRY(ewx_world_agree(world, mine, "use its GPU"));
    EW_TRY(ewx_world_allgather(world, &me, all, sizeof me));
    for (int rank = 0; rank < world->num_ranks; rank++) {
        if (all[rank].arch != me.arch || all[rank].sms != me.sms)
            return ewx_fail(EW_ERR_MISMATCH,
                            "ranks disagree: rank %d has a GPU of %d SMs (sm_%d), rank %d "
                            "one of %d SMs (sm_%d)\n  fix: use GPUs of one kind",
                            world->rank, me.sms, me.arch, rank, all[rank].sms,
                            all[rank].arch);
        const bool same = memcmp(all[rank].uuid, me.uuid, sizeof me.uuid) == 0;
        device->index += same && rank < world->rank;
        if (same && device->sharers++ == 0)
            device->lowest_rank = rank;
    }
    for (int rank = 0; rank < world->num_ranks; rank++) {
        int sharers = 0;
        for (int other = 0; other < world->num_ranks; other++)
            sharers += memcmp(all[rank].uuid, all[other].uuid, sizeof me.uuid) == 0;
        if (sharers != device->sharers)
            return ewx_fail(EW_ERR_UNSUPPORTED,
                            "rank %d shares its GPU with %d ranks, rank %d with %d\n"
                            "  fix: put the same number of ranks on every GPU",
                            world->rank, device->sharers - 1, rank, sharers - 1);
    }
    EW_TRY(share_size(me.sms, device->sharers, &device->sms));
    return check_queues(world, device->sharers);
}

/* ---- Contexts ---- */

static ew_status open_context(ewx_device *device)
{
    const ewx_driver *driver = device->driver;
    EW_DRIVER_TRY(driver->cuDevicePrimaryCtxRetain(&device->primary, device->ordinal),
                  "opening the GPU");
    device->context = device->primary;
    if (device->sharers == 1)
        return EW_OK;
    EW_TRY(ewx_sm_group_take(device->driver, device->ordinal, device->primary, device->sms,
                             device->index, &device->sm_group));
    device->sms = device->sm_group->sms;
    device->context = device->sm_group->context;
    return EW_OK;
}

/* ---- The abort word, which kernels read where the host writes it ---- */

#define PAGE_BYTES 4096

/* Ranks as threads have one word in common: mapped by the first, unmapped by the last. */
typedef struct mapped_page {
    struct mapped_page *next;
    void *page;
    int users;
} mapped_page;

static pthread_mutex_t pages_lock = PTHREAD_MUTEX_INITIALIZER;
static mapped_page *pages;

static mapped_page **find_page(const void *page)
{
    mapped_page **at = &pages;
    while (*at && (*at)->page != page)
        at = &(*at)->next;
    return at;
}

static ew_status add_page(void *page)
{
    mapped_page *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a device");
    const cudaError_t error = cudaHostRegister(
        page, PAGE_BYTES, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (error != cudaSuccess) {
        free(fresh);
        return ewx_cuda_fail(error, "mapping the abort word");
    }
    *fresh = (mapped_page){.next = pages, .page = page};
    pages = fresh;
    return EW_OK;
}

static ew_status map_abort_word(ewx_device *device, const ew_world *world)
{
    const uintptr_t word = (uintptr_t)&world->control->abort;
    void *page = (void *)(word & ~(uintptr_t)(PAGE_BYTES - 1)), *mapped;
    ew_status status = EW_OK;
    pthread_mutex_lock(&pages_lock);
    if (!*find_page(page))
        status = add_page(page);
    if (status == EW_OK) {
        (*find_page(page))->users++;
        device->abort_page = page;
    }
    pthread_mutex_unlock(&pages_lock);
    EW_TRY(status);
    EW_CUDA_TRY(cudaHostGetDevicePointer(&mapped, page, 0), "mapping the abort word");
    device->abort =
        (const uint64_t *)(void *)((char *)mapped + (word & (uintptr_t)(PAGE_BYTES - 1)));
    return EW_OK;
}

static void unmap_abort_word(const ewx_device *device)
{
    if (!device->abort_page)
        return;
    pthread_mutex_lock(&pages_lock);
    mapped_page **at = find_page(device->abort_page), *entry = *at;
    if (--entry->users == 0) {
        cudaHostUnregister(entry->page);
        *at = entry->next;
        free(entry);
    }
    pthread_mutex_unlock(&pages_lock);
}

/* ---- A fabric that takes device memory ---- */

/* It copies whenever it is called, between our calls too, since tiles of a peer's next call
 * may come then.  A thread without a context therefore gets the GPU's, as from
 * cudaSetDevice, until the world ends. */
static ew_status lend_context(ewx_device *device)
{
    CUcontext current = NULL;
    EW_DRIVER_TRY(device->driver->cuCtxGetCurrent(&current), "finding the caller's GPU");
    if (current)
        return EW_OK;
    EW_DRIVER_TRY(device->driver->cuCtxPushCurrent(device->primary), "entering the GPU");
    device->lends_context = true;
    device->borrower = pthread_self();
    return EW_OK;
}

/* Another thread that destroys the world has its context from elsewhere, even if it is the
 * same one. */
static void take_context_back(const ewx_device *device)
{
    CUcontext current = NULL;
    if (device->lends_context && pthread_equal(device->borrower, pthread_self()) &&
        device->driver->cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
        current == device->primary)
        ewx_device_leave(device);
}

/* A NIC may write the GPU's memory by itself (GPUDirect RDMA).  A kernel that runs
 * meanwhile is sure to see that only where the GPU keeps such writes in order, or after a
 * flush; where there is neither, tiles are staged. */
static ew_status find_direct_way(ewx_device *device, const ew_world *world)
{
    int has_rdma, ordering, options;
    if (world->num_hosts == 1 || !world->takes_device_memory)
        return EW_OK;
    const struct {
        enum cudaDeviceAttr attribute;
        int *value;
    } asked[] = {{cudaDevAttrGPUDirectRDMASupported, &has_rdma},
                 {cudaDevAttrGPUDirectRDMAWritesOrdering, &ordering},
                 {cudaDevAttrGPUDirectRDMAFlushWritesOptions, &options}};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++)
        EW_CUDA_TRY(
            cudaDeviceGetAttribute(asked[i].value, asked[i].attribute, device->ordinal),
            "asking about GPUDirect RDMA");
    const bool flushes = has_rdma && ordering < cudaGPUDirectRDMAWritesOrderingOwner;
    device->direct = !flushes || (options & cudaFlushGPUDirectRDMAWritesOptionHost);
    device->flushes = device->direct && flushes;
    return device->direct ? lend_context(device) : EW_OK;
}

/* ---- The world's device ---- */

static ew_status open_stream(const ewx_device *device, bool high_priority,
                             cudaStream_t *stream_out)
{
    int low, high;
    EW_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&low, &high), "reading stream priorities");
    const int priority = high_priority ? high : low;
    if (device->sm_group) {
        EW_DRIVER_TRY(
            device->driver->cuGreenCtxStreamCreate(stream_out, device->sm_group->green,
                                                   CU_STREAM_NON_BLOCKING, priority),
            "creating a stream");
        return EW_OK;
    }
    EW_CUDA_TRY(cudaStreamCreateWithPriority(stream_out, cudaStreamNonBlocking, priority),
                "creating a stream");
    return EW_OK;
}

static void close_device(void *attachment)
{
    ewx_device *device = attachment;
    take_context_back(device);
    if (device->context && ewx_device_enter(device) == EW_OK) {
        if (device->producing)
            cudaStreamDestroy(device->producing);
        if (device->reducing)
            cudaStreamDestroy(device->reducing);
        if (device->carrying)
            cudaStreamDestroy(device->carrying);
        unmap_abort_word(device);
        cudaFree(device->calls_made);
        ewx_device_leave(device);
    }
    free(device->num_apart);
    ewx_cuda_symmetric_close(device->symmetric);
    ewx_sm_group_return(device->sm_group);
    if (device->primary)
        device->driver->cuDevicePrimaryCtxRelease(device->ordinal);
    free(device);
}

static ew_status open_counter(ewx_device *device)
{
    EW_CUDA_TRY(cudaMalloc((void **)&device->calls_made, sizeof *device->calls_made),
                "allocating a counter");
    EW_CUDA_TRY(cudaMemset(device->calls_made, 0, sizeof *device->calls_made),
                "clearing a counter");
    EW_CUDA_TRY(cudaDeviceSynchronize(), "clearing a counter");
    return EW_OK;
}

static ew_status open_device(ewx_device *device, ew_world *world)
{
    EW_TRY(place(device, world));
    device->num_apart = calloc(1, sizeof *device->num_apart);
    if (!device->num_apart)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a device");
    EW_TRY(ewx_cuda_symmetric_open(&device->symmetric));
    EW_TRY(open_context(device));
    EW_TRY(ewx_device_enter(device));
    ew_status status = map_abort_word(device, world);
    if (status == EW_OK && world->num_hosts == 1)
        status = open_counter(device);
    if (status == EW_OK)
        status = open_stream(device, false, &device->producing);
    if (status == EW_OK)
        status = open_stream(device, true, &device->reducing);
    if (status == EW_OK && world->num_hosts > 1)
        status = open_stream(device, true, &device->carrying);
    ewx_device_leave(device);
    return status == EW_OK ? find_direct_way(device, world) : status;
}

ew_status ewx_device_of(ew_world *world, const ewx_device **device_out)
{
    ewx_attachment *attached = &world->attachments[EWX_ATTACHED_DEVICE];
    if (!attached->object) {
        ewx_device *device = calloc(1, sizeof *device);
        ew_status status =
            device ? EW_OK : ewx_fail(EW_ERR_MEMORY, "no memory for a device");
        EW_TRY(ewx_world_agree(world, status, "open its GPU"));
        status = ewx_world_agree(world, open_device(device, world), "open its GPU");
        if (status != EW_OK) {
            close_device(device);
            return status;
        }
        *attached = (ewx_attachment){device, close_device};
    }
    *device_out = attached->object;
    return EW_OK;
}

int ewx_device_ordinal(const ew_world *world)
{
    const ewx_device *device = world->attachments[EWX_ATTACHED_DEVICE].object;
    return device ? device->ordinal : -1;
}

/* ---- Use ---- */

ew_status ewx_device_enter(const ewx_device *device)
{
    EW_DRIVER_TRY(device->driver->cuCtxPushCurrent(device->context), "entering the GPU");
    return EW_OK;
}

void ewx_device_leave(const ewx_device *device)
{
    CUcontext ours;
    device->driver->cuCtxPopCurrent(&ours);
}
