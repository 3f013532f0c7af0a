#!/usr/bin/env bash
# Usage: [GPUS=8] [GPUS_PER_NODE=8] [CPUS_PER_TASK=5] [SRUN_ARGS=...] \
#            slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [arguments of test.py]
set -e
USAGE="usage: slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [arguments of test.py]"
PARTITION=${1:?$USAGE}
JOB_NAME=${2:?$USAGE}
CONFIG=${3:?$USAGE}
CHECKPOINT=${4:?$USAGE}
GPUS=${GPUS:-8}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}

exec srun -p "$PARTITION" --job-name="$JOB_NAME" \
    --gres="gpu:$GPUS_PER_NODE" --ntasks="$GPUS" --ntasks-per-node="$GPUS_PER_NODE" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
    "${PYTHON:-python}" -u "$(dirname "$0")/test.py" "$CONFIG" "$CHECKPOINT" \
    --launcher slurm "${@:5}"
