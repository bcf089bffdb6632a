#!/bin/sh
# nvcc-keep.sh OBJECT.o NVCC ARGUMENT...: runs nvcc and keeps beside the object what tests read:
# in OBJECT.log what it says of every kernel's registers and memory (kernel-needs), in OBJECT.ptx
# the PTX for the first target (check-ptx).  Everything else that it says is shown.
base=${1%.o}
shift
rm -rf "$base.keep" && mkdir "$base.keep" || exit 1
"$@" --keep --keep-dir "$base.keep" --resource-usage >"$base.log" 2>&1
status=$?
grep -vE '^ptxas info|bytes stack frame' "$base.log" >&2
set -- "$base.keep"/*.ptx
[ $status != 0 ] || mv "$1" "$base.ptx"
rm -rf "$base.keep"
exit $status
