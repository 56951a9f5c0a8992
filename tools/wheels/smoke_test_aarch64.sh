#!/usr/bin/env bash
# Use a wheel for AArch64 on another machine: tools/wheels/smoke_test_aarch64.sh WHEEL [PYTHON]
#
# The script unpacks Debian's Python for arm64 into target/tools/aarch64, installs nothing, and runs it in qemu's user mode. It needs
# Debian 12 with the architecture arm64 (tools/wheels/build.sh adds it), qemu-user, and a PYTHON of the host with pip.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
wheel=$(realpath "$1")
python=${2:-python3.11}
root=$here/../../target/tools/aarch64
# Newer versions use instructions that the qemu of Debian 12 (7.2) does not support.
engine='onnxruntime<1.26'

if ! command -v qemu-aarch64 >/dev/null; then
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        echo 'no qemu-aarch64: install the package qemu-user, or run this as root on Debian' >&2
        exit 1
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends qemu-user >/dev/null
fi

if [[ ! -x $root/usr/bin/python3.11 ]]; then
    aside=$(mktemp -d)
    trap 'rm -rf "$aside"' EXIT
    # Libraries of the interpreter and of the modules that pip's packages import.
    packages=(python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8
        libssl3 libbz2-1.0 liblzma5 libuuid1 libcrypt1 libsqlite3-0)
    (cd "$aside" && apt-get download -qq "${packages[@]/%/:arm64}")
    mkdir -p "$aside/root"
    for package in "$aside"/*.deb; do dpkg-deb --extract "$package" "$aside/root"; done
    mkdir -p "$(dirname "$root")"
    rm -rf "$root"
    mv "$aside/root" "$root"
fi
root=$(realpath "$root")

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tags=()
for glibc in manylinux_2_28 manylinux_2_27 manylinux_2_26 manylinux2014 manylinux_2_17; do tags+=(--platform "${glibc}_aarch64"); done
"$python" -m pip install --quiet --target "$folder/packages" --only-binary=:all: --python-version 3.11 --implementation cp \
    "${tags[@]}" --abi cp311 --abi abi3 --abi none "$wheel" "$engine"

# Commands of the wheel, started as on an AArch64 machine.
mkdir "$folder/bin"
emulated() {
    printf '#!/bin/sh\nexec qemu-aarch64 -L %q %q %s "$@"\n' "$root" "$root/usr/bin/python3.11" "$2" >"$folder/bin/$1"
    chmod +x "$folder/bin/$1"
}
emulated python ''
emulated openqaic '-m qaic'
emulated qaic-compile '-m qaic.cli.compile'
emulated qaic-runner '-m qaic.cli.runner'
(cd "$folder" && env -i HOME="$folder" PATH="$folder/bin:/usr/bin:/bin" PYTHONPATH="$folder/packages" PYTHONHOME="$root/usr" \
    python "$here/smoke_test.py")
