#!/usr/bin/env bash
# check_waits.sh [ROOT]: the one way to wait is src/base/wait.h, which is bounded and hears
# an abort.  Finds, anywhere else in src/, what a hand-made wait is built from: giving up
# the core or sleeping, and loops that turn on an atomic load.  Prints each offending line;
# without ROOT it first proves on planted violations that it would.
set -u

begin='(^|[^A-Za-z0-9_])' # of a word; awk has no \b
pauses="$begin(sched_yield|thrd_yield|(clock_)?nanosleep|usleep|thrd_sleep|_mm_pause|__yield) *[(]|SYS_futex"
loops="$begin(while|for) *[(].*atomic_load"

check() { # ROOT; true when all is well
    cd "$1" || return 2
    # A loop's head that spans lines is joined before it is looked at.
    find src -name '*.[ch]' ! -path 'src/base/wait.*' | sort | xargs -r awk \
        -v head="$begin(while|for) *[(]" -v pauses="$pauses" -v loops="$loops" '
        FNR == 1 { held = "" }
        { text = held $0; open = gsub(/\(/, "(", text) - gsub(/\)/, ")", text) }
        open > 0 && text ~ head && length(text) < 1000 {
            if (held == "") first = FNR
            held = text " "
            next
        }
        { where = held == "" ? FNR : first; held = "" }
        text ~ pauses || text ~ loops { print FILENAME ":" where ": " text; bad = 1 }
        END { exit bad }'
}

self_test() {
    local root
    root=$(mktemp -d) && trap 'rm -rf "$root"' RETURN
    mkdir -p "$root/src/base" "$root/src/world"
    expect() { # green|red FILE TEXT
        printf '%b\n' "$3" >"$root/$2"
        if (check "$root") >/dev/null; then local is=green; else local is=red; fi
        rm "$root/$2"
        [ $is = "$1" ] || { echo "self-test: $2 with '$3' is $is, not $1"; return 1; }
    }
    expect green src/base/wait.c 'while (!atomic_load(f)) sched_yield();' &&
        expect green src/world/a.c 'x = atomic_load(f);' &&
        expect green src/world/a.c 'for (i = 0; i < n; i++)\n    x += atomic_load(f);' &&
        expect green src/world/a.c 'EWX_AWAIT(status, &wait, atomic_load(f) == 1)' &&
        expect red src/world/a.c 'while (!atomic_load_explicit(f, memory_order_acquire))' &&
        expect red src/world/a.c 'while (x &&\n    !atomic_load(f))\n    ;' &&
        expect red src/base/status.c 'for (;;) if (atomic_load(f)) break;' &&
        expect red src/world/a.h 'sched_yield();' &&
        expect red src/world/a.c 'nanosleep(&t, NULL);'
}

if (($# == 0)); then
    self_test || exit 1
    set -- "$(dirname "$0")/.."
fi
check "$1"
