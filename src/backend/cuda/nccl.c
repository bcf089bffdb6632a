#include "backend/cuda/nccl.h"

#include <pthread.h>

#include "base/symbol.h"

/* NCCL's names and values, fixed by its ABI; its header may not be installed. */
enum { UNIQUE_ID_BYTES = 128, TYPE_FP16 = 6, TYPE_BF16 = 9, OP_SUM = 0, SUCCESS = 0 };
typedef struct unique_id {
    char bytes[UNIQUE_ID_BYTES];
} unique_id;

static struct {
    int (*get_unique_id)(unique_id *id);
    int (*init_rank)(void **communicator, int num_ranks, unique_id id, int rank);
    int (*destroy)(void *communicator);
    int (*reduce_scatter)(const void *from, void *to, size_t count, int type, int operation,
                          void *communicator, cudaStream_t stream);
    const char *(*error_text)(int result);
} nccl_library;

static pthread_once_t looked = PTHREAD_ONCE_INIT;
static bool found;

static void look(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    found = library &&
            ewx_symbol_find(library, "ncclGetUniqueId", &nccl_library.get_unique_id) &&
            ewx_symbol_find(library, "ncclCommInitRank", &nccl_library.init_rank) &&
            ewx_symbol_find(library, "ncclCommDestroy", &nccl_library.destroy) &&
            ewx_symbol_find(library, "ncclReduceScatter", &nccl_library.reduce_scatter) &&
            ewx_symbol_find(library, "ncclGetErrorString", &nccl_library.error_text);
}

bool ewx_nccl_available(void)
{
    pthread_once(&looked, look);
    return found;
}

static ew_status check(int result, const char *what)
{
    return result == SUCCESS ? EW_OK
                             : ewx_fail(EW_ERR_SYSTEM, "NCCL: %s failed: %s", what,
                                        nccl_library.error_text(result));
}

typedef struct offer {
    int32_t available;
    unique_id id; /* rank 0's counts */
} offer;

ew_status ewx_nccl_open(ewx_nccl *nccl, ew_world *world, const ewx_device *device)
{
    offer mine = {.available = ewx_nccl_available() && device->sharers == 1};
    offer all[EWX_MAX_RANKS];
    ew_status status = EW_OK;
    if (mine.available && world->rank == 0)
        status = check(nccl_library.get_unique_id(&mine.id), "get unique id");
    EW_TRY(ewx_world_agree(world, status, "start NCCL"));
    EW_TRY(ewx_world_allgather(world, &mine, all, sizeof mine));
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (!all[rank].available)
            return EW_OK;
    status = check(nccl_library.init_rank(&nccl->communicator, world->num_ranks, all[0].id,
                                          world->rank),
                   "init");
    return ewx_world_agree(world, status, "join NCCL");
}

void ewx_nccl_close(ewx_nccl *nccl)
{
    if (nccl->communicator)
        nccl_library.destroy(nccl->communicator);
    nccl->communicator = NULL;
}

ew_status ewx_nccl_reduce_scatter(const ewx_nccl *nccl, ew_dtype dtype, const void *from,
                                  void *to, int64_t count, cudaStream_t stream)
{
    return check(nccl_library.reduce_scatter(from, to, (size_t)count,
                                             dtype == EW_BF16 ? TYPE_BF16 : TYPE_FP16,
                                             OP_SUM, nccl->communicator, stream),
                 "reduce-scatter");
}
