#!/bin/bash
# tests/fuzz/run.sh BUILD_DIR [NAME...]: builds the fuzz targets with clang in BUILD_DIR and
# runs each, or the ones named, for FUZZ_SECONDS (default 1) on its corpus, two at a time.
# What breaks one is left in BUILD_DIR/found; put it into corpus/NAME when it is fixed.
# FUZZ_SECONDS=0 only tries the corpora; FUZZ_RUNS=N ends after N inputs, if the time is not up
# before.  FUZZ_SEED (default 1, so that a test run repeats the
# last one; 0 is random) is what mutations are drawn from.
set -u
mkdir -p "${1:?usage: run.sh BUILD_DIR [NAME...]}" || exit 1
build=$(cd "$1" && pwd)
shift
here=$(cd "$(dirname "$0")" && pwd)
seconds=${FUZZ_SECONDS:-1} # also when it is empty
runs=${FUZZ_RUNS:--1}
case $seconds in
'' | *[!0-9]*) echo "FUZZ_SECONDS='$seconds' is not a number of seconds" >&2; exit 2 ;;
esac

skip() {
    echo "SKIPPED: $1, so no parser is fuzzed"
    echo "  fix: apt-get install clang"
    exit 77
}
clang=$(command -v clang) || skip "clang is not installed"
mkdir -p "$build/found" "$build/corpus"
echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n > 9 ? 0 : 0; }' \
    >"$build/probe.c"
"$clang" -fsanitize=fuzzer,address "$build/probe.c" -o "$build/probe" 2>/dev/null ||
    skip "this clang has no libFuzzer"

cmake -S "$here/../.." -B "$build" -DCMAKE_C_COMPILER="$clang" -DCMAKE_BUILD_TYPE=None \
    -DCMAKE_C_FLAGS='-O1 -g' -DEW_CUDA=OFF -DEW_FUZZ=ON \
    -DEW_SANITIZE=fuzzer-no-link,address,undefined,float-cast-overflow \
    >"$build/build.log" 2>&1 &&
    cmake --build "$build" -j2 --target fuzz >>"$build/build.log" 2>&1 ||
    { tail -n 30 "$build/build.log"; echo "FAILED: the fuzz targets do not build"; exit 1; }

# fuzz NAME: new inputs go to the build's corpus, not into the tree.
fuzz() {
    local name=$1 log="$build/$1.log" limits=("-max_total_time=$seconds" "-runs=$runs")
    [ "$seconds" = 0 ] && limits=(-runs=0)
    # An input of control messages is a list of steps, a few bytes each: longer lists reach no other
    # code and take three times as long.
    local longest=8192
    [ "$name" = letters ] && longest=512
    mkdir -p "$build/corpus/$name"
    # No leak check per input on arm64: LeakSanitizer needs ptrace, which containers forbid.
    env -i PATH="$PATH" LC_ALL=C ASAN_OPTIONS=detect_leaks=${FUZZ_LEAKS:-0} \
        timeout -k 5 $((seconds + 60)) "$build/fuzz_$name" "${limits[@]}" -seed="${FUZZ_SEED:-1}" -timeout=5 \
        -rss_limit_mb=1024 -max_len=$longest -close_fd_mask=3 -print_final_stats=1 \
        -artifact_prefix="$build/found/$name-" "$build/corpus/$name" "$here/corpus/$name" \
        >"$log" 2>&1 </dev/null
    local status=$?
    if [ $status != 0 ]; then
        echo "FAILED: $name (status $status)"
        grep -m1 -A12 'ERROR:\|runtime error\|deadly signal' "$log" || tail -n 5 "$log"
        grep 'Test unit written' "$log"
        return 1
    fi
    echo "ok: $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs"
}

names=${*:-$(cd "$here" && ls fuzz_*.c | sed 's/^fuzz_//; s/\.c$//')}
failed=0
pids=()
for name in $names; do
    fuzz "$name" &
    pids+=($!)
    if [ ${#pids[@]} = 2 ]; then
        wait "${pids[0]}" || failed=1
        pids=("${pids[1]}")
    fi
done
wait "${pids[@]}" || failed=1
exit $failed
