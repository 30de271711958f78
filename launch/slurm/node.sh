#!/bin/bash
# srun starts this for pretrain.sbatch: it sources the environment, and starts a rank or the launcher of the node's ranks.

set -u
if [ ! -e "${NODE_ENVIRONMENT:?}" ]; then
    echo "error: NODE_ENVIRONMENT is $NODE_ENVIRONMENT, which $(hostname) does not see"
    exit 2
fi
# shellcheck source=launch/slurm/environment.sh
. "$NODE_ENVIRONMENT"
first=${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
port=${MASTER_PORT:-$((10000 + SLURM_JOB_ID % 22000))} # below the ports that Linux assigns by itself

case ${LAUNCHER:?} in
srun)
    exec python -m launch.pretrain "$@"
    ;;
torchrun)
    # Otherwise restarted ranks would find the addresses of the previous ones in torchrun's store.
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    # shellcheck disable=SC2086
    exec torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$RANKS" --rdzv-backend c10d \
        --rdzv-endpoint "$first:$port" --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \
        --log-dir "$LOGS/ranks-of-$SLURMD_NODENAME" --tee 3 ${TORCHRUN_FLAGS:-} -m launch.pretrain "$@"
    ;;
deepspeed)
    hosts=$LOGS/hostfile-$SLURMD_NODENAME
    scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/$/ slots=$RANKS/" >"$hosts"
    # The signal would end the launcher at once, and Slurm would then kill its ranks: so it is sent to the ranks only,
    # which are found by their session. If Slurm sends it to every process of the task, the launcher ignores it.
    (
        trap '' USR1
        exec setsid deepspeed --no_ssh --hostfile "$hosts" --node_rank "$SLURM_NODEID" --master_addr "$first" \
            --master_port "$port" --enable_each_rank_log "$LOGS/ranks-of-$SLURMD_NODENAME" \
            --module launch.pretrain "$@"
    ) &
    launcher=$!
    trap 'pkill --session "$launcher" -USR1 --full -- --local_rank=' USR1 TERM
    while kill -0 "$launcher" 2>/dev/null; do # a signal interrupts wait
        wait "$launcher"
    done
    wait "$launcher"
    ;;
esac
