"""The server of `tacit watch`: two addresses, the page and its state, and nothing else.

No path leads to a file: what can be asked for is fixed. Requests have limits of size and time, and a host that is ours,
so that a page of another site cannot read the answers by pointing its own name here (DNS rebinding). Beyond loopback
the address holds a token.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import io
import ipaddress
import re
import secrets
import socket
import socketserver
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tacit._errors import InputError
from tacit.watch.observer import Observer
from tacit.watch.page import content_security_policy, watch_page

MOST_TARGET = 512  # characters of an address: the longest of ours has less than 100
MOST_HEAD = 16_384  # bytes of a request with its headers; browsers send about one thousand
MOST_SECONDS = 10.0  # of a connection, from the first byte to the last of the answer
FIRST_ANSWER_SECONDS = 30.0  # the same, for the first reading of a large folder
MOST_CONNECTIONS = 64
SINCE = re.compile(r"since=([0-9a-f]{8})-([0-9]{1,12})")
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address may hold the token
    "X-Content-Type-Options": "nosniff",
}


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def host_of(header: str) -> str:
    """The host of a Host header, without its port, in small letters; empty when it is no such header.

    >>> host_of("LocalHost:8642"), host_of("[::1]:8642"), host_of("evil.example#127.0.0.1")
    ('localhost', '::1', '')
    """
    found = re.fullmatch(r"(?:\[([0-9a-f:.]{2,45})\]|([a-z0-9._-]{1,253}))(?::[0-9]{1,5})?", header.lower())
    return (found[1] or found[2]) if found else ""


class WatchServer(ThreadingHTTPServer):
    """Serves one observer. `address` is what to open."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, observer: Observer, *, host: str = "127.0.0.1", port: int = 0, token: bool = False) -> None:
        self.observer = observer
        self.page = watch_page().encode()
        self.policy = content_security_policy(watch_page())
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._ends: dict[Any, float] = {}  # by connection: when it is cut
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise _cannot_listen(host, port, error) from None
        self.host, self.port = host, int(self.server_address[1])
        self.local = is_loopback(str(self.server_address[0]))  # not by its name: names can be given to any number
        self.token = secrets.token_urlsafe(24) if token or not self.local else ""
        self.names = {*LOOPBACK_NAMES, host.lower()}
        if not self.local:
            self.names |= {socket.gethostname().lower(), f"{socket.gethostname().lower()}.local"}

    @property
    def address(self) -> str:
        everywhere = self.host in ("0.0.0.0", "::", "")
        host = socket.gethostname() if everywhere else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/" + (f"{self.token}/" if self.token else "")

    def server_bind(self) -> None:
        """Without the base class's search for this machine's full name, which may wait for a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def knows(self, host: str) -> bool:
        """Whether a request for this host is meant for us.

        Beyond loopback any number is: another site's page cannot put a number in place of its own name.
        """
        if host in self.names:
            return True
        with contextlib.suppress(ValueError):
            return not self.local and bool(ipaddress.ip_address(host))
        return False

    # -- connections: few, and none for ever ----------------------------------------------------------------------
    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._ends[request] = time.monotonic() + MOST_SECONDS
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ends.pop(request, None)
            self._free.release()

    def allow(self, request: Any, seconds: float) -> None:
        self._ends[request] = time.monotonic() + seconds

    def service_actions(self) -> None:
        """Called twice a second: cut connections whose time is over, however slowly they send or read."""
        now = time.monotonic()
        for request, end in list(self._ends.items()):
            if now > end:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no event."""


class _Bounded(io.RawIOBase):
    """The head of a request, up to MOST_HEAD bytes."""

    def __init__(self, source: Any) -> None:
        self.source, self.left = source, MOST_HEAD

    def readline(self, size: int | None = -1) -> bytes:
        size = self.left if size is None or size < 0 else min(size, self.left)
        line: bytes = self.source.readline(size) if size else b""
        self.left -= len(line)
        return line

    def close(self) -> None:
        self.source.close()
        super().close()


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    server_version, sys_version = "tacit", ""
    timeout = MOST_SECONDS

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _Bounded(self.rfile)

    def parse_request(self) -> bool:
        """The request, if it is one that the page sends; otherwise it is answered here, with a status alone."""
        if not super().parse_request():
            return False
        hosts = self.headers.get_all("Host") or []
        if self.rfile.left <= 0:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        elif len(self.path) > MOST_TARGET:
            status = HTTPStatus.REQUEST_URI_TOO_LONG
        elif len(hosts) != 1 or not self.server.knows(host_of(hosts[0])):
            status = HTTPStatus.MISDIRECTED_REQUEST
        elif self.command not in ("GET", "HEAD"):
            status = HTTPStatus.METHOD_NOT_ALLOWED
        else:
            return True
        self._answer(status)
        return False

    def do_GET(self) -> None:
        route, _, query = self.path.partition("?")
        inside = self._inside(route)
        if inside == "" and not query:
            self._answer(HTTPStatus.OK, self.server.page, "text/html")
            return
        since = SINCE.fullmatch(query)
        if inside != "state" or not (since or not query):
            self._answer(HTTPStatus.NOT_FOUND)
            return
        self.server.allow(self.connection, FIRST_ANSWER_SECONDS)
        asked = (since[1], int(since[2])) if since else ("", 0)
        self._answer(HTTPStatus.OK, self.server.observer.answer(*asked).encode(), "application/json")

    do_HEAD = do_GET  # noqa: N815 - named by the base class

    def _inside(self, route: str) -> str | None:
        """What follows the token in an address; None without the right one."""
        if not self.server.token:
            return route.removeprefix("/") if route.startswith("/") else None
        given, slash, rest = route.removeprefix("/").partition("/")
        right = hmac.compare_digest(given.encode(errors="replace"), self.server.token.encode())
        return rest if right and slash else None

    def _answer(self, status: HTTPStatus, content: bytes = b"", kind: str = "text/plain") -> None:
        self.send_response_only(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if content:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.close_connection = True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class finds wrong gets a status too, and no page that repeats the request."""
        if not hasattr(self, "command"):
            self.command = None  # type: ignore[assignment]
        self.request_version = "HTTP/1.0"  # also for requests that name none: a status is always sent
        self._answer(HTTPStatus(code))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is the user's, and addresses may hold the token."""


def _cannot_listen(host: str, port: int, error: OSError | OverflowError) -> InputError:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return InputError(
            f"port {port} of {host} is in use; choose another with --port, or any free one with --port 0."
        )
    if number == errno.EACCES:
        return InputError(f"port {port} needs the rights of an administrator; choose one above 1023 with --port.")
    if isinstance(error, socket.gaierror) or number == errno.EADDRNOTAVAIL:
        return InputError(f"--host {host!r} is no address of this machine; use 127.0.0.1, 0.0.0.0 or one of its own.")
    return InputError(f"cannot listen on {host}, port {port} ({error}); choose others with --host and --port.")
