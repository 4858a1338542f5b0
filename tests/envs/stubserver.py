"""A chat endpoint on 127.0.0.1 with scripted replies and faults, for tests."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from envs.endpoint import Endpoint

Action = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    body: dict[str, Any]

    def do_POST(self) -> None:
        stub: Stub = self.server.stub  # type: ignore[attr-defined]
        self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with stub.lock:
            stub.requests.append((self.path, dict(self.headers), self.body))
            number = len(stub.requests)
        stub.script(number, self.body)(self)

    def send(self, status: int, text: str, **headers: str) -> None:
        data = text.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Stub:
    """`script(n, body)` says what is done with request number n, from 1."""

    def __init__(self, script: Callable[[int, dict[str, Any]], Action]) -> None:
        self.script = script
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.lock = threading.Lock()
        self.url = ""


def say(content: str | None, finish_reason: str = "stop", **more: Any) -> Action:
    message = {"role": "assistant", "content": content}
    body = {
        "model": "stub-1",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        **more,
    }
    return lambda handler: handler.send(200, json.dumps(body))


def fail(status: int, text: str = "no", **headers: str) -> Action:
    return lambda handler: handler.send(status, text, **headers)


def close(handler: Handler) -> None:
    handler.close_connection = True


def cut(handler: Handler) -> None:
    """Promise more bytes than come."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


def drip(handler: Handler) -> None:
    """Send a byte now and then, so that no single read ever times out."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    with contextlib.suppress(OSError):
        for _ in range(100):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)


@contextlib.contextmanager
def serve(*actions: Action, script: Callable[[int, dict[str, Any]], Action] | None = None) -> Iterator[Stub]:
    """Serve the actions in turn, the last one for ever; or what `script` says."""
    stub = Stub(script or (lambda number, body: actions[min(number, len(actions)) - 1]))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.stub = stub  # type: ignore[attr-defined]
    stub.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask_eight(arguments: tuple[str, Path]) -> list[str]:
    """Ask eight questions through a cache; here, so that a process that does only this starts quickly."""
    url, cache = arguments
    endpoint = Endpoint.parse(f"openai:{url}#org/model", cache=cache)
    return [endpoint.ask([{"role": "user", "content": str(n)}]).text for n in range(8)]
