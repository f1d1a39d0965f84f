"""Answer two questions about a resource: does it live in a namespace, and is it applied to a cluster at all?"""

from __future__ import annotations

from krm_function.document import is_mapping
from krm_function.package import Resource

LOCAL_CONFIG = "config.kubernetes.io/local-config"

# The kinds that the catalog's functions know, by apiVersion. Newer ones (HorizontalPodAutoscaler of autoscaling/v2) are
# not among them, and must not be added: the embedded functions reproduce the catalog's.
_NAMESPACED = {
    "apps/v1": {"ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"},
    "autoscaling/v1": {"HorizontalPodAutoscaler", "Scale"},
    "autoscaling/v2beta1": {"HorizontalPodAutoscaler"},
    "autoscaling/v2beta2": {"HorizontalPodAutoscaler"},
    "batch/v1": {"CronJob", "Job"},
    "batch/v1beta1": {"CronJob"},
    "coordination.k8s.io/v1": {"Lease"},
    "coordination.k8s.io/v1beta1": {"Lease"},
    "discovery.k8s.io/v1": {"EndpointSlice"},
    "discovery.k8s.io/v1beta1": {"EndpointSlice"},
    "events.k8s.io/v1": {"Event"},
    "events.k8s.io/v1beta1": {"Event"},
    "extensions/v1beta1": {"Ingress"},
    "networking.k8s.io/v1": {"Ingress", "NetworkPolicy"},
    "networking.k8s.io/v1beta1": {"Ingress"},
    "policy/v1": {"PodDisruptionBudget"},
    "policy/v1beta1": {"PodDisruptionBudget"},
    "rbac.authorization.k8s.io/v1": {"Role", "RoleBinding"},
    "rbac.authorization.k8s.io/v1beta1": {"Role", "RoleBinding"},
    "storage.k8s.io/v1beta1": {"CSIStorageCapacity"},
    "v1": {
        "ConfigMap", "Endpoints", "Event", "LimitRange", "PersistentVolumeClaim", "Pod", "PodAttachOptions",
        "PodExecOptions", "PodPortForwardOptions", "PodProxyOptions", "PodTemplate", "ReplicationController",
        "ResourceQuota", "Secret", "Service", "ServiceAccount", "ServiceProxyOptions",
    },
}  # fmt: skip
_CLUSTER_SCOPED = {
    "admissionregistration.k8s.io/v1": {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"},
    "admissionregistration.k8s.io/v1beta1": {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"},
    "apiextensions.k8s.io/v1": {"CustomResourceDefinition"},
    "apiextensions.k8s.io/v1beta1": {"CustomResourceDefinition"},
    "apiregistration.k8s.io/v1": {"APIService"},
    "apiregistration.k8s.io/v1beta1": {"APIService"},
    "certificates.k8s.io/v1": {"CertificateSigningRequest"},
    "certificates.k8s.io/v1beta1": {"CertificateSigningRequest"},
    "flowcontrol.apiserver.k8s.io/v1beta1": {"FlowSchema", "PriorityLevelConfiguration"},
    "networking.k8s.io/v1": {"IngressClass"},
    "networking.k8s.io/v1beta1": {"IngressClass"},
    "node.k8s.io/v1": {"RuntimeClass"},
    "node.k8s.io/v1beta1": {"RuntimeClass"},
    "policy/v1beta1": {"PodSecurityPolicy"},
    "rbac.authorization.k8s.io/v1": {"ClusterRole", "ClusterRoleBinding"},
    "rbac.authorization.k8s.io/v1beta1": {"ClusterRole", "ClusterRoleBinding"},
    "scheduling.k8s.io/v1": {"PriorityClass"},
    "scheduling.k8s.io/v1beta1": {"PriorityClass"},
    "storage.k8s.io/v1": {"CSIDriver", "CSINode", "StorageClass", "VolumeAttachment"},
    "storage.k8s.io/v1beta1": {"CSIDriver", "CSINode", "StorageClass", "VolumeAttachment"},
    "v1": {"ComponentStatus", "Namespace", "Node", "NodeProxyOptions", "PersistentVolume"},
}


def is_namespaced(resource: Resource) -> bool:
    """Return whether the resource lives in a namespace.

    Of the kinds that the catalog's functions do not know, those live in one that have the field `metadata.namespace`.
    """
    if resource.kind in _NAMESPACED.get(resource.api_version, ()):
        return True
    if resource.kind in _CLUSTER_SCOPED.get(resource.api_version, ()):
        return False
    return has_namespace(resource)


def has_namespace(resource: Resource) -> bool:
    """Return whether the resource has the field `metadata.namespace`, or metadata that can have no fields."""
    metadata = resource.get("metadata", {})
    return not is_mapping(metadata) or "namespace" in metadata


def is_local_config(resource: Resource) -> bool:
    """Return whether the resource is only for tools and never applied to a cluster."""
    annotation = resource.at("metadata", "annotations", LOCAL_CONFIG)
    return isinstance(annotation, str) and annotation not in ("", "false")
