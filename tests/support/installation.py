"""The base manifests on an API server of the tests, in namespaces of the test's own, and their ServiceAccount."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path
from typing import cast

import yaml

from cluster.layout import Layout
from support.manifests import DEPLOY, Manifest, kubectl, kustomized, moved


class BaseInstallation:
    """Applied for good; the API server is the tests' own."""

    def __init__(self, layout: Layout, directory: Path, variant: str = "base", *, system: str = "") -> None:
        suffix = uuid.uuid4().hex[:8]
        self.system, self.functions = system or f"system-{suffix}", f"functions-{suffix}"
        self._layout = layout
        self._program = kubectl(layout)
        self._directory = directory
        rendered = kustomized(self._program, DEPLOY / variant)
        self.manifests = moved(rendered, system=self.system, functions=self.functions)
        self.apply(*self.manifests)
        # There is no controller that would make it.
        self.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": self.functions}}
        )

    def apply(self, *manifests: Manifest) -> None:
        """As an administrator."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=yaml.safe_dump_all(manifests))

    def kubectl(self, *arguments: str, text: str = "") -> str:
        command = [str(self._program), f"--kubeconfig={self._layout.kubeconfig()}", *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def role(self, namespace: str) -> Manifest:
        """The runner's, to be changed and applied."""
        path = f"--namespace={namespace}"
        found = cast(Manifest, json.loads(self.kubectl("get", path, "role", "porch-fn-runner", "-o", "json")))
        metadata = {"name": "porch-fn-runner", "namespace": namespace}
        return {"apiVersion": found["apiVersion"], "kind": "Role", "metadata": metadata, "rules": found["rules"]}

    def without(self, namespace: str, resource: str, verb: str) -> None:
        """Take one verb out of the runner's role."""
        role = self.role(namespace)
        for rule in role["rules"]:
            if resource in rule["resources"] and verb in rule["verbs"]:
                rule["verbs"].remove(verb)
        role["rules"] = [rule for rule in role["rules"] if rule["verbs"]]
        self.apply(role)

    def kubeconfig(self, account: str = "") -> Path:
        """The administrator's, or that of an account of the runner's namespace."""
        if not account:
            return self._layout.kubeconfig()
        config = yaml.safe_load(self._layout.kubeconfig().read_text())
        token = self.kubectl("create", "token", account, f"--namespace={self.system}").strip()
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
        path = self._directory / f"{account}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path
