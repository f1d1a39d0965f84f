#!/bin/sh
# Builds the wrapper server as one static program: wrapper/target/release/wrapper-server.
# WRAPPER_TARGET chooses another target than this machine's own, a musl one for example.
set -eu
cd "$(dirname "$0")"
# With an explicit target the flags are not for build scripts and proc macros, which cannot be linked statically.
target=${WRAPPER_TARGET:-$(rustc -vV | sed -n 's/^host: //p')}
# Paths of this machine would be different in every build.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=$PWD=wrapper --remap-path-prefix=$cargo_home=cargo"
cargo build --quiet --locked --release --target "$target" "$@"
mkdir -p target/release
# Not copied onto itself: the program may be running.
cp "target/$target/release/wrapper-server" target/release/wrapper-server.new
mv target/release/wrapper-server.new target/release/wrapper-server
