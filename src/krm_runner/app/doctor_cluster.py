"""A look at the cluster: the API server, the account's rights, namespace and template, and whether a pod would run.

Nothing is changed: what would be created is sent as a dry run.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

from krm_runner.core import image_ref
from krm_runner.core.errors import (
    ConfigurationError,
    KubernetesError,
    KubernetesForbiddenError,
    KubernetesNotFoundError,
)
from krm_runner.core.finding import Finding, fail, ok, skip, warn
from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text
from krm_runner.core.pod_manifest import FunctionPod, reclaim_time, render
from krm_runner.core.pod_template import PodTemplate, built_in_template, template_of
from krm_runner.core.rights import Place, Right, rights_needed
from krm_runner.core.spare import USE_OUR_WRAPPER, why_no_spares
from krm_runner.core.wrapper_delivery import ImageVolume, InitContainer, WrapperDelivery
from krm_runner.kube.client import KubeClient
from krm_runner.pods.function_configs import serves_function_configs
from krm_runner.settings.doctor import DoctorSettings

_REVIEWS = "/apis/authorization.k8s.io/v1"
_ENFORCE = "pod-security.kubernetes.io/enforce"
_ROLES = "apply deploy/base/roles.yaml, or add it to the role that is bound to this account"
_EXAMPLE = "example.com/doctor@sha256:" + "0" * 64


class ClusterDoctor:
    """Looks at one cluster, as one account."""

    def __init__(self, client: KubeClient, settings: DoctorSettings, *, own_namespace: str) -> None:
        self._client = client
        self._settings = settings
        self._own = own_namespace
        self._functions = settings.pod_namespace

    async def look(self) -> AsyncGenerator[Finding]:
        """Everything, in the order in which things depend on each other."""
        reached = await self._api_server()
        yield reached
        if reached.fix:
            return
        async for finding in self._rights():
            yield finding
        yield await self._secrets()
        yield await self._namespace()
        template, finding = await self._template()
        yield finding
        if template is not None:
            for warning in template.warnings:
                yield warn(f"pod template: {warning}")
            if self._settings.spare_pods:
                yield self._spares(template)
            yield await self._admission(template)

    async def _api_server(self) -> Finding:
        try:
            version = as_text(as_object(json.loads(await self._client.text("/version"))).get("gitVersion"))
        except KubernetesForbiddenError as error:
            return fail(f"the API server does not know this account: {error}", "check the token or the kubeconfig")
        except (KubernetesError, ValueError) as error:
            return fail(f"the API server does not answer: {error}", "check the network, or KUBECONFIG")
        return ok(f"the API server answers: Kubernetes {version}")

    async def _rights(self) -> AsyncGenerator[Finding]:
        settings = self._settings
        try:
            has_function_configs = await serves_function_configs(self._client)
        except KubernetesError as error:
            yield skip(f"whether there are FunctionConfig objects cannot be asked: {error}")
            has_function_configs = False
        needed = rights_needed(
            template=bool(settings.template_config_map),
            private_registries=settings.registries.enabled,
            function_configs=has_function_configs,
        )
        granted: dict[tuple[str, str], list[str]] = {}
        for right in needed:
            namespace = self._own if right.place is Place.OWN else self._functions
            try:
                may = await self._may(right.verb, right.resource, namespace, name=self._name_of(right))
            except KubernetesError as error:
                yield skip(f"rights cannot be asked for: {error}", "ask as an administrator, without --account")
                return
            if may:
                granted.setdefault((right.resource, namespace), []).append(right.verb)
                continue
            what = f"may not {right.verb} {right.resource} in {namespace}: {right.without}"
            yield fail(what, _ROLES) if right.is_required else warn(what, _ROLES)
        for (resource, namespace), verbs in granted.items():
            yield ok(f"may {', '.join(verbs)} {resource} in {namespace}")

    def _name_of(self, right: Right) -> str:
        if not right.has_name:
            return ""
        settings = self._settings
        return settings.registries.auth_secret_name if right.resource == "secrets" else settings.template_config_map

    async def _secrets(self) -> Finding:
        """The right that nobody should have given."""
        try:
            for namespace in (self._functions, self._own):
                if await self._may("get", "secrets", namespace):
                    return warn(
                        f"may read every Secret in {namespace}: the runner needs one at most",
                        "grant secrets by resourceNames, as deploy/components/private-registries does",
                    )
        except KubernetesError as error:
            return skip(f"rights on Secrets cannot be asked for: {error}")
        return ok("may read no Secrets but its own")

    async def _may(self, verb: str, resource: str, namespace: str, *, name: str = "") -> bool:
        resource, _, subresource = resource.partition("/")
        resource, _, group = resource.partition(".")
        what: JsonObject = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
        what |= {"subresource": subresource} if subresource else {}
        what |= {"name": name} if name else {}
        spec: JsonObject = {"resourceAttributes": what}
        kind = "SelfSubjectAccessReview"
        if self._settings.account is not None:
            kind = "SubjectAccessReview"
            of, account = self._settings.account
            spec |= {
                "user": f"system:serviceaccount:{of}:{account}",
                "groups": ["system:serviceaccounts", f"system:serviceaccounts:{of}", "system:authenticated"],
            }
        review: JsonObject = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        answer = await self._client.create(f"{_REVIEWS}/{kind.lower()}s", review)
        return as_object(answer.get("status")).get("allowed") is True

    async def _namespace(self) -> Finding:
        name = self._functions
        try:
            found = await self._client.get(f"/api/v1/namespaces/{name}")
        except KubernetesNotFoundError:
            return fail(f"namespace {name} does not exist", "apply deploy/base/namespaces.yaml, or set --pod-namespace")
        except KubernetesForbiddenError:
            return skip(f"this account may not look at namespace {name}; whether pods are admitted comes below")
        except KubernetesError as error:
            return fail(f"namespace {name} cannot be read: {error}", "try again")
        level = as_text(as_object(as_object(found.get("metadata")).get("labels")).get(_ENFORCE))
        if level == "restricted":
            return ok(f'namespace {name} enforces Pod Security "restricted"')
        return ok(
            f"namespace {name} enforces {level or 'no level of Pod Security'}, so other function runners can use it: "
            "what privileges function pods have, the pod template decides (overlay restricted-functions)"
        )

    async def _template(self) -> tuple[PodTemplate | None, Finding]:
        settings, name = self._settings, self._settings.template_config_map
        if not name:
            if not settings.wrapper_image:
                return None, skip(
                    "the built-in pod template was not looked at: WRAPPER_SERVER_IMAGE is not set here",
                    "set it as the runner has it, or name the runner's --function-pod-template",
                )
            delivery = self._delivery()
            template = built_in_template(delivery=delivery, max_message_bytes=settings.max_message_bytes)
            how = f"{settings.wrapper_image} by {settings.wrapper_delivery}"
            return template, ok(f"the built-in pod template is used, with {how}")
        place = f'pod template: ConfigMap "{name}" in {self._own}'
        try:
            found = template_of(await self._client.get(f"/api/v1/namespaces/{self._own}/configmaps/{name}"))
        except KubernetesNotFoundError:
            return None, fail(f"{place} does not exist", "apply deploy/base/pod-template.yaml")
        except KubernetesError as error:
            return None, fail(f"{place} cannot be read: {error}", _ROLES)
        except ConfigurationError as error:
            return None, fail(f"{place} cannot be used: {error}", "mend it; the runner takes the new one by itself")
        return found, ok(f"{place} keeps the contract")

    def _spares(self, template: PodTemplate) -> Finding:
        count, image = self._settings.spare_pods, self._settings.wrapper_image
        if not image:
            return skip(
                f"whether {count} spare pods can be kept was not looked at: WRAPPER_SERVER_IMAGE is not set here"
            )
        if why := why_no_spares(template.pod, image):
            return warn(f"no spare pods are kept, though --spare-pods={count}: {why}", USE_OUR_WRAPPER)
        return ok(f"spare pods are made of this template (--spare-pods={count})")

    def _delivery(self) -> WrapperDelivery:
        settings = self._settings
        match settings.wrapper_delivery:
            case "init-container":
                return InitContainer(settings.wrapper_image)
            case "image-volume":
                return ImageVolume(settings.wrapper_image)

    async def _admission(self, template: PodTemplate) -> Finding:
        """Whether the API server would take a function's pod."""
        reference = image_ref.parse(_EXAMPLE)
        image = ImageMetadata(reference, reference.digest, reference.digest, None, ("/doctor",))
        function = FunctionPod(
            pod_id="krm-runner-doctor",
            namespace=self._functions,
            image=image,
            max_message_bytes=self._settings.max_message_bytes,
            reclaim_after=reclaim_time(unix_now=0, ttl=0),
            pull_secret=self._settings.registries.auth_secret_name if self._settings.registries.enabled else "",
        )
        path = f"/api/v1/namespaces/{self._functions}/pods"
        pod = render(template, function).pod
        try:
            taken = await self._client.create(path, pod, query={"dryRun": "All"})
        except KubernetesError as error:
            return fail(
                f"a function pod would be refused: {error}",
                "the words of the API server say what to change: the role, the template, the namespace or its quota",
            )
        if dropped := _volumes(pod) - _volumes(taken):
            return fail(
                f"a function pod would lose its volume {', '.join(sorted(dropped))}: "
                "this Kubernetes does not know its kind",
                "choose another --wrapper-delivery, or turn on the feature gate ImageVolume",
            )
        return ok(f"a function pod is admitted in {self._functions} (dry run)")


def _volumes(pod: JsonObject) -> set[str]:
    volumes = as_list(as_object(pod.get("spec")).get("volumes"))
    return {as_text(as_object(volume).get("name")) for volume in volumes}
