"""The inputs on which the embedded functions are compared with the catalog's: small ones, each for one reason.

Written as YAML in flow style, so that a row of a table is a line. Packages of many resources are files beside this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# The kinds of Kubernetes, and apiVersions that have some of them, had them once, or never had any.
KINDS = """
    APIService CSIDriver CSINode CSIStorageCapacity CertificateSigningRequest ClusterRole ComponentStatus ConfigMap
    ControllerRevision CronJob CustomResourceDefinition DaemonSet Deployment EndpointSlice Endpoints Event FlowSchema
    Gateway HorizontalPodAutoscaler Ingress IngressClass Job Lease LimitRange MutatingWebhookConfiguration NetworkPolicy
    Node NodeProxyOptions PersistentVolume PersistentVolumeClaim Pod PodAttachOptions PodDisruptionBudget PodExecOptions
    PodPortForwardOptions PodProxyOptions PodSecurityPolicy PodTemplate PriorityClass PriorityLevelConfiguration
    ReplicaSet ReplicationController ResourceQuota Role RuntimeClass Scale Secret Service ServiceAccount
    ServiceProxyOptions StatefulSet StorageClass ValidatingWebhookConfiguration VolumeAttachment
"""
API_VERSIONS = """
    v1 v2 admissionregistration.k8s.io/v1 admissionregistration.k8s.io/v1beta1 apiextensions.k8s.io/v1
    apiextensions.k8s.io/v1beta1 apiregistration.k8s.io/v1 apiregistration.k8s.io/v1beta1 apps/v1 apps/v1beta2
    autoscaling/v1 autoscaling/v2 autoscaling/v2beta1 autoscaling/v2beta2 batch/v1 batch/v1beta1
    certificates.k8s.io/v1 certificates.k8s.io/v1beta1 coordination.k8s.io/v1 coordination.k8s.io/v1beta1
    discovery.k8s.io/v1 discovery.k8s.io/v1beta1 events.k8s.io/v1 events.k8s.io/v1beta1 example.com/v1
    extensions/v1beta1 flowcontrol.apiserver.k8s.io/v1 flowcontrol.apiserver.k8s.io/v1beta1 gateway.networking.k8s.io/v1
    networking.k8s.io/v1 networking.k8s.io/v1beta1 node.k8s.io/v1 node.k8s.io/v1beta1 policy/v1 policy/v1beta1
    rbac.authorization.k8s.io/v1 rbac.authorization.k8s.io/v1beta1 scheduling.k8s.io/v1 scheduling.k8s.io/v1beta1
    storage.k8s.io/v1 storage.k8s.io/v1beta1
