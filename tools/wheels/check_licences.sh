#!/usr/bin/env bash
# Compare the crates in THIRD-PARTY-LICENSES.md with the linked crates; `make licences` writes the file again.
set -euo pipefail
cd "$(dirname "$0")/../.."
linked() {
    cargo tree --locked --package qaic-python --edges normal --target x86_64-unknown-linux-gnu --target aarch64-unknown-linux-gnu \
        --prefix none | awk 'NF && !/\(\// { print "* " $1 " " substr($2, 2) }' | sort -u
}
diff <(linked) <(grep '^\* ' THIRD-PARTY-LICENSES.md | sort -u) ||
    { echo 'THIRD-PARTY-LICENSES.md (>) does not list what is linked (<): run `make licences`' >&2; exit 1; }
