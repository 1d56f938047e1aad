"""The server gives the page and its state to a browser of this machine, and nothing to anybody else."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from made_folders import everything, finish, make_folder, rates_study
from tacit._util.errors import InputError
from tacit.watch.server import WatchServer, host_of
from tacit.watch.state import answers

STATE = "/state?test_accuracy"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("watched") / "runs"
    made, ((fleet, *_),) = make_folder(path, [rates_study()])
    finish(made, fleet)
    (path.parent / "secret.txt").write_text("a secret")
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[WatchServer]:
    server = WatchServer(answers(folder))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(5)


def raw(server: WatchServer, request: bytes, *, seconds: float = 5.0) -> bytes:
    """All bytes that the server answers to these bytes."""
    found = b""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=seconds) as client:
        with contextlib.suppress(ConnectionError):  # refused and hung up before it had read everything; it did answer
            client.sendall(request)
        try:
            while piece := client.recv(65536):
                found += piece
        except ConnectionError:  # the server hung up with unread bytes: nothing more comes
            pass
    return found


def get(
    server: WatchServer, target: str, *, method: str = "GET", host: str = "", tag: str = ""
) -> tuple[int, bytes, str]:
    """The status, the content and the tag of an answer."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest(method, target, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    if tag:
        connection.putheader("If-None-Match", tag)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read(), answer.getheader("ETag", "")
    connection.close()
    return found


def test_the_page_and_its_state(server: WatchServer) -> None:
    status, page, _ = get(server, "/")
    assert status == 200
    assert page == server.page
    status, state, tag = get(server, STATE)
    assert status == 200
    assert [study["name"] for study in json.loads(state)["folders"][0]["studies"]] == ["rates"]
    assert get(server, STATE, tag=tag) == (304, b"", tag)
    assert get(server, STATE, tag='"another"')[:2] == (200, state)
    assert get(server, "/figures")[0] == 200


def test_it_listens_on_loopback_only(server: WatchServer) -> None:
    assert server.address == f"http://127.0.0.1:{server.server_port}/"
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_head_has_no_body(server: WatchServer) -> None:
    answer = raw(server, b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 200")
    assert answer.endswith(b"\r\n\r\n")


HOST = b"Host: 127.0.0.1\r\n\r\n"
HOSTILE = {
    "a file by path": b"GET /../secret.txt HTTP/1.1\r\n" + HOST,
    "an encoded path": b"GET /%2e%2e/secret.txt HTTP/1.1\r\n" + HOST,
    "backslashes": b"GET /..\\..\\secret.txt HTTP/1.1\r\n" + HOST,
    "an absolute path": b"GET //etc/passwd HTTP/1.1\r\n" + HOST,
    "a null byte": b"GET /state\0 HTTP/1.1\r\n" + HOST,
    "a file of the package": b"GET /watch.js HTTP/1.1\r\n" + HOST,
    "a file of the folder": b"GET /studies/rates.json HTTP/1.1\r\n" + HOST,
    "a whole address": b"GET http://127.0.0.1/state HTTP/1.1\r\n" + HOST,
    "a wrong query": b"GET /state?accuracy HTTP/1.1\r\n" + HOST,
    "no query": b"GET /state HTTP/1.1\r\n" + HOST,
    "a huge query": b"GET /state?" + b"x" * 1_000_000 + b" HTTP/1.1\r\n" + HOST,
    "a query for the page": b"GET /?x=1 HTTP/1.1\r\n" + HOST,
    "many headers": b"GET /state HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
    "no host": b"GET /state?test_accuracy HTTP/1.1\r\n\r\n",
    "an old request": b"GET /state?test_accuracy\r\n\r\n",
    "two hosts": b"GET /state?test_accuracy HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "another host": b"GET /state?test_accuracy HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "a host that looks like ours": b"GET /state?test_accuracy HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n",
    "a host with a user": b"GET /state?test_accuracy HTTP/1.1\r\nHost: localhost@evil.example\r\n\r\n",
    "another machine's number": b"GET /state?test_accuracy HTTP/1.1\r\nHost: 192.168.0.7\r\n\r\n",
    "post": b"POST /state?test_accuracy HTTP/1.1\r\nContent-Length: 3\r\nHost: localhost\r\n\r\nabc",
    "put": b"PUT / HTTP/1.1\r\n" + HOST,
    "delete": b"DELETE /state?test_accuracy HTTP/1.1\r\n" + HOST,
    "options": b"OPTIONS / HTTP/1.1\r\n" + HOST,
    "connect": b"CONNECT evil.example:443 HTTP/1.1\r\n" + HOST,
    "no method of this world": b"<script>alert(1)</script> /state?test_accuracy HTTP/1.1\r\n" + HOST,
    "another version": b"GET /state?test_accuracy HTTP/9.9\r\n" + HOST,
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100) + b"\n\r\n",
    "empty": b"\r\n\r\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_gets_nothing(name: str, server: WatchServer) -> None:
    answer = raw(server, HOSTILE[name])
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body == b""
    assert b"200" not in head.split(b"\r\n")[0]
    assert b"alert" not in answer
    assert get(server, STATE)[0] == 200  # and the next one is answered


def test_wrong_methods_are_told_the_right_ones(server: WatchServer) -> None:
    answer = raw(server, HOSTILE["post"])
    assert answer.startswith(b"HTTP/1.0 405")
    assert b"Allow: GET, HEAD" in answer


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:80", "[::1]", "[::1]:8642"])
def test_names_of_this_machine_are_known(host: str, server: WatchServer) -> None:
    assert get(server, "/", host=host)[0] == 200


@pytest.mark.parametrize("header", ["", "a b", "localhost:x", "[::1", "x" * 300, "localhost\tevil", "[zz]"])
def test_what_is_no_host_is_empty(header: str) -> None:
    assert host_of(header) == ""


def test_answers_forbid_what_the_page_does_not_need(server: WatchServer) -> None:
    head = raw(server, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").partition(b"\r\n\r\n")[0].decode()
    assert "default-src 'none'" in head
    assert "unsafe" not in head
    assert "Referrer-Policy: no-referrer" in head
    assert "Access-Control" not in head
    assert "Server:" not in head


def test_the_page_names_no_other_address(server: WatchServer) -> None:
    text = server.page.decode()
    assert "http://" not in text
    assert "https://" not in text
    assert "/* include" not in text


def test_serving_changes_nothing(folder: Path, server: WatchServer) -> None:
    before = everything(folder.parent)
    for request in HOSTILE.values():
        raw(server, request)
    for target in ("/", STATE):
        get(server, target)
    assert everything(folder.parent) == before


def test_a_port_in_use_is_one_sentence(server: WatchServer, folder: Path) -> None:
    with pytest.raises(InputError, match=rf"port {server.server_port} is in use; .*--port 0"):
        WatchServer(answers(folder), port=server.server_port)
