/* Letters between hosts: what they say, and what is done when one comes. */
#include "world/hosts.h"

#include <stdlib.h>
#include <string.h>

#include "base/epoch.h"
#include "base/status.h"

#define LETTERS_AT_ONCE 64
#define GOODBYE_NS 500000000 /* how long a leaving rank helps its last letters out */

typedef enum letter_kind {
    LETTER_ROUND = 1, /* number: the round; body: round_note */
    LETTER_OPERATION, /* body: operation_note */
    LETTER_FAULT,     /* body: ewx_fault */
    LETTER_DEPARTED,
    LETTER_LISTENER /* number: the listener's */
} letter_kind;

typedef struct letter {
    uint64_t world; /* the sender's: a fabric may serve several, one after the other */
    uint32_t kind;
    uint32_t number;
    unsigned char body[sizeof(uint64_t) + EWX_POST_BYTES];
} letter;
#define HEAD_BYTES offsetof(letter, body)
_Static_assert(sizeof(letter) == EW_LETTER_BYTES, "room for every letter, and no more");

/* What a rank brings to a collective; as much of the data as there is. */
typedef struct round_note {
    uint64_t meeting;
    unsigned char data[EWX_POST_BYTES];
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

static void send_to_all(ew_world *world, letter_kind kind, uint32_t number,
                        const void *body, size_t bytes)
{
    letter mail;
    if (!ewx_hosts_reachable(world))
        return;
    mail.world = world->stamp;
    mail.kind = kind;
    mail.number = number;
    if (bytes > 0)
        memcpy(mail.body, body, bytes);
    for (int rank = 0; rank < world->num_ranks && ewx_hosts_reachable(world); rank++) {
        if (ewx_world_is_local(world, rank))
            continue;
        world->traffic.letters++;
        if (world->fabric->send_letter(world->fabric->context, rank, &mail,
                                       HEAD_BYTES + bytes))
            ewx_hosts_fail(world);
    }
}

void ewx_hosts_tell(ew_world *world, uint32_t number, const void *body, size_t bytes)
{
    send_to_all(world, LETTER_LISTENER, number, body, bytes);
}

void ewx_hosts_enter_round(ew_world *world, uint32_t round, uint64_t meeting,
                           const void *mine, size_t bytes)
{
    round_note note;
    if (world->num_hosts == 1)
        return;
    note.meeting = meeting;
    if (bytes > 0)
        memcpy(note.data, mine, bytes);
    send_to_all(world, LETTER_ROUND, round, &note, offsetof(round_note, data) + bytes);
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

void ewx_hosts_tell_operation(ew_world *world, uint64_t sequence,
                              const ewx_operation *operation)
{
    if (world->num_hosts == 1)
        return;
    const operation_note note = note_of(sequence, operation);
    send_to_all(world, LETTER_OPERATION, 0, &note, sizeof note);
}

void ewx_hosts_fail(ew_world *world)
{
    world->fabric_failed = true;
    ewx_world_raise_quietly(world, &(ewx_fault){.status = EW_ERR_SYSTEM,
                                                .culprit = world->rank,
                                                .reporter = world->rank,
                                                .code = EWX_FAULT_FABRIC});
}

void ewx_hosts_refuse(ew_world *world, int src)
{
    ewx_world_raise_quietly(world, &(ewx_fault){.status = EW_ERR_SYSTEM,
                                                .culprit = src,
                                                .reporter = world->rank,
                                                .code = EWX_FAULT_MESSAGE});
}

/* Whoever hears of a fault tells all other hosts: the reporter may be dead or cut off. */
static void pass_fault_on(ew_world *world)
{
    const ewx_control *control = world->control;
    if (world->fault_passed_on || !control ||
        !atomic_load_explicit(&control->fault_ready, memory_order_acquire))
        return;
    world->fault_passed_on = true;
    send_to_all(world, LETTER_FAULT, 0, &control->fault, sizeof control->fault);
}

/* ---- Receiving ---- */

/* These return false when there can be no such letter. */

static bool hear_round(ew_world *world, int src, const letter *mail, size_t bytes)
{
    ewx_post *post = world->posts[src];
    const size_t head = offsetof(round_note, data);
    /* One after the other, and none before all have entered the one before. */
    if (bytes < head ||
        mail->number != atomic_load_explicit(&post->round, memory_order_relaxed) + 1 ||
        !ewx_epoch_reached(world->round + 1, mail->number))
        return false;
    memcpy(&post->meeting[mail->number & 1], mail->body, head);
    memcpy(post->data[mail->number & 1], mail->body + head, bytes - head);
    post->data_bytes[mail->number & 1] = (uint32_t)(bytes - head);
    atomic_store_explicit(&post->round, mail->number, memory_order_release);
    return true;
}

/* Not before now: a letter may come before this rank knows what it will bring itself. */
ew_status ewx_hosts_check_round(ew_world *world, int rank, size_t bytes)
{
    if (ewx_world_is_local(world, rank) ||
        world->posts[rank]->data_bytes[world->round & 1] == bytes)
        return EW_OK;
    ewx_hosts_refuse(world, rank);
    return ewx_world_check(world);
}

static bool hear_operation(ew_world *world, int src, const letter *mail, size_t bytes)
{
    operation_note note;
    if (bytes != sizeof note)
        return false;
    memcpy(&note, mail->body, sizeof note);
    if ((note.kind != EWX_RECORD_PLAN && note.kind != EWX_RECORD_CALL) || note.replays > 1)
        return false;
    ewx_recorder_hear(
        world, src, note.sequence,
        &(ewx_operation){.op = note.op,
                         .kind = (ewx_record_kind)note.kind,
                         .shape = {note.shape[0], note.shape[1], note.shape[2]},
                         .plan = note.plan,
                         .replays = note.replays});
    return true;
}

/* A fault that says EW_OK, for one, would let calls succeed that did not. */
static bool hear_fault(ew_world *world, const letter *mail, size_t bytes)
{
    ewx_fault fault;
    if (bytes != sizeof fault)
        return false;
    memcpy(&fault, mail->body, sizeof fault);
    if (fault.status >= EW_OK || fault.status < EW_ERR_ABORTED || fault.culprit < 0 ||
        fault.culprit >= world->num_ranks || fault.reporter < 0 ||
        fault.reporter >= world->num_ranks)
        return false;
    ewx_world_raise_quietly(world, &fault);
    return true;
}

/* One that has closed meanwhile misses nothing. */
static void hear_listener(ew_world *world, int src, const letter *mail, size_t bytes)
{
    for (ewx_listener *at = world->listeners; at; at = at->next)
        if (at->number == mail->number)
            at->hear(at->context, src, mail->body, bytes);
}

static bool hear(ew_world *world, int src, const letter *mail, size_t bytes)
{
    switch ((letter_kind)mail->kind) {
    case LETTER_ROUND:
        return hear_round(world, src, mail, bytes);
    case LETTER_OPERATION:
        return hear_operation(world, src, mail, bytes);
    case LETTER_FAULT:
        return hear_fault(world, mail, bytes);
    case LETTER_DEPARTED:
        atomic_store_explicit(&world->posts[src]->departed, 1, memory_order_release);
        return true;
    case LETTER_LISTENER:
        hear_listener(world, src, mail, bytes);
        return true;
    }
    return false;
}

void ewx_hosts_progress(ew_world *world)
{
    letter mail;
    for (int i = 0; i < LETTERS_AT_ONCE && ewx_hosts_reachable(world); i++) {
        int src = -1;
        size_t bytes = 0;
        if (world->fabric->receive_letter(world->fabric->context, &src, &mail, &bytes))
            ewx_hosts_fail(world);
        if (src < 0)
            break;
        if (!ewx_hosts_have(world, src) || bytes > sizeof mail)
            ewx_hosts_fail(world);
        else if (bytes < HEAD_BYTES || (mail.world == world->stamp &&
                                        !hear(world, src, &mail, bytes - HEAD_BYTES)))
            ewx_hosts_refuse(world, src);
    }
    if (world->num_hosts > 1)
        pass_fault_on(world);
}

void ewx_hosts_listen(ew_world *world, ewx_listener *listener)
{
    listener->number = world->num_listeners++;
    listener->next = world->listeners;
    world->listeners = listener;
}

void ewx_hosts_unlisten(ew_world *world, ewx_listener *listener)
{
    for (ewx_listener **at = &world->listeners; *at; at = &(*at)->next)
        if (*at == listener) {
            *at = listener->next;
            return;
        }
}

ew_status ewx_hosts_open_channel(const ew_world *world, const ew_place *places,
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

ew_status ewx_hosts_open(ew_world *world)
{
    size_t num_remote = (size_t)(world->num_ranks - world->num_locals), next = 0;
    if (num_remote > 0 && !(world->replicas = aligned_alloc(_Alignof(ewx_post),
                                                            num_remote * sizeof(ewx_post))))
        return ewx_fail(EW_ERR_MEMORY, "no memory for a world of %d ranks",
                        world->num_ranks);
    if (num_remote > 0)
        memset(world->replicas, 0, num_remote * sizeof(ewx_post));
    for (int rank = 0; rank < world->num_ranks; rank++)
        world->posts[rank] = ewx_world_is_local(world, rank) ? &world->control->posts[rank]
                                                             : &world->replicas[next++];
    return EW_OK;
}

static bool letters_are_out(ew_world *world)
{
    size_t unsent = 0;
    ewx_hosts_progress(world);
    return !ewx_hosts_reachable(world) ||
           world->fabric->unsent_letters(world->fabric->context, &unsent) != 0 ||
           unsent == 0;
}

void ewx_hosts_close(ew_world *world)
{
    if (world->replicas && ewx_hosts_reachable(world)) {
        ewx_hosts_progress(world);
        send_to_all(world, LETTER_DEPARTED, 0, NULL, 0);
        ewx_wait wait = ewx_wait_begin(NULL, GOODBYE_NS, world->spins);
        ew_status status;
        EWX_AWAIT(status, &wait, letters_are_out(world));
        (void)status;
    }
    free(world->replicas);
    world->replicas = NULL;
}
