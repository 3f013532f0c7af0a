#!/usr/bin/env bash
# Usage: dist_test.sh CONFIG CHECKPOINT NUM_PROCESSES [arguments of test.py]
# Several nodes: run it on each with NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT set.
set -e
USAGE="usage: dist_test.sh CONFIG CHECKPOINT NUM_PROCESSES [arguments of test.py]"
CONFIG=${1:?$USAGE}
CHECKPOINT=${2:?$USAGE}
PROCESSES=${3:?$USAGE}

# the processes share the cores: more threads than that wait for each other
THREADS=1
if [[ $PROCESSES =~ ^[1-9][0-9]*$ ]] && (($(nproc) > PROCESSES)); then
    THREADS=$(($(nproc) / PROCESSES))
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$THREADS}"

# exec: a signal to this script is one to the launcher, which ends its processes
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${MASTER_PORT:-29500}" \
    --nproc_per_node="$PROCESSES" \
    "$(dirname "$0")/test.py" "$CONFIG" "$CHECKPOINT" --launcher pytorch "${@:4}"
