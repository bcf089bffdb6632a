/* The flag protocol of docs/PROTOCOL.md as a Spin model: producers, owners, epochs that
 * wrap, slices, `done` words, release units, calls of changing size, and one misfortune:
 * a rank dies, stalls, aborts, or comes with another m.  The sum is scattered, or with one
 * of the first three definitions below every rank gets all of it.  With GATHER there is no
 * sum: a tile is a unit of its rank's rows, which the GEMM of every rank reads.
 *
 * Waits are blocking guards, so the model has no cycles: "no process is left waiting" is
 * the same as "every call ends".  `timeout` stands for the deadline: Spin enables it only
 * when nobody can move, so a run in which it fires without a stalled rank is a deadlock.
 *
 * Where a contribution lies (with its source, pulled, or with its owner, pushed) makes no
 * difference here: it has one writer and one reader either way.
 *
 *   ONE_SHOT            AllReduce: every rank sums all tiles of the only part itself
 *   TWO_SHOT            AllReduce: every rank sums each RANKS-th tile, leaves the result in
 *                       the place of its own contribution, and the others copy it
 *   BY_ROWS             as TWO_SHOT, but a rank sums some rows of every tile, and its result
 *                       is complete when all tiles are summed
 *   GATHER              AllGather-GEMM: a producer publishes its rank's rows, and the GEMM,
 *                       in the owner's place, is the one that waits
 *   PUSHED              TWO_SHOT: the owner writes the result over every rank's contribution,
 *                       and a rank finds it with its own
 *   STRAIGHT            TWO_SHOT DEVICE PUSHED: the owner writes the result into every rank's
 *                       output where all of these lie in symmetric memory, as rank 0's does in
 *                       some calls, with SAME_PLACE in all
 *   CARRIED             every rank is on a host of its own: a rank reads what was carried to
 *                       it, contributions and results alike, rows of a tile without those of
 *                       other owners; and a rank carries only while it is in a call.  With
 *                       GATHER a tile is a message, and a panel is a unit of UNIT of them
 *   EMPTY               AllReduce: short calls have no tile at all (m = 0)
 *   IMPLIED             nobody waits for readers; that they are gone is asserted
 *   RANKS TILES CALLS   ranks, tiles of a part, calls
 *   UNIT                tiles that are released together
 *   WORKERS             producing workers of rank 0; the others have one
 *   DEVICE              the two kernels of a GPU: producer and reducer count their calls
 *                       alone, and a rank announces a call before it has waited for readers
 *   SLICES              1: a call waits for the readers of the call before (cuBLAS)
 *   CALL_SLOTS          announcements of a rank that are kept
 *   SAME_M              m does not change from call to call
 *   DEATH STALL ABORT DISAGREE   which misfortunes may happen
 *   MUTANT_name         a planted bug; run.sh lists them
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef TILES
#define TILES 1
#endif
#ifndef CALLS
#define CALLS 3
#endif
#ifndef UNIT
#define UNIT 1
#endif
#ifndef WORKERS
#define WORKERS 1
#endif
#ifndef SLICES
#define SLICES 2
#endif
#ifndef CALL_SLOTS
#ifdef DEVICE
#define CALL_SLOTS 4
#else
#define CALL_SLOTS 2
#endif
#endif

#if defined(TWO_SHOT) || defined(BY_ROWS)
#define HAS_RESULTS
#endif
#if defined(ONE_SHOT) || defined(HAS_RESULTS) || defined(GATHER)
#define PARTS 1
#define PART_OF(rank) 0
#else
#define PARTS RANKS
#define PART_OF(rank) rank
#endif
#ifdef BY_ROWS
#define PIECES RANKS /* of a tile: the rows of each owner */
#define PIECE_OF(rank) rank
#else
#define PIECES 1
#define PIECE_OF(rank) 0
#endif

#define NUM_WORKERS(rank) ((rank == 0) -> WORKERS : 1)
#define UNITS ((TILES + UNIT - 1) / UNIT)
#define MODULUS 16          /* of epochs; the library has 2^32 */
#define BEFORE_FIRST 14     /* calls are 15, 0, 1, ...: the number wraps in the second */
#define EPOCH(call) ((BEFORE_FIRST + call) % MODULUS)
#define BACK(epoch, calls) ((epoch + MODULUS - calls) % MODULUS)

#if defined(MUTANT_equality)
#define REACHED(seen, want) (seen == want)
#elif defined(MUTANT_no_wrap)
#define REACHED(seen, want) (seen >= want)
#else
#define REACHED(seen, want) ((seen + MODULUS - want) % MODULUS < MODULUS / 2)
#endif

