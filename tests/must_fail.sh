#!/usr/bin/env bash
# must_fail.sh SECONDS PROGRAM [ARGUMENT...]: passes when the program fails, which is what a
# test must do when it meets a planted bug.  Running longer than SECONDS counts as failing.
set -u
seconds=$1
shift
[ -x "$1" ] || { echo "must_fail: $1 is not there to be run" >&2; exit 1; }

set -m # the program gets a process group of its own, so that no rank is left behind
timeout -k 2 "$seconds" "$@" &
group=$!
wait $group
status=$?
kill -KILL -- -$group 2>/dev/null

case $status in
0) echo "must_fail: the planted bug went unnoticed: $*"; exit 1 ;;
124 | 137) echo "must_fail: good, it did not end within $seconds s" ;;
126 | 127) echo "must_fail: $1 could not be started"; exit 1 ;;
*) echo "must_fail: good, it failed with status $status" ;;
esac
