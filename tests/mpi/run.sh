#!/usr/bin/env bash
# run.sh MPI_CHECK MODULE GROUP: worlds under mpirun whose ranks are on several hosts, or, with
# ENTWINE_HOSTS, behave as if they were.  GROUP is one of
#
#     conformance   every pair of options and random ones, W = 2 to 8, exact inputs
#     protocol      epochs that wrap, late ranks, the order of summation, the bytes sent
#     faults        what the survivors say when a rank fails
#     namespaces    the same on two and three network namespaces, one of them cut off (root)
#     input         what cannot work is refused on every rank
#     slow          a rank that takes longer than the timeout, but gets on
#     frozen        all ranks are stopped for twice their timeout, and go on
#     smoke         a single short one
#     results       short ones of AllReduce
#     rows          short ones of AllGather-GEMM
#     cramped       a plan for which one rank has no memory, and plans behind it
#     away          all ranks compute for longer than the timeout between calls
#     tardy         a rank that comes to a collective when the others have given it up
#     carrier       between pretended GPUs; MPI_CHECK is then carrier_check
#
# MPIEXEC names the launcher (default: mpirun of Open MPI; mpiexec.hydra is MPICH's).
set -u
[ $# -eq 3 ] || { sed -n '2,20s/^# \{0,1\}//p' "$0" >&2; exit 2; }
check=$1 module=$2 group=$3
here=$(cd "$(dirname "$0")" && pwd)
mpiexec=${MPIEXEC:-mpirun}
command -v "$mpiexec" >/dev/null || { echo "SKIPPED: $mpiexec is not installed" >&2; exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm_rsh_agent=sh
export ENTWINE_TIMEOUT_MS=${ENTWINE_TIMEOUT_MS:-20000}
bad=0
# Two mpiruns that start at once must not share a folder: Open MPI fails when the other is first.
TMPDIR=$(mktemp -d)
export TMPDIR
out=$TMPDIR/out
trap 'rm -rf "$TMPDIR"' EXIT

case $mpiexec in *hydra*) is_hydra=1 options= ;; *) is_hydra= options="--oversubscribe --bind-to none" ;; esac

launch() { # W HOSTS CASE [ARGUMENT]; the output goes to $out
    local ranks=$1 hosts=$2
    shift 2
    what="W=$ranks hosts=$hosts $*"
    # shellcheck disable=SC2086
    ENTWINE_HOSTS=$hosts timeout -k 5 120 "$mpiexec" $options ${MORE:-} -np "$ranks" "$check" "$module" "$@" \
        >"$out" 2>&1
    status=$?
}

fail() { # REASON
    echo "FAILED: $what: $1"
    head -c 4000 "$out"
    bad=1
}

expect_ok() { # as launch
    launch "$@"
    [ $status = 0 ] || { fail "status $status"; return; }
    [ "$(grep -c '^rank [0-9]*: OK' "$out")" = "$1" ] && echo "ok: $what" || fail "not all ranks were there"
}

# The survivors, counted, say this; 124 is the time limit.
expect_fault() { # SURVIVORS TEXT...
    local survivors=$1 text
    shift
    [ $status != 124 ] || { fail "it hung"; return; }
    for text; do
        [ "$(grep -cE "^rank [0-9]+: $text" "$out")" = "$survivors" ] ||
            { fail "not $survivors ranks said: $text"; return; }
    done
    echo "ok: $what"
}

# What is waited for when RANK is silent: its tiles, or its last reads of an earlier call.
silence_of() { # RANK
    echo "(tile .* of rank $1|the rows of A of rank $1|rank $1 to finish reading)"
}

conformance() {
    for world in "2 2" "3 2" "3 3" "4 2" "4 4" "8 2" "8 3"; do
        # shellcheck disable=SC2086
        expect_ok $world conformance "${CONFORMANCE_SEEDS:-25}"
    done
    expect_ok 5 2 late
    expect_ok 6 3 late release=3
    expect_ok 7 2 late levels=1
    expect_ok 5 2 late shots=2
    expect_ok 6 3 late shots=1,workers=2
    expect_ok 3 3 late shots=2,release=output,workers=2,pool=static
    expect_ok 5 2 late ag-gemm,workers=2
    expect_ok 3 3 rows workers=2,pool=static
}

same_bits() { # W HOSTS CONFIG [OPERATION]: as all ranks on one host
    expect_ok "$1" 1 bits "${4:-}"
    grep ^bits "$out" >"$out.one"
    expect_ok "$1" "$2" bits "$3"
    grep ^bits "$out" | cmp -s - "$out.one" || fail "other bits than on one host"
    rm -f "$out.one"
}

same_traffic() { # W HOSTS CONFIG BYTES
    expect_ok "$1" "$2" traffic "$3"
    grep -q "^traffic $4 of" "$out" || fail "not $4 bytes"
}

