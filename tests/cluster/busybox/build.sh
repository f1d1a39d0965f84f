#!/bin/sh
# build.sh DIRECTORY: busybox from Debian's source, linked with Debian's musl, and that library, as in Alpine's images.
set -eu
directory=$(cd "$1" && pwd)
applets=$(cd "$(dirname "$0")" && pwd)/applets
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# The sources of this machine's own packages, from where those come; its list of packages is left alone.
mkdir -p sources lists/partial
sed -s '$G' /etc/apt/sources.list.d/debian.sources 2>/dev/null | sed 's/^Types:.*/Types: deb-src/' >sources/own.sources
grep -h '^deb .*debian' /etc/apt/sources.list 2>/dev/null | sed 's/^deb /deb-src /' >sources/own.list || true
apt() {
    apt-get -qq -o APT::Sandbox::User=root -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/sources" \
        -o Dir::State::Lists="$work/lists" "$@"
}
apt update
apt --download-only source busybox >/dev/null
tar -xjf busybox_*.orig.tar.bz2
cd busybox-*/

# The tools of the build too: there may be no other C library to build with.
build() {
    make CC=musl-gcc HOSTCC=musl-gcc "$@" >/dev/null
}
build allnoconfig
while read -r option; do
    sed -i "s/^# CONFIG_$option is not set/CONFIG_$option=y/" .config
done <"$applets"
yes '' | build oldconfig
build -j"$(nproc)" busybox
cp busybox "$directory/busybox"
cp /lib/ld-musl-*.so.1 "$directory/"
./busybox --list >"$directory/links"
