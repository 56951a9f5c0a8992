#!/usr/bin/env bash
# Runs tests of cards on the mainline driver qaic: in a guest whose kernel has it, before an emulated card.
#
#     run.sh PYTHON
#
# Where there can be no such kernel, it says so and what is lost, and ends well.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(realpath --no-symlinks "$1")
# On two cores this takes a minute.
limit_seconds=600

status=0
kernel=$(tests/kernel/build_kernel.sh) || status=$?
case $status in
    0) ;;
    77) exit 0 ;;
    *) exit "$status" ;;
esac
cargo build --quiet --package qaic-runtime --example pci_card
card=${CARGO_TARGET_DIR:-target}/debug/examples/pci_card
QAIC_ENGINE=$("$python" -c 'from qaic import _core; print(_core.engine_info()[0])')
export QAIC_ENGINE

command=$(mktemp "${TMPDIR:-/tmp}/openqaic-command.XXXXXX")
trap 'rm -f "$command"' EXIT
cat >"$command" <<END
export QAIC_DEVICE=kmd QAIC_CACHE_DIR=/dev/shm/cache PYTHONDONTWRITEBYTECODE=1
cd '$PWD' && exec '$python' -m pytest -q -p no:cacheprovider --basetemp=/dev/shm/pytest tests/kernel
END
for faults in "" "inference@1=late_dma*all"; do
    echo "test-kernel: mainline driver, faults: ${faults:-none}" >&2
    QAIC_EMU_FAULTS=$faults tests/kernel/run_in_guest.sh "$kernel" "$card" "$limit_seconds" "$command"
done
