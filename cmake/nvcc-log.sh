#!/bin/sh
# nvcc-log.sh LOG NVCC ARGUMENT...: runs nvcc and keeps in LOG what it says of every kernel's
# registers and memory, which the test kernel-needs reads; everything else it says is shown.
log=$1
shift
"$@" --resource-usage >"$log" 2>&1
status=$?
grep -vE '^ptxas info|bytes stack frame' "$log" >&2
exit $status
