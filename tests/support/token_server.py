"""A token server as registries have them: tokens signed so that docker-registry accepts them.

Knows one user with a password and one identity token, and writes down what it was asked.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

from support.certificates import Signer

ISSUER = "test-issuer"
SERVICE = "test-registry"


class TokenServer:
    """A context manager; `realm` is its address."""

    def __init__(self, signer: Signer, *, user: str, password: str, identity_token: str, lifetime: int = 300) -> None:
        self.signer = signer
        self.user, self.password, self.identity_token = user, password, identity_token
        self.lifetime = lifetime
        self.allows_anonymous = False
        self.requests: list[str] = []
        self.issued: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(f"GET {self.path}")
                query = parse_qs(urlsplit(self.path).query)
                expected = base64.b64encode(f"{server.user}:{server.password}".encode()).decode()
                header = self.headers.get("Authorization", "")
                is_known = header == f"Basic {expected}"
                self._answer(is_known or (server.allows_anonymous and not header), query)

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                server.requests.append(f"POST {self.path} {form['grant_type'][0]}")
                self._answer(form.get("refresh_token") == [server.identity_token], form)

            def _answer(self, is_known: bool, query: dict[str, list[str]]) -> None:
                if is_known:
                    token = server.token(query.get("scope", [""])[0])
                    body = json.dumps({"token": token, "access_token": token, "expires_in": server.lifetime}).encode()
                else:
                    body = b'{"details": "incorrect username or password"}'
                self.send_response(200 if is_known else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        self.realm = f"http://127.0.0.1:{self._http.server_address[1]}/token"

    def token(self, scope: str) -> str:
        """A JWT that allows what the scope asks for."""
        access: list[dict[str, object]] = []
        if scope:
            kind, _, rest = scope.partition(":")
            name, _, actions = rest.rpartition(":")
            access = [{"type": kind, "name": name, "actions": actions.split(",")}]
        now = int(time.time())
        header = {"typ": "JWT", "alg": "RS256", "x5c": [base64.b64encode(self.signer.der()).decode()]}
        claims = {
            "iss": ISSUER, "sub": self.user, "aud": SERVICE, "exp": now + self.lifetime, "nbf": now - 10, "iat": now,
            "jti": secrets.token_hex(8), "access": access,
        }  # fmt: skip
        message = f"{_encode(json.dumps(header).encode())}.{_encode(json.dumps(claims).encode())}"
        self.issued.append(f"{message}.{_encode(self.signer.sign(message.encode()))}")
        return self.issued[-1]

    def __enter__(self) -> TokenServer:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
