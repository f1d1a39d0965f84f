#!/bin/sh
# Formatting of what is written in Rust, and the licences of everything that is linked into it.
set -eu
cd "$(dirname "$0")/../.."
skipped="checking what is written in Rust"
. tests/crates/cargo.sh
cargo fmt --all --check
cargo metadata --quiet --locked --format-version 1 | python tests/crates/licences.py
