"""What makes a control plane a cluster that runs pods: containerd, kubelet, kube-proxy, CoreDNS, and the controllers.

Their configuration is data here. The kubelet is told to hold pods down: processes per pod, memory of the machine that
pods cannot have, and a disk that is a file of limited size.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from cluster import credentials
from cluster.layout import (
    DOMAIN,
    MIRRORED_REGISTRIES,
    NODE_ADDRESS,
    NODE_NAME,
    PAUSE_IMAGE,
    POD_RANGE,
    PROCESSES_PER_POD,
    Layout,
)

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
DNS_READY = "http://127.0.0.1:8181/ready"
_PLUGIN_DIRECTORIES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_UNLIMITED_RATE = ("--kube-api-qps=1000", "--kube-api-burst=2000", "--leader-elect=false", "--bind-address=127.0.0.1")

DNS_ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": credentials.DNS_USER},
    "rules": [
        {
            "apiGroups": [""],
            "resources": ["endpoints", "services", "pods", "namespaces", "nodes"],
            "verbs": ["get", "list", "watch"],
        },
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
    ],
}
DNS_ROLE_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": credentials.DNS_USER},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": credentials.DNS_USER},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": credentials.DNS_USER}],
}


def containerd(layout: Layout, hosts: Path) -> list[str | Path]:
    network = layout.run / "cni"
    network.mkdir(exist_ok=True)
    (network / "10-krm-runner.conflist").write_text(json.dumps(_pod_network(layout)))
    plugins = next((path for path in _PLUGIN_DIRECTORIES if path.is_dir()), _PLUGIN_DIRECTORIES[0])
    file = layout.run / "containerd.toml"
    file.write_text(f"""
version = 2
root = "{layout.run}/disk/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  stream_server_address = "127.0.0.1"
  # Root may lack CAP_SYS_RESOURCE, as in a container: its oom_score_adj cannot be lowered.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{network}"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{hosts}"
""")
    return ["containerd", "--config", file]


def _pod_network(layout: Layout) -> dict[str, object]:
    addresses = {
        "type": "host-local",
        "dataDir": f"{layout.run}/disk/pod-addresses",
        "ranges": [[{"subnet": POD_RANGE}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "pods0", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "krm-runner", "plugins": [bridge]}


def controllers(layout: Layout) -> list[str | Path]:
    return [
        layout.kube,
        "kube-controller-manager",
        f"--kubeconfig={layout.kubeconfig(credentials.CONTROLLERS_USER)}",
        *_UNLIMITED_RATE,
        f"--service-account-private-key-file={layout.key('service-account')}",
        f"--root-ca-file={layout.certificate('ca')}",
        "--use-service-account-credentials=true",
        f"--cluster-signing-cert-file={layout.certificate('ca')}",
        f"--cluster-signing-key-file={layout.key('ca')}",
        f"--cert-dir={layout.run / 'controllers'}",
    ]


def scheduler(layout: Layout) -> list[str | Path]:
    kubeconfig = f"--kubeconfig={layout.kubeconfig(credentials.SCHEDULER_USER)}"
    return [layout.kube, "kube-scheduler", kubeconfig, *_UNLIMITED_RATE, f"--cert-dir={layout.run / 'scheduler'}"]


def kubelet(layout: Layout) -> list[str | Path]:
    disk = layout.run / "disk"
    # Pods are never evicted for want of room on the machine: a test would fail for a reason that is not its own.
    # What a pod may write is bounded by its own limit, and by the size of the disk.
    thresholds = (
        "memory.available",
        "nodefs.available",
        "nodefs.inodesFree",
        "imagefs.available",
        "imagefs.inodesFree",
    )
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "healthzBindAddress": "127.0.0.1",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.certificate("ca"))},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.certificate("kubelet")),
        "tlsPrivateKeyFile": str(layout.key("kubelet")),
        "clusterDNS": [NODE_ADDRESS],
        "clusterDomain": DOMAIN,
        "resolvConf": str(layout.resolv_conf),
        "podLogsDir": f"{disk}/pod-logs",
        "volumePluginDir": f"{disk}/volume-plugins",
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        # 0 would not mean without limit, but the client's default of five a second: tests would wait for their events.
        "eventRecordQPS": 1000,
        "eventBurst": 1000,
        "imageGCHighThresholdPercent": 100,
        # How much an emptyDir holds is measured every two to four seconds. The default is one to two minutes.
        "volumeStatsAggPeriod": "2s",
        "evictionHard": dict.fromkeys(thresholds, "0%"),
        "podPidsLimit": PROCESSES_PER_POD,
        "maxPods": 250,
        "systemReserved": {"memory": str(_half_of_the_memory()), "pid": "4000"},
    }
    file = layout.run / "kubelet.json"
    file.write_text(json.dumps(configuration, indent=2))
    return [
        layout.kube,
        "kubelet",
        f"--config={file}",
        f"--kubeconfig={layout.kubeconfig(credentials.NODE_USER)}",
        f"--root-dir={disk}/kubelet",
        f"--cert-dir={layout.run / 'kubelet'}",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={NODE_ADDRESS}",
    ]


def _half_of_the_memory() -> int:
    """All pods together never have more than the other half."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def proxy(layout: Layout) -> list[str | Path]:
    configuration = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(layout.kubeconfig(credentials.PROXY_USER))},
        "clusterCIDR": POD_RANGE,
        "hostnameOverride": NODE_NAME,
        "bindAddress": NODE_ADDRESS,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "nodePortAddresses": [f"{NODE_ADDRESS}/32"],
        "conntrack": {"maxPerCore": 0},
        "oomScoreAdj": 0,
        "nftables": {"minSyncPeriod": "0.1s", "syncPeriod": "30s"},
    }
    file = layout.run / "proxy.json"
    file.write_text(json.dumps(configuration, indent=2))
    return [layout.kube, "kube-proxy", f"--config={file}"]


def dns(layout: Layout) -> list[str | Path]:
    """Services and pods of the cluster; the mirrored registries at the node's address; nothing else exists."""
    file = layout.run / "Corefile"
    file.write_text(f"""
.:53 {{
  bind {NODE_ADDRESS}
  errors
  ready 127.0.0.1:8181
  kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
    kubeconfig {layout.kubeconfig(credentials.DNS_USER)}
    pods insecure
    ttl 1
  }}
  template IN A {" ".join(MIRRORED_REGISTRIES)} {{
    answer "{{{{ .Name }}}} 60 IN A {NODE_ADDRESS}"
  }}
  template IN ANY {" ".join(MIRRORED_REGISTRIES)} {{
    rcode NOERROR
  }}
  template ANY ANY . {{
    rcode NXDOMAIN
  }}
}}
""")
    return [layout.binaries / "coredns", "-conf", file]