protocol() {
    for world in "2 2" "4 2" "5 3"; do
        for config in levels=1 levels=2 order=contiguous,workers=2 release=output release=3,group=2; do
            # shellcheck disable=SC2086
            expect_ok $world wrap $config
        done
    done
    for config in shots=1 shots=2 shots=2,order=default,release=3,block=256x256,workers=2; do
        expect_ok 2 2 wrap $config
        expect_ok 5 3 wrap $config
    done
    for config in ag-gemm ag-gemm,order=contiguous,workers=2; do
        expect_ok 2 2 wrap $config
        expect_ok 5 3 wrap $config
    done
    expect_ok 2 2 rows
    expect_ok 5 3 rows release=3,order=contiguous
    expect_ok 4 2 rows release=output,workers=2
    expect_ok 2 2 late workers=3
    expect_ok 4 2 late workers=2,pool=static
    expect_ok 8 4 late release=partition
    expect_ok 2 2 again
    expect_ok 4 2 again
    expect_ok 2 2 ended
    expect_ok 4 2 ended release=1
    away
    expect_ok 2 2 reopened
    expect_ok 3 2 reopened
    expect_ok 2 2 layer workers=2
    expect_ok 4 2 layer
    expect_ok 5 3 layer levels=1,release=4
    expect_ok 2 2 layer shots=2,workers=2
    expect_ok 4 2 layer shots=1
    expect_ok 5 3 layer shots=2,release=4
    cramped
    same_bits 4 2 levels=1
    same_bits 4 2 shots=1
    same_bits 5 3 shots=2
    same_bits 4 2 ag-gemm,release=2 ag-gemm
    same_bits 3 3 ag-gemm,workers=2 ag-gemm
    same_bits 3 3 levels=2 # one rank a host: the same sum
    # 1024x512 fp32: every rank's contribution to the other host; or one sum of a host.
    same_traffic 4 2 levels=1 4194304
    same_traffic 4 2 levels=2 2097152
    same_traffic 6 3 levels=2 4194304
    # Two remote ranks get every contribution; or the owner's two, and its two readers the sum.
    same_traffic 4 2 shots=1 16777216
    same_traffic 4 2 shots=2 8388608
    # 1024x24 fp32: every row to the two ranks of the other host.
    same_traffic 4 2 ag-gemm 196608
    device_memory
}

# The fabric says what the library's own tool says of how it was built.  One that was built for
# GPUs may still say no at run time, where there is none.
device_memory() {
    if [ $is_hydra ]; then
        mpichversion 2>/dev/null | grep -q -- --with-cuda && built=true || built=false
    else
        built=$(ompi_info --parsable --all | sed -n 's/^mca:mpi:base:param:mpi_built_with_cuda_support:value://p')
    fi
    case $built in
    false) expect_ok 2 2 device-memory 0 ;;
    *) echo "SKIPPED: what MPI takes: built with CUDA '$built', so that its answer depends on the machine" ;;
    esac
    ENTWINE_DEVICE_MPI=off expect_ok 2 2 device-memory 0
}

slow() {
    # One worker: with several, a call of many blocks is over before the timeout.
    for world in "2 2" "4 2"; do
        # shellcheck disable=SC2086
        ENTWINE_TIMEOUT_MS=1500 expect_ok $world crawl block=128x128,release=1,workers=1
    done
    ENTWINE_TIMEOUT_MS=1500 expect_ok 2 2 crawl block=128x256,shots=2,workers=1
    ENTWINE_TIMEOUT_MS=1500 expect_ok 2 2 crawl ag-gemm,block=128x128,workers=1
}

frozen() {
    for world in "2 2" "4 2"; do
        # shellcheck disable=SC2086
        ENTWINE_TIMEOUT_MS=700 expect_ok $world frozen
    done
    ENTWINE_TIMEOUT_MS=700 expect_ok 3 3 frozen shots=2
    ENTWINE_TIMEOUT_MS=700 expect_ok 3 3 frozen ag-gemm
}

