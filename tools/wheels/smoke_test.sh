#!/usr/bin/env bash
# Install a wheel into a clean environment of each PYTHON and use it: tools/wheels/smoke_test.sh WHEEL PYTHON...
#
# The path contains no compiler and the folder is empty, so the wheel needs neither Rust nor this repository.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
wheel=$(realpath "$1")
shift
for python in "$@"; do
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    "$python" -m venv "$folder/venv"
    "$folder/venv/bin/python" -m pip install --quiet "$wheel"
    (cd "$folder" && env -i HOME="$folder" PATH="$folder/venv/bin:/usr/bin:/bin" "$folder/venv/bin/python" -W error "$here/smoke_test.py")
    rm -rf "$folder"
done
