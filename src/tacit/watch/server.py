"""The server of `tacit watch`: the page and what it asks, for browsers of this machine.

It listens on loopback only. No path leads to a file: what can be asked is a fixed list. A request must name this
machine as its host, so that a page of another site cannot read the answers by pointing its own name here (DNS
rebinding).
"""

from __future__ import annotations

import errno
import hashlib
import re
import socketserver
import sys
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tacit._util.errors import InputError
from tacit.watch.page import content_security_policy, watch_page
from tacit.watch.state import Answer

LOOPBACK = "127.0.0.1"
NAMES = ("localhost", LOOPBACK, "::1")
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def host_of(header: str) -> str:
    """The host of a Host header, without its port, in small letters; empty when it is no such header.

    >>> host_of("LocalHost:8642"), host_of("[::1]:8642"), host_of("evil.example#127.0.0.1")
    ('localhost', '::1', '')
    """
    found = re.fullmatch(r"(?:\[([0-9a-f:.]{2,45})\]|([a-z0-9._-]{1,253}))(?::[0-9]{1,5})?", header.lower())
    return (found[1] or found[2]) if found else ""


class WatchServer(ThreadingHTTPServer):
    """Serves the page and `answers`, by address. `address` is what to open."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, answers: Mapping[str, Answer], *, port: int = 0) -> None:
        self.answers = answers
        self.page = watch_page().encode()
        self.policy = content_security_policy(watch_page())
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise _cannot_listen(port, error) from None
        self.address = f"http://{LOOPBACK}:{self.server_port}/"

    def server_bind(self) -> None:
        """Without the base class's search for this machine's full name, which may wait for a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no event."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    timeout = 10.0  # seconds between two pieces of a request

    def parse_request(self) -> bool:
        """The request, if it is one that the page sends; otherwise it is answered here, with a status alone."""
        if not super().parse_request():
            return False
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or host_of(hosts[0]) not in NAMES:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST)
        elif self.command not in ("GET", "HEAD"):
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        else:
            return True
        return False

    def do_GET(self) -> None:
        if self.path == "/":
            self._answer(HTTPStatus.OK, self.server.page, {"Content-Type": "text/html; charset=utf-8"})
        elif self.path in self.server.answers:
            text = self.server.answers[self.path].text()
            tag = f'"{hashlib.sha256(text).hexdigest()[:16]}"'
            if self.headers.get("If-None-Match") == tag:
                self._answer(HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
            else:
                self._answer(HTTPStatus.OK, text, {"ETag": tag, "Content-Type": "application/json; charset=utf-8"})
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET  # noqa: N815 - named by the base class

    def _answer(self, status: HTTPStatus, content: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response_only(status)
        facts = {"Date": self.date_time_string(), "Content-Security-Policy": self.server.policy}
        for name, value in {**HEADERS, **facts, **(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.close_connection = True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class finds wrong gets a status too, and no page that repeats the request."""
        self.command = getattr(self, "command", None)  # type: ignore[assignment]
        self.request_version = "HTTP/1.0"  # also for requests that name none: a status is always sent
        self._answer(HTTPStatus(code))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is the user's."""


def _cannot_listen(port: int, error: OSError) -> InputError:
    if error.errno == errno.EADDRINUSE:
        return InputError(f"port {port} is in use; choose another with --port, or any free one with --port 0.")
    if error.errno == errno.EACCES:
        return InputError(f"port {port} needs the rights of an administrator; choose one above 1023 with --port.")
    return InputError(f"cannot listen on port {port} ({error.strerror}); choose another with --port.")
