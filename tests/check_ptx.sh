#!/usr/bin/env bash
# check_ptx.sh FILE.ptx...: finds in the PTX of the kernels, which a build leaves under cuda/, what
# the flag protocol forbids and C++ does not show:
#   scope   a load, store or atomic with a memory order but without .sys scope
#   early   a release, or a fence before relaxed flags, that some path reaches from a tile's store
#           without waiting for it: a barrier after ordinary stores and additions (of the warp, where
#           a warp has made them all), a full (not .read) wait after bulk ones
#   stale   a non-coherent load in a reducer or a mover, which read what peers write
#   proxy   in the GEMM that waits for rows, a bulk load that some path reaches from the acquire of a
#           block without a proxy fence: TMA need not see what was acquired by other instructions
#   trap    a trap, which would take the CUDA context with it
# Prints each offending line, after proving on planted violations that it would.
set -u

# FILE.ptx, named after its source; true when all is well.
lint() {
    awk -v file="$(basename "$1" .ptx)" '
    function complain(where, why, what) {
        print file ".cu, PTX line " where ": " why ": " what
        bad = 1
    }
    function note(what, to) { # one step of the function that matters to "early"
        kind[++n] = what; at[n] = FNR; text[n] = $0; target[n] = to
        plain[n] = bulk[n] = bare[n] = seen[n] = 0
    }
    function flow(to, p, b, u) { # what is on its way, or unfenced, when `to` is reached
        if (to > n || (seen[to] && plain[to] >= p && bulk[to] >= b && bare[to] >= u))
            return
        seen[to] = moved = 1
        if (p) plain[to] = 1
        if (b) bulk[to] = 1
        if (u) bare[to] = 1
    }
    # Labels of inline assembly may recur, each in its own braces.
    function scoped(name) { sub(/[:;]$/, "", name); return name ~ /^\$/ ? name : braces " " name }
    function analyse(   i, p, b, u) {
        analysed++
        flow(1, 0, 0, gathers)
        while (moved) {
            moved = 0
            for (i = 1; i <= n; i++) {
                if (!seen[i])
                    continue
                p = kind[i] == "store" || (plain[i] && kind[i] != "barrier")
                b = kind[i] == "bulk store" || (bulk[i] && kind[i] != "bulk wait")
                u = gathers && (kind[i] == "acquire" || (bare[i] && kind[i] != "proxy fence"))
                if (target[i] in label)
                    flow(label[target[i]], p, b, u)
                else if (target[i] != "")
                    unknown = at[i]
                if (kind[i] != "jump" && kind[i] != "end")
                    flow(i + 1, p, b, u)
            }
        }
        for (i = 1; i <= n; i++)
            if (kind[i] == "bulk load" && bare[i])
                complain(at[i], "no proxy fence since rows were acquired", text[i])
        for (i = 1; i <= n; i++)
            if ((kind[i] == "release" || (kind[i] == "end" && !entry)) && (plain[i] || bulk[i]))
                complain(at[i], plain[i] ? "no barrier since a tile was stored" \
                                         : "no full wait since a tile was stored", text[i])
        if (unknown)
            complain(unknown, "a jump that this lint cannot follow", name)
        if (entry && file ~ /^gemm/ && !(stores && releases))
            complain(FNR, "stores or releases nothing that this lint recognises", name)
    }
    { sub(/\/\/.*/, ""); gsub(/[ \t]+/, " "); sub(/^ /, ""); sub(/ $/, "") }
    !inside && /\.(entry|func) / { entry = /\.entry/; name = $0; gathers = /op_ag_gemm/ }
    !inside && /^\{$/ {
        inside = ++functions
        n = stores = releases = unknown = depth = 0
        split("", label)
        next
    }
    !inside { next }
    /^\}$/ && depth == 0 { analyse(); inside = 0; next }
    /^\{/ { depth++; braces++; sub(/^\{ ?/, "") }
    /\}$/ { depth--; sub(/ ?\}$/, "") }
    /^[$A-Za-z_0-9]+:$/ { label[scoped($1)] = n + 1; next }
    {
        guarded = sub(/^@!?[%A-Za-z_0-9]+ /, "")
        op = $1
        sub(/;$/, "", op)
        ordered = op ~ /\.(acquire|release|relaxed|acq_rel)(\.|$)/
    }
    ordered && op ~ /^(ld|st|red|atom|multimem)\./ && op !~ /\.shared/ && op !~ /\.sys(\.|$)/ {
        complain(FNR, "not system scope", $0)
    }
    file ~ /(reducer|mover)$/ && op ~ /^ldu?\./ && op ~ /\.nc(\.|$)|^ldu/ {
        complain(FNR, "non-coherent load", $0)
    }
    op == "trap" { complain(FNR, "trap", $0) }
    op ~ /^brx/ { complain(FNR, "a jump that this lint cannot follow", $0) }

    op ~ /^st(\.global)?(\.[A-Za-z0-9_:]+)*\.v[48]\./ && op !~ /\.(shared|local|param)/ {
        note("store"); stores++
    }
    op ~ /^red\..*\.add\.noftz\./ { note("store"); stores++ }
    file == "gemm_sm90_adding" && op == "bar.warp.sync" { note("barrier") }
    op ~ /^cp\.(reduce\.)?async\.bulk\..*global.*\.shared/ { note("bulk store"); stores++ }
    op ~ /^(bar|barrier)(\.cta)?\.(sync|red)/ || op ~ /^barrier\.cluster\.wait/ { note("barrier") }
    op ~ /^cp\.async\.bulk\..*\.shared.*\.global/ { note("bulk load") }
    op ~ /^(ld|mbarrier)\.(.*\.)?acquire\./ { note("acquire") }
    op ~ /^fence\.proxy\.async(\.global)?$/ { note("proxy fence") }
    op == "cp.async.bulk.wait_group" && $2 == "0;" { note("bulk wait") }
    # A call may release: what it does is not looked at.
    op ~ /^(st|red|atom|multimem)\..*release\.sys/ || op == "fence.acq_rel.sys" || op ~ /^call/ {
        note("release"); releases++
    }
    op ~ /^bra(\.|$)/ { note(guarded ? "branch" : "jump", scoped($2)) }
    op == "ret" || op == "exit" { note(guarded ? "branch" : "end") }
    END {
        if (inside || !functions || analysed != functions)
            complain(FNR, "this lint lost its way", analysed " of " functions " functions")
        exit bad
    }' "$1"
}

