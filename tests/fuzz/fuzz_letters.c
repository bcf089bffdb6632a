/* What ranks of other hosts send during a world's life, and what the fabric says of it:
 * control messages, and messages with tiles.  Whatever comes, nothing outside of the
 * sender's replicas changes, tiles count as arrived only when all of their bytes have, and
 * what is wrong ends as an error of the world.  The sources are included, because none of
 * this is visible outside them.
 *
 * We are rank 1 of 4; rank 0 is on our host, 2 and 3 on another.  The first byte chooses
 * the levels of the sum, an AllReduce in two shots, or rows of AllGather-GEMM, of which two
 * messages make a panel, and m.  The rest are steps, each a
 * byte that says which and then what it needs; a good message comes with bytes to put in
 * places of it. */
#include "fuzz.h"

#include <sanitizer/asan_interface.h>

#include "world/remote_ranks.h"

enum { RANKS = 4, US = 1, NEIGHBOUR = 0, FIRST_REMOTE = 2, NEIGHBOURS_ROUND = 1000 };

/* Every input has its replicas made and freed.  They are so large that malloc would ask the
 * kernel for them each time, so they lie in one place, which is poisoned in between. */
static ewx_mailbox *replicas;

static void *make_replicas(size_t alignment, size_t bytes)
{
    if (!replicas)
        replicas = aligned_alloc(alignment, bytes);
    ASAN_UNPOISON_MEMORY_REGION(replicas, bytes);
    return replicas;
}

static void free_replicas(void *ours)
{
    FUZZ_DEMAND(ours == replicas);
    ASAN_POISON_MEMORY_REGION(replicas, sizeof *replicas * (RANKS - FIRST_REMOTE));
}

#define aligned_alloc make_replicas
#define free free_replicas
#include "world/remote_ranks.c"
#undef aligned_alloc
#undef free

#include "backend/cpu/wire.c"
#include "exchange/exchange.c"

typedef struct input {
    const uint8_t *data;
    size_t bytes, at;
} input;

static uint8_t take(input *in)
{
    return in->at < in->bytes ? in->data[in->at++] : 0;
}

static uint32_t take_16(input *in)
{
    const uint32_t high = take(in);
    return high << 8 | take(in);
}

/* ---- A fabric that says what the input wants ---- */

static struct {
    control_message control;
    size_t control_bytes;
    int src;     /* of the control message, -1: none */
    bool news;   /* has come since somebody looked */
    bool failed; /* a collective */
    bool fails;
    bool anything; /* of places that were not asked about, too */
    size_t place, place_bytes, num_filled;
    size_t unsent;
    int unsent_to;
} said;

static ewx_cpu_engine engine;
static bool has_come[RANKS][16]; /* whole, by unit */
static size_t brought[RANKS][2]; /* to collectives, by round parity, as the next */
static uint64_t meetings[RANKS][2];

static int send_control(void *context, int dst, const void *message, size_t bytes)
{
    (void)context;
    FUZZ_DEMAND(dst >= FIRST_REMOTE && dst < RANKS && bytes <= EW_CONTROL_BYTES && message);
    return said.fails;
}

static int receive_control(void *context, int *src_out, void *message, size_t *bytes_out)
{
    (void)context;
    *src_out = said.src;
    *bytes_out = said.control_bytes;
    if (said.src >= 0)
        memcpy(message, &said.control,
               said.control_bytes < EW_CONTROL_BYTES ? said.control_bytes
                                                     : EW_CONTROL_BYTES);
    said.src = -1;
    return said.fails;
}

static int unsent_control(void *context, size_t *count_out)
{
    (void)context;
    *count_out = 0;
    return said.fails;
}

static int channel_open(void *context, const ew_place *places, size_t num_places,
                        ew_channel **channel_out)
{
    (void)context;
    FUZZ_DEMAND(places && num_places > 0);
    *channel_out = (ew_channel *)&said;
    return 0;
}

