# To be sourced by bash:  source tools/dev/env.sh; ensure_env [extra ...]
#
# Sets ROOT (this checkout) and PYTHON (an interpreter in which the project and the extras are
# installed). PYTHON may be given; else the active environment is used; else .venv, made when
# absent. Calls pip only for what is missing.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"

fail() {
    echo "error: $*" >&2
    exit 1
}

# run COMMAND [ARGUMENT ...]: waits for it; a signal to this script ends it, too, with all that it
# started, where bash alone would wait for its end or leave it running.
run() {
    local status=0
    set -m  # a process group of its own
    "$@" <&0 &
    child=$!
    set +m
    trap 'kill -TERM -- "-$child" 2>/dev/null; wait "$child"; exit 143' TERM HUP
    trap 'kill -INT -- "-$child" 2>/dev/null; wait "$child"; exit 130' INT
    wait "$child" || status=$?
    trap - TERM HUP INT
    return $status
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

# Makes ROOT/.venv with the first Python >= 3.10 of the PATH and prints nothing but errors.
make_venv() {
    local candidate base=
    for candidate in python3 python python3.13 python3.12 python3.11 python3.10 python3.14; do
        if command -v "$candidate" >/dev/null && is_new_enough "$candidate"; then
            base=$candidate
            break
        fi
    done
    [ -n "$base" ] || fail "no Python >= 3.10 on the PATH (python3 is" \
        "$(python3 --version 2>&1 | tail -n 1)). Install one, or name it: PYTHON=/path/to/python $0"
    echo "Making $ROOT/.venv with $("$base" --version)" >&2
    # Made under another name first, so that an interrupted call leaves no half-made .venv.
    rm -rf "$ROOT/.venv"
    if ! "$base" -m venv "$ROOT/.venv" >&2; then
        rm -rf "$ROOT/.venv"
        fail "$base cannot make a virtual environment. On Debian and Ubuntu: apt install" \
            "python3-venv. Or activate an environment of your own and call again."
    fi
    "$ROOT/.venv/bin/python" -m pip install --quiet --upgrade 'pip>=24' >&2 ||
        fail "pip cannot be updated: is there a network, or a package index (PIP_INDEX_URL)?"
}

# The interpreter to use, on stdout.
find_python() {
    local active=
    if [ -n "${PYTHON:-}" ]; then
        active=$PYTHON
    elif [ -n "${VIRTUAL_ENV:-}" ]; then
        active=$VIRTUAL_ENV/bin/python
    elif [ -n "${CONDA_PREFIX:-}" ]; then
        active=$CONDA_PREFIX/bin/python
    else
        # pip is the last thing that venv puts in: without it the environment is half-made
        "$ROOT/.venv/bin/python" -m pip --version >/dev/null 2>&1 || make_venv
        active=$ROOT/.venv/bin/python
    fi
    command -v "$active" >/dev/null || fail "there is no Python at $active"
    is_new_enough "$active" || fail "$active is $("$active" --version 2>&1); want Python >= 3.10." \
        "Deactivate this environment, or name another interpreter: PYTHON=/path/to/python $0"
    if ! "$active" -m pip --version >/dev/null 2>&1; then
        "$active" -m ensurepip >&2 || fail "$active has no pip: $active -m ensurepip failed"
    fi
    echo "$active"
}

# opencv-python, which mmcv wants, needs libGL, which servers and containers often lack; the
# headless build has the same import name and what the project uses of it.
ensure_cv2() {
    local message version
    message="$("$PYTHON" -c 'import cv2' 2>&1)" && return 0
    case $message in *'cannot open shared object file'*) ;; *) fail "import cv2: $message" ;; esac
    echo "Replacing OpenCV by its headless build (${message##*ImportError: })" >&2
    version="$("$PYTHON" -c 'from importlib.metadata import version; print(version("opencv-python"))')"
    "$PYTHON" -m pip install --disable-pip-version-check --no-deps --force-reinstall \
        "opencv-python-headless==$version" >&2 || fail "pip could not install it; see above"
    "$PYTHON" -c 'import cv2' || fail "OpenCV cannot be imported; its message is above"
}

ensure_env() {
    local call round argument arguments
    PYTHON="$(find_python)" || exit 1
    export PYTHON
    # Old pips would build the OpenMMLab packages outside an isolated environment, and with torch
    # already there try to compile mmcv's ops for twenty minutes.
    export PIP_USE_PEP517=1
    for round in 1 2; do
        call="$("$PYTHON" "$ROOT/tools/dev/env_state.py" "$ROOT" "$@")" || exit 1
        [ -n "$call" ] || break
        [ $round = 1 ] && echo "Installing mmext and what it needs (some minutes, once)" >&2
        arguments=()  # one a line
        while IFS= read -r argument; do arguments+=("$argument"); done <<<"$call"
        echo "+ pip install ${arguments[*]}" >&2
        run "$PYTHON" -m pip install --disable-pip-version-check "${arguments[@]}" >&2 ||
            fail "pip could not install the project; its message is above"
    done
    call="$("$PYTHON" "$ROOT/tools/dev/env_state.py" "$ROOT" "$@")" || exit 1
    [ -z "$call" ] || fail "still missing after the installation: ${call//$'\n'/ }"
    ensure_cv2
}
