#!/bin/sh
# Lint, tests and builds of what is written in Rust: the wrapper server with its loader, the front, the load generator of
# the benchmarks. pytest runs the vectors and everything else against what is built here.
set -eu
cd "$(dirname "$0")/../.."
skipped="building and testing the wrapper server and the front"
. tests/crates/cargo.sh
echo "building and testing the wrapper server and the front (the first time takes three minutes)"
for crate in $crates; do
    # One directory for all, so that what they share is compiled once.
    set -- --quiet --locked --manifest-path "$crate/Cargo.toml" --target-dir wrapper/target
    # The loader has no standard library, and with it no tests.
    [ "$crate" = wrapper/loader ] && all="" || all=--all-targets
    cargo clippy "$@" $all -- -D warnings
    [ "$crate" = wrapper/loader ] || cargo test "$@"
done
# For the tests that hold its verdicts against the runner's.
cargo build --quiet --locked --manifest-path wrapper/Cargo.toml --example verdict
sh wrapper/build.sh
sh front/build.sh
