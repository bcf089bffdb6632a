#!/bin/sh
# tests/check_docs.sh BUILD_DIR: runs what the documents show, as a user would: with an installed
# Entwine, in a folder of its own, from which examples/ and the tests' data can be seen.  Every line
# "$ ..." in a ```console block of README.md and docs/ must succeed, and the ```c programs of
# README.md and docs/QUICKSTART.md (there example.c) must compile without a warning and succeed.
# Links must lead somewhere, and what is made from something else must be up to date.
set -u
build=$(cd "$1" && pwd) || exit 1
cd "$(dirname "$0")/.." || exit 1
root=$PWD
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }

cmake --install "$build" --prefix "$work/prefix" >"$work/out" || { cat "$work/out"; exit 1; }
lib=$(dirname "$(find "$work/prefix" -name entwine.pc)")
export PATH="$work/prefix/bin:$PATH" PKG_CONFIG_PATH="$lib" LD_LIBRARY_PATH="${lib%/pkgconfig}"
# As root, on two cores, without ssh: what mpirun refuses unless told.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm_rsh_agent=sh
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
ln -s "$root/tests" "$root/examples" "$work" || exit 1

# ---- Programs ----------------------------------------------------------------------------

# program PAGE FILE: its ```c block.
program() { awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$1" >"$work/$2"; }
program docs/QUICKSTART.md example.c
program README.md readme.c
for name in example readme; do
    [ -s "$work/$name.c" ] || fail "no program for $name.c"
    # shellcheck disable=SC2046
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror "$work/$name.c" $(pkg-config --cflags --libs entwine) \
        -o "$work/$name" && timeout 60 "$work/$name" || fail "the program that is $name.c here"
done
[ "$(grep -c . "$work/example.c")" -le 10 ] || fail "the quickstart in C has more than ten lines"

# ---- Commands ----------------------------------------------------------------------------

awk '/^```console$/ { inside = 1; next } /^```$/ { inside = 0 } inside && sub(/^\$ /, "")' \
    README.md docs/*.md >"$work/commands"
[ -s "$work/commands" ] || { echo "no commands found in the documents"; exit 1; }
while read -r line; do
    case $line in mpi*) command -v "${line%% *}" >/dev/null || { echo "left out: $line"; continue; } ;; esac
    (cd "$work" && timeout 60 sh -c "$line") >"$work/out" 2>&1 </dev/null
    case $? in
    0 | 4) ;; # 4 is a verdict on this machine's speed, which no test judges
    *)
        fail "$line"
        tail -n 5 "$work/out"
        ;;
    esac
done <"$work/commands"

# ---- Links, and what is made or stated twice ---------------------------------------------

for top in . "$work/prefix/share/doc/entwine"; do
    for page in "$top"/README.md "$top"/CHANGELOG.md "$top"/CONTRIBUTING.md "$top"/docs/*.md; do
        for link in $(grep -o '](\([^)# ]*\)' "$page" | cut -c 3- | grep -v '^[a-z]*:'); do
            [ -e "$(dirname "$page")/$link" ] || fail "$page links to $link, which is not there"
        done
    done
done
python3 scripts/api-docs --check || fail "docs/API.md"
version=$(sed -n 's/^#define EW_VERSION_[A-Z]* //p' include/entwine/entwine.h | paste -sd .)
grep -q "^## $version" CHANGELOG.md || fail "CHANGELOG.md says nothing of $version"
grep -qx "version = \"$version\"" python/pyproject.toml || fail "python/pyproject.toml has another version"

[ $failed = 0 ] && echo "$(wc -l <"$work/commands") commands and two programs ran as documented"
exit $failed
