"""Receiver of OTLP over HTTP, as a program: prints each received span to stdout as one line of JSON.

OpenTelemetry's own protobuf package decodes the requests. The first line is the port. `--refuse` answers 400.
"""

import gzip
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


def plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values()), None) for each in attributes}


class Collector(BaseHTTPRequestHandler):
    lock = threading.Lock()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if "--refuse" in sys.argv:
            self.send_error(400)
            return
        assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
        for group in MessageToDict(ExportTraceServiceRequest.FromString(body))["resourceSpans"]:
            resource = plain(group["resource"]["attributes"])
            for span in (span for scope in group["scopeSpans"] for span in scope["spans"]):
                span["attributes"] = plain(span.get("attributes", []))
                with self.lock:
                    print(json.dumps({**span, "resource": resource}), flush=True)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    print(server.server_address[1], flush=True)
    server.serve_forever()
