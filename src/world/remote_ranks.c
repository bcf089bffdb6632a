/* Control messages between hosts: what they contain, and how each is handled. */
#include "world/remote_ranks.h"

#include <stdlib.h>
#include <string.h>

#include "base/epoch.h"
#include "base/status.h"

#define MESSAGES_AT_ONCE 64
#define FAREWELL_NS \
    500000000 /* how long a leaving rank waits for its last messages to be sent */

typedef enum message_kind {
    MESSAGE_ROUND = 1, /* number: the round; body: round_note */
    MESSAGE_OPERATION, /* body: operation_note */
    MESSAGE_FAULT,     /* body: ewx_fault */
    MESSAGE_DEPARTED,
    MESSAGE_LISTENER /* number: the listener's */
} message_kind;

typedef struct control_message {
    uint64_t world; /* the sender's: a fabric may serve several, one after the other */
    uint32_t kind;
    uint32_t number;
    unsigned char body[sizeof(uint64_t) + EWX_MAILBOX_BYTES];
} control_message;
#define HEAD_BYTES offsetof(control_message, body)
_Static_assert(sizeof(control_message) == EW_CONTROL_BYTES,
               "room for every message, and no more");

/* What a rank brings to a collective; as much of the data as there is. */
typedef struct round_note {
    uint64_t meeting;
    unsigned char data[EWX_MAILBOX_BYTES];
} round_note;

/* An operation as it travels. */
typedef struct operation_note {
    uint64_t sequence;
    int64_t shape[3];
    uint64_t plan;
    int32_t op;
    uint32_t kind, replays, padding;
} operation_note;

/* ---- Sending ---- */

static void send_to_all(ew_world *world, message_kind kind, uint32_t number,
                        const void *body, size_t bytes)
{
    control_message message;
    if (!ewx_remotes_reachable(world))
        return;
    message.world = world->stamp;
    message.kind = kind;
    message.number = number;
    if (bytes > 0)
        memcpy(message.body, body, bytes);
    for (int rank = 0; rank < world->num_ranks && ewx_remotes_reachable(world); rank++) {
        if (ewx_world_is_local(world, rank))
            continue;
        world->traffic.control_messages++;
        if (world->fabric->send_control(world->fabric->context, rank, &message,
                                        HEAD_BYTES + bytes))
            ewx_remotes_fail(world);
    }
}

void ewx_remotes_send(ew_world *world, uint32_t number, const void *body, size_t bytes)
{
    send_to_all(world, MESSAGE_LISTENER, number, body, bytes);
}

void ewx_remotes_enter_round(ew_world *world, uint32_t round, uint64_t meeting,
                             const void *mine, size_t bytes)
{
    round_note note;
    if (world->num_hosts == 1)
        return;
    note.meeting = meeting;
    if (bytes > 0)
        memcpy(note.data, mine, bytes);
    send_to_all(world, MESSAGE_ROUND, round, &note, offsetof(round_note, data) + bytes);
}

static operation_note note_of(uint64_t sequence, const ewx_operation *operation)
{
    return (operation_note){
        .sequence = sequence,
        .shape = {operation->shape[0], operation->shape[1], operation->shape[2]},
        .plan = operation->plan,
        .op = operation->op,
        .kind = operation->kind,
        .replays = operation->replays};
}

void ewx_remotes_send_operation(ew_world *world, uint64_t sequence,
                                const ewx_operation *operation)
{
    if (world->num_hosts == 1)
        return;
    const operation_note note = note_of(sequence, operation);
    send_to_all(world, MESSAGE_OPERATION, 0, &note, sizeof note);
}

void ewx_remotes_fail(ew_world *world)
{
    world->fabric_failed = true;
    ewx_world_raise_quietly(world, &(ewx_fault){.status = EW_ERR_SYSTEM,
                                                .culprit = world->rank,
                                                .reporter = world->rank,
                                                .code = EWX_FAULT_FABRIC});
}

void ewx_remotes_refuse(ew_world *world, int src)
{
    ewx_world_raise_quietly(world, &(ewx_fault){.status = EW_ERR_SYSTEM,
                                                .culprit = src,
                                                .reporter = world->rank,
                                                .code = EWX_FAULT_MESSAGE});
}

