#!/bin/sh
# Builds every fuzz target on stable Rust, replays the regressions and seeds, and fuzzes each target for a short time.
#
# usage: fuzz/smoke.sh [seconds per target, default 10] [target ...]
set -eu

cd "$(dirname "$0")"
seconds=${1:-10}
[ $# -eq 0 ] || shift
targets=${*:-"qpc_open qpc_roundtrip network_desc io_desc metadata cpu_plan wire_vs_oracle stats_open protocol_replies uevents stored_rows"}

host=$(rustc -vV | sed -n 's/^host: //p')
target_dir=${CARGO_TARGET_DIR:-target}

# Coverage and address sanitizer are unstable options of a stable compiler. Naming the target keeps them away from build
# scripts and procedural macros, which run on the host.
RUSTC_BOOTSTRAP=1 \
RUSTFLAGS="-Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares \
-Ccodegen-units=1 \
-Zsanitizer=address \
--cfg fuzzing" \
    cargo build --release --bins --target "$host" --target-dir "$target_dir"

for name in $targets; do
    binary=$target_dir/$host/release/$name
    found=artifacts/$name
    grown=$target_dir/corpus/$name
    mkdir -p "$found" "$grown"
    echo "== $name"
    # Each input alone first: a failure names its file.
    find "regressions/$name" "corpus/$name" -type f ! -name .gitkeep -exec "$binary" -artifact_prefix="$found/" {} + 2>"$grown.log" ||
        { cat "$grown.log"; exit 1; }
    # New inputs go to the first folder, outside the repository; the seeds are only read.
    "$binary" -max_total_time="$seconds" -timeout=5 -rss_limit_mb=1024 -max_len=16384 \
        -artifact_prefix="$found/" -print_final_stats=1 -verbosity=0 "$grown" "corpus/$name" 2>"$grown.log" ||
        { cat "$grown.log"; exit 1; }
    grep -E 'number_of_executed_units|peak_rss_mb' "$grown.log"
done