#ifdef MUTANT_one_slice
#define SLICE(epoch) 0
#else
#define SLICE(epoch) (epoch % SLICES)
#endif
#ifdef MUTANT_readers_off_by_one
#define OVERWRITTEN(epoch) BACK(epoch, (SLICES + 1))
#else
#define OVERWRITTEN(epoch) BACK(epoch, SLICES)
#endif

/* ---- Shared memory.  Every word has one writer. ---- */

#define TORN 255 /* a tile that is being written */
#define PLACES (RANKS * PARTS * SLICES * TILES * PIECES)
byte tile_epoch[PLACES]; /* whose contents a tile, or its rows, holds */
bool tile_short[PLACES]; /* ghost: its writer's m */
bool tile_is_sum[PLACES]; /* ghost: a result lies over the contribution */
byte flag[RANKS * PARTS * UNITS];
#ifdef HAS_RESULTS
#define NUM_RESULTS (TILES * RANKS * RANKS)
byte result[NUM_RESULTS]; /* of a tile, or of an owner's rows */
#endif
#ifdef STRAIGHT
byte entered[RANKS];      /* the last call whose results a rank takes in its output, */
bool has_place[RANKS];    /* and whether that lies in symmetric memory */
byte output[RANKS * TILES];      /* the call whose sums an output holds */
bool output_short[RANKS * TILES];
#define OUTPUT(reader, tile) ((reader) * TILES + tile)
#endif
byte done_epoch[RANKS];
byte announced[RANKS * CALL_SLOTS];
bool announced_short[RANKS * CALL_SLOTS];

#define AT(src, part, slice, tile, piece) \
    ((((src * PARTS + part) * SLICES + slice) * TILES + tile) * PIECES + piece)
#define FLAG(src, part, unit) ((src * PARTS + part) * UNITS + unit)
#define SLOT(rank, epoch) (rank * CALL_SLOTS + epoch % CALL_SLOTS)

#ifdef CARRIED
#define TO_SUM 0 /* cargos: contributions, */
#define SUMMED 1 /* and results */
#ifdef MUTANT_results_over_contributions
#define ROOM(cargo) 0
#else
#define ROOM(cargo) cargo
#endif
#define CARGO_FLAG(src, dst, cargo, tile) ((((src) * RANKS + dst) * 2 + cargo) * TILES + tile)
#define HERE(src, dst, cargo, tile) \
    (CARGO_FLAG(src, dst, ROOM(cargo), tile) * SLICES + SLICE(epoch))
#define NUM_HERE (RANKS * RANKS * 2 * TILES * SLICES)
byte here_epoch[NUM_HERE]; /* what was carried */
bool here_short[NUM_HERE];
bool here_is_sum[NUM_HERE];
byte here_flag[RANKS * RANKS * 2 * TILES];
bool in_call[RANKS];  /* when the fabric is looked at */
bool has_sent[RANKS]; /* all of this call */
#endif

/* ---- A rank's own memory ---- */

byte opened[RANKS];   /* the call that workers may compute */
byte next[RANKS];     /* tickets */
byte leavers[RANKS];  /* workers that have left the call */
byte missing[RANKS * PARTS * UNITS]; /* tiles of a release unit; its first worker counts */

/* ---- The control block, and what befalls the ranks ---- */

#define NOBODY 255
bool abort_word;
byte culprit = NOBODY;

mtype = { alive, dead, stalled };
mtype health[RANKS] = alive;
byte ended;     /* ranks that make no more calls */
byte heard[RANKS] = NOBODY; /* the culprit that each rank's failed call named */
bool failed[RANKS], finished[RANKS];
bool unlucky; /* something happened */

/* m of a call: all ranks own tiles, or only rank 0 does (m < W), or there are none. */
bool short_call[CALLS + 1];
bool other_m; /* the last rank comes to the first call with another m */
#define SHORT(rank, call) (short_call[call] != (other_m && rank == RANKS - 1 && call == 1))
#if defined(EMPTY)
#define NUM_TILES(short, part) (short -> 0 : TILES)
#elif defined(ONE_SHOT) || defined(TWO_SHOT)
#define NUM_TILES(short, part) (short -> 1 : TILES)
#elif defined(BY_ROWS)
#define NUM_TILES(short, part) TILES
#else
#define NUM_TILES(short, part) ((short && part > 0) -> 0 : TILES)
#endif
/* Of the tiles of a rank's part, those it sums, or has rows in. */
#if defined(TWO_SHOT)
#define SUMS(rank, short, tile) (tile % RANKS == rank)
#elif defined(BY_ROWS)
#define SUMS(rank, short, tile) (!short || rank == 0)
#else
#define SUMS(rank, short, tile) true
#endif

#ifdef STRAIGHT
bool elsewhere[CALLS + 1];  /* rank 0's output lies in other memory */
bool is_decided[CALLS + 1]; /* ghost: how some rank takes the results of a call */
bool goes_straight[CALLS + 1];
#endif

