#!/usr/bin/env bash
# run.sh BUILD: installs BUILD into a prefix of its own, then builds and runs a user's
# program and the examples against that by pkg-config, find_package and hand, and looks at
# what was installed: symbols, libraries, and no path of this machine.
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
if command -v c++ >/dev/null; then
    c++ -std=c++11 $warnings -x c++ "$here/consumer.c" $(pkg-config --cflags --libs entwine) -o as_cxx
    ./as_cxx
fi
if command -v c++ >/dev/null; then # initialisers in C++, whose compilers can warn of C's casts
    for header in entwine measure sim tune; do echo "#include <entwine/$header.h>"; done >macros.cpp
    cat "$prefix"/include/entwine/*.h | sed -n 's/^#define EW_\([A-Z_]*\)_INIT .*/\1/p' |
        while read -r name; do echo "ew_${name,,} a_$name = EW_${name}_INIT;"; done >>macros.cpp
    [ "$(grep -c _INIT macros.cpp)" -ge 6 ] || die "no initialisers found in the headers"
    echo 'ew_problem a_problem = EW_PROBLEM(1, 2, 3, EW_FP32);' >>macros.cpp
    c++ -std=c++11 $warnings -Wold-style-cast -I"$prefix/include" -fsyntax-only macros.cpp
fi
# by_cmake SOURCE FOLDER
by_cmake() {
    { cmake -S "$1" -B "$2" -DCMAKE_PREFIX_PATH="$prefix" && cmake --build "$2"; } >"$2.log" 2>&1 ||
        { cat "$2.log"; exit 1; }
}
# Static: with the C library's shared or not (it then warns of dlopen, by which BLAS and CUDA are found).
${CC:-cc} -std=c11 $warnings "$here/consumer.c" $(pkg-config --cflags entwine) -Wl,-Bstatic -lentwine \
    -Wl,-Bdynamic $(pkg-config --static --libs entwine) -o with_static_entwine
env -u LD_LIBRARY_PATH ./with_static_entwine
${CC:-cc} -std=c11 $warnings -static "$here/consumer.c" $(pkg-config --static --cflags --libs entwine) \
    -o static 2>static.log || { cat static.log; exit 1; }
./static
by_cmake "$here" by_cmake
for program in by_cmake/consumer*; do
    env -u LD_LIBRARY_PATH "$program"
done
env -u LD_LIBRARY_PATH "$prefix/bin/entwine" --version >/dev/null || die "the installed tool does not start"

# ---- Inside another project, and with folders of other names -------------------------------

mkdir inside
cat >inside/CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.22)
project(outer LANGUAGES C)
add_custom_target(tools) # a name that is also ours
set(EW_CUDA OFF)
add_subdirectory("$source" entwine)
foreach(library entwine static)
  add_executable(with_\${library} "$here/consumer.c")
  target_link_libraries(with_\${library} PRIVATE entwine::\${library})