static int put_nothing(ew_channel *channel, int dst, int32_t number, const void *address,
                       size_t bytes, bool confirmed)
{
    (void)channel, (void)dst, (void)number, (void)address, (void)bytes, (void)confirmed;
    return said.fails;
}

/* Of a whole message for a place. */
static size_t whole_bytes(size_t place)
{
    const ewx_exchange *x = &engine.wire.exchange;
    const size_t units = (size_t)x->num_units, remotes = (size_t)x->num_remotes;
    const int64_t unit = (int64_t)(place / 2 % units);
    const int src = x->remotes[place / 2 / units % remotes];
    return ewx_exchange_unit_bytes(x, owner_of(x, src, US, unit), unit);
}

static int arrivals(ew_channel *channel, const size_t *asked, size_t num_asked,
                    size_t *filled_out, size_t *bytes_out, size_t *num_filled_out)
{
    (void)channel;
    const int64_t unit = (int64_t)(said.place / 2) % engine.wire.exchange.num_units;
    const size_t remote = said.place / 2 / (size_t)engine.wire.exchange.num_units;
    bool is_asked = false;
    *num_filled_out = 0;
    for (size_t i = 0; i < num_asked; i++)
        is_asked |= asked[i] == said.place;
    if (is_asked || said.anything)
        *num_filled_out = said.num_filled < num_asked ? said.num_filled : num_asked;
    for (size_t i = 0; i < *num_filled_out; i++) {
        filled_out[i] = said.place;
        bytes_out[i] = said.place_bytes;
        said.num_filled = 0;
    }
    if (is_asked && *num_filled_out > 0 && said.place_bytes == whole_bytes(said.place))
        has_come[engine.wire.exchange.remotes[remote]][unit] = true;
    return said.fails;
}

static int rearm(ew_channel *channel, size_t place)
{
    (void)channel, (void)place;
    return said.fails;
}

static int unsent(ew_channel *channel, size_t *count_out, int *dst_out)
{
    (void)channel;
    *count_out = said.unsent;
    *dst_out = said.unsent_to;
    return said.fails;
}

static bool channel_close(ew_channel *channel, bool broken)
{
    (void)channel, (void)broken;
    return true;
}

static const ew_fabric fabric = {.struct_size = sizeof fabric,
                                 .rank = US,
                                 .num_ranks = RANKS,
                                 .name = "a fuzzed fabric",
                                 .send_control = send_control,
                                 .receive_control = receive_control,
                                 .unsent_control = unsent_control,
                                 .channel_open = channel_open,
                                 .put = put_nothing,
                                 .arrivals = arrivals,
                                 .rearm = rearm,
                                 .unsent = unsent,
                                 .channel_close = channel_close};

/* ---- A world and an engine in the middle of a call ---- */

static ew_world world, settled;
enum { LEVELS_1, LEVELS_2, ALLREDUCE, GATHER, NUM_FORMS };
static ewx_spec specs[NUM_FORMS];
static unsigned char *segments[RANKS], *zeros;
static ewx_control *control;
static _Atomic uint8_t peer_agrees[RANKS];
static const uint64_t our_meeting = (uint64_t)EWX_MEETING_INNER << 56 | 8;
static const ewx_operation our_call = {
    .kind = EWX_RECORD_CALL, .shape = {5, 6, 7}, .plan = 8};

/* Once; every segment in memory of its own, so that writing beyond its end is caught.  What
 * no message may touch is poisoned: tiles, and what the control block has for ranks that
 * are not here. */
