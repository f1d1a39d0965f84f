#!/bin/sh
# Formatting, and the licences of everything that is linked into the wrapper server.
set -eu
skipped="checking the wrapper server"
. "$(dirname "$0")/cargo.sh"
cd "$(dirname "$0")"
cargo fmt --check
cargo metadata --quiet --locked --format-version 1 | python licences.py