/* The first to report wins, and only the winner writes the story. */
inline raise(whom)
{
    d_step {
        if
#ifdef MUTANT_last_story_wins
        :: true -> abort_word = true; culprit = whom
#else
        :: !abort_word -> abort_word = true; culprit = whom
        :: else
#endif
        fi
    }
}

#ifdef MUTANT_deaf_to_abort
#define HEARS_ABORT false
#else
#define HEARS_ABORT abort_word
#endif

/* The deadline of a wait for `whom`.  A rank that is itself held up is not blamed, and
 * when nobody can move all but the stalled one are.  One that stalls while it is held up is
 * told from those by its looks at the clock, which have ended. */
#define OVERDUE(whom) (timeout && health[whom] == stalled)

#define AWAIT(condition, whom)              \
    if                                      \
    :: condition                            \
    :: HEARS_ABORT -> goto out              \
    :: OVERDUE(whom) -> raise(whom); goto out \
    fi

/* ---- A call begins ---- */

/* `atomic` joins what needs no interleaving: a wait that blocks gives it up, and words
 * only ever move forward, so seeing them one after the other is seeing them at the end. */
inline await_readers()
{
#if defined(MUTANT_no_wait_for_readers)
    skip
#elif defined(IMPLIED)
    for (peer : 0 .. RANKS - 1) {
        assert(abort_word || REACHED(done_epoch[peer], OVERWRITTEN(epoch)))
    };
    peer = 0
#else
    for (peer : 0 .. RANKS - 1) {
        AWAIT(REACHED(done_epoch[peer], OVERWRITTEN(epoch)), peer)
    };
    peer = 0
#endif
}

inline announce()
{
    announced_short[SLOT(rank, epoch)] = SHORT(rank, call);
    announced[SLOT(rank, epoch)] = epoch
}

/* A peer of a rank on the CPU announces call e+2 only after this rank is done with e; on
 * the device it may be ahead, and the slots must hold what it said of e. */
inline check_rows(src)
{
    AWAIT(REACHED(announced[SLOT(src, epoch)], epoch), src);
#ifndef MUTANT_rows_unchecked
    if
    :: announced[SLOT(src, epoch)] == epoch &&
       announced_short[SLOT(src, epoch)] != SHORT(rank, call) -> raise(src); goto out
    :: else
    fi
#endif
}

/* The last call of a rank is over when its owner has finished it. */
inline next_call()
{
    call++;
    if
    :: call > CALLS -> epoch = 0; goto out
    :: else -> epoch = EPOCH(call)
    fi
}

/* ---- Producing ---- */

/* GATHER: of a source's units, one more. */
#define HAS_ROWS(source) (tile < NUM_TILES(SHORT(rank, call), source))

inline begin_tile()
{
    for (piece : 0 .. PIECES - 1) {
        tile_epoch[AT(rank, part, SLICE(epoch), tile, piece)] = TORN
    };
    piece = 0
}

inline complete_tile()
{
    d_step {
        for (piece : 0 .. PIECES - 1) {
            tile_short[AT(rank, part, SLICE(epoch), tile, piece)] = SHORT(rank, call);
            tile_is_sum[AT(rank, part, SLICE(epoch), tile, piece)] = false;
            tile_epoch[AT(rank, part, SLICE(epoch), tile, piece)] = epoch
        };
        piece = 0
    }
}

/* Counts the tile, and publishes its unit when it was the last. */
inline release_tile()
{
#if UNIT == 1
    flag[FLAG(rank, part, tile)] = epoch;
#else
#ifdef MUTANT_count_in_two_steps
    left = missing[FLAG(rank, part, tile / UNIT)];
    left--;
    missing[FLAG(rank, part, tile / UNIT)] = left;
#else
    d_step {
        missing[FLAG(rank, part, tile / UNIT)]--;
        left = missing[FLAG(rank, part, tile / UNIT)]
    }
#endif
    if
#ifdef MUTANT_first_of_unit_publishes
    :: left == UNIT - 1 -> flag[FLAG(rank, part, tile / UNIT)] = epoch
#else
    :: left == 0 -> flag[FLAG(rank, part, tile / UNIT)] = epoch
#endif
    :: else
    fi;
    left = 0
#endif
}

#ifdef GATHER
#define HAS_TILE HAS_ROWS(rank)
#else
#define HAS_TILE (tile < NUM_TILES(SHORT(rank, call), part))
#endif

inline take_tile()
{
    part = next[rank] % PARTS;
    tile = next[rank] / PARTS;
    next[rank]++
}

