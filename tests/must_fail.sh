#!/usr/bin/env bash
# must_fail.sh SECONDS PROGRAM [ARGUMENT...]: passes when the program fails, which is what a
# test must do when it meets a planted bug.  Running longer than SECONDS counts as failing, and
# so does the first failure that a cmocka program reports, after which it is ended.
set -u
seconds=$1
shift
[ -x "$1" ] || { echo "must_fail: $1 is not there to be run" >&2; exit 1; }

set -m # the program gets a process group of its own, so that no rank is left behind
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
timeout -k 2 "$seconds" "$@" >"$log" 2>&1 &
group=$!
while kill -0 $group 2>/dev/null && ! grep -q '^\[  FAILED  \]' "$log"; do
    sleep 0.2
done
if kill -0 $group 2>/dev/null; then
    kill -KILL -- -$group 2>/dev/null
    status=failed
else
    wait $group
    status=$?
    kill -KILL -- -$group 2>/dev/null
fi
cat "$log"

case $status in
0) echo "must_fail: the planted bug went unnoticed: $*"; exit 1 ;;
124 | 137) echo "must_fail: good, it did not end within $seconds s" ;;
126 | 127) echo "must_fail: $1 could not be started"; exit 1 ;;
failed) echo "must_fail: good, a test of it failed" ;;
*) echo "must_fail: good, it failed with status $status" ;;
esac
