#!/usr/bin/env bash
# Build the published wheels in target/wheels: tools/wheels/build.sh PYTHON [x86_64] [aarch64]
#
# zig links them against glibc 2.28, so that they run on every distribution since 2018 (manylinux_2_28); maturin checks the
# symbols. The compiler for AArch64 is rustup's if that target is installed, otherwise Debian's, which this script installs as root.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=$1
shift
machines=("${@:-x86_64}")
out=target/wheels
tools=target/tools/wheels
glibc=manylinux_2_28

[[ -x $tools/bin/maturin ]] || "$python" -m venv "$tools"
"$tools/bin/python" -m pip install --quiet --upgrade 'pip>=25.1'
"$tools/bin/python" -m pip install --quiet --group release
mkdir -p "$out"

# Name the rustc that has the standard library of AArch64.
rustc_for_aarch64() {
    local rustc library
    for rustc in rustc /usr/bin/rustc; do
        library=$("$rustc" --print target-libdir --target aarch64-unknown-linux-gnu 2>/dev/null) || continue
        compgen -G "$library/libstd-*" >/dev/null && { command -v "$rustc"; return; }
    done
    return 1
}

install_rust_for_aarch64() {
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        echo 'no Rust for AArch64: run `rustup target add aarch64-unknown-linux-gnu`, or run this as root on Debian' >&2
        return 1
    fi
    dpkg --add-architecture arm64
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends rustc-web libstd-rust-web-dev:arm64 >/dev/null
}

for machine in "${machines[@]}"; do
    if [[ $machine == "$(uname -m)" ]]; then
        rustc=$(command -v rustc)
    elif [[ $machine == aarch64 ]]; then
        rustc=$(rustc_for_aarch64) || { install_rust_for_aarch64; rustc=$(rustc_for_aarch64); }
    else
        echo "no way is known here to build for $machine on $(uname -m)" >&2
        exit 1
    fi
    echo "building for $machine with $("$rustc" --version)"
    # A separate folder, because the compilers of two machines must not share their files.
    RUSTC=$rustc CARGO_TARGET_DIR=target/wheels-$machine PATH="$PWD/$tools/bin:$PATH" "$tools/bin/maturin" build \
        --release --locked --zig --target "$machine-unknown-linux-gnu" --compatibility "$glibc" --out "$out"
    wheel=$(ls -t "$out"/openqaic-*"$machine".whl | head -1)
    # Only names of the stable interface, so one wheel serves every Python from 3.11 on.
    "$tools/bin/abi3audit" --strict "$wheel"
    echo "$wheel: $(($(stat -c %s "$wheel") / 1024)) KiB"
done
