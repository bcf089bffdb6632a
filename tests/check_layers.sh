#!/usr/bin/env bash
# check_layers.sh [ROOT]: who may include whom.
#
#     base < plan < world < exchange < backend < api < measure < tune < cli
#
# and within the tool
#
#     base < options < run < output < trace, tune, doctor, report < cmd < main.c
#
# A file includes its own layer and those below, of the tool's also none beside its own.  The top
# (cli, src/mpi) sees the public headers and its own folder, cli also base/file.h and base/text.h,
# which it is built with.  Kernels are a leaf: the CPU's see
# their folder, the public headers and base/dtype.h, CUDA's their folder and what plan/ and base/
# share with devices.  Only src/mpi knows MPI, only cli knows jansson.  No file name occurs twice
# in the tool, or in the tool and in src.  Which backend it is, is asked in src/backend and in the
# two tables of facts (src/plan/backend_traits.c, cli/options/bed.c); the rest asks those for a fact.
# Prints each offending line; without ROOT it first proves on planted violations that it would.
set -u

layer_of() { # of a path as it is written after src/
    case $1 in
    base/*) echo 0 ;;
    plan/*) echo 1 ;;
    world/*) echo 2 ;;
    exchange/*) echo 3 ;;
    backend/*) echo 4 ;;
    api/*) echo 5 ;;
    measure/*) echo 6 ;;
    tune/*) echo 7 ;;
    *) echo 9 ;;
    esac
}

tool_layer_of() { # of a path as it is written after cli/
    case $1 in
    base/*) echo 0 ;;
    options/*) echo 1 ;;
    run/*) echo 2 ;;
    output/*) echo 3 ;;
    cmd/*) echo 5 ;;
    */*) echo 4 ;;
    *) echo 6 ;;
    esac
}

