"""The parts of the pod runtime, wired: the cluster's knowledge, the registries, the keeper, and what goes on beside."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog

from krm_runner.app.images import open_images
from krm_runner.app.loops import Loops
from krm_runner.core.errors import KrmRunnerError
from krm_runner.core.held_call import HealthAsker, NextCalls
from krm_runner.core.image_metadata import Platform
from krm_runner.core.pod_cache_config import FunctionConfig
from krm_runner.core.pod_manifest import POD_ID_LABEL
from krm_runner.core.pod_template import PodTemplate, built_in_template
from krm_runner.core.wrapper_delivery import ImageVolume, InitContainer, WrapperDelivery
from krm_runner.evaluators.pod import PodEvaluator
from krm_runner.kube.client import KubeClient, find_cluster
from krm_runner.kube.own_namespace import own_namespace
from krm_runner.kube.reflector import Reflector
from krm_runner.pods.addresses import Addresses, AddressKind
from krm_runner.pods.channels import Channels
from krm_runner.pods.evidence import Evidence
from krm_runner.pods.function_configs import FunctionConfigs
from krm_runner.pods.function_limits import FunctionLimits
from krm_runner.pods.keeper import Keeper
from krm_runner.pods.launcher import Launcher
from krm_runner.pods.node_platform import node_platform
from krm_runner.pods.pod_tokens import PodTokens, TemplateWithTokens
from krm_runner.pods.pull_secret import PullSecret
from krm_runner.pods.retired_config_maps import delete_retired_config_maps
from krm_runner.pods.services import Services
from krm_runner.pods.spares import Spares
from krm_runner.pods.tasks import Tasks
from krm_runner.pods.template_source import POLL_INTERVAL, BuiltInTemplate, ConfigMapTemplate, TemplateSource
from krm_runner.pods.warm_up import WarmUp
from krm_runner.settings import PodSettings, ServerSettings, Settings
from krm_runner.telemetry.metrics import EvaluationMetrics
from krm_runner.telemetry.pod_metrics import PodMetrics

_log = structlog.get_logger("krm_runner.pods")
_FIRST_LOOK = 4.0
"""How long the start waits for the API server; without it the service starts, and says so."""
_LOOK_AT_NODES = 1.5


class OpenPodRuntime(Protocol):
    """Starts it, with what tells how it does."""

    def __call__(
        self,
        loops: Loops,
        *,
        metrics: PodMetrics,
        evaluations: EvaluationMetrics,
        asker: HealthAsker | None = None,
        next_calls: NextCalls | None = None,
    ) -> AbstractAsyncContextManager[PodRuntime]:
        """Everything at work, until the context ends; `asker` has the connections to pods, if not this process, and
        `next_calls` sends calls by them before this process is asked."""
        ...


def prepare_pod_runtime(pods: PodSettings, settings: Settings) -> OpenPodRuntime:
    """Reads its files, so that it can be started; ConfigurationError when one of them is broken."""
    return functools.partial(
        _open_pod_runtime,
        pods,
        settings,
        functions=_function_limits(pods, settings.server),
        tokens=PodTokens(pods.token_keys),
    )


def _function_limits(settings: PodSettings, server: ServerSettings) -> FunctionLimits:
    """Reads --pod-cache-config; ConfigurationError when it is broken."""
    functions = FunctionLimits(
        settings.cache_config,
        default_prefix=server.default_image_prefix,
        ttl=settings.ttl,
        max_waitlist_length=settings.max_waitlist_length,
        max_parallel_pods=settings.max_parallel_pods,
        max_queue_length=settings.max_calls,
        spares=settings.spare_pods,
    )
    functions.load()
    return functions


@dataclass(frozen=True, slots=True)
class PodRuntime:
    """What the service needs of it."""

    evaluator: PodEvaluator
    warm_up: WarmUp


@asynccontextmanager
async def _open_pod_runtime(
    pods: PodSettings,
    settings: Settings,
    loops: Loops,
    *,
    functions: FunctionLimits,
    tokens: PodTokens,
    metrics: PodMetrics,
    evaluations: EvaluationMetrics,
    asker: HealthAsker | None = None,
    next_calls: NextCalls | None = None,
) -> AsyncGenerator[PodRuntime]:
    """Everything, at work. ConfigurationError when no cluster is known or a file is broken.

    When it ends the pods stay: the next process finds them.
    """
    limit, prefix = settings.server.max_message_bytes, settings.server.default_image_prefix
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(KubeClient(await find_cluster(), on_answer=metrics.answered))
        images = await stack.enter_async_context(
            open_images(settings.registries, default_prefix=prefix, node_platform=await _platform(client))
        )
        secret = _pull_secret(client, pods, settings)
        services = Services(older_than=pods.start_timeout)
        launcher = Launcher(
            client,
            namespace=pods.namespace,
            max_message_bytes=limit,
            pull_secret=secret.name if secret is not None else "",
            tokens=tokens,
        )
        keeper = Keeper(
            launcher=launcher,
            services=services,
            evidence=Evidence(client, namespace=pods.namespace),
            addresses=Addresses(AddressKind(pods.address), namespace=pods.namespace, services=services),
            tokens=tokens,
            functions=functions,
            metrics=metrics,
            channels=Channels(limit, tokens.token_of, asker),
            start_timeout=pods.start_timeout,
            scan_interval=pods.scan_interval,
            spares=Spares(pods.wrapper_image) if pods.spare_pods else None,
            next_calls=next_calls,
        )
        metrics.observe_pool(lambda: keeper.size)
        templates = TemplateWithTokens(_templates(client, pods, limit), tokens)
        evaluator = PodEvaluator(
            images.resolver,
            templates,
            keeper,
            metrics=metrics,
            waited=functools.partial(evaluations.waited, runtime=PodEvaluator.runtime),
            retry_lost_calls=pods.retry_lost_calls,
        )
        warm_up = WarmUp(functions, functools.partial(_warm_up, evaluator, keeper))
        ours = {"labelSelector": POD_ID_LABEL}
        pod_watch = Reflector(client, f"/api/v1/namespaces/{pods.namespace}/pods", keeper.census, query=ours)
        # All of them: those of other function runners lack our label, and take names.
        service_watch = Reflector(client, f"/api/v1/namespaces/{pods.namespace}/services", services)

        jobs = Tasks()
        stack.push_async_callback(loops.stop)
        stack.push_async_callback(jobs.stop)
        stack.push_async_callback(keeper.stop)
        loops.start(pod_watch.run(), name="watch of pods")
        loops.start(service_watch.run(), name="watch of services")
        configs = FunctionConfigs(client, namespace=pods.namespace)
        loops.start(configs.watch(), name="watch of FunctionConfig objects")
        loops.start(configs.remove_finalizers(), name="finalizers of FunctionConfig objects")
        jobs.start(
            delete_retired_config_maps(client, namespace=pods.namespace), name="config maps of an earlier version"
        )
        await asyncio.gather(
            _first_secret(secret), templates.load(timeout=_FIRST_LOOK), _first_list(pod_watch, service_watch)
        )
        if secret is not None:
            loops.start(secret.keep(), name="pull secret")

        def renew() -> None:
            if pods.warm_up:
                jobs.start(warm_up.run(), name="warm-up")

        def on_template(template: PodTemplate) -> None:
            keeper.template_changed(template)
            renew()

        def on_keys() -> None:
            keeper.keys_changed(templates.current)
            renew()

        def on_limits() -> None:
            keeper.limits_changed()
            renew()

        templates.on_change = on_template
        loops.start(tokens.keep(on_keys), name="keys of pods' tokens")
        loops.start(templates.keep(), name="pod template")
        loops.start(keeper.run(pod_watch), name="pod manager")
        loops.start(functions.watch(on_limits), name="pod cache configuration")
        if templates.current is not None:
            keeper.template_changed(templates.current)
        renew()
        yield PodRuntime(evaluator, warm_up)


def _templates(client: KubeClient, pods: PodSettings, limit: int) -> TemplateSource:
    if pods.template_config_map:
        return ConfigMapTemplate(
            client,
            namespace=own_namespace(),
            name=pods.template_config_map,
            poll_interval=min(POLL_INTERVAL, pods.scan_interval),
        )
    delivery: WrapperDelivery = InitContainer(pods.wrapper_image)
    if pods.wrapper_delivery == "image-volume":
        delivery = ImageVolume(pods.wrapper_image)
    return BuiltInTemplate(built_in_template(delivery=delivery, max_message_bytes=limit))


async def _warm_up(evaluator: PodEvaluator, keeper: Keeper, function: FunctionConfig) -> None:
    wanted = await evaluator.wanted(function.image, image=function.name)
    await keeper.warm_up(wanted, image=function.name)


async def _platform(client: KubeClient) -> Platform | None:
    try:
        async with asyncio.timeout(_LOOK_AT_NODES):
            return await node_platform(client)
    except TimeoutError:
        return None


def _pull_secret(client: KubeClient, pods: PodSettings, settings: Settings) -> PullSecret | None:
    registries = settings.registries
    if not registries.enabled:
        return None
    return PullSecret(
        client, path=registries.auth_secret_path, name=registries.auth_secret_name, namespace=pods.namespace
    )


async def _first_secret(secret: PullSecret | None) -> None:
    """Before the first pod; what fails now is tried again in the background, which also says why."""
    if secret is None:
        return
    try:
        async with asyncio.timeout(_FIRST_LOOK):
            await secret.ensure(overwrite=True)
    except (KrmRunnerError, TimeoutError) as error:
        _log.warning("pull secret not there yet", secret=secret.name, error=str(error) or "no answer")


async def _first_list(*watches: Reflector) -> None:
    """So that pods which are there are found before calls come."""
    try:
        async with asyncio.timeout(_FIRST_LOOK):
            for watch in watches:
                await watch.listed.wait()
    except TimeoutError:
        _log.warning("the API server does not answer: the service starts without knowing which pods there are")
