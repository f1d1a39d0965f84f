"""Debian's docker-registry, in a process of its own: open, with passwords, with tokens, with TLS."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from support.server import free_port
from support.token_server import ISSUER, SERVICE, TokenServer

START_SECONDS = 30


class Registry:
    """Started on a free port of loopback; its data outlives `stop`, so that it can be away for a while."""

    def __init__(
        self,
        directory: Path,
        *,
        tls: tuple[Path, Path] | None = None,
        users: Mapping[str, str] | None = None,
        tokens: TokenServer | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.port = free_port()
        self.tls = tls
        self.address = f"localhost:{self.port}"
        config: dict[str, Any] = {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": False}},
            "storage": {"filesystem": {"rootdirectory": str(directory / "data")}, "delete": {"enabled": True}},
            "http": {"addr": f"127.0.0.1:{self.port}", "secret": "for-tests"},
            "compatibility": {"schema1": {"enabled": True}},
        }
        if tls is not None:
            config["http"]["tls"] = {"certificate": str(tls[0]), "key": str(tls[1])}
        if users is not None:
            (directory / "htpasswd").write_text("".join(_htpasswd(*pair) for pair in users.items()))
            config["auth"] = {"htpasswd": {"realm": "test", "path": str(directory / "htpasswd")}}
        if tokens is not None:
            bundle = str(tokens.signer.certificate)
            config["auth"] = {
                "token": {"realm": tokens.realm, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": bundle}
            }
        self._config = directory / "config.yml"
        self._config.write_text(yaml.safe_dump(config))
        self._log = directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Run, and wait until it listens."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["docker-registry", "serve", str(self._config)], stdout=log, stderr=subprocess.STDOUT
            )
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise AssertionError(f"docker-registry does not listen: {self._log.read_text()}") from None
                time.sleep(0.02)

    def stop(self) -> None:
        """Be away."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(10)
            self._process = None

    def requests(self, pattern: str = "") -> list[str]:
        """`GET /v2/... 200` of every request so far that matches."""
        found = re.findall(r'"(GET|HEAD) (/v2/\S*) HTTP/[\d.]+" (\d+)', self._log.read_text())
        lines = [" ".join(parts) for parts in found]
        return [line for line in lines if re.search(pattern, line)]

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()


def _htpasswd(user: str, password: str) -> str:
    done = subprocess.run(
        ["htpasswd", "-Bbn", "-C", "4", user, password], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip() + "\n"