faults() {
    export ENTWINE_TIMEOUT_MS=2000
    launch 3 2 misfortune abort
    expect_fault 3 "EW_ERR_ABORTED: rank 2 aborted the world"
    launch 3 2 misfortune rows
    expect_fault 3 "EW_ERR_MISMATCH: ranks disagree: rank [0-2] has m=(599|600), rank [0-2] has m=(599|600)"
    for first in 0 1; do
        launch 2 2 swap $first
        expect_fault 2 "EW_ERR_MISMATCH: ranks disagree: rank [01] called plan [12], rank [01] called plan [12] \(operation 3\)"
        launch 4 2 swap $first
        expect_fault 4 "EW_ERR_MISMATCH: ranks disagree: rank [0-3] called plan [12], rank [0-3] called plan [12] \(operation 3\)"
    done
    launch 3 2 meet 5000
    expect_fault 3 "EW_ERR_MISMATCH: ranks disagree: rank [0-2] called ew_world_allgather of (8|5000) bytes, rank [0-2] called ew_world_allgather of (8|5000) bytes"
    launch 3 2 meet barrier
    expect_fault 3 "EW_ERR_MISMATCH: ranks disagree: rank [0-2] called ew_world_(barrier|allgather of 8 bytes), rank [0-2] called ew_world_(barrier|allgather of 8 bytes)"
    tardy
    launch 3 2 misfortune drop
    expect_fault 3 "EW_ERR_TIMEOUT: rank 0 waited 2 s for tile \(0,0\) of rank 2"
    launch 4 2 misfortune stall
    expect_fault 3 "EW_ERR_TIMEOUT: rank [0-2] waited 2 s for $(silence_of 3)"
    launch 3 2 misfortune drop-result
    expect_fault 3 "EW_ERR_TIMEOUT: rank [01] waited 2 s for the result of tile .* of rank 2"
    launch 3 3 misfortune stall-result
    expect_fault 2 "EW_ERR_TIMEOUT: rank [01] waited 2 s for (the result of )?tile .* of rank 2"
    launch 3 2 misfortune rows-gather
    expect_fault 3 "EW_ERR_MISMATCH: ranks disagree: rank [0-2] has m=(599|600), rank [0-2] has m=(599|600)"
    launch 3 2 misfortune drop-gather
    expect_fault 3 "EW_ERR_TIMEOUT: rank [01] waited 2 s for the rows of A of rank 2 from its row 128 on"
    launch 3 3 misfortune stall-gather
    expect_fault 2 "EW_ERR_TIMEOUT: rank [01] waited 2 s for $(silence_of 2)"
    launch 3 2 misfortune leave
    expect_fault 2 "EW_ERR_PEER_DIED: rank 2 left the world while rank [01] waited for it"
    for world in "3 1" "4 2"; do
        # shellcheck disable=SC2086
        launch $world absent late
        expect_fault $((${world% *} - 1)) \
            "EW_ERR_TIMEOUT: rank [0-2] waited 2 s for rank $((${world% *} - 1)) to join the world"
    done
    [ $is_hydra ] && return # whose mpiexec ends all ranks with the first
    for step in 0 1 2; do # of the meeting
        MORE=--enable-recovery launch 4 2 absent $step
        expect_fault 3 "EW_ERR_PEER_DIED: rank 3 died \(noticed by rank 2\)"
    done
    MORE=--enable-recovery launch 2 2 misfortune kill
    expect_fault 1 "EW_ERR_TIMEOUT: rank 0 waited 2 s for $(silence_of 1)"
    MORE=--enable-recovery launch 4 2 misfortune kill # its neighbour hears it at once
    expect_fault 3 "EW_ERR_PEER_DIED: rank 3 died \(noticed by rank 2\)"
    MORE=--enable-recovery launch 2 2 misfortune kill-result
    expect_fault 1 "EW_ERR_TIMEOUT: rank 0 waited 2 s for (the result of )?tile .* of rank 1"
    MORE=--enable-recovery launch 4 2 misfortune kill-result
    expect_fault 3 "EW_ERR_PEER_DIED: rank 3 died \(noticed by rank 2\)"
    MORE=--enable-recovery launch 2 2 misfortune kill-gather
    expect_fault 1 "EW_ERR_TIMEOUT: rank 0 waited 2 s for $(silence_of 1)"
    MORE=--enable-recovery launch 4 2 misfortune kill-gather
    expect_fault 3 "EW_ERR_PEER_DIED: rank 3 died \(noticed by rank 2\)"
}

input() {
    launch 2 0 late
    expect_fault 2 "EW_ERR_ARGUMENT: ENTWINE_HOSTS=0 is not a number of hosts"
    ENTWINE_DEVICE_MPI=1 launch 2 2 late
    expect_fault 2 "EW_ERR_ARGUMENT: ENTWINE_DEVICE_MPI=1 is not known"
    what="a missing module"
    # On a busy machine MPICH's launcher can lose the words of ranks that end at once.
    for _ in 1 2 3; do
        ENTWINE_HOSTS=2 timeout 60 "$mpiexec" $options -np 2 "$check" "$module.missing" late >"$out" 2>&1
        [ -s "$out" ] && break
    done
    grep -q "cannot open shared object" "$out" && echo "ok: $what" || fail "no reason was given"
}

# Hosts that are network namespaces.
in_namespaces() { # HOSTS RANKS_PER_HOST CASE [ARGUMENT]
    local hosts=$1 per_host=$2
    shift 2
    what="$hosts namespaces, $per_host ranks each: $*"
    NETNS_MPIRUN="-x ENTWINE_TIMEOUT_MS ${MORE:-}" "$here/netns.sh" "$hosts" "$per_host" 2gbit \
        "$check" "$module" "$@" >"$out" 2>&1
    status=$?
    [ $status != 77 ] || { cat "$out" >&2; exit 77; }
}