"""

# Reason, function config. The package is a ConfigMap in the namespace "old" and a Deployment in none.
CONFIGS = [
    ("namespace in a ConfigMap", "{apiVersion: v1, kind: ConfigMap, data: {namespace: staging}}"),
    ("no data", "{apiVersion: v1, kind: ConfigMap}"),
    ("data is null", "{apiVersion: v1, kind: ConfigMap, data: null}"),
    ("data is empty", "{apiVersion: v1, kind: ConfigMap, data: {}}"),
    ("data is a list", "{apiVersion: v1, kind: ConfigMap, data: [namespace]}"),
    ("data is text", "{apiVersion: v1, kind: ConfigMap, data: namespace}"),
    ("namespace is empty", '{apiVersion: v1, kind: ConfigMap, data: {namespace: ""}}'),
    ("namespace is null", "{apiVersion: v1, kind: ConfigMap, data: {namespace: null}}"),
    ("namespace is a number", "{apiVersion: v1, kind: ConfigMap, data: {namespace: 5}}"),
    ("namespace is a fraction", "{apiVersion: v1, kind: ConfigMap, data: {namespace: 1.5}}"),
    ("namespace is a number in quotes", '{apiVersion: v1, kind: ConfigMap, data: {namespace: "5"}}'),
    ("namespace is a boolean", "{apiVersion: v1, kind: ConfigMap, data: {namespace: true}}"),
    ("namespace is no boolean of YAML 1.2", "{apiVersion: v1, kind: ConfigMap, data: {namespace: no}}"),
    ("namespace is a list", "{apiVersion: v1, kind: ConfigMap, data: {namespace: [a]}}"),
    ("namespace is a mapping", "{apiVersion: v1, kind: ConfigMap, data: {namespace: {a: b}}}"),
    ("namespace has a quote", "{apiVersion: v1, kind: ConfigMap, data: {namespace: 'a\"b'}}"),
    ("namespace is not ASCII", "{apiVersion: v1, kind: ConfigMap, data: {namespace: süd}}"),
    ("namespace is the default", "{apiVersion: v1, kind: ConfigMap, data: {namespace: default}}"),
    ("another entry is a number", "{apiVersion: v1, kind: ConfigMap, data: {namespace: staging, x: 5}}"),
    ("another entry is null", "{apiVersion: v1, kind: ConfigMap, data: {namespace: staging, x: null}}"),
    ("a field that nobody knows", "{apiVersion: v1, kind: ConfigMap, data: {namespace: staging}, spec: {a: 1}}"),
    ("no metadata.name", "{apiVersion: v1, kind: ConfigMap, metadata: {}, data: {namespace: staging}}"),
    ("metadata is null", "{apiVersion: v1, kind: ConfigMap, metadata: null, data: {namespace: staging}}"),
    ("metadata is a list", "{apiVersion: v1, kind: ConfigMap, metadata: [a], data: {namespace: staging}}"),
    ("name is a number", "{apiVersion: v1, kind: ConfigMap, metadata: {name: 5}, data: {namespace: staging}}"),
    ("a label is a number", "{apiVersion: v1, kind: ConfigMap, metadata: {labels: {a: 5}}, data: {namespace: x}}"),
    (
        "an annotation is a boolean",
        "{apiVersion: v1, kind: ConfigMap, metadata: {annotations: {a: true}}, data: {namespace: staging}}",
    ),
    ("a local config", "{apiVersion: v1, kind: ConfigMap, data: {namespace: staging}, metadata: {annotations: "
                       '{config.kubernetes.io/local-config: "true"}}}'),
    ("the Kptfile's", "{apiVersion: v1, kind: ConfigMap, metadata: {name: kptfile.kpt.dev}, data: {name: staging}}"),
    (
        "the Kptfile's, with a namespace",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: kptfile.kpt.dev}, data: {name: a, namespace: staging}}",
    ),
    ("the Kptfile's, empty", "{apiVersion: v1, kind: ConfigMap, metadata: {name: kptfile.kpt.dev}, data: {}}"),
    (
        "the Kptfile's, a number",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: kptfile.kpt.dev}, data: {name: 5}}",
    ),
    ("name, but not the Kptfile's", "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {name: staging}}"),
    ("empty", "{}"),
    ("no kind", "{apiVersion: v1, data: {namespace: staging}}"),
    ("no apiVersion", "{kind: ConfigMap, data: {namespace: staging}}"),
    ("an apiVersion that is none", "{apiVersion: a/b/c, kind: Other, data: {namespace: staging}}"),
    ("a ConfigMap of another version", "{apiVersion: v2, kind: ConfigMap, data: {namespace: staging}}"),
    ("a ConfigMap of another group", "{apiVersion: example.com/v1, kind: ConfigMap, data: {namespace: staging}}"),
    ("another kind", "{apiVersion: v1, kind: Secret, metadata: {name: a, namespace: b}, data: {namespace: staging}}"),
    ("SetNamespace", "{apiVersion: fn.kpt.dev/v1alpha1, kind: SetNamespace, namespace: staging}"),
    ("SetNamespace without a namespace", "{apiVersion: fn.kpt.dev/v1alpha1, kind: SetNamespace}"),
    ("SetNamespace, empty", '{apiVersion: fn.kpt.dev/v1alpha1, kind: SetNamespace, namespace: ""}'),
    ("SetNamespace, a number", "{apiVersion: fn.kpt.dev/v1alpha1, kind: SetNamespace, namespace: 5}"),
    ("SetNamespace, null", "{apiVersion: fn.kpt.dev/v1alpha1, kind: SetNamespace, namespace: null}"),
    ("SetNamespace with data", "{apiVersion: fn.kpt.dev/v1alpha1, kind: SetNamespace, data: {namespace: staging}}"),
    ("SetNamespace of another version", "{apiVersion: fn.kpt.dev/v1, kind: SetNamespace, namespace: staging}"),
    ("SetNamespace of another group", "{apiVersion: example.com/v1alpha1, kind: SetNamespace, namespace: staging}"),
    (
        "an error in a config from a file",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, annotations: {internal.config.kubernetes.io/path: "
        'fn.yaml, internal.config.kubernetes.io/index: "2"}}, data: {}}',
    ),
    (
        "an error in the first config of a file",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: b, annotations: "
        '{internal.config.kubernetes.io/path: fn.yaml, internal.config.kubernetes.io/index: "0"}}, data: {}}',
    ),
    ("a matcher", "{apiVersion: v1, kind: ConfigMap, data: {namespace: staging, namespaceMatcher: old}}"),
    ("a matcher of the default", "{apiVersion: v1, kind: ConfigMap, data: {namespace: a, namespaceMatcher: default}}"),
    ("a matcher of nothing", "{apiVersion: v1, kind: ConfigMap, data: {namespace: staging, namespaceMatcher: none}}"),
    ("a matcher that is a number", "{apiVersion: v1, kind: ConfigMap, data: {namespace: a, namespaceMatcher: 5}}"),
    (
        "a matcher in SetNamespace",
        "{apiVersion: fn.kpt.dev/v1alpha1, kind: SetNamespace, namespace: staging, namespaceMatcher: old}",
    ),
    (
        "a matcher in SetNamespace that is a boolean",
        "{apiVersion: fn.kpt.dev/v1alpha1, kind: SetNamespace, namespace: staging, namespaceMatcher: true}",
    ),
    ("null", "null"),
    ("text", "staging"),
    ("a list", "[namespace]"),
]  # fmt: skip

# Reason, resources.
RESOURCES = [
    ("nothing", ""),
    ("no namespace", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}"),
    ("the namespace already", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: staging}}"),
    ("namespace is empty", '{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: ""}}'),
    ("namespace is null", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: null}}"),
    ("namespace is a number", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: 5}}"),
    ("namespace is no boolean of YAML 1.2", "{apiVersion: v1, kind: Secret, metadata: {name: a, namespace: no}}"),
    ("namespace is a list", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: [x]}}"),
    ("namespace is a mapping", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: {x: y}}}"),
    ("namespace in quotes", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: 'old'}}"),
    ("no metadata", "{apiVersion: apps/v1, kind: Deployment}"),
    ("metadata is empty", "{apiVersion: apps/v1, kind: Deployment, metadata: {}}"),
    ("metadata is null", "{apiVersion: apps/v1, kind: Deployment, metadata: null}"),
    ("metadata is a list", "{apiVersion: apps/v1, kind: Deployment, metadata: [a]}"),
    ("metadata of a custom resource is null", "{apiVersion: example.com/v1, kind: Shop, metadata: null}"),
    ("a custom resource without a namespace", "{apiVersion: example.com/v1, kind: Shop, metadata: {name: a}}"),
    ("a custom resource's is null", "{apiVersion: example.com/v1, kind: Shop, metadata: {name: a, namespace: null}}"),
    ("a custom resource's is a number", "{apiVersion: example.com/v1, kind: Shop, metadata: {name: a, namespace: 5}}"),
    ("one after another that is wrong", "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: x}}\n"
     "{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: 5}}\n"
     "{apiVersion: v1, kind: Pod, metadata: {name: c, namespace: x}}"),
    ("no kind", "{apiVersion: v1, metadata: {name: a}}"),
    ("no apiVersion", "{kind: Deployment, metadata: {name: a}}"),
    ("neither", "{metadata: {name: a, namespace: old}}"),
    ("an apiVersion that is none", "{apiVersion: a/b/c, kind: Deployment, metadata: {name: a}}"),
    ("an empty resource", "{}"),
    ("three old namespaces", "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: x}}\n"
     "{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: y}}\n"
     "{apiVersion: v1, kind: Pod, metadata: {name: c}}"),
    ("a Namespace", "{apiVersion: v1, kind: Namespace, metadata: {name: old}}"),
    ("the Namespace already", "{apiVersion: v1, kind: Namespace, metadata: {name: staging}}"),
    ("a Namespace without a name", "{apiVersion: v1, kind: Namespace, metadata: {}}"),
    ("a Namespace without metadata", "{apiVersion: v1, kind: Namespace}"),
    ("a Namespace whose name is a number", "{apiVersion: v1, kind: Namespace, metadata: {name: 5}}"),
    ("a Namespace with a namespace", "{apiVersion: v1, kind: Namespace, metadata: {name: old, namespace: old}}"),
    ("a Namespace of another group", "{apiVersion: example.com/v1, kind: Namespace, metadata: {name: old}}"),
    ("a Namespace of another version", "{apiVersion: v2, kind: Namespace, metadata: {name: old}}"),
    ("a local Namespace", "{apiVersion: v1, kind: Namespace, metadata: {name: old, annotations: "
     '{config.kubernetes.io/local-config: "true"}}}'),
    ("local-config is false", "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: "
     '{config.kubernetes.io/local-config: "false"}}}'),
    ("local-config is empty", "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: "
     '{config.kubernetes.io/local-config: ""}}}'),
    ("local-config is a boolean", "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: "
     "{config.kubernetes.io/local-config: true}}}"),
    ("local-config is some text", "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: "
     "{config.kubernetes.io/local-config: yes}}}"),
    ("a CRD with a webhook", "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, "
     "metadata: {name: a}, spec: {conversion: {webhook: {clientConfig: {service: {name: s, namespace: old}}}}}}"),
    ("a CRD with a webhook in no namespace", "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, "
     "metadata: {name: a}, spec: {conversion: {webhook: {clientConfig: {service: {name: s}}}}}}"),
    ("a CRD without a webhook", "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, "
     "metadata: {name: a}, spec: {group: example.com, conversion: {strategy: None}}}"),
    ("a CRD without a spec", "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, "
     "metadata: {name: a}}"),
    ("a CRD whose conversion is null", "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, "
     "metadata: {name: a}, spec: {conversion: null}}"),
    ("a CRD whose webhook's namespace is a number", "{apiVersion: apiextensions.k8s.io/v1, "
     "kind: CustomResourceDefinition, spec: {conversion: {webhook: {clientConfig: {service: {namespace: 5}}}}}}"),
    ("a CRD of v1beta1", "{apiVersion: apiextensions.k8s.io/v1beta1, kind: CustomResourceDefinition, "
     "metadata: {name: a}, spec: {conversion: {webhook: {clientConfig: {service: {namespace: old}}}}}}"),
    ("an APIService", "{apiVersion: apiregistration.k8s.io/v1, kind: APIService, spec: {service: {namespace: old}}}"),
    ("a local APIService", "{apiVersion: apiregistration.k8s.io/v1, kind: APIService, spec: {group: x}}"),
    ("an APIService whose service is null", "{apiVersion: apiregistration.k8s.io/v1, kind: APIService, "
     "spec: {service: null}}"),
    ("an APIService of v1beta1", "{apiVersion: apiregistration.k8s.io/v1beta1, kind: APIService, "
     "spec: {service: {namespace: old}}}"),
    ("an APIService of the core group", "{apiVersion: v1, kind: APIService, spec: {service: {namespace: old}}}"),
]  # fmt: skip

_RBAC = "{apiVersion: rbac.authorization.k8s.io/v1, "
_ROLE_BINDING = _RBAC + "kind: RoleBinding, metadata: {name: a, namespace: x}, %s}"
_CLUSTER_ROLE_BINDING = _RBAC + "kind: ClusterRoleBinding, metadata: {name: a}, %s}"
SUBJECTS = [
    ("one with a namespace", "subjects: [{kind: ServiceAccount, name: a, namespace: old}]"),
    ("one without", "subjects: [{kind: User, name: a}]"),
    ("both", "subjects: [{kind: User, name: a}, {namespace: old, kind: ServiceAccount, name: a}]"),
    ("one in the namespace already", "subjects: [{kind: ServiceAccount, name: a, namespace: staging}]"),
    ("one with an empty namespace", 'subjects: [{kind: ServiceAccount, name: a, namespace: ""}]'),
    ("one whose namespace is null", "subjects: [{kind: ServiceAccount, name: a, namespace: null}]"),
    ("one whose namespace is a number", "subjects: [{kind: ServiceAccount, name: a, namespace: 5}]"),
    ("the field is empty", "subjects: []"),
    ("the field is null", "subjects: null"),
    ("the field is text", "subjects: a"),
    ("one is text", "subjects: [{kind: ServiceAccount, name: a, namespace: old}, text]"),
    ("no field", "roleRef: {kind: Role, name: r}"),
]

# Reason, depends-on annotation of a Deployment "b" in the namespace "old". The package has a Deployment "a" and a
# ConfigMap "a" there, too, a Shop (example.com/v1) "a" in "other", and a Namespace "old".
DEPENDS_ON = [
    ("one of the package", "apps/namespaces/old/Deployment/a"),
    ("itself", "apps/namespaces/old/Deployment/b"),
    ("one of the core group", "/namespaces/old/ConfigMap/a"),
    ("one of the core group, by version", "v1/namespaces/old/ConfigMap/a"),
    ("one that is not in the package", "apps/namespaces/old/Deployment/c"),
    ("another kind", "apps/namespaces/old/StatefulSet/a"),
    ("one of another namespace", "apps/namespaces/other/Deployment/a"),
    ("a custom resource", "example.com/namespaces/other/Shop/a"),
    ("a custom resource, not where it was", "example.com/namespaces/old/Shop/a"),
    ("one where it is going", "apps/namespaces/staging/Deployment/a"),
    ("a cluster-scoped one", "/Namespace/old"),
    ("a Namespace, as if it had one", "v1/namespaces/old/Namespace/staging"),
    ("two of them", "apps/namespaces/old/Deployment/a, apps/namespaces/old/Deployment/b"),
    ("nothing", '""'),
    ("a number", "5"),
    ("not a reference", "apps/old/Deployment/a"),
    ("a name that is not ASCII", "apps/namespaces/old/Deployment/ä"),
]

# Reason, annotation internal.kpt.dev/upstream-identifier.
UPSTREAM = [
    ("the same namespace", "apps|Deployment|old|a"),
    ("another namespace", "apps|Deployment|upstream|a"),
    ("no namespace", "apps|Deployment|~C|a"),
    ("the core group", '"|ConfigMap|upstream|a"'),
    ("spaces around it", '" apps|Deployment|upstream|a "'),
    ("more than the format asks for", "apps|Deployment|upstream|a.b|c"),
    ("malformed", "apps|Deployment"),
    ("a kind in lower case", "apps|deployment|upstream|a"),
    ("empty", '""'),
    ("a number", "5"),
]

STAGING = "{apiVersion: v1, kind: ConfigMap, metadata: {name: config}, data: {namespace: staging}}"
MATCHING = "{apiVersion: v1, kind: ConfigMap, data: {namespace: staging, namespaceMatcher: %s}}"
ONE = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: old}}"
TWO = f"{ONE}\n{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: b}}}}"
HEAD = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n"

# Reason, the whole input.
LISTS = [
    ("comments everywhere", """# head