static void allocate(void)
{
    ew_problem problem = EW_PROBLEM(RANKS * 300, 20, 8, EW_FP32);
    const ewx_machine machine = {.cores = RANKS, .hosts = 2};
    ew_config config = EW_CONFIG_INIT;
    config.backend = EW_BACKEND_CPU;
    config.release = 2;
    for (config.levels = 1; config.levels <= 2; config.levels++)
        FUZZ_DEMAND(ewx_spec_build(&problem, RANKS, &config, &machine,
                                   &specs[config.levels - 1]) == EW_OK);
    problem.op = EW_OP_GEMM_AR;
    problem.max_m = RANKS * 200;
    config.levels = 1;
    config.shots = 2;
    FUZZ_DEMAND(ewx_spec_build(&problem, RANKS, &config, &machine, &specs[ALLREDUCE]) ==
                EW_OK);
    problem.op = EW_OP_AG_GEMM;
    problem.k = EW_MESSAGE_BYTES / (EWX_TILE_M / 2) / 4;
    config.shots = 0;
    FUZZ_DEMAND(ewx_spec_build(&problem, RANKS, &config, &machine, &specs[GATHER]) ==
                EW_OK);
    control = aligned_alloc(64, (ewx_control_bytes(RANKS) + 63) / 64 * 64);
    memset(control, 0, ewx_control_bytes(RANKS));
    ASAN_POISON_MEMORY_REGION(&control->mailboxes[FIRST_REMOTE],
                              sizeof *control->mailboxes * (RANKS - FIRST_REMOTE));
    settled = (ew_world){.rank = US,
                         .num_ranks = RANKS,
                         .timeout_ns = -1, /* what is not there will not come */
                         .control = control,
                         .fabric = &fabric,
                         .stamp = 0x5a5a};
    ewx_world_settle(&settled, (const int[]){0, 0, 1, 1});
    settled.spins = 0;
    const size_t tiles = specs[0].layout.slice_offset[0];
    size_t segment_bytes = 0;
    for (int form = LEVELS_1; form < NUM_FORMS; form++) {
        const ewx_layout *layout = &specs[form].layout;
        FUZZ_DEMAND(layout->slice_offset[0] == tiles);
        if (segment_bytes < layout->segment_bytes)
            segment_bytes = layout->segment_bytes;
    }
    zeros = calloc(1, tiles);
    for (int rank = 0; rank < RANKS; rank++) {
        segments[rank] = aligned_alloc(64, segment_bytes);
        memset(segments[rank], 0, tiles);
        ASAN_POISON_MEMORY_REGION(segments[rank] + tiles, segment_bytes - tiles);
    }
}

/* But for the one record that a call here writes, records stay as they are. */
static void make_world(void)
{
    memset(control, 0, sizeof *control);
    for (int rank = 0; rank < FIRST_REMOTE; rank++)
        memset(&control->mailboxes[rank], 0, offsetof(ewx_mailbox, lane.records[2]));
    world = settled;
    FUZZ_DEMAND(ewx_remotes_open(&world) == EW_OK);
    atomic_store(&control->mailboxes[NEIGHBOUR].round, NEIGHBOURS_ROUND);
    for (int parity = 0; parity < 2; parity++)
        control->mailboxes[NEIGHBOUR].meeting[parity] = our_meeting;
    FUZZ_DEMAND(ewx_recorder_begin(&world, &our_call) == EW_OK);
}

/* Before a channel is opened all ranks say that they have what their plan needs. */
static void let_all_agree(void)
{
    const uint32_t round = world.round + 1;
    for (int rank = 0; rank < RANKS; rank++) {
        ewx_mailbox *mailbox = world.mailboxes[rank];
        mailbox->meeting[round & 1] = ewx_meeting_word(EWX_MEETING_INNER, sizeof(int32_t));
        mailbox->data_bytes[round & 1] = sizeof(int32_t);
        if (!ewx_world_is_local(&world, rank))
            atomic_store(&mailbox->round, round);
    }
}

