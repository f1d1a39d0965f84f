"""An installation of the pod runtime whose pods a played kubelet runs."""

from __future__ import annotations

import copy

from control_plane.kubelet import Kubelet
from krm_runner.core.built_in_template import built_in_pod
from krm_runner.core.wrapper_delivery import InitContainer
from support.kube import Json
from support.site import Site


class PlayedSite(Site):
    """See `support.site.Site`; `kubelet` is where a test holds pods back, breaks and ends them."""

    kubelet: Kubelet

    def built_in_template(self) -> Json:
        """The Pod of the built-in template, to be changed and written."""
        return copy.deepcopy(built_in_pod(InitContainer(self.wrapper_image)))

    def run_bystander(self, name: str) -> None:
        """A pod of somebody else's, which the played kubelet leaves alone."""
        confined = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        self.functions.run(name, "example.com/bystander:v1", ["sleep", "3600"], securityContext=confined)