/* Only once: a rank that receives several faults keeps the first. */
void ewx_remotes_tell(ew_world *world, const ewx_fault *fault)
{
    if (world->fault_passed_on)
        return;
    world->fault_passed_on = true;
    send_to_all(world, MESSAGE_FAULT, 0, fault, sizeof *fault);
}

/* A rank that learns of a fault informs all other hosts: the reporter may be dead or cut
 * off.
 */
static void pass_fault_on(ew_world *world)
{
    const ewx_control *control = world->control;
    if (control && atomic_load_explicit(&control->fault_ready, memory_order_acquire))
        ewx_remotes_tell(world, &control->fault);
}

/* ---- Receiving ---- */

/* These return false for a malformed message. */

static bool handle_round(ew_world *world, int src, const control_message *message,
                         size_t bytes)
{
    ewx_mailbox *mailbox = world->mailboxes[src];
    const size_t head = offsetof(round_note, data);
    /* Rounds come in order, and none before all ranks have entered the previous one. */
    if (bytes < head ||
        message->number !=
            atomic_load_explicit(&mailbox->round, memory_order_relaxed) + 1 ||
        !ewx_epoch_reached(world->round + 1, message->number))
        return false;
    memcpy(&mailbox->meeting[message->number & 1], message->body, head);
    memcpy(mailbox->data[message->number & 1], message->body + head, bytes - head);
    mailbox->data_bytes[message->number & 1] = (uint32_t)(bytes - head);
    atomic_store_explicit(&mailbox->round, message->number, memory_order_release);
    return true;
}

/* Not checked on arrival: by then this rank may not know what it will contribute itself. */
ew_status ewx_remotes_check_round(ew_world *world, int rank, size_t bytes)
{
    if (ewx_world_is_local(world, rank) ||
        world->mailboxes[rank]->data_bytes[world->round & 1] == bytes)
        return EW_OK;
    ewx_remotes_refuse(world, rank);
    return ewx_world_check(world);
}

static bool handle_operation(ew_world *world, int src, const control_message *message,
                             size_t bytes)
{
    operation_note note;
    if (bytes != sizeof note)
        return false;
    memcpy(&note, message->body, sizeof note);
    if ((note.kind != EWX_RECORD_PLAN && note.kind != EWX_RECORD_CALL) || note.replays > 1)
        return false;
    ewx_recorder_receive(
        world, src, note.sequence,
        &(ewx_operation){.op = note.op,
                         .kind = (ewx_record_kind)note.kind,
                         .shape = {note.shape[0], note.shape[1], note.shape[2]},
                         .plan = note.plan,
                         .replays = note.replays});
    return true;
}

/* A fault with status EW_OK, for instance, would make failed calls succeed. */
static bool handle_fault(ew_world *world, const control_message *message, size_t bytes)
{
    ewx_fault fault;
    if (bytes != sizeof fault)
        return false;
    memcpy(&fault, message->body, sizeof fault);
    if (fault.status >= EW_OK || fault.status < EW_ERR_ABORTED || fault.culprit < 0 ||
        fault.culprit >= world->num_ranks || fault.reporter < 0 ||
        fault.reporter >= world->num_ranks)
        return false;
    ewx_world_raise_quietly(world, &fault);
    return true;
}

/* A listener that has closed in the meantime misses nothing. */
static void handle_listener(ew_world *world, int src, const control_message *message,
                            size_t bytes)
{
    for (ewx_listener *at = world->listeners; at; at = at->next)
        if (at->number == message->number)
            at->handle(at->context, src, message->body, bytes);
}

static bool handle(ew_world *world, int src, const control_message *message, size_t bytes)
{
    switch ((message_kind)message->kind) {
    case MESSAGE_ROUND:
        return handle_round(world, src, message, bytes);
    case MESSAGE_OPERATION:
        return handle_operation(world, src, message, bytes);
    case MESSAGE_FAULT:
        return handle_fault(world, message, bytes);
    case MESSAGE_DEPARTED:
        atomic_store_explicit(&world->mailboxes[src]->departed, 1, memory_order_release);
        return true;
    case MESSAGE_LISTENER:
        handle_listener(world, src, message, bytes);
        return true;
    }
    return false;
}