static void make_engine(int form, int64_t m)
{
    const ewx_spec *spec = &specs[form];
    const ewx_ownership ownership = form == ALLREDUCE ? EWX_OWNS_TILES
                                    : form == GATHER  ? EWX_OWNS_NOTHING
                                                      : EWX_OWNS_PART;
    engine = (ewx_cpu_engine){
        .world = &world,
        .spec = spec,
        .reduce = {.levels = spec->config.levels, .peer_agrees = peer_agrees},
        .farthest = &ewx_route_wire};
    engine.heap = (ewx_heap){.world = &world,
                             .segment_bytes = spec->layout.segment_bytes,
                             .flags_offset = spec->layout.flags_offset};
    for (int rank = 0; rank < RANKS; rank++) {
        memset(segments[rank], 0, sizeof(ewx_segment_header));
        engine.heap.segments[rank] = segments[rank];
        engine.from[rank] =
            ewx_world_is_local(&world, rank) ? &ewx_route_heap : &ewx_route_wire;
        atomic_store(&peer_agrees[rank], 0);
    }
    let_all_agree();
    FUZZ_DEMAND(ewx_wire_open(&engine, EW_OK) == EW_OK &&
                engine.wire.exchange.num_units <= 16);
    for (int parity = 0; parity < 2; parity++)
        control->mailboxes[NEIGHBOUR].meeting[parity] = our_meeting;
    engine.call.epoch = 1;
    engine.call.grid = ewx_spec_grid(spec, m);
    engine.call.share = ewx_share_of(&engine.call.grid, ownership, RANKS, US);
    ewx_exchange_begin(&engine.wire.exchange, &engine.call.grid, ownership,
                       engine.call.epoch);
    ewx_wire_announce(&engine);
}

/* ---- Steps ---- */

/* Up to 3 times: from where, which byte, how often. */
static void put_bytes(input *in, void *where, size_t bytes)
{
    for (int left = take(in) % 4; left > 0; left--) {
        const uint32_t at = take_16(in);
        const uint8_t value = take(in);
        const int times = 1 + take(in) % 8;
        for (int i = 0; i < times; i++)
            ((unsigned char *)where)[(at + (uint32_t)i) % bytes] = value;
    }
}

static size_t fill_body(message_kind kind, int src)
{
    const ewx_fault fault = {.status = EW_ERR_TIMEOUT,
                             .culprit = 3,
                             .reporter = src,
                             .code = EWX_FAULT_TILE,
                             .detail = {1, 0, 1, 0}};
    const header_note header = {.rows = {0, engine.call.grid.rows},
                                .epochs = {0, 1},
                                .forms = {0, 1},
                                .waiting = ewx_waiting_for(3, 1),
                                .progress = 1};
    const operation_note operation = note_of(1, &our_call);
    switch (kind) {
    case MESSAGE_ROUND:
        memcpy(said.control.body, &our_meeting, sizeof our_meeting);
        memset(said.control.body + sizeof our_meeting, src, 8);
        return sizeof our_meeting + 8;
    case MESSAGE_OPERATION:
        memcpy(said.control.body, &operation, sizeof operation);
        return sizeof operation;
    case MESSAGE_FAULT:
        memcpy(said.control.body, &fault, sizeof fault);
        return sizeof fault;
    case MESSAGE_LISTENER:
        memcpy(said.control.body, &header, sizeof header);
        return sizeof header;
    case MESSAGE_DEPARTED:
        break;
    }
    return 0;
}

