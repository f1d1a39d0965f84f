#!/bin/sh
# build.sh [PROFILE]: builds the wrapper server as one static program, build/programs/PROFILE/wrapper-server, and packs it
# for ConfigMaps: wrapper-server-packed beside it, by pack.py, with the loader that unpacks it. The profile is cargo's:
# release (the default, which is shipped), or ci (which is tested).
# WRAPPER_TARGET chooses another target than this machine's own, a musl one for example.
set -eu
cd "$(dirname "$0")/.."
profile=${1:-release}
programs=build/programs/$profile
# With an explicit target the flags are not for build scripts and proc macros, which cannot be linked statically.
target=${WRAPPER_TARGET:-$(rustc -vV | sed -n 's/^host: //p')}
# Paths of this machine would be different in every build.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
remap="--remap-path-prefix=$PWD=. --remap-path-prefix=$cargo_home=cargo"
export RUSTFLAGS="-C target-feature=+crt-static $remap"
cargo build --quiet --locked --profile "$profile" --target "$target" --package wrapper-server
# The loader has no C library, and nobody to relocate it. It is not a member of the workspace, and always a release.
export RUSTFLAGS="-C relocation-model=static $remap"
cargo build --quiet --locked --release --target "$target" --manifest-path wrapper/loader/Cargo.toml --target-dir target
mkdir -p "$programs"
# Renamed into place: the program may be running.
for built in "$profile/wrapper-server" release/wrapper-server-loader; do
    cp "target/$target/$built" "$programs/${built#*/}.new"
    mv "$programs/${built#*/}.new" "$programs/${built#*/}"
done
# A Rust image has no Python: there the next stage of the build packs.
if command -v python3 >/dev/null; then python3 wrapper/pack.py "$programs"; fi
