/* How the ranks of a host meet (src/world/local_ranks.c) as a Spin model: cards are gathered,
 * rank 0 owns the control block and gives it to those who connect, and one misfortune: a
 * rank dies, or stalls for ever, at any time.  A survivor that has its error ends at once,
 * and to the others the end of a process looks the same whatever its reason.
 *
 * No survivor waits for ever: Spin reports a process that is left waiting.  None waits for
 * its deadline when a process is dead.  All survivors name the same rank, the one that is to
 * blame.
 *
 * `timeout` stands for a deadline, as in protocol.pml: Spin enables it only when nobody can
 * move.  The owner gives up on a rank then; the others, whose patience lasts longer than the
 * owner's and does not run while it looks at its clock, give up on the owner only if even then
 * it has said nothing.
 *
 *   RANKS          ranks, of which 0 is the owner
 *   DEATH STALL    which misfortunes may happen
 *   MUTANT_name    a planted bug; run.sh lists them
 */
#ifndef RANKS
#define RANKS 3
#endif

#define NOBODY 255

/* ---- What the kernel keeps ---- */

bool connected[RANKS]; /* a connection to the owner, accepted or not */
bool sent[RANKS];      /* the block lies in that connection */
bool gone[RANKS];      /* its process has ended, for whatever reason */

/* ---- The control block ---- */

bool abort_word;
byte culprit = NOBODY;
bool present[RANKS], entered[RANKS], met;

/* ---- Ghosts ---- */

mtype = { alive, dead, stalled };
mtype health[RANKS] = alive;
byte victim = NOBODY;
byte named[RANKS] = NOBODY; /* whom each rank's error names */

inline raise(whom)
{
    d_step {
        if
        :: !abort_word -> abort_word = true; culprit = whom
        :: else
        fi
    }
}

/* The owner gives up on whom it misses; the others have more patience. */
#ifdef MUTANT_equal_patience
#define OTHERS_GIVE_UP (timeout)
#else
#define OTHERS_GIVE_UP (timeout && health[0] == stalled)
#endif

#ifdef MUTANT_owner_is_not_watched
#define OWNER_IS_GONE false
#else
#define OWNER_IS_GONE gone[0]
#endif
#ifdef MUTANT_nobody_is_watched
#define IS_GONE(whom) false
#else
#define IS_GONE(whom) gone[whom]
#endif

/* Ends a rank with an error, which names the one that something happened to. */
inline fail_with(whom)
{
    d_step { named[me] = whom; assert(named[me] == victim); gone[me] = true }
}

/* ---- The owner ---- */

/* `what` of all others, joined by `with`. */
#if RANKS == 2
#define OTHERS(what, with) (what(1))
#elif RANKS == 3
#define OTHERS(what, with) (what(1) with what(2))
#else
#define OTHERS(what, with) (what(1) with what(2) with what(3))
#endif

#define IS_SETTLED(peer) (sent[peer] || IS_GONE(peer))
#define IS_PRESENT(peer) (present[peer] || IS_GONE(peer))

inline notice_the_gone()
{
    for (peer : 1 .. RANKS - 1) {
        if
        :: atomic { IS_GONE(peer) -> raise(peer) }
        :: else
        fi
    }
}

inline give_block()
{
    d_step {
        for (peer : 1 .. RANKS - 1) {
            sent[peer] = sent[peer] || connected[peer]
        }
    }
}

#define CAN_SERVE(peer) (connected[peer] && !sent[peer])

/* Gives the block to all who live, also when a fault stands. */
inline serve()
{
    do
    :: OTHERS(CAN_SERVE, ||) -> give_block()
    :: OTHERS(IS_GONE, ||) && !abort_word -> notice_the_gone()
#ifdef MUTANT_owner_leaves_early
    :: abort_word -> goto out
#endif
    :: OTHERS(IS_SETTLED, &&) -> break
    :: timeout && !OTHERS(IS_SETTLED, &&) ->
       for (peer : 1 .. RANKS - 1) {
           if
           :: !IS_SETTLED(peer) -> assert(health[peer] != dead); raise(peer)
           :: else
           fi
       };
       goto out
    od
}

inline await_present()
{
    if
    :: OTHERS(IS_PRESENT, &&) && !OTHERS(IS_GONE, ||)
    :: abort_word -> goto out
    :: OTHERS(IS_GONE, ||) -> notice_the_gone(); goto out
    :: timeout && !OTHERS(IS_PRESENT, &&) ->
       for (peer : 1 .. RANKS - 1) {
           if
           :: !IS_PRESENT(peer) -> assert(health[peer] != dead); raise(peer)
           :: else
           fi
       };
       goto out
    fi
}

/* ---- All ranks, once they have met ---- */

inline watch(whom)
{
    atomic { gone[whom] -> raise(whom); goto out }
}

/* The barrier with which a meeting ends: the watcher reports whoever is gone. */
inline meet()
{
    entered[me] = true;
    for (peer : 0 .. RANKS - 1) {
        if
        :: entered[peer]
        :: abort_word -> goto out
        :: watch(peer)
        :: timeout && health[peer] == stalled && !entered[peer] -> raise(peer); goto out
        fi
    }
}

/* A rank that has its world learns of a fault by its next call, if it makes one. */
inline work()
{
    if
    :: true -> goto over
    :: abort_word
    :: watch(0)
    :: watch(1)
#if RANKS > 2
    :: watch(2)
#endif
#if RANKS > 3
    :: watch(3)
#endif
    fi
}

proctype Owner()
{
    byte me = 0, peer;
    {
        serve();
        if
        :: abort_word -> goto out
        :: else
        fi;
        await_present();
        met = true;
        meet();
        work();
out:
        fail_with(culprit);
over:
        skip
    } unless { health[0] != alive };
end_stopped:
    health[0] != stalled
}

proctype Other(byte me)
{
    byte peer;
    bool complete = true;
    {
        if
        :: gone[0] -> fail_with(0); goto over
        :: !gone[0] -> connected[me] = true
        fi;
        if
        :: sent[me]
        :: OWNER_IS_GONE && !sent[me] -> fail_with(0); goto over
        :: OTHERS_GIVE_UP && !sent[me] -> fail_with(0); goto over
        fi;
        for (peer : 1 .. me - 1) { /* connecting waits for nobody */
            complete = complete && !gone[peer]
        };
        present[me] = complete;
#ifdef MUTANT_everyone_judges
        for (peer : 1 .. RANKS - 1) {
            if
            :: met -> break
            :: abort_word -> goto out
            :: watch(peer)
            :: OTHERS_GIVE_UP -> raise(0); goto out
            fi
        };
#endif
        if
        :: met
        :: abort_word -> goto out
        :: atomic { OWNER_IS_GONE -> raise(0); goto out }
        :: OTHERS_GIVE_UP -> raise(0); goto out
        fi;
        meet();
        work();
out:
        fail_with(culprit);
over:
        skip
    } unless { health[me] != alive };
end_stopped:
    health[me] != stalled
}

/* ---- What may happen ---- */

inline befall(what)
{
    atomic {
        select(rank : 0 .. RANKS - 1);
        if
        :: !gone[rank] && named[rank] == NOBODY ->
           health[rank] = what;
           victim = rank;
           gone[rank] = (what == dead)
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
    fi
}

init {
    byte at;
    atomic {
        run Owner();
        for (at : 1 .. RANKS - 1) { run Other(at) };
        run Misfortune();
        at = 0
    }
}
