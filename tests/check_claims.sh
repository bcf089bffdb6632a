#!/usr/bin/env bash
# The numbers in README.md and docs/ are those of bench/results (scripts/claims); and a digit that is
# changed, or a sentence that is gone, is noticed, and put right by --write.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/scripts/claims" || exit 1

copy=$(mktemp -d) && trap 'rm -rf "$copy"' EXIT
mkdir "$copy/docs"
stop() {
    echo "check_claims: $1"
    exit 1
}
claims() { "$root/scripts/claims" --root "$copy" "$@" >/dev/null 2>&1; }
# What is noticed below is the change alone: the copy is right before it.
fresh() {
    cp "$root/README.md" "$copy" && cp "$root"/docs/*.md "$copy/docs"
    claims || stop 'an unchanged copy is not right'
}

fresh
sed -i 's/^| 46 GB\/s | 1\./| 46 GB\/s | 2./' "$copy/docs/EVALUATION.md"
! claims || stop 'a changed digit was not noticed'
claims --write || stop '--write failed'
cmp -s "$root/docs/EVALUATION.md" "$copy/docs/EVALUATION.md" || stop '--write did not put it right'
fresh
sed -i 's/the slowest single run/the slowest of all runs/' "$copy/README.md"
! claims || stop 'a sentence that is gone was not noticed'
