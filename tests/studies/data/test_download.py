"""Downloads, against a server on this machine: cut, wrong, refused, endless, twice at once, or not allowed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from archives import content, packed, published

from tacit import InputError
from tacit.studies.data import download
from tacit.studies.data.download import Watch, fetch_file
from tacit.studies.data.published import Published

RAW = bytes(i * i % 251 for i in range(60_000))
FILE = packed(RAW, name="file", level=0)  # stored, so that its length is in our hands
OTHER = packed(RAW, level=1)  # the same contents in another wrapper
WRONG = packed(RAW[:-1] + b"x", name="file", level=0)


@dataclass
class Mirror:
    """What one address does: the bytes it sends, after how many each request is cut, whether it knows ranges."""

    body: bytes = FILE
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    status: int = 200
    endless: bool = False
    gate: threading.Event | None = None
    asked: list[str | None] = field(default_factory=list)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    mirrors: dict[str, Mirror]

    def address(self, name: str, mirror: Mirror) -> str:
        self.mirrors[name] = mirror
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        mirror = self.server.mirrors[self.path.strip("/")]
        asked = self.headers.get("Range")
        mirror.asked.append(asked)
        begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked and mirror.ranges else 0
        if mirror.status != 200 or begin >= len(mirror.body):
            self.send_error(mirror.status if mirror.status != 200 else 416)
            return
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(mirror.body) - 1}/{len(mirror.body)}")
        if not mirror.endless:
            self.send_header("Content-Length", str(len(mirror.body) - begin))
        self.end_headers()
        cut = mirror.cuts.pop(0) if mirror.cuts else len(mirror.body)
        try:
            self.wfile.write(mirror.body[begin:][:cut])
            if mirror.gate is not None:
                self.wfile.flush()
                mirror.gate.wait(30)
            while mirror.endless:
                self.wfile.write(bytes(10_000))
        except OSError:
            pass  # the other side hung up


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.mirrors = {}
    threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TACIT_OFFLINE", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def at(*addresses: str) -> Published:
    return published(FILE, (content("file", RAW),), addresses)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_fetched_file_is_there_alone(server: Server, tmp_path: Path) -> None:
    target = fetch_file(at(server.address("one", Mirror())), tmp_path / "new" / "file.gz")
    assert target.read_bytes() == FILE
    assert names(target.parent) == ["file.gz"]


def test_what_is_here_and_right_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    mirror = Mirror()
    (tmp_path / "file.gz").write_bytes(OTHER)
    fetch_file(at(server.address("one", mirror)), tmp_path / "file.gz")
    assert mirror.asked == []
    assert (tmp_path / "file.gz").read_bytes() == OTHER


def test_a_cut_transfer_goes_on_where_it_was_cut(server: Server, tmp_path: Path) -> None:
    mirror = Mirror(cuts=[20_000, 15_000])
    fetch_file(at(server.address("one", mirror)), tmp_path / "file.gz")
    assert mirror.asked == [None, "bytes=20000-", "bytes=35000-"]
    assert (tmp_path / "file.gz").read_bytes() == FILE


def test_a_later_run_goes_on_with_another_address(server: Server, tmp_path: Path) -> None:
    cut = Mirror(cuts=[20_000, 0])
    with pytest.raises(InputError, match="stopped after 20,000"):
        fetch_file(at(server.address("one", cut)), tmp_path / "file.gz")
    assert names(tmp_path) == [".file.gz.part"]
    good = Mirror()
    fetch_file(at(server.address("two", good)), tmp_path / "file.gz")
    assert good.asked == ["bytes=20000-"]
    assert (tmp_path / "file.gz").read_bytes() == FILE
    assert names(tmp_path) == ["file.gz"]


def test_a_server_without_ranges_is_asked_and_sends_all(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".file.gz.part").write_bytes(b"something else")
    fetch_file(at(server.address("one", Mirror(ranges=False))), tmp_path / "file.gz")
    assert (tmp_path / "file.gz").read_bytes() == FILE


def test_a_part_of_another_file_is_dropped_and_all_fetched_anew(server: Server, tmp_path: Path) -> None:
    mirror = Mirror(body=OTHER)
    (tmp_path / ".file.gz.part").write_bytes(FILE[:100])
    fetch_file(at(server.address("one", mirror)), tmp_path / "file.gz")
    assert mirror.asked == ["bytes=100-", None]
    assert (tmp_path / "file.gz").read_bytes() == OTHER


def test_a_part_that_is_longer_than_the_file_is_dropped(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".file.gz.part").write_bytes(bytes(len(FILE) + 5))
    fetch_file(at(server.address("one", Mirror())), tmp_path / "file.gz")
    assert (tmp_path / "file.gz").read_bytes() == FILE


def test_a_part_that_only_lacks_its_name_needs_no_network(tmp_path: Path) -> None:
    (tmp_path / ".file.gz.part").write_bytes(FILE)
    fetch_file(at(), tmp_path / "file.gz")
    assert names(tmp_path) == ["file.gz"]


@pytest.mark.parametrize("bad", [Mirror(body=WRONG), Mirror(body=b"<html>sorry</html>"), Mirror(status=404)])
def test_a_wrong_answer_leads_to_the_next_address(server: Server, tmp_path: Path, bad: Mirror) -> None:
    good = Mirror()
    fetch_file(at(server.address("bad", bad), server.address("good", good)), tmp_path / "file.gz")
    assert good.asked == [None]
    assert (tmp_path / "file.gz").read_bytes() == FILE
    assert names(tmp_path) == ["file.gz"]


def test_when_every_address_fails_one_sentence_says_why_and_nothing_looks_like_the_file(
    server: Server, tmp_path: Path
) -> None:
    addresses = (
        server.address("gone", Mirror(status=503)),
        server.address("wrong", Mirror(body=WRONG)),
        "http://127.0.0.1:9/refused",
    )
    with pytest.raises(InputError, match=r"503.*wrong file.*refused.*run the same command again") as error:
        fetch_file(at(*addresses), tmp_path / "file.gz")
    assert "\n" not in str(error.value)
    assert names(tmp_path) == []


def test_a_server_that_never_ends_is_left(server: Server, tmp_path: Path) -> None:
    class Counted(Watch):
        most = 0

        def received(self, done: int, total: int) -> None:
            self.most = max(self.most, done)

    watch, file = Counted(), at(server.address("one", Mirror(endless=True)))
    with pytest.raises(InputError, match="sent more than"):
        fetch_file(file, tmp_path / "file.gz", watch=watch)
    assert watch.most <= file.limit
    assert names(tmp_path) == []


def test_a_damaged_file_is_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.gz").write_bytes(FILE[:1000])
    fetch_file(at(server.address("one", Mirror())), tmp_path / "file.gz")
    assert (tmp_path / "file.gz").read_bytes() == FILE


def test_offline_is_a_sentence_and_no_request(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_OFFLINE", "1")
    mirror = Mirror()
    with pytest.raises(InputError, match="TACIT_OFFLINE"):
        fetch_file(at(server.address("one", mirror)), tmp_path / "file.gz")
    assert mirror.asked == []
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        fetch_file(at("http://127.0.0.1:9/x"), tmp_path / "a file" / "file.gz")


def test_a_full_disk_is_a_sentence(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_append", full)
    with pytest.raises(InputError, match="disk is full"):
        fetch_file(at(server.address("one", Mirror())), tmp_path / "file.gz")


CHILD = textwrap.dedent("""
    import sys
    from pathlib import Path
    from test_download import at
    from tacit.studies.data.download import Watch, fetch_file

    class Told(Watch):
        def received(self, done, total):
            print("received", flush=True)
        def warned(self, text):
            print(text, flush=True)

    fetch_file(at(sys.argv[1]), Path(sys.argv[2]), watch=Told())
    print("done", flush=True)
