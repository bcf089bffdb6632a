#!/bin/bash
# tests/model/run.sh: checks the Spin models of the protocol and of the meeting of ranks at
# several sizes, then demands that every planted bug is found.  Needs spin and a C compiler.
# Two minutes on two free cores.
set -u
models=$(cd "$(dirname "$0")" && pwd)
command -v spin >/dev/null || {
    echo "SKIPPED: spin is not installed, so the protocol's model is not checked"
    echo "  fix: apt-get install spin"
    exit 77
}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# What must hold, as definitions for the model, which is protocol.pml unless they name one.
sizes=(
    "RANKS=2 CALLS=4 SAME_M"
    "RANKS=2 CALLS=3 DEVICE SAME_M"
    "RANKS=2 CALLS=3 DEVICE SLICES=1"
    "RANKS=2 CALLS=3 DISAGREE"
    "RANKS=2 CALLS=3 DEVICE DISAGREE SAME_M"
    "RANKS=2 CALLS=2 ABORT"
    "MODEL=meeting RANKS=3"
    "MODEL=meeting RANKS=3 DEATH STALL"
    "ONE_SHOT RANKS=2 CALLS=3 TILES=2"
    "ONE_SHOT RANKS=2 CALLS=3 EMPTY"
    "ONE_SHOT RANKS=2 CALLS=3 IMPLIED"
    "TWO_SHOT RANKS=2 CALLS=3 TILES=2"
    "TWO_SHOT RANKS=2 CALLS=3 TILES=2 EMPTY SAME_M"
    "TWO_SHOT RANKS=2 CALLS=3 TILES=2 IMPLIED"
    "TWO_SHOT RANKS=2 CALLS=2 TILES=2 DEVICE PUSHED STRAIGHT SAME_M SAME_PLACE"
    "TWO_SHOT RANKS=2 CALLS=1 DEVICE PUSHED STRAIGHT STALL"
    "TWO_SHOT RANKS=2 CALLS=2 TILES=2 DISAGREE"
    "TWO_SHOT RANKS=2 CALLS=2 TILES=2 STALL"
    "BY_ROWS RANKS=2 CALLS=3 TILES=2"
    "BY_ROWS RANKS=2 CALLS=3 IMPLIED"
    "BY_ROWS RANKS=2 CALLS=2 DISAGREE"
    "BY_ROWS RANKS=2 CALLS=2 STALL"
    "CARRIED RANKS=2 CALLS=2 SAME_M"
    "CARRIED ONE_SHOT RANKS=2 CALLS=2 SAME_M"
    "CARRIED TWO_SHOT RANKS=2 CALLS=1 TILES=2"
    "CARRIED TWO_SHOT RANKS=2 CALLS=3 SAME_M"
    "CARRIED BY_ROWS RANKS=2 CALLS=2 SAME_M"
    "GATHER RANKS=3 CALLS=1"
    "GATHER RANKS=2 CALLS=3 SLICES=1"
    "GATHER RANKS=2 CALLS=2 TILES=2 DISAGREE"
)
# Likewise; half a million states and more, for which an optimised search pays.
large_sizes=(
    "RANKS=2 CALLS=3 TILES=2"
    "RANKS=3 CALLS=2 SAME_M"
    "RANKS=2 CALLS=2 TILES=2 UNIT=2 WORKERS=2 SAME_M"
    "RANKS=2 CALLS=3 DEATH SAME_M"
    "RANKS=2 CALLS=3 STALL"
    "RANKS=2 CALLS=2 DEVICE STALL"
    "RANKS=2 CALLS=2 DEVICE DEATH SAME_M"
    "MODEL=meeting RANKS=4 DEATH"
    "MODEL=meeting RANKS=4 STALL"
    "ONE_SHOT RANKS=2 CALLS=2 DEVICE DEATH SAME_M"
    "TWO_SHOT RANKS=3 CALLS=2 SAME_M"
    "TWO_SHOT RANKS=3 CALLS=3 SAME_M IMPLIED"
    "TWO_SHOT RANKS=2 CALLS=3 DEVICE"
    "TWO_SHOT RANKS=2 CALLS=3 DEVICE PUSHED"
    "TWO_SHOT RANKS=2 CALLS=2 DEVICE PUSHED STRAIGHT SAME_M"
    "TWO_SHOT RANKS=2 CALLS=3 DEVICE PUSHED STRAIGHT EMPTY SAME_PLACE"
    "TWO_SHOT RANKS=2 CALLS=2 TILES=2 DEATH SAME_M"
    "TWO_SHOT RANKS=2 CALLS=2 TILES=2 ABORT"
    "BY_ROWS RANKS=2 CALLS=3 DEVICE"
    "BY_ROWS RANKS=2 CALLS=2 DEATH"
    "CARRIED TWO_SHOT RANKS=2 CALLS=1 STALL"
    "CARRIED GATHER RANKS=2 CALLS=3 SAME_M"
    "CARRIED GATHER RANKS=2 CALLS=1 TILES=2 UNIT=2"
    "CARRIED GATHER RANKS=2 CALLS=1 STALL"
    "GATHER RANKS=2 CALLS=3 TILES=2"
    "GATHER RANKS=2 CALLS=2 TILES=2 UNIT=2 WORKERS=2 SAME_M"
    "GATHER RANKS=2 CALLS=3 DEVICE"
    "GATHER RANKS=2 CALLS=2 DEATH"
    "GATHER RANKS=2 CALLS=2 STALL"
    "GATHER RANKS=2 CALLS=2 ABORT"
)
# name: the size at which it shows.
mutants=(
    "flag_before_tile: RANKS=2 CALLS=1"
    "no_wait_for_readers: RANKS=2 CALLS=3"
    "readers_off_by_one: RANKS=2 CALLS=4"
    "one_slice: RANKS=2 CALLS=2"
    "done_before_read: RANKS=2 CALLS=3 DEVICE"
    "equality: RANKS=2 CALLS=3"
    "no_wrap: RANKS=2 CALLS=3"
    "flags_are_reset: RANKS=2 CALLS=2"
    "first_of_unit_publishes: RANKS=2 CALLS=1 TILES=2 UNIT=2"
    "count_in_two_steps: RANKS=2 CALLS=1 TILES=2 UNIT=2 WORKERS=2"
    "rows_unchecked: RANKS=2 CALLS=1 DISAGREE"
    "two_call_slots: RANKS=2 CALLS=3 DEVICE DISAGREE CALL_SLOTS=2"
    "deaf_to_abort: RANKS=2 CALLS=1 ABORT"
    "nobody_watches: RANKS=2 CALLS=1 DEATH"
    "last_story_wins: RANKS=2 CALLS=1 DISAGREE"
    "owner_leaves_early: MODEL=meeting RANKS=3 DEATH"
    "equal_patience: MODEL=meeting RANKS=3 STALL"
    "owner_is_not_watched: MODEL=meeting RANKS=2 DEATH"
    "nobody_is_watched: MODEL=meeting RANKS=3 DEATH"
    "everyone_judges: MODEL=meeting RANKS=3 STALL"
    "one_shot_in_place: ONE_SHOT RANKS=2 CALLS=1"
    "collect_before_reduce: TWO_SHOT RANKS=2 CALLS=1 TILES=2"
    "collect_before_reduce: BY_ROWS RANKS=2 CALLS=1"
    "result_flag_before_result: TWO_SHOT RANKS=2 CALLS=1"
    "result_flag_before_result: BY_ROWS RANKS=2 CALLS=1"
    "result_over_whole_tile: BY_ROWS RANKS=2 CALLS=1"
    "no_wait_for_readers: TWO_SHOT RANKS=2 CALLS=3 EMPTY"
    "no_wait_for_readers: TWO_SHOT RANKS=2 CALLS=3 DEVICE"
    "no_wait_for_readers: TWO_SHOT RANKS=2 CALLS=3 DEVICE PUSHED"
    "no_wait_for_readers: BY_ROWS RANKS=2 CALLS=3 EMPTY"
    "store_before_entry: TWO_SHOT RANKS=2 CALLS=2 DEVICE PUSHED STRAIGHT SAME_PLACE"
    "words_overwritten: TWO_SHOT RANKS=2 CALLS=2 DEVICE PUSHED STRAIGHT"
    "places_not_compared: TWO_SHOT RANKS=2 CALLS=1 DEVICE PUSHED STRAIGHT"
    "results_not_awaited: TWO_SHOT RANKS=2 CALLS=1 DEVICE PUSHED STRAIGHT"
    "done_before_collect: TWO_SHOT RANKS=2 CALLS=3 EMPTY"
    "done_before_collect: TWO_SHOT RANKS=2 CALLS=3 DEVICE"
    "done_before_collect: BY_ROWS RANKS=2 CALLS=3 DEVICE"
    "rows_unchecked: TWO_SHOT RANKS=2 CALLS=1 TILES=2 DISAGREE"
    "leaves_before_sent: CARRIED TWO_SHOT RANKS=2 CALLS=1"
    "whole_tiles_cross: CARRIED BY_ROWS RANKS=2 CALLS=1"
    "results_over_contributions: CARRIED BY_ROWS RANKS=2 CALLS=1"
    "no_wait_for_readers: CARRIED RANKS=2 CALLS=3 SAME_M"
    "no_wait_for_readers: CARRIED GATHER RANKS=2 CALLS=3 SAME_M"
    "leaves_before_sent: CARRIED GATHER RANKS=2 CALLS=1"
    "first_message_is_panel: CARRIED GATHER RANKS=2 CALLS=1 TILES=2 UNIT=2"
    "flag_before_tile: GATHER RANKS=2 CALLS=1"
    "no_wait_for_readers: GATHER RANKS=2 CALLS=3"
    "readers_off_by_one: GATHER RANKS=2 CALLS=4"
    "one_slice: GATHER RANKS=2 CALLS=2"
    "done_before_read: GATHER RANKS=2 CALLS=3 DEVICE"
    "rows_behind_gemm: GATHER RANKS=2 CALLS=1"
    "rows_unchecked: GATHER RANKS=2 CALLS=1 DISAGREE"
)

