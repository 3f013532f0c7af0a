#!/usr/bin/env bash
# Runs the experiments of configs/evidence/experiments.yml that are not done yet and writes their
# page, configs/evidence/README.md. An interrupted call goes on where it stopped.
#
# Usage: bash tools/dev/evidence.sh [NAME ...] [OPTION ...]   (--help lists the options)
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
ensure_env
cd "$ROOT"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$PYTHON" tools/dev/evidence.py "$@"
