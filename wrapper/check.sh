#!/bin/sh
# Formatting, and the licences of everything that is linked into the wrapper server and its loader.
set -eu
skipped="checking the wrapper server"
. "$(dirname "$0")/cargo.sh"
cd "$(dirname "$0")"
for crate in . loader; do
    cargo fmt --check --manifest-path "$crate/Cargo.toml"
    cargo metadata --quiet --locked --format-version 1 --manifest-path "$crate/Cargo.toml" | python licences.py
done
