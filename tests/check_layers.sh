#!/usr/bin/env bash
# check_layers.sh [ROOT]: who may include whom.
#
#     base < plan < world < exchange < backend < src/*.c (api, measure, tune) < cli
#
# A file includes its own layer and those below.  The top (cli, src/mpi) sees the public
# headers and its own folder.  Kernels are a leaf: their folder, the public headers and
# base/dtype.h.  Only src/mpi knows MPI, only cli knows jansson.  Prints each offending
# line; without ROOT it first proves on planted violations that it would.
set -u

layer_of() { # of a path as it is written after src/
    case $1 in
    base/*) echo 0 ;;
    plan/*) echo 1 ;;
    world/*) echo 2 ;;
    exchange/*) echo 3 ;;
    backend/*) echo 4 ;;
    mpi/*) echo 9 ;;
    */*) echo 9 ;;
    *) echo 5 ;;
    esac
}

allowed() { # FILE INCLUDED, both relative to the root; INCLUDED without a src/ prefix
    local file=$1 included=$2
    case $included in
    mpi.h) [[ $file == src/mpi/* ]]; return ;;
    jansson.h) [[ $file == cli/* ]]; return ;;
    \<*) return 0 ;;
    entwine/*) return 0 ;;
    *..*) return 1 ;;
    esac
    local folder=${file%/*}
    # A bare name is a header of the same folder, if there is one.
    [[ $included != */* && -e $folder/$included ]] && return 0
    case $file in
    include/* | cli/* | src/mpi/*) return 1 ;;
    src/backend/cpu/kernels/*)
        [[ $included == backend/cpu/kernels/* || $included == base/dtype.h ]] ;;
    *) (($(layer_of "$included") <= $(layer_of "${file#src/}"))) ;;
    esac
}

check() { # ROOT; true when all is well
    local bad=0 file line text included
    cd "$1" || return 2
    while IFS=: read -r file line text; do
        included=$(sed -E 's/^ *# *include *(["<])([^">]*).*/\1\2/' <<<"$text")
        case $included in
        '<mpi.h' | '<jansson.h') included=${included#<} ;;
        \"*) included=${included#\"} ;;
        esac
        allowed "$file" "$included" && continue
        echo "$file:$line: $text   <- not allowed from here"
        bad=1
    done < <(grep -rnE '^ *# *include' --include='*.[ch]' include src cli 2>/dev/null)
    return $bad
}

self_test() {
    local root
    root=$(mktemp -d) && trap 'rm -rf "$root"' RETURN
    plant() { # FILE INCLUDE-LINE
        mkdir -p "$root/${1%/*}" && echo "#include $2" >"$root/$1"
    }
    expect() { # green|red FILE INCLUDE-LINE
        plant "$2" "$3"
        if (check "$root") >/dev/null; then local is=green; else local is=red; fi
        rm "$root/$2"
        [ $is = "$1" ] || { echo "self-test: $2 with $3 is $is, not $1"; return 1; }
    }
    mkdir -p "$root"/{include/entwine,src,cli}
    plant cli/table.h '<stdio.h>'
    expect green src/plan/a.c '"base/status.h"' &&
        expect green src/backend/cpu/a.c '"world/world.h"' &&
        expect green src/api.c '"backend/cpu/gemm.h"' &&
        expect green cli/a.c '"table.h"' &&
        expect green src/backend/cpu/kernels/a.c '"base/dtype.h"' &&
        expect red src/base/a.c '"plan/walk.h"' &&
        expect red src/plan/a.c '"world/world.h"' &&
        expect red src/world/a.h '"backend/cpu/gemm.h"' &&
        expect red src/world/a.h '"exchange/exchange.h"' &&
        expect red src/exchange/a.c '"backend/cpu/cpu_heap.h"' &&
        expect red src/backend/a.c '"measure.h"' &&
        expect red src/backend/cpu/kernels/a.c '"plan/walk.h"' &&
        expect red src/backend/cpu/kernels/a.c '"../gemm.h"' &&
        expect red src/mpi/a.c '"base/status.h"' &&
        expect red src/api.c '"mpi/mpi_methods.h"' &&
        expect red cli/a.c '"plan/walk.h"' &&
        expect red cli/a.c '<mpi.h>' &&
        expect red src/api.c '<jansson.h>'
}

if (($# == 0)); then
    self_test || exit 1
    set -- "$(dirname "$0")/.."
fi
check "$1"
