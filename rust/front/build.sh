#!/bin/sh
# build.sh [PROFILE]: builds the front, build/programs/PROFILE/krm-front, and puts it beside the Python of this repository,
# where the runner looks for it. The profile is cargo's: release (the default, which is shipped), or ci (which is tested).
# It is not static: names of pods are looked up by the system's own rules.
set -eu
cd "$(dirname "$0")/../.."
profile=${1:-release}
programs=build/programs/$profile
features=
[ "$profile" != ci ] || features="--features faults"
if [ "$profile" = release ]; then
    # Paths of this machine would be different in every build. Elsewhere the flags of `cargo test` are kept, and with them
    # what it has compiled.
    cargo_home=${CARGO_HOME:-$HOME/.cargo}
    export RUSTFLAGS="--remap-path-prefix=$PWD=. --remap-path-prefix=$cargo_home=cargo"
fi
cargo build --quiet --locked --profile "$profile" $features --package krm-front
mkdir -p "$programs"
# Renamed into place: the program may be running.
for directory in "$programs" .venv/bin; do
    if [ -d "$directory" ]; then
        cp "target/$profile/krm-front" "$directory/krm-front.new"
        mv "$directory/krm-front.new" "$directory/krm-front"
    fi
done