# Open MPI's mpirun itself waits for a host that is gone; ranks do not.
cut_off() { # HOSTS
    local log
    log=$(mktemp)
    NETNS_CUT_AFTER=4 NETNS_SECONDS=20 NETNS_LAST_WORDS=$log MORE="-x MPI_CHECK_LOG=$log" \
        in_namespaces "$1" 1 misfortune slow
    cat "$log" >"$out"
    rm -f "$log"
    what="$1 namespaces, the last one cut off" status=0
}

namespaces() {
    for world in "2 1" "2 2" "3 1" "2 4"; do
        # shellcheck disable=SC2086
        in_namespaces $world conformance 10
        [ $status = 0 ] && ! grep -q FAILED "$out" && echo "ok: $what" || fail "status $status"
    done
    in_namespaces 2 1 plain
    expect_fault 2 "EW_ERR_UNSUPPORTED: ranks run on 2 hosts, and nothing carries bytes between them"
    export ENTWINE_TIMEOUT_MS=3000
    for hosts in 2 3; do
        cut_off $hosts
        expect_fault $hosts "EW_ERR_TIMEOUT: rank [0-2] waited 3 s for $(silence_of "[0-2]")"
    done
}

went() { # RANKS WAY: so many say that they went it
    [ "$(grep -c "^rank [0-9]*: $2" "$out")" = "$1" ] || fail "not $1 ranks went the way: $2"
}

# MPI is given memory that stands for a GPU's, by all ranks or by some.
direct() {
    export CARRIER_DIRECT=all
    for world in "2 2" "3 3" "4 2" "6 3"; do
        for config in release=1 release=3,group=2 order=default; do
            # shellcheck disable=SC2086
            expect_ok $world calls $config
            went "${world% *}" "device memory"
        done
    done
    expect_ok 4 2 empty
    expect_ok 4 2 calls invariant=8,release=2
    ENTWINE_DEVICE_MPI=off expect_ok 4 2 calls
    went 4 staged
    CARRIER_DIRECT=odd expect_ok 6 3 calls release=2
    went 3 "device memory"
    went 3 staged
    ENTWINE_TIMEOUT_MS=2000 launch 4 2 misfortune abort
    expect_fault 4 "EW_ERR_ABORTED: rank 3 aborted the world"
    ENTWINE_TIMEOUT_MS=2000 launch 3 3 misfortune stall
    expect_fault 2 "EW_ERR_TIMEOUT: rank [01] waited 2 s for rank 2"
    unset CARRIER_DIRECT
}

carrier() {
    direct
    for world in "2 2" "3 3" "4 2" "6 3"; do
        for config in release=1 release=3,group=2 release=partition,order=contiguous order=default; do
            # shellcheck disable=SC2086
            expect_ok $world calls $config
        done
    done
    expect_ok 4 2 empty
    expect_ok 4 2 calls invariant=8,release=2
    export ENTWINE_TIMEOUT_MS=2000
    launch 4 2 misfortune rows
    expect_fault 4 "EW_ERR_MISMATCH: ranks disagree: rank [0-3] has m=(599|600), rank [0-3] has m=(599|600)"
    launch 4 2 misfortune abort
    expect_fault 4 "EW_ERR_ABORTED: rank 3 aborted the world"
    launch 3 3 misfortune stall
    expect_fault 2 "EW_ERR_TIMEOUT: rank [01] waited 2 s for rank 2"
    [ $is_hydra ] && return
    MORE=--enable-recovery launch 4 2 misfortune kill
    expect_fault 3 "EW_ERR_PEER_DIED: rank 3 died \(noticed by rank 2\)"
}

smoke() {
    expect_ok 2 2 late
}

results() {
    expect_ok 3 3 late shots=2
    expect_ok 3 3 layer shots=2
}

cramped() {
    expect_ok 2 2 cramped
    expect_ok 4 2 cramped release=2
}

away() {
    ENTWINE_TIMEOUT_MS=700 expect_ok 2 2 away
}

tardy() {
    ENTWINE_TIMEOUT_MS=700 launch 2 2 tardy
    expect_fault 2 "EW_ERR_TIMEOUT: rank 0 waited 0.7 s for rank 1 at a collective call"
}

rows() {
    expect_ok 3 3 rows
    expect_ok 2 2 late ag-gemm
}

case $group in
smoke | results | rows | cramped | away | tardy | carrier | slow | frozen | conformance | protocol | faults | namespaces | input) $group ;;
*) echo "no group is called $group"; exit 2 ;;
esac
exit $bad
