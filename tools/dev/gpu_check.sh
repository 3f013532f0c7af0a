#!/usr/bin/env bash
# Correctness and speed of the operators on this machine's GPU (or, smaller, its CPU), in one
# command and under six minutes; needs torch, torchvision and timm alone. Options: --help.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python}" tools/dev/gpu_check.py "$@"
