/* MPI as an ew_fabric: everything is nonblocking point-to-point on a duplicate of the
 * caller's communicator, called by one thread (MPI_THREAD_FUNNELED suffices).
 *
 * Places are persistent receives, started before their message can come.  Sends are not
 * persistent: how much of a tile is sent depends on the call's m.  A confirmed one is
 * synchronous, and what was sent to that rank before has then arrived too, since messages
 * between two ranks do not overtake.
 *
 * Tag 0 is for control messages, tag 1 for the gathering of ranks that join or part; every
 * channel takes the next free tags for its places' numbers. */
#include "mpi_fabric.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

enum { CONTROL_TAG, GATHER_TAG, FIRST_CHANNEL_TAG };
enum { RECEIVES_AHEAD = 16 }; /* for control messages, always posted */
#define PARTING_S 1.0         /* ranks close a fabric together, more or less */

typedef struct sending {
    int dst;
    void *copy; /* to be freed when sent; NULL for tiles */
} sending;

/* A growing set of sends in flight. */
typedef struct outbox {
    MPI_Request *requests;
    sending *sendings;
    int *finished; /* where MPI_Testsome tells */
    MPI_Status *statuses;
    int count, capacity;
} outbox;

/* Ranks that join.  Should the library give up, it stays as it is: MPI may write into it
 * until the process ends. */
typedef struct gathering {
    MPI_Request *requests; /* a receive for each rank, then a send for each */
    int *finished;         /* where MPI_Testsome tells */
    MPI_Status *statuses;
    unsigned char *cards; /* of all ranks */
} gathering;

typedef struct mpi_fabric {
    ew_fabric table; /* first: what the library holds */
    MPI_Comm comm;
    gathering gathering; /* requests NULL: none goes on */
    int next_tag, last_tag;
    char name[MPI_MAX_LIBRARY_VERSION_STRING];
    outbox control;
    MPI_Request incoming[RECEIVES_AHEAD];
    int next_incoming; /* the oldest of the receives: messages are taken in their order */
    unsigned char buffers[RECEIVES_AHEAD][EW_CONTROL_BYTES];
} mpi_fabric;

struct ew_channel {
    mpi_fabric *fabric;
    int first_tag;
    outbox tiles;
    MPI_Request *places;
    bool *armed;
    size_t num_places;
    MPI_Request *asked; /* scratch of arrivals, as long as places */
    int *told;
    MPI_Status *statuses;
};

/* ---- Sends in flight ---- */

static bool grow(void **array, size_t bytes)
{
    void *longer = realloc(*array, bytes);
    if (longer)
        *array = longer;
    return longer != NULL;
}

static bool outbox_grow(outbox *box)
{
    const int capacity = box->capacity ? 2 * box->capacity : 64;
    const size_t n = (size_t)capacity;
    if (!grow((void **)&box->requests, n * sizeof *box->requests) ||
        !grow((void **)&box->sendings, n * sizeof *box->sendings) ||
        !grow((void **)&box->finished, n * sizeof *box->finished) ||
        !grow((void **)&box->statuses, n * sizeof *box->statuses))
        return false;
    box->capacity = capacity;
    return true;
}

/* Forgets the sends that are finished. */
static int outbox_clear(outbox *box)
{
    int num_finished = 0, kept = 0;
    if (box->count == 0)
        return 0;
    if (MPI_Testsome(box->count, box->requests, &num_finished, box->finished,
                     box->statuses) != MPI_SUCCESS)
        return 1;
    for (int i = 0; i < box->count; i++) {
        if (box->requests[i] == MPI_REQUEST_NULL) {
            free(box->sendings[i].copy);
            continue;
        }
        box->requests[kept] = box->requests[i];
        box->sendings[kept++] = box->sendings[i];
    }
    box->count = kept;
    return 0;
}

/* Takes `copy` over. */
static int outbox_send(outbox *box, MPI_Comm comm, int dst, int tag, const void *address,
                       size_t bytes, bool confirmed, void *copy)
{
    if (bytes > INT_MAX || (box->count == box->capacity && !outbox_grow(box))) {
        free(copy);
        return 1;
    }
    MPI_Request *request = &box->requests[box->count];
    const int failed =
        confirmed ? MPI_Issend(address, (int)bytes, MPI_BYTE, dst, tag, comm, request)
                  : MPI_Isend(address, (int)bytes, MPI_BYTE, dst, tag, comm, request);
    if (failed) {
        free(copy);
        return 1;
    }
    box->sendings[box->count++] = (sending){dst, copy};
    return 0;
}

/* What is still in flight keeps its copies: MPI may read them until the process ends. */
static void outbox_close(outbox *box)
{
    free(box->requests);
    free(box->sendings);
    free(box->finished);
    free(box->statuses);
    *box = (outbox){0};
}

