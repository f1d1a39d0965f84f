"""What functions must know of Kubernetes' own kinds: which of them live in a namespace."""

from __future__ import annotations

from krm_function.package import Resource

LOCAL_CONFIG = "config.kubernetes.io/local-config"

_BUILT_IN_GROUPS = frozenset(
    {
        "", "admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "apps", "autoscaling",
        "batch", "certificates.k8s.io", "coordination.k8s.io", "discovery.k8s.io", "events.k8s.io", "extensions",
        "flowcontrol.apiserver.k8s.io", "networking.k8s.io", "node.k8s.io", "policy", "rbac.authorization.k8s.io",
        "resource.k8s.io", "scheduling.k8s.io", "storage.k8s.io",
    }
)  # fmt: skip
_CLUSTER_SCOPED = frozenset(
    {
        "APIService", "CSIDriver", "CSINode", "CertificateSigningRequest", "ClusterRole", "ClusterRoleBinding",
        "ClusterTrustBundle", "ComponentStatus", "CustomResourceDefinition", "DeviceClass", "FlowSchema", "IPAddress",
        "IngressClass", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "MutatingWebhookConfiguration",
        "Namespace", "Node", "NodeProxyOptions", "PersistentVolume", "PodSecurityPolicy", "PriorityClass",
        "PriorityLevelConfiguration", "ResourceSlice", "RuntimeClass", "ServiceCIDR", "StorageClass",
        "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration",
        "VolumeAttachment", "VolumeAttributesClass",
    }
)  # fmt: skip


def is_namespaced(resource: Resource) -> bool:
    """Whether the resource lives in a namespace. Of kinds that are not built in, those that name one do."""
    if resource.group in _BUILT_IN_GROUPS:
        return resource.kind not in _CLUSTER_SCOPED
    return resource.at("metadata", "namespace") is not None


def is_local_config(resource: Resource) -> bool:
    """Whether the resource is only for tools and never applied to a cluster."""
    return resource.at("metadata", "annotations", LOCAL_CONFIG) not in (None, "", "false", False)
