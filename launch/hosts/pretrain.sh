#!/bin/bash
# Pre-trains on machines without a batch system, over ssh. From the project's root, on any machine:
#
#   launch/hosts/pretrain.sh hosts.txt --config my_run.yaml
#
# hosts.txt is a host file of DeepSpeed, with a line for each machine and its number of ranks: `gpu1 slots=8`. The other
# arguments are passed to launch/pretrain.py. Each machine needs this folder under the same path, with the same packages, and
# ssh must reach it without a password. Variables:
#
#   NODE_ENVIRONMENT   a file that every machine sources before it starts its ranks, such as launch/slurm/environment.sh
#   LOGS               the folder of the logs here (logs)
#   MASTER_PORT        where the machines meet, on the first of them (29500)
#   RETRIES            how often a run that lost a rank or a machine is restarted on the machines that answer (3)
#   SSH                the command, such as "ssh -p 2222"
#
# On Ctrl-C, SIGTERM or the end of this terminal all ranks write a checkpoint and exit. See docs/cluster.md.

set -u
hosts_file=${1:?name the file of hosts, and after it the settings of launch/pretrain.py}
shift
read -ra ssh <<<"${SSH:-ssh} -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=10 -o ServerAliveCountMax=3"
port=${MASTER_PORT:-29500}
environment=${NODE_ENVIRONMENT:-launch/slurm/environment.sh}
needed=$(printf 'cd %q && test -e %q' "$PWD" "${NODE_ENVIRONMENT:-.}") # on each machine
arguments=${*:+$(printf ' %q' "$@")}
stopping=
folder=${LOGS:-logs}/hosts-$(date +%Y%m%d-%H%M%S)-$$

# The program of each machine: torchrun, which is stopped when its standard input, and so the ssh connection, ends.
read -r -d '' program <<'END'
cd "$folder" || exit 2
[ ! -e "$environment" ] || . "$environment"
torchrun --nnodes "$machines" --nproc-per-node "$slots" --rdzv-backend c10d --rdzv-endpoint "$first:$port" \
    --rdzv-id "$start" --tee 3 --log-dir "$logs" -m launch.pretrain "$@" </dev/null &
launcher=$!
(cat >/dev/null && kill -TERM "$launcher") 2>/dev/null <&3 &
wait "$launcher"
END

start_all() { # on the machines that answer; sets arrays of their names, slots and the ids of the ssh processes
    local line host slots answer
    names=() counts=() processes=()
    while read -r line || [ -n "$line" ]; do # the last line may lack its end
        host=${line%%[[:space:]#]*}
        [ -n "$host" ] || continue
        slots=$([[ $line =~ slots=([0-9]+) ]] && echo "${BASH_REMATCH[1]}" || echo 1)
        "${ssh[@]}" -n "$host" "$needed" 2>/dev/null
        answer=$?
        if [ "$answer" = 0 ]; then
            names+=("$host") counts+=("$slots")
        elif [ "$answer" = 255 ]; then # an error of ssh itself
            echo "$host does not answer: going on without it"
        elif [ -z "$stopping" ]; then
            echo "error: $host does not have the folder $PWD${NODE_ENVIRONMENT:+, or no $NODE_ENVIRONMENT there}"
            return 2
        fi
    done <"$hosts_file"
    if [ -n "$stopping" ]; then
        echo "stopped before the start"
        return 75
    fi
    if [ ${#names[@]} = 0 ]; then
        echo "error: no machine of $hosts_file can be used"
        return 2
    fi
    logs=$folder/start-$try
    mkdir -p "$logs" || return 2
    echo "starting on ${names[*]}; logs in $logs"
    # Both ends are opened before a machine starts: a machine that opened the pipe itself would wait forever if a signal
    # had closed the other end. Closing the write end stops all machines.
    # shellcheck disable=SC2094
    exec 5<>"$pipe" 3<"$pipe" 4>"$pipe" 5>&-
    [ -z "$stopping" ] || exec 4>&-
    for number in "${!names[@]}"; do
        values=$(printf '%s=%q ' folder "$PWD" environment "$environment" machines "${#names[@]}" slots "${counts[number]}" \
            first "${names[0]}" port "$port" start "$try" logs "$logs/ranks-of-${names[number]}" \
            OMP_NUM_THREADS "${OMP_NUM_THREADS:-1}" TORCH_ELASTIC_SHUTDOWN_TIMEOUT 150)
        "${ssh[@]}" "${names[number]}" "export $values; exec 3<&0; set --$arguments; $program" \
            <&3 3<&- 4>&- >"$logs/${names[number]}.log" 2>&1 &
        processes+=($!)
    done
    exec 3<&-
}

stop_all() {
    stopping=yes
    echo "asked to stop: the ranks write a checkpoint and end"
    exec 4>&-
}

pipe=$(mktemp -u)
mkfifo "$pipe" || exit 2
trap 'rm -f "$pipe"' EXIT
trap stop_all INT TERM HUP

for ((try = 0; ; try++)); do
    start_all || exit
    worst=0
    for number in "${!names[@]}"; do
        while kill -0 "${processes[number]}" 2>/dev/null; do # a signal interrupts wait
            wait "${processes[number]}"
        done
        wait "${processes[number]}"
        status=$?
        [ "$status" = 0 ] || echo "${names[number]} ended with status $status"
        [ "$status" -le "$worst" ] || worst=$status
    done
    [ -n "$stopping" ] || exec 4>&-
    grep -rhE '(^|: ?)(\[rank [0-9]+\] )?error: ' "$logs"/*.log | sort -u | head -n 5
    [ "$worst" != 0 ] || exit 0
    if grep -qE 'exitcode +: 2 ' "$logs"/*.log; then # torchrun exits with 1, whatever the status of its ranks
        echo "refused: mend that, and start it again"
        exit 2
    fi
    if [ -n "$stopping" ] || grep -qE 'stopped at step [0-9]+ \(' "$logs"/*.log; then
        echo "stopped: the same command again goes on"
        exit 75
    fi
    if [ "$try" -ge "${RETRIES:-3}" ]; then
        echo "error: a rank or a machine was lost $((try + 1)) times; see $logs"
        exit 70
    fi
    echo "a rank or a machine was lost: starting again"
done
