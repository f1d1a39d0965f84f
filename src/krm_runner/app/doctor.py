"""A look at an installation, from inside or outside: what works, and what to mend. Nothing is changed by it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator

from krm_runner.app.doctor_cluster import ClusterDoctor
from krm_runner.app.images import open_images
from krm_runner.core import image_ref
from krm_runner.core.errors import ConfigurationError, EvaluationError, RemoteError
from krm_runner.core.evaluation import EvaluationRequest
from krm_runner.core.finding import Finding, fail, ok, skip, warn
from krm_runner.kube.client import KubeClient, find_cluster
from krm_runner.kube.own_namespace import own_namespace
from krm_runner.pods.addresses import CLUSTER_DOMAIN
from krm_runner.rpc.client import RemoteEvaluator
from krm_runner.settings.doctor import DoctorSettings

_API_SERVICE = f"kubernetes.default.svc.{CLUSTER_DOMAIN}"
_DNS_TIMEOUT = 10.0
_FIRST_PACKAGE = b"""\
apiVersion: config.kubernetes.io/v1
kind: ResourceList
functionConfig:
  apiVersion: v1
  kind: ConfigMap
  metadata: {name: doctor}
  data: {namespace: doctor}
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: first, namespace: default}
"""


async def examine(settings: DoctorSettings) -> AsyncGenerator[Finding]:
    """One finding after the other, as they are found."""
    if settings.has_pod_runtime:
        async for finding in _cluster(settings):
            yield finding
        yield await _dns()
        async for finding in _registries(settings):
            yield finding
    else:
        yield skip("no cluster, DNS or registry was asked: the pod runtime is disabled (--disable-runtimes)")
    yield await _function(settings)


async def _cluster(settings: DoctorSettings) -> AsyncGenerator[Finding]:
    try:
        configuration = await find_cluster()
    except ConfigurationError as error:
        yield fail(str(error), "in a pod: set automountServiceAccountToken; elsewhere: set KUBECONFIG")
        return
    namespace = settings.runner_namespace or own_namespace()
    try:
        async with KubeClient(configuration) as client:
            async for finding in ClusterDoctor(client, settings, own_namespace=namespace).look():
                yield finding
    except ConfigurationError as error:
        yield fail(str(error), "check the kubeconfig")


async def _dns() -> Finding:
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return skip("the cluster's DNS was not asked: this is outside of the cluster")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_DNS_TIMEOUT):
            await loop.getaddrinfo(_API_SERVICE, 443, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        why = str(error) or f"no answer within {_DNS_TIMEOUT:g}s"
        return fail(
            f"the cluster's DNS does not know {_API_SERVICE}: {why}",
            "check CoreDNS, or call pods by the addresses of their Services: --pod-address=cluster-ip",
        )
    return ok(f"the cluster's DNS answers: {_API_SERVICE}")


async def _registries(settings: DoctorSettings) -> AsyncGenerator[Finding]:
    wanted: list[tuple[str, image_ref.ImageRef, bool]] = []
    if settings.looks_up_image:
        wanted.append((settings.image, settings.reference, True))
    if settings.wrapper_image:
        # As the kubelet reads it, which may know mirrors and credentials that the runner does not.
        wanted.append((settings.wrapper_image, image_ref.parse(settings.wrapper_image), False))
    if not wanted:
        yield skip("no registry was asked", "name a function's image with --image")
        return
    try:
        async with open_images(settings.registries, default_prefix=settings.default_image_prefix) as images:
            for name, reference, is_required in wanted:
                try:
                    found = (await images.resolver.look_up(reference, image=name)).metadata
                except EvaluationError as error:
                    fix = f"krm-runner image {name} --log-level=3 shows every request"
                    yield fail(str(error), fix) if is_required else warn(f"wrapper server: {error}", fix)
                else:
                    yield ok(f"{reference.registry} has {name}: {found.digest}")
    except ConfigurationError as error:
        yield fail(str(error), "mend the file that --image-map names")


async def _function(settings: DoctorSettings) -> Finding:
    if not settings.address:
        return skip("no function was evaluated", "name a runner with --address, such as localhost:9445")
    loop = asyncio.get_running_loop()
    started = loop.time()
    request = EvaluationRequest(settings.image, settings.reference, _FIRST_PACKAGE, started + settings.timeout)
    try:
        async with RemoteEvaluator(settings.address) as runner, asyncio.timeout_at(request.deadline):
            await runner.evaluate(request)
    except TimeoutError:
        return fail(
            f"{settings.image} was not evaluated within {settings.timeout:g}s by {settings.address}",
            "look at its pod: kubectl get pods,events; or give it more time with --timeout",
        )
    except RemoteError as error:
        if error.code == "INTERNAL":
            # It ran: what it says of a package that it does not know is its own business.
            return ok(f"{settings.image} was evaluated by {settings.address}, and says: {_first_line(str(error))}")
        what = f"{settings.address}: {error.code}: {_first_line(str(error))}"
        if not settings.looks_up_image and error.code in ("NOT_FOUND", "FAILED_PRECONDITION"):
            # A cluster that has no use for this function may do without its image.
            return warn(
                what, f"name a function that this runner has to serve, with --image, instead of {settings.image}"
            )
        return fail(what, "docs/operations.md says what to do about every error; the runner's log has more")
    return ok(f"{settings.image} was evaluated by {settings.address} in {loop.time() - started:.1f}s")


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