""")


def child(address: str, target: Path) -> subprocess.Popen[str]:
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[2]), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", CHILD, address, str(target)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_of_two_processes_one_fetches_and_the_other_waits(server: Server, tmp_path: Path) -> None:
    mirror = Mirror(gate=threading.Event(), cuts=[len(FILE) - 1])
    address = server.address("one", mirror)
    first = child(address, tmp_path / "file.gz")
    assert first.stdout is not None
    assert first.stdout.readline() == "received\n"
    second = child(address, tmp_path / "file.gz")
    assert second.stdout is not None
    assert "waiting" in second.stdout.readline()
    assert mirror.gate is not None
    mirror.gate.set()
    assert [process.wait(60) for process in (first, second)] == [0, 0]
    assert second.stdout.read() == "done\n"
    assert mirror.asked == [None, f"bytes={len(FILE) - 1}-"]  # both of the first process: its transfer was cut
    assert (tmp_path / "file.gz").read_bytes() == FILE
    assert names(tmp_path) == ["file.gz"]


def test_after_a_killed_process_the_next_goes_on(server: Server, tmp_path: Path) -> None:
    mirror = Mirror(gate=threading.Event(), cuts=[len(FILE) // 2])
    address = server.address("one", mirror)
    killed = child(address, tmp_path / "file.gz")
    assert killed.stdout is not None
    killed.stdout.readline()
    killed.kill()
    killed.wait(60)
    assert mirror.gate is not None
    mirror.gate.set()
    have = (tmp_path / ".file.gz.part").stat().st_size
    fetch_file(at(address), tmp_path / "file.gz")
    assert mirror.asked == [None, f"bytes={have}-" if have else None]
    assert (tmp_path / "file.gz").read_bytes() == FILE