/* ---- Control messages ---- */

/* A program may end MPI before its worlds, which then end without it: MPI itself would end
 * the process.  Whoever talks to other hosts begins or ends with a control message, so only
 * those are asked. */
static bool has_ended(void)
{
    int ended = 0;
    return MPI_Finalized(&ended) == MPI_SUCCESS && ended;
}

static int post_receive(mpi_fabric *fabric, int at)
{
    return MPI_Irecv(fabric->buffers[at], EW_CONTROL_BYTES, MPI_BYTE, MPI_ANY_SOURCE,
                     CONTROL_TAG, fabric->comm, &fabric->incoming[at]) != MPI_SUCCESS;
}

static int send_control(void *context, int dst, const void *message, size_t bytes)
{
    mpi_fabric *fabric = context;
    void *copy = malloc(bytes);
    if (!copy || has_ended() || outbox_clear(&fabric->control)) {
        free(copy);
        return 1;
    }
    memcpy(copy, message, bytes);
    return outbox_send(&fabric->control, fabric->comm, dst, CONTROL_TAG, copy, bytes, false,
                       copy);
}

static int receive_control(void *context, int *src_out, void *message, size_t *bytes_out)
{
    mpi_fabric *fabric = context;
    const int at = fabric->next_incoming;
    MPI_Status status;
    int here = 0, bytes = 0;
    *src_out = -1;
    if (has_ended() || MPI_Test(&fabric->incoming[at], &here, &status) != MPI_SUCCESS)
        return 1;
    if (!here)
        return 0;
    if (MPI_Get_count(&status, MPI_BYTE, &bytes) != MPI_SUCCESS || bytes < 0)
        return 1;
    memcpy(message, fabric->buffers[at], (size_t)bytes);
    *bytes_out = (size_t)bytes;
    *src_out = status.MPI_SOURCE;
    fabric->next_incoming = (at + 1) % RECEIVES_AHEAD;
    return post_receive(fabric, at);
}

static int unsent_control(void *context, size_t *count_out)
{
    mpi_fabric *fabric = context;
    const int failed = outbox_clear(&fabric->control);
    *count_out = (size_t)fabric->control.count;
    return failed;
}

/* ---- Channels ---- */

static void free_channel(ew_channel *channel)
{
    outbox_close(&channel->tiles);
    free(channel->places);
    free(channel->armed);
    free(channel->asked);
    free(channel->told);
    free(channel->statuses);
    free(channel);
}

static ew_channel *allocate_channel(mpi_fabric *fabric, size_t num_places)
{
    ew_channel *channel = calloc(1, sizeof *channel);
    const size_t n = num_places + 1;
    if (!channel)
        return NULL;
    *channel = (ew_channel){.fabric = fabric,
                            .first_tag = fabric->next_tag,
                            .num_places = num_places,
                            .places = malloc(n * sizeof(MPI_Request)),
                            .armed = calloc(n, sizeof(bool)),
                            .asked = malloc(n * sizeof(MPI_Request)),
                            .told = malloc(n * sizeof(int)),
                            .statuses = malloc(n * sizeof(MPI_Status))};
    if (channel->places && channel->armed && channel->asked && channel->told &&
        channel->statuses)
        return channel;
    free_channel(channel);
    return NULL;
}

static int rearm(ew_channel *channel, size_t place)
{
    if (channel->places[place] == MPI_REQUEST_NULL || channel->armed[place])
        return 0;
    channel->armed[place] = true;
    return MPI_Start(&channel->places[place]) != MPI_SUCCESS;
}

static int channel_open(void *context, const ew_place *places, size_t num_places,
                        ew_channel **channel_out)
{
    mpi_fabric *fabric = context;
    int highest = 0;
    for (size_t at = 0; at < num_places; at++)
        highest = places[at].number > highest ? places[at].number : highest;
    if (highest >= fabric->last_tag - fabric->next_tag)
        return 1;
    ew_channel *channel = allocate_channel(fabric, num_places);
    fabric->next_tag += highest + 1; /* on all ranks, whatever becomes of this one */
    if (!channel)
        return 1;
    int failed = 0;
    for (size_t at = 0; at < num_places; at++)
        channel->places[at] = MPI_REQUEST_NULL;
    for (size_t at = 0; at < num_places && !failed; at++)
        if (places[at].src >= 0)
            failed = MPI_Recv_init(places[at].address, (int)places[at].bytes, MPI_BYTE,
                                   places[at].src, channel->first_tag + places[at].number,
                                   fabric->comm, &channel->places[at]) != MPI_SUCCESS ||
                     rearm(channel, at);
    *channel_out = channel;
    return failed;
}

static int put(ew_channel *channel, int dst, int32_t number, const void *address,
               size_t bytes, bool confirmed)
{
    return outbox_send(&channel->tiles, channel->fabric->comm, dst,
                       channel->first_tag + number, address, bytes, confirmed, NULL);
}

