#!/bin/sh
# enclose.sh INIT RUN NODE_ADDRESS SERVICE_RANGE: run by `unshare --net --mount --pid`; says the pid of the first process
# of the new pid namespace and, told to go on, makes that the cluster's home. When that process dies, everything in it
# dies, and mounts, interfaces, routes and rules go with the last. If nobody tells it to go on, it is gone at once.
set -eu
init=$1 run=$2 node_address=$3 service_range=$4
enclosed() {
    read -r _ <&3
    exec 3<&-
    mount --make-rshared /
    mount -t proc proc /proc

    # A network without an uplink. A bridge without ports is the node's interface: not every kernel has dummy ones.
    ip link set lo up
    ip link add node0 type bridge
    ip address add "$node_address/32" dev node0
    ip link set node0 up
    ip route add "$service_range" dev node0 src "$node_address"
    echo 1 >/proc/sys/net/ipv4/ip_forward

    # A disk of limited size, and a /run and a /var of its own for whatever has such a path built in.
    mkdir "$run/disk"
    mount -o loop "$run/disk.ext4" "$run/disk"
    mkdir "$run/disk/var" "$run/disk/var-work"
    mount -t overlay -o "lowerdir=/var,upperdir=$run/disk/var,workdir=$run/disk/var-work" overlay /var
    resolv_conf=$(readlink -f /etc/resolv.conf)
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir -p "$(dirname "$resolv_conf")"
    [ -e "$resolv_conf" ] || : >"$resolv_conf"
    mount --bind "$run/resolv.conf" "$resolv_conf"
    : >"$run/enclosed"
    exec "$init"
}
exec 3<&0
enclosed >"$run/log/enclosure.log" 2>&1 </dev/null &
echo $!
