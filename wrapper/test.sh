#!/bin/sh
# Lint, tests and a build of the wrapper server; the vectors are run by pytest against what is built here.
set -eu
skipped="building and testing the wrapper server"
. "$(dirname "$0")/cargo.sh"
cd "$(dirname "$0")"
echo "building and testing the wrapper server (the first time takes a minute or two)"
cargo clippy --quiet --locked --all-targets -- -D warnings
cargo clippy --quiet --locked --manifest-path loader/Cargo.toml --target-dir target -- -D warnings
cargo test --quiet --locked
# For the tests that hold its verdicts against the runner's.
cargo build --quiet --locked --example verdict
sh build.sh
