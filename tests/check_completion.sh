#!/usr/bin/env bash
# check_completion.sh ENTWINE: the pages that the tool makes from its tables.  Asks bash's and
# fish's completion what a user would, looks at zsh's syntax, and lets the man page be checked
# by whatever is installed for that.  What is not installed is left out, and said.
set -u
entwine=$(readlink -f "${1:?usage: check_completion.sh ENTWINE}")
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
fail() { echo "FAILED: $*"; failed=1; }
has() { command -v "$1" >/dev/null || { echo "left out: $1 is not installed"; return 1; }; }

for shell in bash zsh fish; do
    "$entwine" help --completion $shell >$shell || fail "no completion for $shell"
done
"$entwine" help --man >entwine.1 || fail "no man page"
"$entwine" help --completion tcsh >/dev/null 2>&1 && fail "an unknown shell is accepted"
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
expect 'ablate' ab
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
expect 'order pool release' ablate --figure ''
expect 'budget' sweep --figure bu
expect 'cpu cuda sim' run --backend ''
expect '' run -m ''
expect '' cache prune --older ''
expect 'export' cache ex
expect 'EW_ERR_TIMEOUT' explain EW_ERR_T
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

# ---- zsh, fish, man ----------------------------------------------------------------------

if has zsh; then
    zsh -n zsh || fail "zsh cannot read its completion"
fi
if has fish; then
    fish -n fish || fail "fish cannot read its completion"
    # fish_expect WANTED LINE
    fish_expect() {
        got=$(HOME=$work fish -c "source $work/fish; complete -C '$2'" | cut -f 1 | sort | tr '\n' ' ')
        [ "$got" = "$1 " ] || fail "fish: '$2' became '$got' instead of '$1'"
    }
    fish_expect 'ablate' 'entwine ab'
    fish_expect 'bf16 fp16 fp32' 'entwine run -d '
    fish_expect 'order pool release' 'entwine ablate --figure '
    fish_expect 'export' 'entwine cache ex'
    fish_expect 'EW_ERR_TIMEOUT' 'entwine explain EW_ERR_T'
fi
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
