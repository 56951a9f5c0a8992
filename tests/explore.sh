#!/usr/bin/env bash
# Repeats the property tests of Rust and Python with new seeds, and the whole sweeps of which `make test` runs a sample, until one
# fails. Prints the failure and the command that repeats it.
#
# usage: tests/explore.sh [minutes, without a number until Ctrl-C] [python, default .venv/bin/python]
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=${1:-}
python=${2:-.venv/bin/python}
case $minutes in
*[!0-9]*)
    echo "TIME is \"$minutes\"; a whole number of minutes is expected" >&2
    exit 2
    ;;
esac

rounds=0
ended() {
    echo "nothing failed; minutes: $((SECONDS / 60)), whole rounds: $rounds"
    exit 0
}
trap ended INT TERM

# Runs one part of a round, `part NAME COMMAND...`, unless the time is over.
part() {
    local name=$1 started=$SECONDS
    shift
    if [[ -n $minutes ]] && ((SECONDS >= minutes * 60)); then
        ended
    fi
    echo "== round $((rounds + 1)), $name: $*"
    "$@" || {
        echo "failed; again: $*" >&2
        exit 1
    }
    echo "   $((SECONDS - started)) s"
}

while :; do
    seed=$((RANDOM << 30 | RANDOM << 15 | RANDOM))
    explore=("$python" -m pytest -q -m 'hypothesis or whole or slow' -p no:cacheprovider --whole --hypothesis-profile=explore "--hypothesis-seed=$seed")
    part 'Rust' env "PROPTEST_RNG_SEED=$seed" cargo test --workspace --quiet
    part 'Python' "${explore[@]}"
    part 'Python on an emulated card' env QAIC_DEVICE=kmd QAIC_KMD=emu "${explore[@]}"
    # `make test-scale` makes this environment.
    if [[ -x .venv-scale/bin/python ]]; then
        part 'Python, servers' .venv-scale/bin/python "${explore[@]:1}" tests/serving
    fi
    rounds=$((rounds + 1))
done
