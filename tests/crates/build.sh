#!/bin/sh
# Builds what is written in Rust as the tests use it: build/programs/ci. Does nothing where it is up to date.
set -eu
cd "$(dirname "$0")/../.."
skipped="building the wrapper server and the front"
. tests/crates/cargo.sh
sh rust/wrapper/build.sh ci
sh rust/front/build.sh ci