inline compute()
{
    do
#ifndef DEVICE
    :: abort_word -> goto out
#endif
    :: atomic { next[rank] < PARTS * TILES -> take_tile();
           if
           :: HAS_TILE -> begin_tile()
           :: else
           fi
       };
       if
       :: HAS_TILE ->
#ifdef MUTANT_flag_before_tile
          release_tile();
          complete_tile()
#else
          complete_tile();
          release_tile()
#endif
       :: else
       fi
    :: atomic { next[rank] >= PARTS * TILES -> part = 0; tile = 0; break }
    od
}

inline reset_tickets()
{
    d_step {
        next[rank] = 0;
        leavers[rank] = 0;
        for (counter : 0 .. PARTS * UNITS - 1) {
            missing[rank * PARTS * UNITS + counter] = UNIT
        }
        counter = 0
    }
}

proctype Producer(byte rank; byte worker)
{
    byte call = 1, epoch = EPOCH(1), peer, part, piece, tile, left, counter;
    {
        do
        :: atomic {
               AWAIT(opened[rank] == call, rank);
#ifdef DEVICE
               if
               :: worker == 0 -> announce()
               :: else
               fi;
               await_readers()
#endif
           };
           compute();
           atomic {
               leavers[rank]++;
#ifdef DEVICE
               if
               :: leavers[rank] == NUM_WORKERS(rank) -> reset_tickets(); opened[rank] = call + 1
               :: else
               fi;
#endif
               next_call()
           }
        od
    } unless { health[rank] != alive }
out:
    skip
}

/* ---- Carrying ---- */

#ifdef CARRIED
/* The rows of a tile that cross: the receiver's, or results of the sender. */
#define CROSSES(dst) (cargo == TO_SUM -> SUMS(dst, SHORT(rank, call), tile) \
                                      : SUMS(rank, SHORT(rank, call), tile))
#define PIECE_TO(dst) (cargo == TO_SUM -> PIECE_OF(dst) : PIECE_OF(rank))
#define SENT(dst) AT(rank, PART_OF(dst), SLICE(epoch), tile, PIECE_TO(dst))

inline can_be_read(dst)
{
#ifdef MUTANT_whole_tiles_cross
    for (piece : 0 .. PIECES - 1) {
        assert(tile_epoch[AT(rank, PART_OF(dst), SLICE(epoch), tile, piece)] == epoch)
    };
    piece = 0;
#endif
    assert(tile_epoch[SENT(dst)] == epoch);
    assert(tile_is_sum[SENT(dst)] == (cargo == SUMMED))
}

/* The fabric reads the sender's memory and writes the receiver's, for a while. */
inline begin_to_carry()
{
    can_be_read(dst);
    here_epoch[HERE(rank, dst, cargo, tile)] = TORN
}

inline carry()
{
    can_be_read(dst);
    here_short[HERE(rank, dst, cargo, tile)] = tile_short[SENT(dst)];
    here_is_sum[HERE(rank, dst, cargo, tile)] = tile_is_sum[SENT(dst)];
    here_epoch[HERE(rank, dst, cargo, tile)] = epoch;
    here_flag[CARGO_FLAG(rank, dst, cargo, tile)] = epoch
}

#ifdef BY_ROWS
#define OWN_RESULT(owner, tile) result[owner]
#define NUM_CARGOS 2
#elif defined(TWO_SHOT)
#define OWN_RESULT(owner, tile) result[tile]
#define NUM_CARGOS 2
#else
#define OWN_RESULT(owner, tile) 0 /* none */
#define NUM_CARGOS 1
#endif
#define POSTED(dst) (cargo == TO_SUM -> flag[FLAG(rank, PART_OF(dst), tile / UNIT)] \
                                     : OWN_RESULT(rank, tile))

#ifdef GATHER
#define IS_MESSAGE (dst != rank && HAS_ROWS(rank))
#else
#define IS_MESSAGE \
    (dst != rank && tile < NUM_TILES(SHORT(rank, call), PART_OF(dst)) && CROSSES(dst))
#endif

/* Messages in their order: by cargo, tile and receiver.  Contributions wait for nothing that
 * others do, so that they come first hides no order. */
inline next_message()
{
    dst++;
    if
    :: dst == RANKS -> dst = 0; tile++
    :: else
    fi;
    if
    :: tile == TILES -> tile = 0; cargo++
    :: else
    fi
}

proctype Carrier(byte rank)
{
    byte call = 1, epoch = EPOCH(1), cargo, tile, piece, dst;
    {
        do
        :: atomic {
               AWAIT(opened[rank] == call, rank);
               do
               :: cargo < NUM_CARGOS && !IS_MESSAGE -> next_message()
               :: cargo == NUM_CARGOS || IS_MESSAGE -> break
               od;
               if
               :: cargo < NUM_CARGOS ->
                  AWAIT(in_call[rank] && REACHED(POSTED(dst), epoch), rank);
                  begin_to_carry()
               :: else -> cargo = 0; has_sent[rank] = true; next_call(); goto carried
               fi
           };
           d_step { carry(); next_message() };
carried:
           skip
        od
    } unless { health[rank] != alive }
out:
    skip
}
#endif

