#!/usr/bin/env bash
# Install what the tests need (once) and run linter and fast tests.
# Usage: run_tests.sh [arguments of pytest]      e.g. run_tests.sh -m slow, run_tests.sh tests/test_ops
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/dev/env.sh
ensure_env tests
"$PYTHON" -m ruff check .
if [ $# -eq 0 ]; then set -- -m "not slow"; fi
# one worker and one thread a core: most tests are too small for more threads
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$PYTHON" -m pytest -q -n auto --maxprocesses=8 --durations=10 "$@"
