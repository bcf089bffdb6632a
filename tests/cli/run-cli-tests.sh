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
#     slow                            left out when CLI_TESTS_QUICK is set; may take 300 s, not 120
#     fake-gpu                        with fake_gpu.c preloaded and fake_bin/ on PATH; left out
#                                     where that cannot be (no compiler, sanitizers)
#     fake-tune                       with fake_tune.c preloaded, likewise
#     fake-bench                      with fake_bench.c preloaded, likewise
#     library                         needs the library in Python; left out where that cannot be
#                                     (sanitizers)
#     end
#
# A stream that no line speaks of must be empty, except stderr when the status is 0, where
# the context lines go.  In every case: no ESC byte in either stream, and at most six
# lines on stderr when the status is 2.  Each case has 120 seconds and a folder of its own,
# the tuning entries' included: a developer's own ones change nothing here.
#
# Many cases wait more than they compute: CLI_TESTS_JOBS files (default 2) run at a time.
set -u

# stop REASON: what is tested here would not be what was meant.
stop() {
    echo "run-cli-tests.sh: $1" >&2
    exit 2
}

entwine=$(readlink -f "${1:?usage: run-cli-tests.sh ENTWINE [CASE-FILE...]}")
[ -x "$entwine" ] || stop "'$1' is not a program"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
jobs=${CLI_TESTS_JOBS:-2}
shift
if [ $# = 0 ]; then # those with slow cases first, so that none is left alone at the end
    mapfile -t all < <(grep -c '^slow$' "$here"/cases/*.case | sort -t: -k2 -rn | cut -d: -f1)
    set -- "${all[@]}"
fi
files=()
for file in "$@"; do
    [ -f "$file" ] && [ -r "$file" ] || stop "'$file' is not a file of cases"
    files+=("$(readlink -f "$file")") # cases run in other folders
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$entwine" "$work/entwine"
export PATH="$work:$PATH" CLI_TESTS="$here" REPO="$here/../.." TERM=xterm LC_ALL=C
unset NO_COLOR "${!ENTWINE_@}" "${!CUDA_@}" "${!OMPI_@}" RANK WORLD_SIZE SLURM_PROCID

# build_fake NAME: prints the library to preload, or nothing where that cannot be.
build_fake() {
    command -v "${CC:-cc}" >/dev/null || return 0
    ${CC:-cc} -std=c11 -shared -fPIC -I"$REPO/include" "$here/$1.c" -ldl -o "$work/$1.so" || return
    LD_PRELOAD=$work/$1.so "$entwine" --version >/dev/null 2>&1 && echo "$work/$1.so"
    return 0
}
fake=$(build_fake fake_gpu) && tuner=$(build_fake fake_tune) && bench=$(build_fake fake_bench) ||
    stop "a library to be preloaded does not build"

in_python=$(python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' \
    "$(dirname "$entwine")/libentwine.so.0" >/dev/null 2>&1 && echo yes)

# to_glob PATTERN: into $glob, without a process for every line.  Everything but * means itself.
to_glob() {
    glob=${1//\\/\\\\}
    glob=${glob//\[/\\[}
    glob=${glob//\]/\\]}
    glob=${glob//\?/\\?}
}

# matches_all FILE PATTERN...: line by line.  The patterns are globs on purpose.
matches_all() {
    local file=$1 line glob number=0
    shift
    while IFS= read -r line || [ -n "$line" ]; do
        number=$((number + 1))
        [ $# -gt 0 ] || { echo "line $number is too many: $line"; return 1; }
        to_glob "$1"
        # shellcheck disable=SC2053
        [[ $line == $glob ]] || { echo "line $number: $line"; return 1; }
        shift
    done <"$file"
    [ $# -eq 0 ] || { echo "missing line: $1"; return 1; }
}

matches_some() {
    local file=$1 line glob
    to_glob "$2"
    while IFS= read -r line || [ -n "$line" ]; do
        # shellcheck disable=SC2053
        [[ $line == $glob ]] && return 0
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

# preload LIBRARY: the case's command, with it; false when there is none.
preload() {
    [ -n "$1" ] && command="export LD_PRELOAD='$1'; $command"
}

# Whether this case can be tried here; makes its command ready.  One with a pretended GPU has it
# for itself: others would see its folder in /tmp.
is_possible() {
    alone=()
    [ "$slow" = 0 ] || [ -z "${CLI_TESTS_QUICK:-}" ] || return
    [ "$library" = 0 ] || [ -n "$in_python" ] || return
    case $preloads in
    gpu)
        alone=(flock "$work/gpu")
        command="export PATH='$here/fake_bin':\$PATH; $command"
        preload "$fake"
        ;;
    tune) preload "$tuner" ;;
    bench) preload "$bench" ;;
    esac
}

run_case() {
    local status why folder="$place/case"
    [ -n "$command" ] || { fail "$name" "it runs nothing"; return; }
    is_possible || { num_left_out=$((num_left_out + 1)); return; }
    [ "$err_mode" = default ] && { [ "$want_exit" = 0 ] && err_mode=any || err_mode=all; }
    rm -rf "$folder"
    mkdir "$folder"
    cd "$folder" || exit 1
    "${alone[@]}" timeout -k 5 $((slow ? 300 : 120)) bash -o pipefail -c "$command" >out.txt 2>err.txt </dev/null
    status=$?
    if why=$(verdict $status); then
        num_passed=$((num_passed + 1))
    else
        fail "$name: $command" "$why"
        head -n 12 err.txt | sed 's/^/    stderr| /'
    fi
    cd "$here" || exit 1
}

fail() { # WHAT WHY
    num_failed=$((num_failed + 1))
    echo "FAILED $1"
    echo "$2" | sed 's/^/    /'
}

# run_file FILE FOLDER: its counts go to FOLDER/counts.
run_file() {
    local line file=$1 place=$2 name='' num_passed=0 num_failed=0 num_left_out=0
    export XDG_CACHE_HOME="$place/case/.cache"
    mkdir "$place"
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
        'case '*)
            [ -z "$name" ] || fail "$name" "it has no end"
            name=${line#case }
            command='' want_exit=0 out_mode=all err_mode=default out=() err=() slow=0 library=0 preloads=''
            continue
            ;;
        '' | '#'*) continue ;;
        esac
        [ -n "$name" ] || { fail "$file" "outside of a case: $line"; continue; }
        case $line in
        'run '*) command=${line#run } ;;
        'exit '*) want_exit=${line#exit } ;;
        'out '*) out+=("${line#out }") ;;
        'err '*) err_mode=all err+=("${line#err }") ;;
        'out-has '*) out_mode=has out+=("${line#out-has }") ;;
        'err-has '*) err_mode=has err+=("${line#err-has }") ;;
        out-any) out_mode=any ;;
        err-any) err_mode=any ;;
        slow) slow=1 ;;
        library) library=1 ;;
        fake-gpu | fake-tune | fake-bench) preloads=${line#fake-} ;;
        end)
            run_case
            name=''
            ;;
        *) fail "$file" "cannot read: $line" ;;
        esac
    done <"$file"
    [ -z "$name" ] || fail "$name" "it has no end"
    [ $((num_passed + num_failed + num_left_out)) -gt 0 ] || fail "$file" "it holds no case"
    echo "$num_passed $num_failed $num_left_out" >"$place/counts"
}

for i in "${!files[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
        wait -n
    done
    { run_file "${files[i]}" "$work/$i" >"$work/$i.log" 2>&1; cat "$work/$i.log"; } &
done
wait
passed=0 failed=0 left_out=0
for i in "${!files[@]}"; do
    read -r p f l <"$work/$i/counts" || stop "${files[i]} was not tried to its end"
    passed=$((passed + p)) failed=$((failed + f)) left_out=$((left_out + l))
done
[ $left_out = 0 ] || echo "$left_out left out"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
