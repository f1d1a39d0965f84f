#!/bin/sh
# Builds the wrapper server as one static program, wrapper/target/release/wrapper-server, and packs it for ConfigMaps:
# wrapper-server-packed beside it, by pack.py, with the loader that unpacks it.
# WRAPPER_TARGET chooses another target than this machine's own, a musl one for example.
set -eu
cd "$(dirname "$0")"
# With an explicit target the flags are not for build scripts and proc macros, which cannot be linked statically.
target=${WRAPPER_TARGET:-$(rustc -vV | sed -n 's/^host: //p')}
# Paths of this machine would be different in every build.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=$PWD=wrapper --remap-path-prefix=$cargo_home=cargo"
cargo build --quiet --locked --release --target "$target" "$@"
# The loader has no C library, and nobody to relocate it.
export RUSTFLAGS="-C relocation-model=static --remap-path-prefix=$PWD=wrapper --remap-path-prefix=$cargo_home=cargo"
cargo build --quiet --locked --release --target "$target" --manifest-path loader/Cargo.toml --target-dir target
mkdir -p target/release
# Not copied onto itself: the program may be running.
for program in wrapper-server wrapper-server-loader; do
    cp "target/$target/release/$program" "target/release/$program.new"
    mv "target/release/$program.new" "target/release/$program"
done
# A Rust image has no Python: there the next stage of the build packs.
if command -v python3 >/dev/null; then python3 pack.py; fi
