#!/usr/bin/env bash
# run.sh BUILD: installs BUILD into a prefix of its own, then builds and runs a user's
# program against that by pkg-config, find_package and hand, and looks at what was
# installed: symbols, libraries, and no path of this machine.
set -euo pipefail
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
work=$build/consumer
rm -rf "$work"
mkdir -p "$work"
cmake --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/prefix" # what is installed must not know where

cd "$work"
prefix=$work/prefix
lib=$(dirname "$(find "$prefix" -name libentwine.so)")
export LD_LIBRARY_PATH=$lib PKG_CONFIG_PATH=$lib/pkgconfig
warnings='-Wall -Wextra -Wpedantic -Werror'
die() { echo "consumer: $*" >&2; exit 1; }

# ---- Build and run -----------------------------------------------------------------------

${CC:-cc} -std=c11 $warnings "$here/consumer.c" -I"$prefix/include" -L"$lib" -lentwine -o plain
./plain
${CC:-cc} -std=c11 $warnings "$here/consumer.c" $(pkg-config --cflags --libs entwine) -o by_pkgconfig
./by_pkgconfig
cmake -S "$here" -B by_cmake -DCMAKE_PREFIX_PATH="$prefix" >cmake.log 2>&1 || { cat cmake.log; exit 1; }
cmake --build by_cmake >>cmake.log 2>&1 || { cat cmake.log; exit 1; }
env -u LD_LIBRARY_PATH by_cmake/consumer
if command -v c++ >/dev/null; then
    c++ -std=c++11 $warnings -x c++ "$here/consumer.c" $(pkg-config --cflags --libs entwine) -o as_cxx
    ./as_cxx
fi
env -u LD_LIBRARY_PATH "$prefix/bin/entwine" --version >/dev/null || die "the installed tool does not start"

# ---- What was installed ------------------------------------------------------------------

foreign=$(nm -D --defined-only "$lib/libentwine.so" | awk '$2 != "A" { print $3 }' | grep -v '^ew_' || true)
[ -z "$foreign" ] || die "the library shows more than ew_*:" $foreign
needed=$(readelf -d "$lib/libentwine.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -vE '^(libc|libm|libpthread|libdl|ld-linux.*)\.so' || true)
[ -z "$needed" ] || die "the library links more than the C library:" $needed
readelf -d "$lib/libentwine.so" | grep -q 'SONAME.*libentwine\.so\.0\]' || die "wrong soname"
leaks=$(grep -rlaF "$source" "$prefix" || true)
[ -z "$leaks" ] || die "installed files name this machine's source folder:" $leaks