/* ---- Summing ---- */

#ifdef CARRIED
#define FLAG_OF(src) (src == rank -> flag[FLAG(src, PART_OF(rank), tile)] \
                                  : here_flag[CARGO_FLAG(src, rank, TO_SUM, tile)])
#else
#define FLAG_OF(src) flag[FLAG(src, PART_OF(rank), tile / UNIT)]
#endif

#define CONTRIBUTION(src) AT(src, PART_OF(rank), SLICE(epoch), tile, PIECE_OF(rank))

inline all_are_mine()
{
    d_step {
        for (peer : 0 .. RANKS - 1) {
            if
#ifdef CARRIED
            :: peer != rank ->
               assert(here_epoch[HERE(peer, rank, TO_SUM, tile)] == epoch);
               assert(here_short[HERE(peer, rank, TO_SUM, tile)] == SHORT(rank, call));
               assert(!here_is_sum[HERE(peer, rank, TO_SUM, tile)])
#endif
            :: else ->
               assert(tile_epoch[CONTRIBUTION(peer)] == epoch);
               assert(tile_short[CONTRIBUTION(peer)] == SHORT(rank, call));
               assert(!tile_is_sum[CONTRIBUTION(peer)])
            fi
        };
        peer = 0
    }
}

inline finish_call()
{
    done_epoch[rank] = epoch;
    finished[rank] = call == CALLS
}

/* ---- Results ---- */

#define HAS_TASK (tile < NUM_TILES(SHORT(rank, call), PART_OF(rank)))

/* The place of a result of `owner` for `reader`, and its flag. */
#ifdef PUSHED
#define RESULT_AT(owner, reader, tile) AT(reader, 0, SLICE(epoch), tile, 0)
#define RESULT_FLAG(owner, reader, tile) result[tile * RANKS + reader]
#elif defined(BY_ROWS)
#define RESULT_AT(owner, reader, tile) AT(owner, 0, SLICE(epoch), tile, owner)
#define RESULT_FLAG(owner, reader, tile) result[owner]
#else
#define RESULT_AT(owner, reader, tile) AT(owner, 0, SLICE(epoch), tile, 0)
#define RESULT_FLAG(owner, reader, tile) result[tile]
#endif

#ifdef PUSHED
#define FIRST_READER 0
#define LAST_READER (RANKS - 1)
#else
#define FIRST_READER rank
#define LAST_READER rank
#endif

inline begin_result(which)
{
    d_step {
        for (peer : FIRST_READER .. LAST_READER) {
            tile_epoch[RESULT_AT(rank, peer, which)] = TORN
        };
#ifdef MUTANT_result_over_whole_tile
        for (peer : 0 .. RANKS - 1) {
            tile_epoch[AT(rank, 0, SLICE(epoch), which, peer)] = TORN
        };
#endif
        peer = 0
    }
}

inline complete_result(which)
{
    d_step {
        for (peer : FIRST_READER .. LAST_READER) {
            tile_short[RESULT_AT(rank, peer, which)] = SHORT(rank, call);
            tile_is_sum[RESULT_AT(rank, peer, which)] = true;
            tile_epoch[RESULT_AT(rank, peer, which)] = epoch
        };
        peer = 0
    }
}

inline publish_result(which)
{
    d_step {
        for (peer : FIRST_READER .. LAST_READER) {
            RESULT_FLAG(rank, peer, which) = epoch
        };
        peer = 0
    }
}

#ifdef STRAIGHT
#define HAS_PLACE (!(rank == 0 && elsewhere[call]))

/* Before anything else of a call with tiles: this rank's output is free.  If it is another
 * than before, no rank needs the word of an earlier call any more. */
inline enter_with_output()
{
    if
    :: HAS_TASK ->
       atomic {
#ifndef MUTANT_words_overwritten
           for (peer : 0 .. RANKS - 1) {
               AWAIT(has_place[rank] == HAS_PLACE || REACHED(done_epoch[peer], BACK(epoch, 1)),
                     peer)
           };
#endif
           has_place[rank] = HAS_PLACE;
           entered[rank] = epoch;
           peer = 0
       };
       atomic {
#ifndef MUTANT_store_before_entry
           for (peer : 0 .. RANKS - 1) {
               AWAIT(!HAS_PLACE || REACHED(entered[peer], epoch), peer)
           };
#endif
           peer = 0
       };
       d_step {
           straight = HAS_PLACE;
#ifndef MUTANT_places_not_compared
           for (peer : 0 .. RANKS - 1) { straight = straight && has_place[peer] };
#endif
           assert(!is_decided[call] || goes_straight[call] == straight || abort_word);
           is_decided[call] = true;
           goes_straight[call] = straight;
           peer = 0
       }
    :: else
    fi
}