static int arrivals(ew_channel *channel, const size_t *asked, size_t num_asked,
                    size_t *filled_out, size_t *bytes_out, size_t *num_filled_out)
{
    int count = 0;
    *num_filled_out = 0;
    for (size_t i = 0; i < num_asked; i++)
        channel->asked[i] = channel->places[asked[i]];
    if (MPI_Testsome((int)num_asked, channel->asked, &count, channel->told,
                     channel->statuses) != MPI_SUCCESS)
        return 1;
    for (int i = 0; i < count; i++) { /* MPI_UNDEFINED is negative: none was armed */
        int bytes = 0;
        const size_t place = asked[channel->told[i]];
        if (MPI_Get_count(&channel->statuses[i], MPI_BYTE, &bytes) != MPI_SUCCESS)
            return 1;
        channel->armed[place] = false;
        filled_out[i] = place;
        bytes_out[i] = (size_t)bytes;
        ++*num_filled_out;
    }
    return 0;
}

static int unsent(ew_channel *channel, size_t *count_out, int *dst_out)
{
    const int failed = outbox_clear(&channel->tiles);
    *count_out = (size_t)channel->tiles.count;
    *dst_out = channel->tiles.count > 0 ? channel->tiles.sendings[0].dst : -1;
    return failed;
}

/* Ends a receive for which nothing has come; false when something has. */
static bool disarm(ew_channel *channel, size_t place)
{
    int ended = 1;
    if (channel->places[place] == MPI_REQUEST_NULL)
        return true;
    if (channel->armed[place] &&
        (MPI_Cancel(&channel->places[place]) != MPI_SUCCESS ||
         MPI_Test(&channel->places[place], &ended, MPI_STATUS_IGNORE) != MPI_SUCCESS))
        return false;
    return ended && MPI_Request_free(&channel->places[place]) == MPI_SUCCESS;
}

static bool channel_close(ew_channel *channel, bool broken)
{
    bool quiet = !broken && outbox_clear(&channel->tiles) == 0 && channel->tiles.count == 0;
    for (size_t at = 0; at < channel->num_places && quiet; at++)
        quiet = disarm(channel, at);
    if (quiet)
        free_channel(channel);
    return quiet; /* else MPI still knows the requests: they stay until the process ends */
}

/* ---- The fabric ---- */

static int fabric_allgather(void *context, const void *mine, void *all, size_t bytes)
{
    mpi_fabric *fabric = context;
    return bytes > INT_MAX || MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes,
                                            MPI_BYTE, fabric->comm) != MPI_SUCCESS;
}

static void end_gathering(gathering *g)
{
    free(g->requests);
    free(g->finished);
    free(g->statuses);
    free(g->cards);
    *g = (gathering){0};
}

static int begin_gathering(mpi_fabric *fabric, const void *mine, size_t bytes)
{
    gathering *g = &fabric->gathering;
    const int rank = fabric->table.rank, num_ranks = fabric->table.num_ranks;
    const size_t n = (size_t)num_ranks;
    *g = (gathering){malloc(2 * n * sizeof(MPI_Request)), malloc(2 * n * sizeof(int)),
                     malloc(2 * n * sizeof(MPI_Status)), malloc(n * bytes)};
    if (bytes > INT_MAX || !g->requests || !g->finished || !g->statuses || !g->cards) {
        end_gathering(g);
        return 1;
    }
    unsigned char *own = g->cards + (size_t)rank * bytes;
    memcpy(own, mine, bytes);
    for (int at = 0; at < 2 * num_ranks; at++)
        g->requests[at] = MPI_REQUEST_NULL;
    int failed = 0;
    for (int peer = 0; peer < num_ranks && !failed; peer++)
        if (peer != rank)
            failed = MPI_Irecv(g->cards + (size_t)peer * bytes, (int)bytes, MPI_BYTE, peer,
                               GATHER_TAG, fabric->comm, &g->requests[peer]) ||
                     MPI_Isend(own, (int)bytes, MPI_BYTE, peer, GATHER_TAG, fabric->comm,
                               &g->requests[num_ranks + peer]);
    return failed;
}

static int fabric_gather(void *context, const void *mine, void *all, size_t bytes,
                         bool *missing_out)
{
    mpi_fabric *fabric = context;
    gathering *g = &fabric->gathering;
    const int num_ranks = fabric->table.num_ranks;
    int count = 0;
    bool complete = true;
    if (has_ended() || (!g->requests && begin_gathering(fabric, mine, bytes)))
        return 1;
    if (MPI_Testsome(2 * num_ranks, g->requests, &count, g->finished, g->statuses) !=
        MPI_SUCCESS)
        return 1;
    for (int rank = 0; rank < num_ranks; rank++) {
        missing_out[rank] = g->requests[rank] != MPI_REQUEST_NULL ||
                            g->requests[num_ranks + rank] != MPI_REQUEST_NULL;
        complete &= !missing_out[rank];
    }
    if (complete) {
        memcpy(all, g->cards, (size_t)num_ranks * bytes);
        end_gathering(g);
    }
    return 0;
}

