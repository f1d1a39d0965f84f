#!/bin/sh
# build.sh [PROFILE]: builds the wrapper server as one static program, build/programs/PROFILE/wrapper-server. The profile
# is cargo's: release (the default, which is shipped), or ci (which is tested).
# WRAPPER_TARGET chooses another target than this machine's own, a musl one for example.
set -eu
cd "$(dirname "$0")/../.."
profile=${1:-release}
programs=build/programs/$profile
features=
[ "$profile" != ci ] || features="--features faults"
# With an explicit target the flags are not for build scripts and proc macros, which cannot be linked statically.
target=${WRAPPER_TARGET:-$(rustc -vV | sed -n 's/^host: //p')}
# Paths of this machine would be different in every build.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
remap="--remap-path-prefix=$PWD=. --remap-path-prefix=$cargo_home=cargo"
export RUSTFLAGS="-C target-feature=+crt-static $remap"
cargo build --quiet --locked --profile "$profile" --target "$target" $features --package wrapper-server
mkdir -p "$programs"
# Renamed into place: the program may be running.
cp "target/$target/$profile/wrapper-server" "$programs/wrapper-server.new"
mv "$programs/wrapper-server.new" "$programs/wrapper-server"
