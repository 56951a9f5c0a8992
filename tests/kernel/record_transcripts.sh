#!/usr/bin/env bash
# Records the system calls of stored containers on the mainline driver, in a guest, into tests/data/transcripts/mainline.
#
#     record_transcripts.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(realpath --no-symlinks "$1")
kernel=$(tests/kernel/build_kernel.sh)
cargo build --quiet --package qaic-pci-card
names=$(PYTHONPATH=tests:tests/kernel:tests/models${PYTHONPATH:+:$PYTHONPATH} "$python" -c 'import transcript_programs; print(*transcript_programs.STORED)')
QAIC_ENGINE=$("$python" -c 'from qaic import _core; print(_core.engine_info()[0])')
export QAIC_ENGINE
work=$(mktemp -d "${TMPDIR:-/tmp}/openqaic-transcripts.XXXXXX")
trap 'rm -rf "$work"' EXIT
cat >"$work/command" <<END
export QAIC_DEVICE=kmd PYTHONDONTWRITEBYTECODE=1 PYTHONPATH='$PWD/tests:$PWD/tests/kernel:$PWD/tests/models${PYTHONPATH:+:$PYTHONPATH}'
mkdir /dev/shm/recorded
for name in $names; do
    QAIC_KMD_TRANSCRIPT=/dev/shm/recorded/\$name.jsonl '$python' '$PWD/tests/kernel/transcript_programs.py' \$name none >&2 || exit
done
tar --create --directory /dev/shm/recorded . | base64
END
tests/kernel/run_in_guest.sh "$kernel" "${CARGO_TARGET_DIR:-target}/debug/qaic-pci-card" 300 "$work/command" >"$work/output"
mkdir -p tests/data/transcripts/mainline
base64 --decode "$work/output" | tar --extract --directory tests/data/transcripts/mainline
