#!/usr/bin/env bash
# Runs the Rust and Python tests under conditions that must not affect a result: in the background with SIGINT ignored, at low priority,
# on one CPU with busy loops, with the files in another order in each of ROUNDS rounds (by default 2 of `all`, 1 of `timing`).
#
# usage: tests/adverse.sh all|timing [python, default .venv/bin/python]
#
# `timing` runs tests of time, signals, threads and processes: the Python tests with this mark, and the crates with threads.
set -euo pipefail
cd "$(dirname "$0")/.."

part=${1:-all}
python=${2:-.venv/bin/python}
crates=
pytest=("$python" -m pytest -q -p no:cacheprovider)
case $part in
all) rounds=2 loops=2 ;;
timing)
    # `.ci/run` runs other stages at the same time, which are also a load.
    rounds=1 loops=1
    crates='qaic-sync qaic-sched qaic-kmd qaic-runtime'
    pytest+=(-m timing)
    ;;
*)
    echo "the first argument is \"$part\"; all or timing is expected" >&2
    exit 2
    ;;
esac

# Cargo builds at full speed, and with the features of `make test`. A test program runs in the folder of its crate.
mapfile -t programs < <(cargo test --workspace --no-run --quiet --message-format=json | "$python" -c '
import json, os, sys
for line in sys.stdin:
    made = json.loads(line)
    if made.get("executable") and made["profile"]["test"]:
        folder = os.path.dirname(made["manifest_path"])
        if not sys.argv[1:] or os.path.basename(folder) in sys.argv[1:]:
            print(folder, made["executable"], sep="\t")
' $crates)
((${#programs[@]} > 0)) || { echo 'cargo built no tests' >&2; exit 1; }
PROPTEST_RNG_SEED=$(sed -n 's/^PROPTEST_RNG_SEED = "\(.*\)"/\1/p' .cargo/config.toml)
QAIC_ONNXRUNTIME_LIB=$("$python" -c 'from qaic import _core; print(_core.engine_info()[0])')
export PROPTEST_RNG_SEED QAIC_ONNXRUNTIME_LIB

cpu=$("$python" -c 'import os; print(min(os.sched_getaffinity(0)))')
slow=(nice -n 10 taskset -c "$cpu")
# A loop of this niceness takes about a quarter of the CPU from the tests.
for ((loop = 0; loop < loops; loop++)); do
    # Ends with this script in any case.
    nice -n 14 taskset -c "$cpu" bash -c 'while kill -0 "$1" 2>/dev/null; do for ((i = 0; i < 200000; i++)); do :; done; done' busy $$ &
done

# Runs a command like a background job of a shell, and waits for it.
child=
trap '[[ -z $child ]] || kill "$child" 2>/dev/null || true' EXIT
in_background() {
    (
        trap '' INT HUP
        exec "${slow[@]}" "$@"
    ) &
    child=$!
    wait "$child"
    child=
}

for ((round = 1; round <= ${ROUNDS:-$rounds}; round++)); do
    echo "== round $round, Rust"
    while IFS=$'\t' read -r folder program; do
        # The order of tests within a program is an option of development builds of Rust's test harness.
        RUSTC_BOOTSTRAP=1 in_background env -C "$folder" "$program" -Z unstable-options --shuffle --quiet
    done < <(printf '%s\n' "${programs[@]}" | shuf)
    echo "== round $round, Python, $SECONDS s"
    in_background "${pytest[@]}" "--shuffle-files=$RANDOM" tests
    echo "== round $round ended, $SECONDS s"
done
