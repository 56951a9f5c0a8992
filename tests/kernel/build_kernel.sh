#!/usr/bin/env bash
# Builds the user mode kernel with the driver qaic from Debian's kernel source, once, and prints its path.
#
# The kernel is stored by the digest of source and options in $XDG_CACHE_HOME/openqaic, outside the tree. `--built` builds nothing,
# and fails if there is no kernel. KERNEL_SOURCE names an archive of the source that replaces Debian's. Exit code 77: the source or a
# tool is not available; the error message names it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/openqaic
source_package=linux-source-6.12
# Commands, and the packages of those whose package has another name.
tools=(flex bison bc xz make gcc)
declare -A packages=([xz]=xz-utils)

not_here() {
    echo "test-kernel: $1; without it nothing is checked against the real driver qaic" >&2
    exit 77
}

if [ "${1-}" = --built ]; then
    # If the source is no longer available, the newest kernel with these options is used.
    options=$(sha256sum "$here/config" | cut -c 1-8)
    newest=$(ls -td "$cache"/kernel-*-"$options"/linux 2>/dev/null | head -n 1)
    [ -n "$newest" ] || exit 1
    echo "$newest"
    exit 0
fi

if built=$("$0" --built); then
    echo "$built"
    exit 0
fi
[ "$(uname -m)" = x86_64 ] || not_here "a user mode kernel needs x86_64, this is $(uname -m)"
archive=${KERNEL_SOURCE:-/usr/src/$source_package.tar.xz}
missing=()
# Commands are checked, because dpkg-query also knows packages that other packages name but that are not installed.
for tool in "${tools[@]}"; do command -v "$tool" >/dev/null || missing+=("${packages[$tool]-$tool}"); done
[ -n "${KERNEL_SOURCE-}" ] || [ -e "$archive" ] || missing+=("$source_package")
if [ ${#missing[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || not_here "there is no apt-get to install ${missing[*]}"
    [ "$(id -u)" = 0 ] || not_here "installing ${missing[*]} takes root rights"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } >&2 ||
        not_here "apt-get cannot install ${missing[*]}"
fi
[ -e "$archive" ] || not_here "$archive is missing"

digest=$(sha256sum "$archive" | cut -c 1-16)-$(sha256sum "$here/config" | cut -c 1-8)
kept=$cache/kernel-$digest
mkdir -p "$kept"
exec 9>"$kept/lock"
flock 9
if [ ! -x "$kept/linux" ]; then
    work=$kept/build
    rm -rf "$work"
    mkdir -p "$work"
    echo "test-kernel: building the kernel of $source_package, about ten minutes; log in $kept/log" >&2
    tar --extract --file "$archive" --directory "$work" --strip-components 1
    {
        make -C "$work" ARCH=um tinyconfig
        cat "$here/config" >> "$work/.config"
        make -C "$work" ARCH=um olddefconfig
        make -C "$work" ARCH=um -j "$(nproc)" linux
    } >"$kept/log" 2>&1 9>&- || { tail -n 30 "$kept/log" >&2; not_here "the kernel did not build with $(gcc --version | head -n 1)"; }
    strip --strip-debug -o "$kept/linux.part" "$work/linux"
    # Explanations cite the source of the driver; the rest of the tree has a gigabyte.
    rm -rf "$kept/qaic" && cp -r "$work/drivers/accel/qaic" "$kept/qaic"
    cp "$work/.config" "$kept/config"
    mv "$kept/linux.part" "$kept/linux"
    rm -rf "$work"
fi
echo "$kept/linux"
