#!/usr/bin/env bash
# Find a Python >= 3.11 and let scripts/setup.py build .venv with it.
# PYTHON=/path/to/python chooses one; LOCK=cpu or LOCK=cuda chooses the lock (default: cuda where a GPU is found).
set -euo pipefail
cd "$(dirname "$0")/.."

# True for a CPython that can make virtual environments (Debian packs that part separately). The pinned wheels exist
# for 3.11 to 3.14; a later Python is tried only when it is asked for by PYTHON=.
fits() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

python="${PYTHON:-}"
if [ -n "$python" ]; then
    if ! "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] < (3, 11))' 2>/dev/null; then
        echo "setup: PYTHON=$python is not a Python >= 3.11 with the venv module." >&2
        exit 1
    fi
else
    for candidate in python3 python3.11 python3.12 python3.13 python3.14 python; do
        if fits "$candidate"; then
            python="$candidate"
            break
        fi
    done
fi
if [ -z "$python" ]; then
    echo "setup: no Python 3.11 to 3.14 with the venv module was found (python3 is: $(python3 --version 2>&1 || true))." >&2
    echo "setup: install one (Debian and Ubuntu: apt-get install python3 python3-venv; macOS: brew install python@3.12)," >&2
    echo "setup: or name it: make setup PYTHON=/path/to/python3.12" >&2
    exit 1
fi
exec "$python" scripts/setup.py "$@"
