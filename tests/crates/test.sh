#!/bin/sh
# Lint and tests of what is written in Rust: the wrapper server, the front, the load generator of the
# benchmarks. pytest runs the vectors and everything else against what build.sh builds.
set -eu
cd "$(dirname "$0")/../.."
skipped="testing the wrapper server and the front"
. tests/crates/cargo.sh
echo "testing the wrapper server and the front (the first time takes two minutes)"
cargo clippy --quiet --locked --profile ci --workspace --all-features --all-targets -- -D warnings
# Builds examples/verdict as well, for the tests that hold its verdicts against the runner's.
cargo test --quiet --locked --profile ci --workspace --all-features