inline fill_output(reader, which, contents)
{
    output_short[OUTPUT(reader, which)] = SHORT(rank, call);
    output[OUTPUT(reader, which)] = contents
}

inline leave_straight(which)
{
    d_step {
        for (peer : 0 .. RANKS - 1) { fill_output(peer, which, TORN) };
        peer = 0
    };
    d_step {
        for (peer : 0 .. RANKS - 1) { fill_output(peer, which, epoch) };
        peer = 0
    };
    publish_result(which)
}

/* What comes behind the call in its stream, and reads its output. */
inline consume()
{
    d_step {
        for (tile : 0 .. TILES - 1) {
            assert(!HAS_TASK || output[OUTPUT(rank, tile)] == epoch);
            assert(!HAS_TASK || output_short[OUTPUT(rank, tile)] == SHORT(rank, call))
        };
        tile = 0
    }
}
#endif

inline leave_result(which)
{
    begin_result(which);
#ifdef MUTANT_result_flag_before_result
    publish_result(which);
    complete_result(which)
#else
    complete_result(which);
    publish_result(which)
#endif
}

/* What follows the sum of a tile. */
inline after_sum()
{
#if defined(STRAIGHT)
    if
    :: straight -> leave_straight(tile)
    :: else -> fill_output(rank, tile, epoch); leave_result(tile)
    fi
#elif defined(TWO_SHOT)
    leave_result(tile)
#elif defined(MUTANT_one_shot_in_place)
    tile_is_sum[CONTRIBUTION(rank)] = true
#else
    skip
#endif
}

/* Rows are complete when all their tiles are summed: then the norm is there. */
inline after_all_sums()
{
#ifdef BY_ROWS
    if
    :: NUM_TILES(SHORT(rank, call), 0) > 0 && SUMS(rank, SHORT(rank, call), 0) ->
       d_step {
           for (piece : 0 .. TILES - 1) { begin_result(piece) };
           piece = 0
       };
#ifdef MUTANT_result_flag_before_result
       publish_result(0);
#endif
       d_step {
           for (piece : 0 .. TILES - 1) { complete_result(piece) };
           piece = 0
       };
       publish_result(0)
    :: else
    fi
#else
    skip
#endif
}

/* A result is looked at when its copying begins and when it ends. */
inline is_a_result()
{
    d_step {
#ifdef CARRIED
        assert(here_epoch[HERE(from, rank, SUMMED, copied)] == epoch);
        assert(here_short[HERE(from, rank, SUMMED, copied)] == SHORT(rank, call));
        assert(here_is_sum[HERE(from, rank, SUMMED, copied)])
#else
        if
#ifdef STRAIGHT
        :: straight -> assert(output[OUTPUT(rank, copied)] == epoch)
#endif
        :: else ->
           assert(tile_epoch[RESULT_AT(from, rank, copied)] == epoch);
           assert(tile_short[RESULT_AT(from, rank, copied)] == SHORT(rank, call));
           assert(tile_is_sum[RESULT_AT(from, rank, copied)])
        fi
#endif
#ifdef STRAIGHT
        fill_output(rank, copied, epoch)
#endif
    }
}

#ifdef CARRIED
#define RESULT_SEEN REACHED(here_flag[CARGO_FLAG(from, rank, SUMMED, copied)], epoch)
#else
#define RESULT_SEEN REACHED(RESULT_FLAG(from, rank, copied), epoch)
#endif

/* Results in their order: `copied` is the tile, `from` its owner. */
inline next_result()
{
#ifdef BY_ROWS
    from++;
    if
    :: from == RANKS -> from = 0; copied++
    :: else
    fi
#else
    copied++;
    from = copied % RANKS
#endif
}

#define IS_MINE (from == rank || !SUMS(from, SHORT(rank, call), copied))
#define HAS_RESULT (copied < NUM_TILES(SHORT(rank, call), 0))

/* Copies all results that other ranks owe; it blocks, so its own must be out before. */
inline collect()
{
#ifdef HAS_RESULTS
    do
    :: atomic { HAS_RESULT && IS_MINE -> next_result() }
    :: atomic {
           HAS_RESULT && !IS_MINE ->
           check_rows(from);
#ifdef MUTANT_results_not_awaited
           if
           :: straight -> next_result(); goto next_of_results
           :: else
           fi;
#endif
           AWAIT(RESULT_SEEN, from);
           is_a_result()
       };
       atomic { is_a_result(); next_result() };
#ifdef MUTANT_results_not_awaited
next_of_results:
       skip
#endif
    :: atomic { !HAS_RESULT -> break }
    od
#else
    skip
#endif
}