void ewx_remotes_progress(ew_world *world)
{
    control_message message;
    /* Without replicas, while ranks still meet, there is nowhere to put them. */
    for (int i = 0; i < MESSAGES_AT_ONCE && world->replicas && ewx_remotes_reachable(world);
         i++) {
        int src = -1;
        size_t bytes = 0;
        if (world->fabric->receive_control(world->fabric->context, &src, &message, &bytes))
            ewx_remotes_fail(world);
        if (src < 0)
            break;
        if (!ewx_is_remote(world, src) || bytes > sizeof message)
            ewx_remotes_fail(world);
        else if (bytes < HEAD_BYTES || (message.world == world->stamp &&
                                        !handle(world, src, &message, bytes - HEAD_BYTES)))
            ewx_remotes_refuse(world, src);
    }
    if (world->num_hosts > 1)
        pass_fault_on(world);
}

void ewx_remotes_listen(ew_world *world, ewx_listener *listener)
{
    listener->number = world->num_plans;
    listener->next = world->listeners;
    world->listeners = listener;
}

void ewx_remotes_unlisten(ew_world *world, ewx_listener *listener)
{
    for (ewx_listener **at = &world->listeners; *at; at = &(*at)->next)
        if (*at == listener) {
            *at = listener->next;
            return;
        }
}

ew_status ewx_remotes_open_channel(const ew_world *world, const ew_place *places,
                                   size_t num_places, const char *fix,
                                   ew_channel **channel_out)
{
    const ew_fabric *fabric = world->fabric;
    if (fabric->channel_open(fabric->context, places, num_places, channel_out) == 0)
        return EW_OK;
    return ewx_fail(EW_ERR_SYSTEM, "%s cannot receive %zu messages\n  fix: %s",
                    fabric->name, num_places, fix);
}

/* ---- Coming and going ---- */

ew_status ewx_remotes_open(ew_world *world)
{
    size_t num_remote = (size_t)(world->num_ranks - world->num_locals), next = 0;
    if (num_remote > 0 && !(world->replicas = aligned_alloc(
                                _Alignof(ewx_mailbox), num_remote * sizeof(ewx_mailbox))))
        return ewx_fail(EW_ERR_MEMORY, "no memory for a world of %d ranks",
                        world->num_ranks);
    if (num_remote > 0)
        memset(world->replicas, 0, num_remote * sizeof(ewx_mailbox));
    for (int rank = 0; rank < world->num_ranks; rank++)
        world->mailboxes[rank] = ewx_world_is_local(world, rank)
                                     ? &world->control->mailboxes[rank]
                                     : &world->replicas[next++];
    return EW_OK;
}

static bool messages_are_sent(ew_world *world)
{
    size_t unsent = 0;
    ewx_remotes_progress(world);
    return !ewx_remotes_reachable(world) ||
           world->fabric->unsent_control(world->fabric->context, &unsent) != 0 ||
           unsent == 0;
}

static void await_sent(ew_world *world, const _Atomic uint64_t *abort, int64_t limit_ns)
{
    ewx_wait wait = ewx_wait_begin(abort, limit_ns, world->spins);
    ew_status status;
    EWX_AWAIT(status, &wait, messages_are_sent(world));
    (void)status;
}

void ewx_remotes_see_off(ew_world *world)
{
#if EW_MUTANT == 97 /* planted bug: messages that need help may stay behind */
    return;
#endif
    if (ewx_remotes_reachable(world))
        await_sent(world, &world->control->abort, world->timeout_ns);
}

void ewx_remotes_close(ew_world *world)
{
    if (ewx_remotes_reachable(world)) {
        ewx_remotes_progress(world);
        send_to_all(world, MESSAGE_DEPARTED, 0, NULL, 0);
        await_sent(world, NULL, FAREWELL_NS);
    }
    free(world->replicas);
    world->replicas = NULL;
}
