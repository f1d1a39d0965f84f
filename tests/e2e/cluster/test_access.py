"""RBAC with a ServiceAccount's own token, and the audit log that tells who asked for what."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from cluster.full import FullCluster
from support.audit import AuditLog
from support.in_cluster import InCluster
from support.kube import Json, wait_until
from support.namespace import Namespace

# What any client library does in a pod: token and certificate from their files, the address from the environment.
LIST_PODS = """
import json, os, ssl, urllib.error, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount"
namespace = open(f"{account}/namespace").read()
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
request = urllib.request.Request(
    f"https://{host}:{port}/api/v1/namespaces/{namespace}/pods",
    headers={"Authorization": "Bearer " + open(f"{account}/token").read()},
)
context = ssl.create_default_context(cafile=f"{account}/ca.crt")
try:
    with urllib.request.urlopen(request, context=context, timeout=30) as answer:
        print(json.dumps([answer.status, json.load(answer)["kind"]]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, json.load(error)["message"]]))
"""


def list_pods(place: InCluster) -> list[object]:
    done = subprocess.run(
        [*place.prefix, sys.executable, "-c", LIST_PODS],
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: list[object] = json.loads(done.stdout)
    return answer


def grant(namespace: Namespace, service_account: str, *verbs: str) -> None:
    api = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": list(verbs)}]
    namespace.create({**api, "kind": "Role", "rules": rules}, "tested")
    subject = {"kind": "ServiceAccount", "name": service_account, "namespace": namespace.name}
    role: Json = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tested"}
    namespace.create({**api, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]}, "tested")


def test_what_is_not_granted_is_denied(namespace: Namespace, in_cluster: Callable[..., InCluster]) -> None:
    place: InCluster = in_cluster(namespace)
    status, message = list_pods(place)
    assert status == 403
    assert f'User "{place.user}" cannot list resource "pods"' in str(message)


def test_what_is_granted_is_allowed_and_no_more(
    namespace: Namespace, new_namespace: Callable[..., Namespace], in_cluster: Callable[..., InCluster]
) -> None:
    namespace.create({"apiVersion": "v1", "kind": "ServiceAccount"}, "runner")
    grant(namespace, "runner", "list")
    place: InCluster = in_cluster(namespace, "runner")
    wait_until(lambda: list_pods(place)[0] == 200, what="the grant is in force")
    assert list_pods(place) == [200, "PodList"]
    assert list_pods(in_cluster(namespace, "default"))[0] == 403, "another account of the same namespace"
    assert list_pods(in_cluster(new_namespace()))[0] == 403, "another namespace"


def test_a_new_token_is_as_good(namespace: Namespace, in_cluster: Callable[..., InCluster]) -> None:
    grant(namespace, "default", "list")
    place: InCluster = in_cluster(namespace)
    wait_until(lambda: list_pods(place)[0] == 200, what="the grant is in force")
    place.rotate_token()
    assert list_pods(place) == [200, "PodList"]


def test_requests_are_counted_by_user_and_verb(
    namespace: Namespace, in_cluster: Callable[..., InCluster], audit_log: AuditLog, sealed: FullCluster
) -> None:
    place: InCluster = in_cluster(namespace)
    assert audit_log.count(place.user) == {}
    for _ in range(3):
        list_pods(place)
    assert audit_log.count(place.user) == {"list pods": 3}
    assert {request.code for request in audit_log.requests(place.user)} == {403}
    assert AuditLog(sealed.layout.audit_log).count(place.user) == {}, "counts from its own beginning"
    admin = audit_log.count("admin", namespace.name)
    assert admin["create serviceaccounts/token"] == 1
