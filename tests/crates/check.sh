#!/bin/sh
# Formatting of what is written in Rust, and the licences of everything that is linked into it.
set -eu
cd "$(dirname "$0")/../.."
skipped="checking what is written in Rust"
. tests/crates/cargo.sh
for crate in $crates; do
    cargo fmt --check --manifest-path "$crate/Cargo.toml"
    cargo metadata --quiet --locked --format-version 1 --manifest-path "$crate/Cargo.toml" |
        python tests/crates/licences.py "$crate"
done
