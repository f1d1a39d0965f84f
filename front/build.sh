#!/bin/sh
# Builds the front, front/target/release/krm-front, and puts it beside the Python of this repository, where the runner
# looks for it. It is not static: names of pods are looked up by the system's own rules.
set -eu
cd "$(dirname "$0")"
# Paths of this machine would be different in every build.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="--remap-path-prefix=${PWD%/*}=. --remap-path-prefix=$cargo_home=cargo"
cargo build --quiet --locked --release "$@"
if [ -d ../.venv/bin ]; then
    # Not copied onto itself: the program may be running.
    cp target/release/krm-front ../.venv/bin/krm-front.new
    mv ../.venv/bin/krm-front.new ../.venv/bin/krm-front
fi
