"""Downloads by pooch from a server on this machine: cut, wrong, refused, endless, twice at once, or not allowed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pooch
import pytest
from small_copies import IDX, lay, one_file, packed, small_fashion

from tacit import InputError
from tacit._util.errors import TacitError
from tacit.studies.data.facts import Dataset
from tacit.studies.data.files import fetch, read_or_fetch

RAW = bytes(i * i % 251 for i in range(60_000))
FILE = packed(RAW, level=0)  # stored, so that its length is in our hands
OTHER = packed(RAW, level=1)  # the same contents in another wrapper
WRONG = packed(RAW[:-1] + b"x", level=0)


@dataclass
class Mirror:
    """What one address does: the bytes it sends, and after how many a request is cut."""

    body: bytes = FILE
    files: dict[str, bytes] = field(default_factory=dict)  # other bytes for files of these names
    cuts: list[int] = field(default_factory=list)
    status: int = 200
    endless: bool = False
    gate: threading.Event | None = None
    asked: int = 0


class Server(ThreadingHTTPServer):
    daemon_threads = True
    mirrors: dict[str, Mirror]

    def address(self, name: str, mirror: Mirror) -> str:
        self.mirrors[name] = mirror
        return f"http://127.0.0.1:{self.server_address[1]}/{name}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        _, name, file = self.path.split("/")
        mirror = self.server.mirrors[name]
        body = mirror.files.get(file, mirror.body)
        mirror.asked += 1
        if mirror.status != 200:
            self.send_error(mirror.status)
            return
        self.send_response(200)
        if not mirror.endless:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = mirror.cuts.pop(0) if mirror.cuts else len(body)
        try:
            half = len(body) // 2 if mirror.gate is not None else 0
            self.wfile.write(body[:half])
            if mirror.gate is not None:
                self.wfile.flush()
                mirror.gate.wait(30)
            self.wfile.write(body[half:cut])
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


def at(*urls: str) -> Dataset:
    return one_file(RAW, urls)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_fetched_file_is_there_alone(server: Server, tmp_path: Path) -> None:
    data, (path,) = fetch(at(server.address("one", Mirror())), tmp_path / "new")
    assert data.train_inputs.tobytes() == RAW
    assert path == tmp_path / "new" / "file.gz"
    assert path.read_bytes() == FILE
    assert names(path.parent) == ["file.gz"]


def test_what_is_here_and_right_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    mirror = Mirror()
    (tmp_path / "file.gz").write_bytes(OTHER)
    read_or_fetch(at(server.address("one", mirror)), tmp_path)
    assert mirror.asked == 0
    assert (tmp_path / "file.gz").read_bytes() == OTHER


def test_a_cut_transfer_leads_to_the_next_address(server: Server, tmp_path: Path) -> None:
    cut, good = Mirror(cuts=[20_000]), Mirror()
    fetch(at(server.address("cut", cut), server.address("good", good)), tmp_path)
    assert (cut.asked, good.asked) == (1, 1)
    assert (tmp_path / "file.gz").read_bytes() == FILE
    assert names(tmp_path) == ["file.gz"]


def test_a_mirror_may_pack_the_contents_in_its_own_way(server: Server, tmp_path: Path) -> None:
    fetch(at(server.address("one", Mirror(body=OTHER))), tmp_path)
    assert (tmp_path / "file.gz").read_bytes() == OTHER


@pytest.mark.parametrize("bad", [Mirror(body=WRONG), Mirror(body=b"<html>sorry</html>"), Mirror(status=404)])
def test_a_wrong_answer_leads_to_the_next_address(server: Server, tmp_path: Path, bad: Mirror) -> None:
    good = Mirror()
    fetch(at(server.address("bad", bad), server.address("good", good)), tmp_path)
    assert good.asked == 1
    assert (tmp_path / "file.gz").read_bytes() == FILE
    assert names(tmp_path) == ["file.gz"]


def test_files_of_one_dataset_get_their_places_when_all_are_right(server: Server, tmp_path: Path) -> None:
    files = {f"{name}.gz": packed(raw) for name, raw in IDX.items()}
    last = "t10k-labels-idx1-ubyte.gz"
    bad = server.address("bad", Mirror(files={**files, last: packed(IDX[last.removesuffix(".gz")][:-1] + b"x")}))
    dataset = small_fashion(tmp_path / "unpacked")
    with pytest.raises(TacitError, match="does not hold the published fashion_mnist"):
        fetch(replace(dataset, urls=(bad,)), tmp_path / "new")
    assert names(tmp_path / "new") == []
    fetch(replace(dataset, urls=(bad, server.address("good", Mirror(files=files)))), tmp_path / "new")
    assert names(tmp_path / "new") == sorted(files)
    assert names(lay(tmp_path / "expected")) == sorted(files)


def test_when_every_address_fails_one_sentence_says_why_and_nothing_looks_like_the_file(
    server: Server, tmp_path: Path
) -> None:
    urls = (
        server.address("gone", Mirror(status=503)),
        server.address("wrong", Mirror(body=WRONG)),
        "http://127.0.0.1:9/refused/",
    )
    with pytest.raises(TacitError, match=r"503.*sent a file that.*refused.*run the same command again") as error:
        fetch(at(*urls), tmp_path)
    assert "\n" not in str(error.value)
    assert names(tmp_path) == []


def test_a_server_that_never_ends_is_left(server: Server, tmp_path: Path) -> None:
    with pytest.raises(TacitError, match="has more than 120,000 bytes"):
        fetch(at(server.address("one", Mirror(endless=True))), tmp_path)
    assert names(tmp_path) == []


def test_a_damaged_file_is_named_and_replaced(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "one" / "file.gz"
    path.parent.mkdir()
    path.write_bytes(FILE[:1000])
    read_or_fetch(at(server.address("one", Mirror())), tmp_path)
    assert path.read_bytes() == FILE
    assert f"{path} cannot be read" in caplog.text


def test_offline_is_a_sentence_and_no_request(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_OFFLINE", "1")
    mirror = Mirror()
    with pytest.raises(InputError, match="TACIT_OFFLINE"):
        read_or_fetch(at(server.address("one", mirror)), tmp_path)
    assert mirror.asked == 0
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(TacitError, match="cannot be written"):
        fetch(at("http://127.0.0.1:9/x/"), tmp_path / "a file")


def test_a_full_disk_is_a_sentence(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pooch, "retrieve", full)
    with pytest.raises(TacitError, match="disk is full"):
        fetch(at(server.address("one", Mirror())), tmp_path)


def test_a_process_that_fetches_beside_another_does_not_disturb_it(server: Server, tmp_path: Path) -> None:
    slow = Mirror(gate=threading.Event())
    with ThreadPoolExecutor() as threads:
        first = threads.submit(fetch, at(server.address("slow", slow)), tmp_path)
        while not slow.asked:
            time.sleep(0.01)
        assert names(tmp_path) == [name for name in names(tmp_path) if name.startswith(".fetching-")]
        fetch(at(server.address("fast", Mirror())), tmp_path)
        assert slow.gate is not None
        slow.gate.set()
        assert first.result(60)[1] == (tmp_path / "file.gz",)
    assert (tmp_path / "file.gz").read_bytes() == FILE
    assert names(tmp_path) == ["file.gz"]
