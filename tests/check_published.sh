#!/bin/sh
# tests/check_published.sh ENTWINE: docs/SIMULATOR.md lists the paper's figures beside what the
# simulator makes of them, as scripts/validate-sim prints them today, and docs/schedule.svg shows what
# it simulates today.  Half a minute of one core.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/scripts/draw-schedule" --check "$1" || exit 1
printed=$(mktemp) || exit 1
trap 'rm -f "$printed"' EXIT
"$root/scripts/validate-sim" "$1" --paper >"$printed" || exit 1
grep '^  ' "$printed" | {
    count=0 missing=0
    while IFS= read -r line; do
        count=$((count + 1))
        grep -qxF "    $line" "$root/docs/SIMULATOR.md" && continue
        echo "not in docs/SIMULATOR.md: $line"
        missing=$((missing + 1))
    done
    [ $missing = 0 ] || echo "  fix: put there what scripts/validate-sim ENTWINE --paper prints"
    echo "$count figures, $missing not listed"
    [ $count -gt 0 ] && [ $missing = 0 ]
}