# tcc takes 20 ms for what gcc takes 700, and its searches take twice as long as optimised ones.
quick="${CC:-cc} -O0"
[ "$(uname -m)" = x86_64 ] && command -v tcc >/dev/null && quick=tcc

# search "DEFINITIONS" "COMPILER": what pan says; 0 when it came to a result, which may be an error.
search() {
    local folder result model=protocol
    case $1 in *MODEL=*) model=${1##*MODEL=} model=${model%% *} ;; esac
    folder=$(mktemp -d "$work/XXXXXX") || return 2
    cd "$folder" || return 2
    # shellcheck disable=SC2086
    spin -a $(printf -- '-D%s ' $1) "$models/$model.pml" >log 2>&1 ||
        { echo "spin ended with $?"; cat log; return 2; }
    # shellcheck disable=SC2086
    $2 -w -DSAFETY -DNOCOMP -DNOBOUNDCHECK -DVECTORSZ=4096 -DMEMLIM=4000 -o pan pan.c 2>>log ||
        { echo "the compiler ended with $?"; cat log; return 2; }
    timeout 300 ./pan -m100000 >log 2>&1
    result=$?
    cd "$work" && cat "$folder/log"
    [ $result = 0 ] && grep -q 'errors: ' "$folder/log" || { echo "pan ended with $result"; return 2; }
    rm -rf "$folder"
}

