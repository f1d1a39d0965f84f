"""Calling a runner: the other end of `rpc.evaluate`, for `krm-runner eval`."""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import cast

import grpc

from krm_runner.core.bearer_tokens import HEADER, authorization
from krm_runner.core.errors import RemoteError
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult
from krm_runner.core.secret import Secret
from krm_runner.rpc import wire
from krm_runner.rpc.evaluate import METHOD
from krm_runner.rpc.key_pair import KeyPair

_NO_LIMITS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


@dataclass(frozen=True, slots=True)
class Tls:
    """To whom a client speaks, and as whom."""

    cas: bytes | None = None
    """In PEM; None for those that the system trusts."""
    pair: KeyPair | None = None
    server_name: str = ""
    """The name in the runner's certificate, if it is not that of the address."""


class RemoteEvaluator:
    """A runner at an address, behind the protocol of an evaluator. The server's limits are the server's business."""

    runtime = "remote"

    def __init__(self, address: str, *, tls: Tls | None = None, token: Secret | None = None) -> None:
        self._address = address
        self._tls = tls
        self._metadata = ((HEADER, authorization(token.reveal())),) if token else ()
        self._channel = _channel(address, tls)
        self._call = cast("grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]", self._channel.unary_unary(METHOD))

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """See `core.evaluation.Evaluator`; whatever the runner answers but OK is a RemoteError."""
        timeout = request.deadline - asyncio.get_running_loop().time()
        message = wire.encode_request(request.image, request.resource_list)
        try:
            response = await self._call(message, timeout=timeout, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            text = error.details() or ""
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                text = self._why_not_reached(text)
            raise RemoteError(request.image, code=error.code().name, message=text) from error
        resource_list, log = wire.decode_response(response)
        return EvaluationResult(resource_list=bytes(resource_list), log=bytes(log), runtime=self.runtime)

    def _why_not_reached(self, text: str) -> str:
        """gRPC's words for a connection that did not come about, in ours; the runner's own words stay."""
        runner = f"the runner at {self._address}"
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return f"the certificate of {runner} is signed by no CA that is trusted here (--tls-ca-file)"
        if "Hostname Verification" in text or "Peer name" in text:
            return f"the certificate of {runner} is for another name (--tls-server-name)"
        if "WRONG_VERSION_NUMBER" in text:
            return f"{runner} speaks plain text, not TLS"
        # The latter is what a TLS alert after the handshake looks like.
        if "Socket closed" in text or "Unwrap failed" in text:
            question = "does it trust the CA of our certificate?"
            if self._tls is None:
                question = "does it want TLS (--tls, --tls-ca-file)?"
            elif self._tls.pair is None:
                question = "does it want to see a certificate (--tls-cert-file)?"
            return f"{runner} closes the connection; {question}"
        if re.search("connect|resol", text):
            return f"cannot reach a runner at {self._address}; is it running there?"
        return text

    async def __aenter__(self) -> RemoteEvaluator:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._channel.close()


def _channel(address: str, tls: Tls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_NO_LIMITS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=tls.cas if tls.cas is not None else _systems_cas(),
        private_key=tls.pair.key if tls.pair else None,
        certificate_chain=tls.pair.chain if tls.pair else None,
    )
    name = (("grpc.ssl_target_name_override", tls.server_name),) if tls.server_name else ()
    return grpc.aio.secure_channel(address, credentials, options=(*_NO_LIMITS, *name))


def _systems_cas() -> bytes | None:
    """Those that every other program here trusts; where they are in no file, gRPC has its own."""
    file = ssl.get_default_verify_paths().cafile
    return Path(file).read_bytes() if file else None
