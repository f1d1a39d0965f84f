#!/bin/sh
# in-cluster.sh ACCOUNT RESOLV_CONF COMMAND...: run by `unshare --mount`, so that nobody else sees it. The command finds
# the files of its ServiceAccount and its DNS where they are in a container of a pod.
set -eu
account=$1 resolv_conf=$2
shift 2
target=$(readlink -f /etc/resolv.conf)
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/secrets/kubernetes.io/serviceaccount "$(dirname "$target")"
[ -e "$target" ] || : >"$target"
mount --bind "$account" /run/secrets/kubernetes.io/serviceaccount
mount --bind "$resolv_conf" "$target"
exec "$@"
