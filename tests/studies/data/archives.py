"""Small archives in the form of CIFAR-10's, and small published files, for tests that damage them."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile

from tacit.studies.data.cifar10 import FOLDER
from tacit.studies.data.published import Published, Wrapper
from tacit.studies.data.streams import Content


def content(name: str, raw: bytes) -> Content:
    return Content(name, len(raw), hashlib.sha256(raw).hexdigest())


MEMBERS = {f"batch_{number}.bin": bytes([number] * (200 + number)) for number in (1, 2, 3)}
CONTENTS = tuple(content(name, raw) for name, raw in MEMBERS.items())


def tar(members: list[tuple[str, bytes]], *, kinds: dict[str, bytes] | None = None) -> bytes:
    """A tar archive with these names and bytes; `kinds` gives some of them another type than a file's."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, raw in members:
            facts = tarfile.TarInfo(name)
            facts.size = len(raw)
            facts.type = (kinds or {}).get(name, tarfile.REGTYPE)
            archive.addfile(facts, io.BytesIO(raw))
    return out.getvalue()


def own_members() -> list[tuple[str, bytes]]:
    return [(f"{FOLDER}/{name}", raw) for name, raw in MEMBERS.items()]


def packed(raw: bytes, *, name: str = "", level: int = 9) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(filename=name, fileobj=out, mode="wb", mtime=1, compresslevel=level) as handle:
        handle.write(raw)
    return out.getvalue()


def published(raw: bytes, contents: tuple[Content, ...], addresses: tuple[str, ...] = ()) -> Published:
    """A published file that is `raw`, byte for byte, with these contents in it."""
    wrapper = Wrapper("by its authors", len(raw), hashlib.sha256(raw).hexdigest())
    return Published("file.gz", contents, (wrapper,), addresses)