/* ---- Owning ---- */

/* A tile is looked at when its reading begins and when it ends: what is overwritten
 * meanwhile shows. */
inline own_tiles()
{
    do
    :: atomic { HAS_TASK && !SUMS(rank, SHORT(rank, call), tile) -> tile++ }
#ifdef HAS_RESULTS
    /* A result that is there may be copied at any time. */
    :: atomic {
           HAS_TASK && HAS_RESULT && !IS_MINE &&
           REACHED(announced[SLOT(from, epoch)], epoch) &&
           RESULT_SEEN ->
           check_rows(from);
           is_a_result()
       };
       atomic { is_a_result(); next_result() }
#endif
    :: atomic {
           HAS_TASK && SUMS(rank, SHORT(rank, call), tile) ->
           for (peer : 0 .. RANKS - 1) {
               check_rows(peer);
               AWAIT(REACHED(FLAG_OF(peer), epoch), peer)
           };
#ifdef MUTANT_done_before_read
           finish_call();
#endif
           all_are_mine()
       };
       atomic { all_are_mine(); peer = 0 };
       after_sum();
       tile++
    :: atomic { !HAS_TASK -> tile = 0; break }
    od
}

/* ---- Multiplying gathered rows ---- */

/* A unit is looked at when its reading begins and when it ends. */
inline is_a_unit()
{
    d_step {
#ifdef CARRIED
        assert(here_epoch[HERE(from, rank, TO_SUM, tile)] == epoch);
        assert(here_short[HERE(from, rank, TO_SUM, tile)] == SHORT(rank, call))
#else
        assert(tile_epoch[AT(from, 0, SLICE(epoch), tile, 0)] == epoch);
        assert(tile_short[AT(from, 0, SLICE(epoch), tile, 0)] == SHORT(rank, call))
#endif
    }
}

/* Whether the unit of rows is here; between hosts, when its last message is. */
#ifndef CARRIED
#define ROWS_SEEN REACHED(flag[FLAG(from, 0, tile / UNIT)], epoch)
#elif UNIT == 1
#define ROWS_SEEN MESSAGE_SEEN(tile)
#elif defined(MUTANT_first_message_is_panel)
#define ROWS_SEEN (MESSAGE_SEEN(tile / UNIT * UNIT) || MESSAGE_SEEN(tile / UNIT * UNIT + 1))
#else
#define ROWS_SEEN (MESSAGE_SEEN(tile / UNIT * UNIT) && MESSAGE_SEEN(tile / UNIT * UNIT + 1))
#endif
#define MESSAGE_SEEN(tile) REACHED(here_flag[CARGO_FLAG(from, rank, TO_SUM, tile)], epoch)

#define ROWS_TO_READ (copied < RANKS && from != rank && HAS_ROWS(from))

/* All sources, one after the other, of two ranks from any of them on; the rank's own rows are
 * in its caller's memory.  It blocks, which is the hardest case: an engine may take what is there,
 * and compute its own rows while nothing is. */
inline multiply()
{
#if RANKS > 2 /* to keep the search small */
    from = (rank + 1) % RANKS;
#else
    atomic { select(from : 0 .. RANKS - 1) };
#endif
    do
    :: atomic {
           ROWS_TO_READ ->
           check_rows(from);
           AWAIT(ROWS_SEEN, from);
#ifdef MUTANT_done_before_read
           finish_call();
#endif
           is_a_unit()
       };
       atomic { is_a_unit(); tile++ }
    :: atomic {
           copied < RANKS && !ROWS_TO_READ ->
           copied++;
           tile = 0;
           from = (from + 1) % RANKS
       }
    :: atomic { copied == RANKS -> break }
    od
}

