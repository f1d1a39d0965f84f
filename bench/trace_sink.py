"""A collector of traces for benchmarks: takes OTLP by HTTP on a free port of loopback, and counts spans on stderr.

Prints its port on stdout. Ends with the process that started it.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Count the spans of one export."""
        message = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        spans = sum(len(scope.spans) for resource in message.resource_spans for scope in resource.scope_spans)
        print(f"{spans} spans", file=sys.stderr, flush=True)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """No line per request."""


if __name__ == "__main__":
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
