/* The flag protocol of docs/PROTOCOL.md as a Spin model: producers, owners, epochs that
 * wrap, slices, `done` words, release units, calls of changing size, and one misfortune:
 * a rank dies, stalls, aborts, or comes with another m.
 *
 * Waits are blocking guards, so the model has no cycles: "no process is left waiting" is
 * the same as "every call ends".  `timeout` stands for the deadline: Spin enables it only
 * when nobody can move, so a run in which it fires without a stalled rank is a deadlock.
 *
 * Where a contribution lies (with its source, pulled, or with its owner, pushed) makes no
 * difference here: it has one writer and one reader either way.
 *
 *   RANKS TILES CALLS   ranks, tiles of a partition, calls
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
byte tile_epoch[RANKS * RANKS * SLICES * TILES]; /* whose contents a tile holds */
bool tile_short[RANKS * RANKS * SLICES * TILES]; /* ghost: its writer's m */
byte flag[RANKS * RANKS * UNITS];
byte done_epoch[RANKS];
byte announced[RANKS * CALL_SLOTS];
bool announced_short[RANKS * CALL_SLOTS];

#define AT(src, dst, slice, tile) (((src * RANKS + dst) * SLICES + slice) * TILES + tile)
#define FLAG(src, dst, unit) ((src * RANKS + dst) * UNITS + unit)
#define SLOT(rank, epoch) (rank * CALL_SLOTS + epoch % CALL_SLOTS)

/* ---- A rank's own memory ---- */

byte opened[RANKS];   /* the call that workers may compute */
byte next[RANKS];     /* tickets */
byte leavers[RANKS];  /* workers that have left the call */
byte missing[RANKS * RANKS * UNITS]; /* tiles of a release unit; its first worker counts */

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

/* m of a call: all ranks own TILES tiles, or only rank 0 does (m < W). */
bool short_call[CALLS + 1];
bool other_m; /* the last rank comes to the first call with another m */
#define SHORT(rank, call) (short_call[call] != (other_m && rank == RANKS - 1 && call == 1))
#define NUM_TILES(short, dst) ((short && dst > 0) -> 0 : TILES)

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
 * when nobody can move all but the stalled one are. */
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
#ifdef MUTANT_no_wait_for_readers
    skip
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

inline begin_tile()
{
    tile_epoch[AT(rank, dst, SLICE(epoch), tile)] = TORN
}

inline complete_tile()
{
    d_step {
        tile_short[AT(rank, dst, SLICE(epoch), tile)] = SHORT(rank, call);
        tile_epoch[AT(rank, dst, SLICE(epoch), tile)] = epoch
    }
}

/* Counts the tile, and publishes its unit when it was the last. */
inline release_tile()
{
#if UNIT == 1
    flag[FLAG(rank, dst, tile)] = epoch;
#else
#ifdef MUTANT_count_in_two_steps
    left = missing[FLAG(rank, dst, tile / UNIT)];
    left--;
    missing[FLAG(rank, dst, tile / UNIT)] = left;
#else
    d_step {
        missing[FLAG(rank, dst, tile / UNIT)]--;
        left = missing[FLAG(rank, dst, tile / UNIT)]
    }
#endif
    if
#ifdef MUTANT_first_of_unit_publishes
    :: left == UNIT - 1 -> flag[FLAG(rank, dst, tile / UNIT)] = epoch
#else
    :: left == 0 -> flag[FLAG(rank, dst, tile / UNIT)] = epoch
#endif
    :: else
    fi;
    left = 0
#endif
}

#define HAS_TILE (tile < NUM_TILES(SHORT(rank, call), dst))

inline take_tile()
{
    dst = next[rank] % RANKS;
    tile = next[rank] / RANKS;
    next[rank]++
}

inline compute()
{
    do
#ifndef DEVICE
    :: abort_word -> goto out
#endif
    :: atomic { next[rank] < RANKS * TILES -> take_tile();
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
    :: atomic { next[rank] >= RANKS * TILES -> dst = 0; tile = 0; break }
    od
}

inline reset_tickets()
{
    d_step {
        next[rank] = 0;
        leavers[rank] = 0;
        for (counter : 0 .. RANKS * UNITS - 1) {
            missing[rank * RANKS * UNITS + counter] = UNIT
        }
        counter = 0
    }
}

proctype Producer(byte rank; byte worker)
{
    byte call = 1, epoch = EPOCH(1), peer, dst, tile, left, counter;
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

/* ---- Owning ---- */

inline all_are_mine()
{
    d_step {
        for (peer : 0 .. RANKS - 1) {
            assert(tile_epoch[AT(peer, rank, SLICE(epoch), tile)] == epoch);
            assert(tile_short[AT(peer, rank, SLICE(epoch), tile)] == SHORT(rank, call))
        };
        peer = 0
    }
}

inline finish_call()
{
    done_epoch[rank] = epoch;
    finished[rank] = call == CALLS
}

/* A tile is looked at when its reading begins and when it ends: what is overwritten
 * meanwhile shows. */
inline own_tiles()
{
    do
    :: atomic {
           tile < NUM_TILES(SHORT(rank, call), rank) ->
           for (peer : 0 .. RANKS - 1) {
               check_rows(peer);
               AWAIT(REACHED(flag[FLAG(peer, rank, tile / UNIT)], epoch), peer)
           };
#ifdef MUTANT_done_before_read
           finish_call();
#endif
           all_are_mine()
       };
       atomic { all_are_mine(); tile++ }
    :: atomic { tile >= NUM_TILES(SHORT(rank, call), rank) -> tile = 0; break }
    od
}

proctype Owner(byte rank)
{
    byte call = 1, epoch = EPOCH(1), peer, tile, counter;
    {
        do
        :: atomic {
#ifndef DEVICE
               await_readers();
               reset_tickets();
               announce();
               opened[rank] = call;
#endif
#ifdef MUTANT_flags_are_reset
               for (peer : 0 .. RANKS - 1) {
                   flag[FLAG(peer, rank, 0)] = BACK(epoch, 1)
               };
#endif
               skip
           };
           own_tiles();
           atomic {
#ifndef DEVICE
               AWAIT(leavers[rank] == NUM_WORKERS(rank), rank);
#endif
               finish_call();
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
        for (at : 0 .. RANKS * RANKS * SLICES * TILES - 1) { tile_epoch[at] = TORN };
        for (at : 0 .. RANKS * RANKS * UNITS - 1) {
            flag[at] = BEFORE_FIRST;
            missing[at] = UNIT
        };
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
#ifdef DISAGREE
        other_m = true;
#endif
        for (at : 0 .. RANKS - 1) {
            done_epoch[at] = BEFORE_FIRST;
#ifdef DEVICE
            opened[at] = 1;
#endif
        };
        for (at : 0 .. RANKS - 1) {
            run Owner(at);
            run Producer(at, 0);
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