check_large_size() { check_size "$1" "$2" "${CC:-cc} -Og"; }
check_size() {
    if ! search "$1" "${3:-$quick}" >"$2" || ! grep -q 'errors: 0' "$2" || grep -q 'max search depth too small' "$2"; then
        echo "FAILED: $1"
        grep -m1 '^pan:' "$2" || tail -n 3 "$2"
        return 1
    fi
    echo "ok: $1: $(awk '/states, stored/ { print $1 }' "$2") states"
}

check_mutant() {
    local name=${1%%:*} size=${1#*: }
    if ! search "MUTANT_$name $size" "$quick" >"$2"; then
        echo "FAILED: no search for the planted bug $name ($size)"
        tail -n 3 "$2"
        return 1
    elif ! grep -q 'errors: 1' "$2"; then
        echo "FAILED: the planted bug $name went unnoticed ($size)"
        return 1
    fi
    echo "ok: $name is found: $(sed -n 's/^pan:1: \(.\{1,60\}\).*/\1/p' "$2")"
}

# in_pairs COMMAND LIST...: two at a time; false when any failed.
in_pairs() {
    local command=$1 failed=0 at=0
    shift
    for item in "$@"; do
        [ $at -lt 2 ] || wait -n || failed=1
        at=$((at + 1)) # here: behind the & it would be the child's
        $command "$item" "$work/log.$command.$at" &
    done
    wait -n || failed=1
    wait -n || failed=1
    return $failed
}

failed=0
in_pairs check_large_size "${large_sizes[@]}" || failed=1
in_pairs check_size "${sizes[@]}" || failed=1
in_pairs check_mutant "${mutants[@]}" || failed=1
echo "$((${#large_sizes[@]} + ${#sizes[@]})) sizes, ${#mutants[@]} planted bugs"
exit $failed