static void receive_control_message(input *in)
{
    const message_kind kind = (message_kind)(take(in) % (MESSAGE_LISTENER + 1));
    const uint8_t src = take(in);
    said.src = src < 16 ? FIRST_REMOTE + src % 2 : src - 64; /* mostly one who may */
    const bool may = said.src >= FIRST_REMOTE && said.src < RANKS;
    const int from = may ? said.src : FIRST_REMOTE;
    const uint32_t next_round = 1 + atomic_load(&world.mailboxes[from]->round);
    said.news = true;
    said.control = (control_message){.world = world.stamp, .kind = kind};
    if (kind == MESSAGE_ROUND && may)
        said.control.number = next_round;
    said.control_bytes = HEAD_BYTES + fill_body(kind, said.src);
    put_bytes(in, &said.control, said.control_bytes);
    said.control_bytes += (size_t)(int8_t)take(in) * (size_t)take(in); /* or fewer: wraps */
    ewx_remotes_progress(&world);
    if (atomic_load(&world.mailboxes[from]->round) == next_round) {
        memcpy(&meetings[from][next_round & 1], said.control.body, sizeof our_meeting);
        brought[from][next_round & 1] =
            said.control_bytes - HEAD_BYTES - sizeof our_meeting;
    }
}

static void receive_tiles(input *in)
{
    const uint8_t place = take(in);
    const ewx_exchange *x = &engine.wire.exchange;
    int places = 16;
    while (places < x->num_remotes * x->num_units * 2)
        places *= 2;
    said.place = place < 128 ? place % places : ((size_t)place << 56 | place);
    said.anything = place >= places;
    said.place_bytes = whole_bytes(said.place);
    said.news = true;
    said.num_filled = 1 + take(in) % 2;
    put_bytes(in, &said.place_bytes, sizeof said.place_bytes);
    progress(&engine);
    said.num_filled = 0;
}

/* Asks as the end of a call does. */
static void ask_for_unsent(input *in)
{
    said.unsent = take(in);
    said.unsent_to = take(in) - 64;
    memset(engine.wire.exchange.unput, 0, sizeof *engine.wire.exchange.unput * 2);
    if (!ewx_exchange_is_idle(&engine.wire.exchange) && !world.fabric_failed)
        FUZZ_DEMAND(!ewx_world_is_local(&world, engine.wire.exchange.unsent_to));
}

/* Twice in a row it would see the same. */
static void look_at_headers(void)
{
    if (!said.news)
        return;
    said.news = false;
    ewx_patience patience = ewx_patience_begin(&engine);
    for (int src = FIRST_REMOTE; src < RANKS; src++) {
        const int64_t slots = engine.spec->layout.slots_per_part;
        for (int64_t slot = 0; slot < slots; slot++) {
            bool ready;
            (void)ewx_contribution_ready(&engine, src, part_of(&engine, US) * slots + slot,
                                         &ready);
        }
        for (int slice = 0; slice < 4; slice++) /* until it asks who holds up whom */
            (void)ewx_patience_lasts(&engine, &patience, src);
    }
}

/* A collective: when it succeeds, all have come to the same, with as many bytes as we.
 * After one that failed all fail, with the same words. */
static void gather(void)
{
    const uint64_t mine = 1;
    uint64_t all[RANKS];
    if (said.failed)
        return;
    said.failed = ewx_world_allgather(&world, &mine, all, sizeof mine) != EW_OK;
    if (said.failed)
        return;
    FUZZ_DEMAND(all[US] == mine);
    for (int src = FIRST_REMOTE; src < RANKS; src++)
        FUZZ_DEMAND(atomic_load(&world.mailboxes[src]->round) - world.round <= 1 &&
                    meetings[src][world.round & 1] == our_meeting &&
                    brought[src][world.round & 1] == sizeof mine);
}

static void step(input *in)
{
    switch (take(in) % 8) {
    case 0:
    case 1:
    case 2:
        receive_control_message(in);
        break;
    case 3:
    case 4:
        receive_tiles(in);
        break;
    case 5:
        ask_for_unsent(in);
        break;
    case 6:
        look_at_headers();
        gather();
        break;
    case 7:
        said.fails = take(in) == 7;
        break;
    }
}

/* ---- What must hold ---- */

