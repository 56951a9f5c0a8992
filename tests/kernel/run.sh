#!/usr/bin/env bash
# Runs tests of cards with the mainline driver qaic, in guests with this driver and an emulated card.
#
#     run.sh PYTHON
#
# If such a kernel cannot be built, the script reports this and the skipped tests, and succeeds.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(realpath --no-symlinks "$1")
# On two cores, all guests take at most five minutes, and one guest less than two.
limit_seconds=600

status=0
kernel=$(tests/kernel/build_kernel.sh) || status=$?
case $status in
    0) ;;
    77)
        cat >&2 <<'END'
test-kernel: not run. These claims of docs/reference/emulated-cards.md are not tested here:
  * that the emulated driver answers each call as the driver does
  * that programs run on the driver, also with late transfers, and leave nothing on the card
  * that programs make the same calls on both, and what each answers
  * what a reset, silent firmware, signals, stops and a killed process are to them
END
        exit 0
        ;;
    *) exit "$status" ;;
esac
cargo build --quiet --package qaic-pci-card
card=${CARGO_TARGET_DIR:-target}/debug/qaic-pci-card
built=$(cargo test --quiet --package qaic-emu --test differential --no-run --message-format json)
differential=$(sed -n 's/.*"executable":"\([^"]*differential-[^"]*\)".*/\1/p' <<<"$built")
QAIC_ENGINE=$("$python" -c 'from qaic import _core; print(_core.engine_info()[0])')
export QAIC_ENGINE

command=$(mktemp "${TMPDIR:-/tmp}/openqaic-command.XXXXXX")
trap 'rm -f "$command"' EXIT
in_guest() { # script, option of the kernel...
    cat >"$command" <<<"$1"
    tests/kernel/run_in_guest.sh "$kernel" "$card" "$limit_seconds" "$command" "${@:2}"
}
pytest() { # argument of pytest...
    cat <<END
export QAIC_DEVICE=kmd QAIC_CACHE_DIR=/dev/shm/cache PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=tests/kernel
cd '$PWD' && exec '$python' -m pytest -q -p suite -p no:cacheprovider --basetemp=/dev/shm/pytest $*
END
}

programs=(tests/kernel/test_mainline_driver.py)
echo "test-kernel: one list of calls, and random ones, on the emulated driver and on the mainline one" >&2
# In some tests, the firmware does not answer; the driver's own limit is a minute.
QAIC_EMU_WORKLOAD=loopback QAIC_EMU_CHECKSUMS=1 in_guest "cd '$PWD' && exec '$differential' --ignored --test-threads 1" \
    qaic.control_resp_timeout_s=3
echo "test-kernel: programs on the mainline driver, and the suite's tests of devices" >&2
in_guest "$(pytest "${programs[@]}" tests/kernel/test_kmd_transcripts.py \
    "$(PYTHONPATH=tests/kernel "$python" -c 'import suite; print(*suite.FILES)')")"
echo "test-kernel: programs on the mainline driver, with late transfers" >&2
QAIC_EMU_FAULTS="inference@1=late_dma*all" in_guest "$(pytest "${programs[@]}")"
echo "test-kernel: a card that falls off the bus" >&2
in_guest "$(pytest tests/kernel/test_dead_card.py)" qaic.control_resp_timeout_s=3