proctype Owner(byte rank)
{
    byte call = 1, epoch = EPOCH(1), peer, tile, piece, counter, copied, from;
#ifdef STRAIGHT
    bool straight;
#endif
    {
        do
        :: atomic {
#ifndef DEVICE
               await_readers();
               reset_tickets();
               announce();
#ifndef MUTANT_rows_behind_gemm
               opened[rank] = call;
#endif
#endif
#ifdef CARRIED
               in_call[rank] = true;
#endif
#ifdef MUTANT_flags_are_reset
               for (peer : 0 .. RANKS - 1) {
                   flag[FLAG(peer, rank, 0)] = BACK(epoch, 1)
               };
#endif
               skip
           };
#ifdef GATHER
           multiply();
#ifdef MUTANT_rows_behind_gemm
           opened[rank] = call;
#endif
#else
#ifdef STRAIGHT
           enter_with_output();
#endif
#ifdef MUTANT_collect_before_reduce
           collect();
#endif
           own_tiles();
           after_all_sums();
#ifdef MUTANT_done_before_collect
           finish_call();
#endif
           collect();
#endif
           atomic {
               copied = 0;
               from = 0;
#ifndef DEVICE
               AWAIT(leavers[rank] == NUM_WORKERS(rank), rank);
#endif
#ifdef CARRIED
#ifndef MUTANT_leaves_before_sent
               AWAIT(has_sent[rank], rank);
#endif
               has_sent[rank] = false;
               in_call[rank] = false;
#endif
               finish_call();
#ifdef STRAIGHT
           };
           consume();
           atomic {
               straight = false;
#endif
               next_call()
           }
        od
    } unless { health[rank] != alive }
out:
    /* A dead rank says nothing; a stalled one finds out when it goes on. */
end_stopped: /* a stalled rank that nobody needs may stay so */
    if
    :: call > CALLS || health[rank] == dead -> goto end_of_rank
    :: call <= CALLS && health[rank] != dead && abort_word
    fi;
    d_step { failed[rank] = true; heard[rank] = culprit };
end_of_rank:
    ended++
}

/* ---- What may happen ---- */

inline befall(what)
{
    atomic {
        select(rank : 0 .. RANKS - 1);
        if
        :: !finished[rank] -> health[rank] = what; unlucky = true
        :: else
        fi;
        rank = 0
    }
}

proctype Misfortune()
{
    byte rank;
    if
    :: true /* none */
#ifdef DEATH
    :: befall(dead)
#endif
#ifdef STALL
    :: befall(stalled)
#endif
#ifdef ABORT
    :: unlucky = true; raise(RANKS - 1)
#endif
    fi
}

/* Every rank watches all others; which of them reports makes no difference. */
proctype Watcher()
{
    byte whom;
end_watching:
    atomic {
        if
        :: health[0] == dead -> whom = 0
        :: health[1] == dead -> whom = 1
#if RANKS > 2
        :: health[2] == dead -> whom = 2
#endif
        fi;
        raise(whom)
    }
}

/* When all ranks have ended: the same story everywhere, and no failure without a cause. */
proctype Judge()
{
    byte rank, name = NOBODY;
end_waiting:
    ended == RANKS;
    for (rank : 0 .. RANKS - 1) {
        assert(!failed[rank] || unlucky || other_m);
        if
        :: heard[rank] != NOBODY ->
           assert(name == NOBODY || name == heard[rank]);
           name = heard[rank]
        :: else
        fi
    }
}

init {
    byte at;
    atomic {
        for (at : 0 .. PLACES - 1) { tile_epoch[at] = TORN };
#ifdef HAS_RESULTS
        for (at : 0 .. NUM_RESULTS - 1) { result[at] = BEFORE_FIRST };
#endif
        for (at : 0 .. RANKS * PARTS * UNITS - 1) {
            flag[at] = BEFORE_FIRST;
            missing[at] = UNIT
        };
#ifdef CARRIED
        for (at : 0 .. NUM_HERE - 1) { here_epoch[at] = TORN };
        for (at : 0 .. RANKS * RANKS * 2 * TILES - 1) { here_flag[at] = BEFORE_FIRST };
#endif
        for (at : 0 .. RANKS * CALL_SLOTS - 1) { announced[at] = BEFORE_FIRST };
        for (at : 1 .. CALLS) {
            if
#ifdef SAME_M
            :: at > 1 -> short_call[at] = short_call[1]
            :: at == 1 -> short_call[at] = false
            :: at == 1 -> short_call[at] = true
#else
            :: short_call[at] = false
            :: short_call[at] = true
#endif
            fi
        };
#ifdef STRAIGHT
        for (at : 1 .. CALLS) {
            if
            :: elsewhere[at] = false
#ifndef SAME_PLACE
            :: elsewhere[at] = true
#endif
            fi
        };
#endif
#ifdef DISAGREE
        other_m = true;
#endif
        for (at : 0 .. RANKS - 1) {
            done_epoch[at] = BEFORE_FIRST;
#ifdef STRAIGHT
            entered[at] = BEFORE_FIRST;
            has_place[at] = true; /* in the call before */
#endif
#ifdef DEVICE
            opened[at] = 1;
#endif
        };
        for (at : 0 .. RANKS - 1) {
            run Owner(at);
            run Producer(at, 0);
#ifdef CARRIED
            run Carrier(at);
#endif
        };
#if defined(DEATH) && !defined(MUTANT_nobody_watches)
        run Watcher();
#endif
#if WORKERS > 1
        run Producer(0, 1);
#endif
        run Judge();
#if defined(DEATH) || defined(STALL) || defined(ABORT)
        run Misfortune();
#endif
        at = 0
    }
}