endforeach()
END
cmake -S inside -B inside/build >inside.log 2>&1 || { cat inside.log; die "cannot be a part of another project"; }
grep -q jansson inside.log && die "another project is asked for what the tool needs"
[ "$(ls -d inside/build/*/)" = "$(printf '%s\n' inside/build/CMakeFiles/ inside/build/entwine/)" ] ||
    die "files in another project's folder:" inside/build/*
grep -q 'file(INSTALL' inside/build/entwine/cmake_install.cmake && die "another project installs Entwine"

cmake -S "$source" -B renamed -DEW_CLI=OFF -DEW_CUDA=OFF -DCMAKE_INSTALL_INCLUDEDIR=inc >renamed.log 2>&1 ||
    { cat renamed.log; exit 1; }
grep -qr 'INTERFACE_INCLUDE_DIRECTORIES "${_IMPORT_PREFIX}/inc"' renamed/CMakeFiles/Export ||
    die "find_package looks for the headers where they were not installed"

# ---- The examples ------------------------------------------------------------------------

examples=$prefix/share/doc/entwine/examples
# Warnings are on; the language is the compiler's own, as in the command that each shows.
flags="$warnings $(pkg-config --cflags --libs entwine)"
export OMPI_MCA_plm_rsh_agent=sh # it looks for ssh, which it does not need here
mpi_files=$(mktemp -d) # of its own: Open MPI fails when another mpirun makes the same folder first
trap 'rm -rf "$mpi_files"' EXIT
mpirun="env TMPDIR=$mpi_files mpirun --allow-run-as-root --oversubscribe --bind-to none -np 4"
say() { "$@" | grep -q 'every value \(exact\|right\)' || die "$* does not say that all is well"; }

mkdir by_hand
for example in threads fork allreduce column_parallel mlp; do
    ${CC:-cc} "$examples/$example.c" $flags -lm -o by_hand/$example
done
say by_hand/threads
say by_hand/fork
say by_hand/allreduce
say by_hand/column_parallel
say by_hand/mlp
if command -v mpicc >/dev/null && command -v mpirun >/dev/null; then
    mpicc "$examples/mpi.c" $flags -o by_hand/mpi
    say $mpirun by_hand/mpi
fi
by_cmake "$examples" examples
say env -u LD_LIBRARY_PATH examples/threads
say env -u LD_LIBRARY_PATH examples/fork
say env -u LD_LIBRARY_PATH examples/allreduce
say env -u LD_LIBRARY_PATH examples/column_parallel
say env -u LD_LIBRARY_PATH examples/mlp
[ ! -e examples/mpi ] || say $mpirun examples/mpi
if [ -e examples/cuda_stream ]; then # compiled where there is a toolkit; 77: no GPU here
    status=0
    examples/cuda_stream 2>cuda_stream.err || status=$?
    cat cuda_stream.err >&2
    [ $status = 0 ] || [ $status = 77 ] || die "examples/cuda_stream ended with $status"
    [ $status = 0 ] || grep -q 'no GPU here' cuda_stream.err || die "examples/cuda_stream does not say why it ended"
else
    echo "examples/cuda_stream.c was not compiled: no CUDA toolkit"
fi
for example in "$examples"/*.c "$examples"/*.py; do
    [ "$(wc -l <"$example")" -lt 80 ] || die "$example has 80 lines or more"
done

# ---- What was installed ------------------------------------------------------------------

foreign=$(nm -D --defined-only "$lib/libentwine.so" | awk '$2 != "A" { print $3 }' | grep -v '^ew_' || true)
[ -z "$foreign" ] || die "the library shows more than ew_*:" $foreign
needed=$(readelf -d "$lib/libentwine.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -vE '^(libc|libm|libpthread|libdl|ld-linux.*)\.so' || true)
[ -z "$needed" ] || die "the library links more than the C library:" $needed
readelf -d "$lib/libentwine.so" | grep -q 'SONAME.*libentwine\.so\.0\]' || die "wrong soname"
shown=$(nm --defined-only --extern-only "$lib/libentwine.a" 2>/dev/null | awk 'NF == 3 { print $3 }' |
    grep -v '^ewx\?_\|^_Z.*_GLOBAL__N__' || true) # kernels, whose names nvcc makes unique
[ -z "$shown" ] || die "the static library shows more than ew_* and ewx_*:" $shown
# Not where a path goes on: share/doc/entwine does not name a source folder /entwine.
literal=$(printf '%s' "$source" | sed 's/[][\.*^$+?(){}|]/\\&/g')
leaks=$(LC_ALL=C grep -rlaE "(^|[^[:alnum:]_.-])$literal(/|[^[:alnum:]_.-]|\$)" "$prefix" || true)
[ -z "$leaks" ] || die "installed files name this machine's source folder:" $leaks

# ---- Removed again -----------------------------------------------------------------------

# Not the manifest, which another installation of this build may be writing.
second="$work/a second"
cmake --install "$build" --prefix "$second" >uninstall.log
sed -n 's/^-- Installing: //p' uninstall.log | while read -r file; do
    [ ! -h "$file" ] && [ -d "$file" ] || echo "$file"
done >manifest.txt
mkdir -p "$second/share/other" && echo kept >"$second/share/other/file"
# The line to run finds what is there and keeps what the variables had.
(
    export LD_LIBRARY_PATH=/elsewhere PKG_CONFIG_PATH=/elsewhere
    eval "$("$source/scripts/after-install" manifest.txt | grep export)"
    [ "$(command -v entwine)" = "$second/bin/entwine" ] || die "the export line does not find the tool"
    case $LD_LIBRARY_PATH,$PKG_CONFIG_PATH in
    "$second"/*:/elsewhere,"$second"/*/pkgconfig:/elsewhere) ;;
    *) die "the export line sets LD_LIBRARY_PATH=$LD_LIBRARY_PATH PKG_CONFIG_PATH=$PKG_CONFIG_PATH" ;;
    esac
)
make -n -C "$source" install PREFIX='/a prefix' DESTDIR='/a stage' >commands.txt
grep -q '"-DCMAKE_INSTALL_PREFIX=/a prefix"' commands.txt && grep -q 'DESTDIR="/a stage"' commands.txt ||
    die "make install takes no path with blanks"
make -n -C "$source" install DESTDIR="$work/a stage" >commands.txt
mkdir build && ln -s "$build" build/release # which is where make's command looks
(umask 077 && grep 'cmake --install' commands.txt | sh)
closed=$(find "a stage" ! -perm -o=r ! -type l -o -type d ! -perm -o=x)
[ -z "$closed" ] || die "make install closes what it installs to others under umask 077:" $closed
! "$source/scripts/uninstall" manifest.txt "" "$prefix" 2>/dev/null || die "uninstall took another prefix"
"$source/scripts/uninstall" manifest.txt "" "./a second//" >/dev/null # relative, as make install takes it
! "$source/scripts/uninstall" manifest.txt "" "$second" 2>/dev/null || die "uninstall removes what is not there"
make -n -C "$source" uninstall | grep -q install_manifest &&
    die "make uninstall takes the list of whatever was installed last, by a test too"
left=$(cd "$second" && find . ! -type d -o -name entwine)
[ "$left" = ./share/other/file ] || die "uninstall leaves or takes too much:" $left