allowed_in_tool() { # FILE INCLUDED, both relative to cli
    local file=$1 included=$2
    [[ $included != */* && -e cli/$(dirname "$file")/$included ]] && return 0
    [[ $included == base/@(file|text).h ]] && return 0
    [[ -e cli/$included ]] || return 1
    [[ ${file%/*} == "${included%/*}" ]] && return 0
    (($(tool_layer_of "$included") < $(tool_layer_of "$file")))
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
    if [[ $file == cli/* ]]; then
        allowed_in_tool "${file#cli/}" "$included"
        return
    fi
    # A bare name is a header of the same folder, if there is one.
    [[ $included != */* && -e $folder/$included ]] && return 0
    case $file in
    include/* | src/mpi/*) return 1 ;;
    src/backend/cpu/kernels/*)
        [[ $included == backend/cpu/kernels/* || $included == base/dtype.h ]] ;;
    src/backend/cuda/kernels/*)
        [[ $included == backend/cuda/kernels/* || $included == base/@(dtype|epoch|limits).h ||
            $included == plan/@(activation_math|columns|epilogue|epoch|exact|grid|layer|layout|ownership|release|walk).h ]] ;;
    *) (($(layer_of "$included") <= $(layer_of "${file#src/}"))) ;;
    esac
}

# Names of the tool's files that occur again, in the tool or in src.
twice_in_tool() {
    comm -12 <(find cli -type f -printf '%f\n' | sort -u) <(find src -type f -printf '%f\n' | sort -u)
    find cli -type f -printf '%f\n' | sort | uniq -d
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
    done < <(grep -rnE '^ *# *include' --include='*.[ch]' --include='*.cu' --include='*.cuh' \
        include src cli 2>/dev/null)
    while read -r file; do
        echo "$file: the name occurs twice"
        bad=1
    done < <(twice_in_tool)
    while read -r line; do
        echo "$line   <- ask for a fact of the backend, not for its name"
        bad=1
    done < <(grep -rnE '([!=]=|case) *EW_BACKEND_' --include='*.[ch]' src cli |
        grep -v '^src/backend/\|^src/plan/backend_traits.c')
    return $bad
}

self_test() {
    local root
    root=$(mktemp -d) && trap 'rm -rf "$root"' RETURN
    plant() { # FILE INCLUDED, or a line of code
        mkdir -p "$root/${1%/*}" || return
        case $2 in
        [\"\<]*) echo "#include $2" ;;
        *) echo "$2" ;;
        esac >"$root/$1"
    }
    expect() { # green|red FILE INCLUDED-OR-LINE
        plant "$2" "$3"
        if (check "$root") >/dev/null; then local is=green; else local is=red; fi
        rm "$root/$2"
        [ $is = "$1" ] || { echo "self-test: $2 with $3 is $is, not $1"; return 1; }
    }
    mkdir -p "$root"/{include/entwine,src,cli}
    plant cli/base/table.h '<stdio.h>'
    plant cli/run/job.h '<stdio.h>'
    plant cli/sim/model.h '<stdio.h>'
    expect green src/plan/a.c '"base/status.h"' &&
        expect green src/backend/cpu/a.c '"world/world.h"' &&
        expect green src/api/plan.c '"backend/cpu/gemm.h"' &&
        expect green cli/main.c '"sim/model.h"' &&
        expect green cli/run/a.c '"base/table.h"' &&
        expect green cli/cmd/a.c '"sim/model.h"' &&
        expect green src/backend/cuda/kernels/a.cu '"base/dtype.h"' &&
        expect green src/backend/cuda/kernels/a.cuh '"plan/walk.h"' &&
        expect green src/backend/cpu/kernels/a.c '"base/dtype.h"' &&
        expect red src/base/a.c '"plan/walk.h"' &&
        expect red src/plan/a.c '"world/world.h"' &&
        expect red src/world/a.h '"backend/cpu/gemm.h"' &&
        expect red src/world/a.h '"exchange/exchange.h"' &&
        expect red src/exchange/a.c '"backend/cpu/cpu_heap.h"' &&
        expect green src/tune/a.c '"measure/sampler.h"' &&
        expect red src/backend/a.c '"api/agreement.h"' &&
        expect red src/api/a.c '"measure/sampler.h"' &&
        expect red src/measure/a.c '"tune/race.h"' &&
        expect red src/backend/cpu/kernels/a.c '"plan/walk.h"' &&
        expect red src/backend/cpu/kernels/a.c '"../gemm.h"' &&
        expect red src/mpi/a.c '"base/status.h"' &&
        expect red src/api/plan.c '"mpi/mpi_methods.h"' &&
        expect red src/plan/a.cuh '"backend/cuda/kernels/ptx.cuh"' &&
        expect red src/plan/a.cu '"world/world.h"' &&
        expect red src/backend/cuda/kernels/a.cu '"backend/cuda/device.h"' &&
        expect red src/backend/cuda/kernels/a.cu '"plan/spec.h"' &&
        expect red cli/main.c '"plan/walk.h"' &&
        expect green cli/base/a.c '"base/text.h"' &&
        expect red cli/base/a.c '"base/status.h"' &&
        expect red cli/base/a.c '"run/job.h"' &&
        expect red cli/output/a.c '"sim/model.h"' &&
        expect red cli/trace/a.c '"sim/model.h"' &&
        expect red cli/cmd/table.h '<stdio.h>' &&
        expect red src/table.h '<stdio.h>' &&
        expect red cli/cmd/a.c '<mpi.h>' &&
        expect red src/api/plan.c '<jansson.h>' &&
        expect green src/backend/a.c 'if (backend == EW_BACKEND_CPU)' &&
        expect green cli/run/a.c 'backend = EW_BACKEND_CPU;' &&
        expect red cli/run/a.c 'if (backend != EW_BACKEND_CPU)' &&
        expect red src/plan/a.c 'case EW_BACKEND_SIM:'
}

if (($# == 0)); then
    self_test || exit 1
    set -- "$(dirname "$0")/.."
fi
check "$1"