static void check_world(void)
{
    const ewx_mailbox *neighbour = &control->mailboxes[NEIGHBOUR];
    const bool aborted = atomic_load(&control->abort) != 0;
    const ew_status status = ewx_world_check(&world);
    FUZZ_DEMAND(aborted == (status != EW_OK));
    FUZZ_DEMAND(!aborted || (ew_last_error()[0] &&
                             strcmp(ew_status_text(status), "unknown status") != 0));
    FUZZ_DEMAND(!aborted ||
                (control->fault.culprit >= 0 && control->fault.culprit < RANKS));
    FUZZ_DEMAND(atomic_load(&neighbour->round) == NEIGHBOURS_ROUND &&
                !atomic_load(&neighbour->departed) &&
                !atomic_load(&neighbour->lane.sequence) &&
                !atomic_load(&control->mailboxes[US].departed));
}

/* A panel is there when all messages with rows of it are. */
static void check_panels(int src)
{
    const ewx_exchange *x = &engine.wire.exchange;
    const int64_t rows = ewx_part_rows(&engine.call.grid, src);
    for (int64_t panel = 0; panel < engine.spec->layout.max_tile_rows; panel++) {
        ewx_flag *flag = ewx_heap_flag(&engine.heap, src, panel);
        bool is_there = panel * EWX_TILE_M < rows;
        for (int half = 0; half < 2; half++) {
            const int64_t slot = 2 * panel + half;
            is_there &= slot * x->slot_rows >= rows || has_come[src][slot];
        }
        FUZZ_DEMAND(atomic_load(&flag->epoch) == (is_there ? engine.call.epoch : 0));
        atomic_store(&flag->epoch, 0);
    }
}

static void check_tiles(int src)
{
    const ewx_layout *layout = &engine.spec->layout;
    const ewx_exchange *x = &engine.wire.exchange;
    const int part = part_of(&engine, US);
    const int64_t first = part * layout->slots_per_part;
    for (int64_t slot = first; slot < first + layout->slots_per_part; slot++) {
        ewx_flag *flag = ewx_heap_flag(&engine.heap, src, slot);
        const int64_t unit = ewx_exchange_unit(x, slot);
        const int64_t tile = slot % layout->slots_per_part % x->unit_slots;
        const bool is_there = has_come[src][unit] && tile < unit_tiles(x, part, unit);
        const bool has_result = x->num_cargos > 1 && has_come[src][x->part_units + unit];
        FUZZ_DEMAND(atomic_load(&flag->epoch) == (is_there ? engine.call.epoch : 0));
        FUZZ_DEMAND(atomic_load(&flag->result) == (has_result ? engine.call.epoch : 0));
        atomic_store(&flag->epoch, 0);
        atomic_store(&flag->result, 0);
    }
}

/* Of a remote rank's segment the header may have changed, and the flags of what has arrived
 * have. */
static void check_segment(int src)
{
    (engine.spec->op->gemm_waits ? check_panels : check_tiles)(src);
    memset(segments[src], 0, sizeof(ewx_segment_header));
    FUZZ_DEMAND(memcmp(segments[src], zeros, engine.spec->layout.slice_offset[0]) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    input in = {.data = data, .bytes = bytes};
    if (!control)
        allocate();
    memset(&said, 0, sizeof said);
    memset(has_come, 0, sizeof has_come);
    memset(brought, 0, sizeof brought);
    memset(meetings, 0, sizeof meetings);
    said.src = -1;
    said.news = true;
    const uint8_t setup = take(&in);
    make_world();
    if (setup & 8)
        make_engine(GATHER, setup & 2 ? 701 : RANKS * 200);
    else if (setup & 4)
        make_engine(ALLREDUCE, setup & 2 ? 700 : RANKS * 200);
    else
        make_engine(setup & 1, setup & 2 ? 700 : RANKS * 300);
    while (in.at < in.bytes)
        step(&in);
    check_world();
    ewx_route_wire.close(&engine);
    ewx_remotes_close(&world);
    for (int src = FIRST_REMOTE; src < RANKS; src++)
        check_segment(src);
    return 0;
}
