#!/bin/sh
# check_symbols.sh LIBRARY [--update]: the library shows exactly what tests/symbols.txt lists,
# so that a function leaves the interface, or joins it, on purpose.  --update writes the list.
# And it reads the environment with secure_getenv alone.
set -u
library=${1:?usage: check_symbols.sh LIBRARY [--update]}
list=$(dirname "$0")/symbols.txt
work=$(mktemp) || exit 1
trap 'rm -f "$work"' EXIT
# A is the version's own name.
nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort >"$work"
[ -s "$work" ] || { echo "nm finds no symbol in $library"; exit 1; }
[ "${2:-}" = --update ] && { cp "$work" "$list"; exit; }
if ! diff "$list" "$work"; then
    echo "< is listed and not in the library, > the other way round"
    echo "  fix: when it is meant, tests/check_symbols.sh $library --update, and say it in CHANGELOG.md"
    exit 1
fi
# A program that runs with another user's rights must not hear the environment of its caller.
# The sources are asked, since the CUDA runtime inside the library calls getenv itself.
if grep -rnwE 'getenv' --include='*.[ch]' "$(dirname "$0")/../src"; then
    echo "the library calls getenv"
    echo "  fix: use secure_getenv"
    exit 1
fi
echo "$(wc -l <"$work") symbols, as listed"
