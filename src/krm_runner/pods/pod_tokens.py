"""The keys of the pods' tokens, which may be replaced at any time, and the template that goes with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from krm_runner.core.pod_facts import PodFacts
from krm_runner.core.pod_template import PodTemplate
from krm_runner.core.pod_token import NO_KEYS, TokenKey, TokenKeys
from krm_runner.core.secret import Secret
from krm_runner.files.kept_files import KeptFiles
from krm_runner.pods.template_source import TemplateSource


class PodTokens:
    """Of the pods in the cluster; without a file no pod has one."""

    def __init__(self, path: Path | None = None) -> None:
        """ConfigurationError when the file is missing or broken."""
        self._files = (
            KeptFiles([path], parse=lambda found: TokenKeys.parse(found[0], source=str(path))) if path else None
        )

    @property
    def keys(self) -> TokenKeys:
        """Those that count now."""
        return NO_KEYS if self._files is None else self._files.current

    def version_of(self, facts: PodFacts) -> str:
        """A pod's template version as this runner sees it: whichever of its keys the pod's token is of."""
        return self.keys.current_version(facts.template_version) if facts.token_nonce else facts.template_version

    def token_of(self, facts: PodFacts) -> Secret | None:
        """What a pod wants to be shown."""
        return self.keys.token(version=facts.template_version, pod_id=facts.pod_id, nonce=facts.token_nonce)

    async def keep(self, changed: Callable[[], None]) -> None:
        """Follow the file; never returns."""
        if self._files is None:
            await asyncio.Event().wait()
        else:
            await self._files.keep(changed)


class TemplateWithTokens:
    """The template of another source, for pods that want tokens of the first key; see `TemplateSource`."""

    def __init__(self, source: TemplateSource, tokens: PodTokens) -> None:
        self._source = source
        self._tokens = tokens
        self.on_change: Callable[[PodTemplate], None] = lambda _: None
        self._made: tuple[PodTemplate, TokenKey | None, PodTemplate] | None = None
        """From what it was made last, and what."""
        source.on_change = lambda _: self._tell()

    @property
    def current(self) -> PodTemplate | None:
        """None while there is none."""
        source, key = self._source.current, self._tokens.keys.first
        if source is None:
            return None
        if self._made is None or self._made[0] is not source or self._made[1] is not key:
            self._made = source, key, source.with_tokens(key)
        return self._made[2]

    @property
    def problem(self) -> str:
        """Why there is none."""
        return self._source.problem

    async def load(self, *, timeout: float) -> None:
        """Returns when it is known what there is, or the time is over."""
        await self._source.load(timeout=timeout)

    async def keep(self) -> None:
        """Follow the template; never returns."""
        await self._source.keep()

    def _tell(self) -> None:
        if (template := self.current) is not None:
            self.on_change(template)