apiVersion: config.kubernetes.io/v1 # version
kind: ResourceList
# of the config
functionConfig: # and here
  apiVersion: v1
  kind: ConfigMap # kind
  data:
    namespace: staging # wanted
# of the items
items: # list
# of the first
- apiVersion: v1
  kind: ConfigMap
  metadata:
    name: a # name
    # above
    namespace: old # line
    # below
  data: {a: b} # flow
# of the second
- apiVersion: apps/v1
  kind: Deployment
  metadata:
    name: b # last
# foot
"""),
    ("comments in a role binding", HEAD + "functionConfig: " + STAGING + """
items:
- apiVersion: rbac.authorization.k8s.io/v1
  kind: RoleBinding
  metadata:
    name: a # name
    namespace: old # line
  subjects: # list
  # of a subject
  - kind: ServiceAccount
    name: a # account
    namespace: old # home
  roleRef: # role
    name: b
"""),
    ("comments in a cluster role binding", HEAD + "functionConfig: " + STAGING + """
items:
- apiVersion: rbac.authorization.k8s.io/v1
  kind: ClusterRoleBinding
  metadata:
    name: a # name
  subjects:
  - kind: ServiceAccount
    name: a # account
    namespace: old # home
"""),
    ("comments in a CRD", HEAD + "functionConfig: " + STAGING + """
