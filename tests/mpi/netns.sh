#!/usr/bin/env bash
# netns.sh HOSTS RANKS_PER_HOST RATE PROGRAM [ARGUMENT...]: runs PROGRAM under mpirun on several
# "hosts" of one machine: network namespaces with a name of their own, joined by veth links of
# RATE (as tc writes it: 8gbit; "max": not limited).  Of one host it limits the loopback, which
# both directions share; -x ENTWINE_HOSTS=2 then makes its ranks use it.  Needs root; exits with
# 77, loudly, where that or the kernel's part is missing.  Everything is taken down at the end.
#
#     NETNS_CUT_AFTER=SECONDS   takes the last host's link down after that time
#     NETNS_MPIRUN=OPTIONS      more options of mpirun, such as -x ENTWINE_TIMEOUT_MS=2000
#     NETNS_PIN=1               each rank to a core of its own, where there are enough
#     NETNS_SECONDS=LIMIT       ends the run after so long; default 120
#     NETNS_LAST_WORDS=FILE     ends it when FILE has a line "rank ..." of every rank
set -u
[ $# -ge 4 ] || { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
hosts=$1 per_host=$2 rate=$3
shift 3
limited=eth0
[ "$hosts" -gt 1 ] || limited=lo
tag=ew$$ bridge=ewbr$$ agent= pin=

skip() { echo "SKIPPED: $*" >&2; exit 77; }
address() { echo "10.77.$(($$ % 250)).$((10 + $1))"; }

down() {
    for ((h = 0; h < hosts; h++)); do
        ip netns pids $tag-$h | xargs -r kill -KILL
        ip netns del $tag-$h
    done
    ip link del "$bridge"
    rm -f "$agent" "$pin"
} 2>/dev/null

add_host() { # NUMBER
    ip netns add $tag-"$1" &&
        ip link add $tag-v"$1" type veth peer name eth0 netns $tag-"$1" &&
        ip link set $tag-v"$1" master "$bridge" up &&
        ip -n $tag-"$1" addr add "$(address "$1")/24" dev eth0 &&
        ip -n $tag-"$1" link set eth0 up && ip -n $tag-"$1" link set lo up || return
    [ "$rate" = max ] ||
        ip netns exec $tag-"$1" tc qdisc add dev "$limited" root tbf rate "$rate" burst 256kb latency 50ms
}

[ "$(id -u)" = 0 ] || skip "network namespaces need root"
for tool in ip tc unshare mpirun; do
    command -v $tool >/dev/null || skip "$tool is not installed (iproute2, util-linux, openmpi-bin)"
done
trap down EXIT
ip link add "$bridge" type bridge && ip link set "$bridge" up || skip "this kernel has no bridges for us"
list=
for ((h = 0; h < hosts; h++)); do
    add_host $h || skip "host $h cannot be made: namespaces, veth or tbf are missing"
    list+=${list:+,}$(address $h):$per_host
done

# mpirun starts its helpers with `AGENT ADDRESS COMMAND`, as it would with ssh.
agent=$(mktemp) && chmod +x "$agent"
cat >"$agent" <<END
#!/bin/sh
while :; do case \$1 in -*) shift ;; *) break ;; esac done
number=\$((\${1##*.} - 10))
shift
exec ip netns exec $tag-\$number unshare --uts sh -c "hostname $tag-\$number; \$*"
END

if [ -n "${NETNS_PIN:-}" ]; then
    pin=$(mktemp) && chmod +x "$pin"
    printf '#!/bin/sh\nexec taskset -c $((OMPI_COMM_WORLD_RANK %% %d)) "$@"\n' "$(nproc)" >"$pin"
    set -- "$pin" "$@"
fi
if [ -n "${NETNS_CUT_AFTER:-}" ]; then
    (sleep "$NETNS_CUT_AFTER" && ip link set $tag-v$((hosts - 1)) down) &
fi
net=${list%%:*}
net=${net%.*}.0/24
btl=tcp,vader,self
[ $limited = eth0 ] || net=lo btl=tcp,self
# shellcheck disable=SC2086
timeout -k 5 "${NETNS_SECONDS:-120}" ip netns exec $tag-0 unshare --uts sh -c "hostname $tag-0; exec \"\$@\"" sh \
    env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    mpirun --mca plm_rsh_agent "$agent" --mca btl "$btl" --mca btl_tcp_if_include "$net" \
    --mca oob_tcp_if_include "$net" --bind-to none -H "$list" -np $((hosts * per_host)) \
    ${NETNS_MPIRUN:-} "$@" &
run=$!
if [ -n "${NETNS_LAST_WORDS:-}" ]; then
    until [ "$(grep -o '^rank [0-9]*:' "$NETNS_LAST_WORDS" | sort -u | wc -l)" = $((hosts * per_host)) ] ||
        ! kill -0 $run; do
        sleep 0.2
    done
    kill -KILL -- -$run # timeout leads a process group
fi 2>/dev/null
wait $run