self_test() {
    local dir head='.visible .entry k(\n)\n{' v='{%r1, %r2, %r3, %r4};'
    dir=$(mktemp -d) && trap 'rm -rf "$dir"' RETURN
    expect() { # green|red SOURCE BODY
        printf '%b\n%b\nret;\n}\n' "$head" "$3" >"$dir/$2.ptx"
        if lint "$dir/$2.ptx" >/dev/null; then local is=green; else local is=red; fi
        [ $is = "$1" ] || { echo "self-test: $2 with '$3' is $is, not $1"; return 1; }
    }
    local store="st.global.v4.u32 [%rd1], $v" flag='st.release.sys.global.u32 [%rd2], %r5;'
    local relaxed='st.relaxed.sys.global.u32 [%rd2], %r5;'
    local hinted="st.global.L2::cache_hint.v4.u32 [%rd1], $v"
    local bulk='cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r3];'
    local full='cp.async.bulk.wait_group 0;' read='cp.async.bulk.wait_group.read 0;'
    local load='cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier [%r1], [%rd1, {%r2, %r3}], [%r4];'
    local taken='mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r1], %r2;'
    local fence='fence.proxy.async.global;'
    local add="red.relaxed.sys.global.add.noftz.v4.bf16x2 [%rd1], $v" warp='bar.warp.sync -1;'
    local loop="\$L_1:\n$store\n@%p1 bra \$L_1;"
    # scope
    expect green control "ld.acquire.sys.global.u32 %r1, [%rd1];\n$flag" &&
        expect green control 'atom.global.add.u32 %r1, [%rd1], 1;\nfence.acq_rel.gpu;' &&
        expect green control 'mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];' &&
        expect red control 'ld.acquire.gpu.global.u32 %r1, [%rd1];' &&
        expect red control '@%p1 st.release.gpu.global.u32 [%rd1], %r1;' &&
        expect red control 'ld.relaxed.gpu.u32 %r1, [%rd1];' &&
        expect red control 'red.release.gpu.global.add.u32 [%rd1], 1;' &&
        expect red control 'atom.relaxed.cta.global.add.u32 %r1, [%rd1], 1;' &&
        # early: the order of the text
        expect green gemm_a "$store\nbar.sync 0;\n$flag" &&
        expect green gemm_a "$bulk\n$read\n$full\n$flag" &&
        expect green gemm_a "$store\nbar.sync 0;\nfence.acq_rel.sys;\n$relaxed" &&
        expect red gemm_a "$store\nfence.acq_rel.sys;\n$relaxed" &&
        expect red gemm_a "$store\n$flag" &&
        expect red gemm_a "$hinted\n$flag" &&
        expect red gemm_a "bar.sync 0;\n$store\n$full\n$flag" &&
        expect red gemm_a "$bulk\n$read\n$flag" &&
        expect green gemm_a "$add\nbar.sync 0;\n$flag" &&
        expect red gemm_a "$add\n$flag" &&
        expect red gemm_a "$add\n$warp\n$flag" &&
        expect green gemm_sm90_adding "$add\n$warp\n$flag" &&
        expect red gemm_sm90_adding "$warp\n$add\n$flag" &&
        expect red control 'red.relaxed.gpu.global.add.noftz.f16x2 [%rd1], %r1;' &&
        expect red gemm_a "$full\n$bulk\ncp.async.bulk.wait_group 1;\nbar.sync 0;\n$flag" &&
        # ... is not the order of execution
        expect green gemm_a "$loop\nbar.sync 0;\n$flag" &&
        expect green gemm_a "bra \$L_2;\n\$L_1:\n$flag\nret;\n\$L_2:\n$store\nbar.sync 0;\nbra \$L_1;" &&
        expect red gemm_a "bra \$L_2;\n\$L_1:\n$flag\nret;\n\$L_2:\n$store\nbra \$L_1;" &&
        expect red gemm_a "$loop\n@%p2 bra \$L_3;\nbar.sync 0;\n\$L_3:\n$flag" &&
        expect red gemm_a "\$L_1:\n@%p1 $flag\n$store\nbra.uni \$L_1;" &&
        expect green gemm_a "$store\nbar.sync 0;\n{\nagain:\n@!p bra again;\n}\n$flag\n{ again:\n@!p bra again;}" &&
        expect red gemm_a "{\nagain:\n$store\n@!p bra again;\n}\n{\nagain:\n$flag\nbar.sync 0;\n}" &&
        expect red gemm_a "$store\nbra \$L_4;\nbar.sync 0;\n$flag" &&
        expect red gemm_a "$store\ncall.uni publish,\n(\n);\nbar.sync 0;\n$flag" &&
        # ... and something was there to be looked at
        expect green control "$flag" &&
        expect red gemm_a "$flag" &&
        expect red gemm_a "st.global.u32 [%rd1], %r1;\nbar.sync 0;\n$flag" &&
        # stale
        expect green reducer "ld.global.L1::no_allocate.v4.u32 $v [%rd1];" &&
        expect green control 'ld.global.nc.u32 %r1, [%rd1];' &&
        expect red reducer 'ld.global.nc.u32 %r1, [%rd1];' &&
        expect red reducer "ld.global.nc.L1::no_allocate.v4.u32 {%r1,%r2,%r3,%r4}, [%rd1];" &&
        expect red mover 'ld.global.nc.u32 %r1, [%rd1];' &&
        # proxy: in the GEMM that waits alone
        expect green control "$taken\n$load" &&
        head='.visible .entry gemmI10op_ag_gemm(\n)\n{' &&
        expect green control "$taken\n$fence\n$load" &&
        expect green control "$taken\nfence.proxy.async;\n\$L_1:\n$load\n@%p1 bra \$L_1;" &&
        expect red control "$load" &&
        expect red control "$taken\n$load\n$fence" &&
        expect red control "$taken\nfence.proxy.async.shared::cta;\n$load" &&
        expect red control "$fence\n\$L_1:\n$taken\n$load\nbra \$L_1;" &&
        expect red control "$taken\n@%p1 bra \$L_1;\n$fence\n\$L_1:\n$load" &&
        expect red control "$fence\nld.acquire.sys.global.u32 %r1, [%rd1];\n$load" &&
        head='.visible .entry k(\n)\n{' &&
        # trap
        expect red control '@%p1 trap;' &&
        expect red control 'trap;'
}

self_test || exit 1
bad=0
[ $# -gt 0 ] || { echo 'no PTX: name the files that a build left under cuda/'; bad=1; }
for ptx; do
    lint "$ptx" || bad=1
done
exit $bad