items:
- apiVersion: apiextensions.k8s.io/v1
  kind: CustomResourceDefinition
  metadata:
    name: a
  spec:
    conversion: # how
      webhook:
        clientConfig:
          service:
            # where
            namespace: old # home
"""),
    ("text of many lines", HEAD + "functionConfig: " + STAGING + """
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: a, namespace: old}
  data:
    a: |
      # not a comment
        namespace: old
    b: >-
      folded
      text
    c: "yes"
    d: 'on'
"""),
    ("lines that end as on Windows", f"{HEAD}functionConfig: {STAGING}\nitems:\n- {ONE}\n".replace("\n", "\r\n")),
    ("JSON", '{"apiVersion": "config.kubernetes.io/v1", "kind": "ResourceList", "functionConfig": {"apiVersion": "v1", '
     '"kind": "ConfigMap", "data": {"namespace": "staging"}}, "items": [{"apiVersion": "v1", "kind": "Pod", '
     '"metadata": {"name": "a"}}]}'),
    ("no items", HEAD + f"functionConfig: {STAGING}\n"),
    ("no config", HEAD + f"items:\n- {ONE}\n"),
    ("neither", HEAD),
    ("an older version of the list", HEAD.replace("/v1", "/v1alpha1") + f"functionConfig: {STAGING}\n"),
    ("another kind of list", f"apiVersion: v1\nkind: List\nfunctionConfig: {STAGING}\nitems:\n- {ONE}\n"),
    ("items is null", HEAD + f"functionConfig: {STAGING}\nitems: null\n"),
    ("items is text", HEAD + f"functionConfig: {STAGING}\nitems: a\n"),
    ("an item is text", HEAD + f"functionConfig: {STAGING}\nitems: [a]\n"),
    ("an item is null", HEAD + f"functionConfig: {STAGING}\nitems: [null]\n"),
    ("two documents", HEAD + f"functionConfig: {STAGING}\n---\n{HEAD}"),
    ("broken YAML", HEAD + "items: [\n"),
    ("nothing at all", ""),
    ("results of an earlier function", HEAD + f"functionConfig: {STAGING}\nitems:\n- {ONE}\n"
     "results:\n- {message: earlier, severity: warning}\n"),
    ("an error of an earlier function", HEAD + f"functionConfig: {STAGING}\n"
     "results:\n- {message: earlier, severity: error}\n"),
    ("an anchor elsewhere", HEAD + f"functionConfig: {STAGING}\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n"
     "  metadata: {name: a, namespace: old}\n  data: {a: &x text, b: *x}\n"),
    ("an alias for the namespace", HEAD + f"functionConfig: {STAGING}\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n"
     "  metadata: {name: &x a, namespace: *x}\n"),
]  # fmt: skip

DUPLICATES = [
    ("there twice", "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: x}}\n" * 2),
    ("twice after the change", "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: x}}\n"
     "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: y}}"),
    ("twice, and local", "{apiVersion: v1, kind: A, metadata: {name: a, annotations: "
     '{config.kubernetes.io/local-config: "true"}}}\n' * 2),
    ("two Namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: x}}\n"
     "{apiVersion: v1, kind: Namespace, metadata: {name: y}}"),
    ("two versions of a kind", "{apiVersion: batch/v1, kind: CronJob, metadata: {name: a}}\n"
     "{apiVersion: batch/v1beta1, kind: CronJob, metadata: {name: a}}"),
]  # fmt: skip


def package(resources: str, config: str = STAGING) -> str:
    """A ResourceList of resources, one in a line."""
    items = "".join(f"- {resource}\n" for resource in resources.splitlines())
    return f"{HEAD}functionConfig: {config}\nitems:{' []' if not items else ''}\n{items}"


def inputs() -> Iterator[tuple[str, str]]:
    """Every input, with its reason."""
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        yield f"file: {path.stem}", path.read_text()
    yield from ((f"list: {reason}", text) for reason, text in LISTS)
    yield from ((f"config: {reason}", package(TWO, config)) for reason, config in CONFIGS)
    yield from ((f"resource: {reason}", package(resources)) for reason, resources in (*RESOURCES, *DUPLICATES))
    for version in API_VERSIONS.split():
        without = [f"{{apiVersion: {version}, kind: {kind}, metadata: {{name: a}}}}" for kind in KINDS.split()]
        within = [
            f"{{apiVersion: {version}, kind: {kind}, metadata: {{name: b, namespace: old}}}}" for kind in KINDS.split()
        ]
        yield f"kinds: {version}", package("\n".join([*without, *within]))
    for matcher in ("", "old", "default"):
        config = MATCHING % matcher if matcher else STAGING
        suffix = f", matcher {matcher}" if matcher else ""
        for reason, subjects in SUBJECTS:
            yield f"role binding: {reason}{suffix}", package(_ROLE_BINDING % subjects, config)
            yield f"cluster role binding: {reason}{suffix}", package(_CLUSTER_ROLE_BINDING % subjects, config)
        for reason, reference in DEPENDS_ON:
            yield f"depends-on: {reason}{suffix}", package(_dependent(reference), config)
        if matcher == "default":
            for reason, resources in RESOURCES:
                yield f"resource: {reason}{suffix}", package(resources, config)
    for matcher in ("", "old", "upstream"):
        config = MATCHING % matcher if matcher else STAGING
        for reason, identifier in UPSTREAM:
            yield f"upstream: {reason}, matcher {matcher or 'none'}", package(_upstream(identifier), config)


def _dependent(reference: str) -> str:
    return (
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: old}}\n"
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: b, namespace: old, annotations: "
        f"{{config.kubernetes.io/depends-on: {reference if reference[0] == chr(34) else repr(reference)}}}}}}}\n"
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: old}}\n"
        "{apiVersion: example.com/v1, kind: Shop, metadata: {name: a, namespace: other}}\n"
        "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: c, annotations: "
        "{config.kubernetes.io/depends-on: apps/namespaces/old/Deployment/a}}}\n"
        "{apiVersion: v1, kind: Namespace, metadata: {name: old}}"
    )


def _upstream(identifier: str) -> str:
    annotation = f"annotations: {{internal.kpt.dev/upstream-identifier: {identifier}}}"
    return "\n".join(
        f"{{apiVersion: {version}, kind: {kind}, metadata: {{name: {name}, {annotation}}}}}"
        for version, kind, name in (
            ("apps/v1", "Deployment", "a, namespace: old"),
            ("v1", "ConfigMap", "a"),
            ("v1", "Namespace", "old"),
            ("example.com/v1", "Shop", "a, namespace: other"),
            ("rbac.authorization.k8s.io/v1", "ClusterRole", "a"),
        )
    )
