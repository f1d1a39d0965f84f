"""Accounts of an API server that have certain rights in one namespace, and no others."""

from __future__ import annotations

import copy
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from krm_runner.core.json_object import JsonObject, as_object, as_text
from krm_runner.kube.client import KubeClient, find_cluster

_RBAC = "rbac.authorization.k8s.io"


async def new_account(client: KubeClient, namespace: str) -> str:
    """The name of an account that may do nothing."""
    name = f"account-{uuid.uuid4().hex[:10]}"
    account: JsonObject = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    await client.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
    return name


async def grant(
    client: KubeClient, namespace: str, name: str, *, verbs: Sequence[str], resources: Sequence[str]
) -> None:
    """Let an account do this in its namespace, from now on."""
    rule: JsonObject = {"apiGroups": [""], "resources": [*resources], "verbs": [*verbs]}
    metadata: JsonObject = {"name": f"{name}-{uuid.uuid4().hex[:10]}"}
    role: JsonObject = {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]}
    binding: JsonObject = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": metadata["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    place = f"/apis/{_RBAC}/v1/namespaces/{namespace}"
    await client.create(f"{place}/roles", copy.deepcopy(role))
    await client.create(f"{place}/rolebindings", copy.deepcopy(binding))


async def token_of(client: KubeClient, namespace: str, name: str) -> str:
    """A new token of an account."""
    request: JsonObject = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await client.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", request)
    return as_text(as_object(answer["status"])["token"])


@asynccontextmanager
async def account(
    client: KubeClient, namespace: str, *, verbs: Sequence[str], resources: Sequence[str], name: str = ""
) -> AsyncGenerator[KubeClient]:
    """The client of an account, by default a new one, which leads to the same API server."""
    name = name or await new_account(client, namespace)
    await grant(client, namespace, name, verbs=verbs, resources=resources)
    configuration = await find_cluster()
    configuration.api_key = {"BearerToken": f"Bearer {await token_of(client, namespace, name)}"}
    configuration.cert_file = configuration.key_file = None
    async with KubeClient(configuration) as granted:
        yield granted
