#!/bin/sh
# tests/check_docs.sh BUILD_DIR: runs what the documents show.  Every line "$ entwine ..." in a
# ```console block of README.md and docs/ must succeed, and the ```c program in README.md must
# compile without a warning and succeed.  Commands run in a folder of their own, from which the
# tests' data can be seen: some read it, some write.
set -u
build=$(cd "$1" && pwd) || exit 1
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
ln -s "$PWD/tests" "$work/tests" || exit 1

awk '/^```console$/ { inside = 1; next } /^```$/ { inside = 0 } inside && sub(/^\$ /, "")' \
    README.md docs/*.md >"$work/commands"
[ -s "$work/commands" ] || { echo "no commands found in the documents"; exit 1; }
while read -r line; do
    (cd "$work" && PATH=$build:$PATH timeout 60 sh -c "$line") >"$work/out" 2>&1 </dev/null
    case $? in
    0 | 4) ;; # 4 is a verdict on this machine's speed, which no test judges
    *)
        echo "FAILED: $line"
        tail -n 5 "$work/out"
        failed=1
        ;;
    esac
done <"$work/commands"

awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' README.md >"$work/example.c"
if ! ${CC:-cc} -std=c11 -Wall -Wextra -Werror -Iinclude "$work/example.c" -o "$work/example" \
    -L"$build" -lentwine -Wl,-rpath,"$build" || ! timeout 60 "$work/example"; then
    echo "FAILED: the program in README.md"
    failed=1
fi
[ $failed = 0 ] && echo "$(wc -l <"$work/commands") commands and one program ran as documented"
exit $failed
