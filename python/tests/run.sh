#!/bin/sh
# python/tests/run.sh LIBRARY [PYTEST-ARGUMENT...]: runs the Python tests against that libentwine,
# with the first interpreter that has numpy and pytest (scripts/setup test installs Debian's).
set -u
ENTWINE_LIBRARY=$(realpath "$1") || exit 1
shift
cd "$(dirname "$0")/.." || exit 1
export ENTWINE_LIBRARY PYTHONPATH="$PWD" PYTHONDONTWRITEBYTECODE=1

for python in python3 /usr/bin/python3; do
    "$python" -c 'import numpy, pytest' 2>/dev/null || continue
    echo "$("$python" --version), $(command -v "$python")"
    exec timeout -k 10 "${LIMIT_S:-280}" "$python" -m pytest -q -rs -p no:cacheprovider "${@:-tests}"
done
echo "no python3 here has numpy and pytest"
echo "  fix: run scripts/setup test, or install python3-numpy and python3-pytest"
exit 1