/* "Open MPI v4.1.4, package: ..." and "MPICH Version:\t4.0.2\n..." up to what matters. */
static void read_name(mpi_fabric *fabric)
{
    int length = 0;
    if (MPI_Get_library_version(fabric->name, &length) != MPI_SUCCESS)
        strcpy(fabric->name, "MPI");
    fabric->name[strcspn(fabric->name, ",\n")] = '\0';
    for (char *tab; (tab = strchr(fabric->name, '\t'));)
        *tab = ' ';
}

static int find_tags(mpi_fabric *fabric)
{
    int *limit = NULL, found = 0;
    fabric->next_tag = FIRST_CHANNEL_TAG;
    if (MPI_Comm_get_attr(fabric->comm, MPI_TAG_UB, (void *)&limit, &found) != MPI_SUCCESS)
        return 1;
    fabric->last_tag = found ? *limit : 32767; /* the least that MPI promises */
    return 0;
}

static ew_fabric describe(mpi_fabric *fabric)
{
    return (ew_fabric){.struct_size = (uint32_t)sizeof(ew_fabric),
                       .name = fabric->name,
                       .context = fabric,
                       .allgather = fabric_allgather,
                       .send_control = send_control,
                       .receive_control = receive_control,
                       .unsent_control = unsent_control,
                       .channel_open = channel_open,
                       .put = put,
                       .arrivals = arrivals,
                       .rearm = rearm,
                       .unsent = unsent,
                       .channel_close = channel_close,
                       .takes_device_memory = ewx_mpi_takes_device_memory(),
                       .gather = fabric_gather};
}

int ewx_mpi_fabric_open(const void *comm, const ew_fabric **fabric_out)
{
    mpi_fabric *fabric = calloc(1, sizeof *fabric);
    int rank = 0, num_ranks = 0;
    if (!fabric)
        return 1;
    if (has_ended() ||
        MPI_Comm_dup(comm ? *(const MPI_Comm *)comm : MPI_COMM_WORLD, &fabric->comm)) {
        free(fabric);
        return 1;
    }
    int failed = MPI_Comm_set_errhandler(fabric->comm, MPI_ERRORS_RETURN) ||
                 MPI_Comm_rank(fabric->comm, &rank) ||
                 MPI_Comm_size(fabric->comm, &num_ranks) || find_tags(fabric);
    read_name(fabric);
    fabric->table = describe(fabric);
    fabric->table.rank = rank;
    fabric->table.num_ranks = num_ranks;
    for (int at = 0; at < RECEIVES_AHEAD && !failed; at++)
        failed = post_receive(fabric, at);
    *fabric_out = &fabric->table;
    return failed;
}

/* All ranks say that they have sent their last message: when that is here, so is what they
 * sent before.  False: a rank has not said so in time. */
static bool part(mpi_fabric *fabric)
{
    const size_t num_ranks = (size_t)fabric->table.num_ranks;
    const unsigned char goodbye = 0;
    unsigned char *all = calloc(2, num_ranks);
    bool *missing = (bool *)(all + num_ranks);
    const double limit = MPI_Wtime() + PARTING_S;
    bool failed = !all || fabric->gathering.requests, parted = false;
    while (!failed && !parted) {
        failed = fabric_gather(fabric, &goodbye, all, 1, missing) || MPI_Wtime() > limit;
        parted = !failed && !fabric->gathering.requests;
    }
    free(all);
    return parted;
}

/* A communicator is freed when no message of it is on its way: such a message would be
 * taken for one of the next communicator, which gets the same number, and in Open MPI keep
 * the one in whose place it comes from ever being received. */
void ewx_mpi_fabric_close(const ew_fabric *table, int broken)
{
    if (!table || broken || has_ended()) /* peers may be gone: MPI would wait for them */
        return;
    mpi_fabric *fabric = table->context;
    bool quiet =
        part(fabric) && outbox_clear(&fabric->control) == 0 && fabric->control.count == 0;
    for (int at = 0; at < RECEIVES_AHEAD; at++) {
        int ended = 0;
        quiet = MPI_Cancel(&fabric->incoming[at]) == MPI_SUCCESS &&
                MPI_Test(&fabric->incoming[at], &ended, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
                ended && quiet;
    }
    if (!quiet)
        return;
    MPI_Comm_free(&fabric->comm);
    outbox_close(&fabric->control);
    free(fabric);
}
