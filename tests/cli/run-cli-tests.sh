#!/usr/bin/env bash
# Golden tests of the command-line tool:  run-cli-tests.sh ENTWINE [CASE-FILE...]
#
# A case file holds cases of this form:
#
#     case name-of-the-case
#     run entwine run -m abc          a bash command; ends of pipes count (pipefail)
#     exit 2
#     out PATTERN                     stdout, line by line; * matches anything
#     err PATTERN                     stderr likewise
#     out-has PATTERN                 instead of `out`: one line of stdout matches
#     err-has PATTERN
#     out-any / err-any               whatever is there
#     slow                            left out when CLI_TESTS_QUICK is set
#     fake-gpu                        with fake_gpu.c preloaded and fake_bin/ on PATH; left out
#                                     where that cannot be (no compiler, sanitizers)
#     fake-tune                       with fake_tune.c preloaded, likewise
#     fake-bench                      with fake_bench.c preloaded, likewise
#     end
#
# A stream that no line speaks of must be empty, except stderr when the status is 0, where
# the context lines go.  In every case: no ESC byte in either stream, and at most six
# lines on stderr when the status is 2.  Each case has 60 seconds and a folder of its own,
# the tuning entries' included: a developer's own ones change nothing here.
set -u

entwine=$(readlink -f "${1:?usage: run-cli-tests.sh ENTWINE [CASE-FILE...]}")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
shift
files=()
for file in "$@"; do
    files+=("$(readlink -f "$file")") # cases run in other folders
done
[ $# -gt 0 ] || files=("$here"/cases/*.case)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$entwine" "$work/entwine"
export PATH="$work:$PATH" CLI_TESTS="$here" REPO="$here/../.." TERM=xterm LC_ALL=C
export XDG_CACHE_HOME="$work/case/.cache"
unset NO_COLOR "${!ENTWINE_@}" "${!CUDA_@}" "${!OMPI_@}" RANK WORLD_SIZE SLURM_PROCID
num_passed=0
num_failed=0

# build_fake NAME: prints the library to preload, or nothing where that cannot be.
build_fake() {
    ${CC:-cc} -std=c11 -shared -fPIC -I"$REPO/include" "$here/$1.c" -ldl -o "$work/$1.so" 2>/dev/null &&
        LD_PRELOAD=$work/$1.so "$entwine" --version >/dev/null 2>&1 && echo "$work/$1.so"
}
fake=$(build_fake fake_gpu)
tuner=$(build_fake fake_tune)
bench=$(build_fake fake_bench)

# Everything but * means itself.
to_glob() {
    local text=${1//\\/\\\\}
    text=${text//\[/\\[}
    text=${text//\]/\\]}
    printf '%s' "${text//\?/\\?}"
}

# matches_all FILE PATTERN...: line by line.  The patterns are globs on purpose.
matches_all() {
    local file=$1 line number=0
    shift
    while IFS= read -r line || [ -n "$line" ]; do
        number=$((number + 1))
        [ $# -gt 0 ] || { echo "line $number is too many: $line"; return 1; }
        # shellcheck disable=SC2053
        [[ $line == $(to_glob "$1") ]] || { echo "line $number: $line"; return 1; }
        shift
    done <"$file"
    [ $# -eq 0 ] || { echo "missing line: $1"; return 1; }
}

matches_some() {
    local file=$1 line
    while IFS= read -r line || [ -n "$line" ]; do
        # shellcheck disable=SC2053
        [[ $line == $(to_glob "$2") ]] && return 0
    done <"$file"
    echo "no line matches: $2"
    return 1
}

# check_stream NAME FILE MODE PATTERN...
check_stream() {
    local name=$1 file=$2 mode=$3 pattern
    shift 3
    if grep -q $'\033' "$file"; then
        echo "$name has an ESC byte"
        return 1
    fi
    case $mode in
    any) return 0 ;;
    has)
        for pattern in "$@"; do
            matches_some "$file" "$pattern" || return 1
        done
        ;;
    *) matches_all "$file" "$@" || { echo "in $name"; return 1; } ;;
    esac
}

verdict() {
    local status=$1
    [ "$status" = "$want_exit" ] || { echo "exit $status instead of $want_exit"; return 1; }
    check_stream stdout out.txt "$out_mode" "${out[@]}" || return 1
    check_stream stderr err.txt "$err_mode" "${err[@]}" || return 1
    if [ "$status" = 2 ] && [ "$(wc -l <err.txt)" -gt 6 ]; then
        echo "more than six lines of error"
        return 1
    fi
}

run_case() {
    local status why folder="$work/case"
    if [ "$slow" = 1 ] && [ -n "${CLI_TESTS_QUICK:-}" ]; then
        return
    fi
    if [ "$fake_gpu" = 1 ]; then
        [ -n "$fake" ] || return
        command="export LD_PRELOAD='$fake' PATH='$here/fake_bin':\$PATH; $command"
    fi
    if [ "$fake_tune" = 1 ]; then
        [ -n "$tuner" ] || return
        command="export LD_PRELOAD='$tuner'; $command"
    fi
    if [ "$fake_bench" = 1 ]; then
        [ -n "$bench" ] || return
        command="export LD_PRELOAD='$bench'; $command"
    fi
    [ "$err_mode" = default ] && { [ "$want_exit" = 0 ] && err_mode=any || err_mode=all; }
    rm -rf "$folder"
    mkdir "$folder"
    cd "$folder" || exit 1
    timeout -k 5 60 bash -o pipefail -c "$command" >out.txt 2>err.txt </dev/null
    status=$?
    if why=$(verdict $status); then
        num_passed=$((num_passed + 1))
    else
        num_failed=$((num_failed + 1))
        echo "FAILED $name: $command"
        echo "$why" | sed 's/^/    /'
        head -n 12 err.txt | sed 's/^/    stderr| /'
    fi
    cd "$here" || exit 1
}

run_file() {
    local line
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
        'case '*)
            name=${line#case }
            command='' want_exit=0 out_mode=all err_mode=default out=() err=() slow=0 fake_gpu=0 fake_tune=0 fake_bench=0
            ;;
        'run '*) command=${line#run } ;;
        'exit '*) want_exit=${line#exit } ;;
        'out '*) out+=("${line#out }") ;;
        'err '*) err_mode=all err+=("${line#err }") ;;
        'out-has '*) out_mode=has out+=("${line#out-has }") ;;
        'err-has '*) err_mode=has err+=("${line#err-has }") ;;
        out-any) out_mode=any ;;
        err-any) err_mode=any ;;
        slow) slow=1 ;;
        fake-gpu) fake_gpu=1 ;;
        fake-tune) fake_tune=1 ;;
        fake-bench) fake_bench=1 ;;
        end) run_case ;;
        '' | '#'*) ;;
        *) echo "$1: cannot read: $line"; num_failed=$((num_failed + 1)) ;;
        esac
    done <"$1"
}

for file in "${files[@]}"; do
    run_file "$file"
done
echo "$num_passed passed, $num_failed failed"
[ $num_failed -eq 0 ]
