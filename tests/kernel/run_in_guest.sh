#!/usr/bin/env bash
# Runs a shell script in a guest with the mainline driver qaic and an emulated card, prints its output, and ends with its status. If
# the guest fails, the kernel's log follows the output.
#
#     run_in_guest.sh KERNEL PCI_CARD LIMIT_SECONDS SCRIPT [OPTION...]
#
# The guest has the host's files, read-only. `QAIC_EMU_FAULTS` and similar variables are for the card; a plan of faults in the first
# line of the file that the guest's variable `QAIC_GUEST_FAULTS` names replaces it. Options are added to the kernel's command line.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
kernel=$1 card=$2 limit=$3 script=$4
shift 4
work=$(mktemp -d "${TMPDIR:-/tmp}/openqaic-guest.XXXXXX")
card_id=
finish() {
    if [ -n "$card_id" ]; then kill "$card_id" 2>/dev/null || true; fi
    rm -rf "$work"
}
trap finish EXIT
mkdir "$work/results" "$work/memory"
cp "$script" "$work/results/command"

QAIC_EMU_FAULTS_FILE=$work/results/faults timeout --kill-after 5 "$((limit + 10))" "$card" "$work/card" 2>"$work/card.log" &
card_id=$!
for _ in $(seq 100); do
    if [ -S "$work/card" ] || ! kill -0 "$card_id" 2>/dev/null; then break; fi
    sleep 0.1
done
if ! [ -S "$work/card" ]; then
    echo "the card $card did not begin" >&2
    cat "$work/card.log" >&2
    exit 1
fi

# A slow host answers later than a bus. The driver polls its rings and sets the card's clock rarely: if an interrupt handler or a
# timer reads a register while another read waits, it takes the answer of that read (virt-pci of Linux 6.12 supports only one access at
# a time).
status=0
TMPDIR=$work/memory HOME=$work timeout --kill-after 5 "$limit" "$kernel" \
    mem=768M root=98:0 rootfstype=hostfs rootflags=/ ro con=null con0=null,fd:1 console=tty0 \
    "init=$here/guest.sh" "results=$work/results" \
    "virtio_uml.device=$work/card:1234" virt_pci.max_delay_us=20000000 qaic.datapath_polling=1 qaic.timesync_delay_ms=3600000 noreboot "$@" \
    </dev/null >"$work/kernel.log" 2>&1 || status=$?

cat "$work/results/output" 2>/dev/null || true
if [ -e "$work/results/status" ] && [ "$status" != 124 ] && [ "$status" != 137 ]; then
    result=$(cat "$work/results/status")
else
    result=1
    echo "the guest did not end within $limit seconds, or began no command (status $status)" >&2
fi
if wait "$card_id"; then card_status=0; else card_status=$?; fi
card_id=
cat "$work/card.log" >&2
if [ "$result" != 0 ] || [ "$card_status" != 0 ]; then
    echo "--- the guest's kernel:" >&2
    tail -n 80 "$work/kernel.log" >&2
fi
[ "$result" != 0 ] || result=$card_status
exit "$result"
