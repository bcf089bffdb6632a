#!/usr/bin/env bash
# check_completion.sh ENTWINE: the pages that are made of what the tool prints.  Asks bash's
# completion what a user would, and lets the man page be checked by whatever is installed for
# that.  What is not installed is left out, and said.
set -u
entwine=$(readlink -f "${1:?usage: check_completion.sh ENTWINE}")
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
fail() { echo "FAILED: $*"; failed=1; }
has() { command -v "$1" >/dev/null || { echo "left out: $1 is not installed"; return 1; }; }

"$here/../cmake/completion.sh" "$entwine" >bash || fail "no completion for bash"
"$here/../cmake/man_page.sh" "$entwine" >entwine.1 || fail "no man page"
commands=$("$entwine" --help | sed -n '/^examples:/q; s/^  \([a-z][a-z]*\) .*/\1/p')
[ "$(echo "$commands" | wc -l)" -ge 10 ] || fail "--help lists no commands"

# ---- bash --------------------------------------------------------------------------------

# shellcheck disable=SC1091
. ./bash || fail "bash cannot read its completion"

# ask WORD...: what the last word may become, sorted.
ask() {
    COMP_WORDS=(entwine "$@") COMP_CWORD=$# COMPREPLY=()
    _entwine
    printf '%s\n' "${COMPREPLY[@]}" | sort | tr '\n' ' ' | sed 's/ $//'
}
# expect WANTED WORD...
expect() {
    local wanted=$1 got
    shift
    got=$(ask "$@")
    [ "$got" = "$wanted" ] || fail "bash: '$*' became '$got' instead of '$wanted'"
}
touch results.json 'two words.json'
expect 'compare' comp
expect '--help' --he
expect 'bench' help be
expect 'bf16 fp16 fp32' run -d ''
expect 'bf16' run --datatype b
expect 'bf16' run --datatype = b
expect 'bf16 fp16 fp32' run --datatype =
expect 'fp32,bf16' bench -d fp32,b
expect 'sequential' bench --method seq
expect 'csv' bench -o c
expect 'results.json' trace -o res
expect 'two words.json' report tw
expect 'bandwidth budget layer link order pool release required scaling speedup waves' bench --figure ''
expect 'budget' bench --figure bu
expect 'cpu cuda sim' run --backend ''
expect 'h200-8 h200-vnode-8' plan --profile h200
expect 'paper' bench --suite pa
expect '' run -m ''
expect '' cache prune --older ''
expect 'list prune' cache ''
expect '--rows' run --ro
expect '' demo --rep
for command in $commands; do
    case " $(ask '') " in *" $command "*) ;; *) fail "bash does not know the command $command" ;; esac
    [ "$command" = help ] && continue
    wanted=$("$entwine" help "$command" | grep -o -- '^  \(-., \|    \)--[a-z-]*' | grep -o -- '--.*' |
        sort | tr '\n' ' ' | sed 's/ $//')
    expect "$wanted" "$command" --
    for option in $wanted; do
        grep -qF -- "${option//-/\\-}" entwine.1 || fail "$option is not in the man page"
    done
    grep -q "^\.SS entwine $command " entwine.1 || fail "$command is not in the man page"
done

# ---- man ---------------------------------------------------------------------------------

if has mandoc; then
    # Without a date: the page belongs to a version, and equal builds make equal pages.
    warnings=$(mandoc -T lint -W warning entwine.1 | grep -v 'missing date')
    [ -z "$warnings" ] || fail "mandoc: $warnings"
fi
if has groff; then
    warnings=$(groff -man -Tutf8 -ww -z entwine.1 2>&1)
    [ -z "$warnings" ] || fail "groff: $warnings"
fi
[ $failed = 0 ] && echo "completion and man page are as they should be"
exit $failed
