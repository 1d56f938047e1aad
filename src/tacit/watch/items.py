"""Named JSON texts, each with the version at which it last changed, so that a page asks for what is new."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Mapping


class Items:
    """Replaced in groups by threads that read the folder, asked by threads that answer the page."""

    def __init__(self) -> None:
        self.instance = secrets.token_hex(4)  # a page of an earlier server must not be given a part
        self.version = 0
        self._lock = threading.Lock()
        self._texts: dict[str, tuple[int, str]] = {}  # by name: version and JSON
        self._groups: dict[str, set[str]] = {}
        self._removed: dict[str, int] = {}

    def replace(self, group: str, texts: Mapping[str, str]) -> bool:
        """Make `texts` the items of a group; names that it had before and has no more are removed.

        Returns whether anything changed.
        """
        with self._lock:
            changed = {name: text for name, text in texts.items() if self._texts.get(name, (0, None))[1] != text}
            removed = self._groups.get(group, set()) - texts.keys()
            if not changed and not removed:
                return False
            self.version += 1
            for name, text in changed.items():
                self._texts[name] = (self.version, text)
                self._removed.pop(name, None)
            for name in removed:
                del self._texts[name]
                self._removed[name] = self.version
            self._groups[group] = set(texts)
            return True

    def since(self, instance: str, version: int) -> str:
        """The inside of a JSON object: all items for a page without a state, else those changed after `version`."""
        with self._lock:
            whole = instance != self.instance or not 0 < version <= self.version
            after = 0 if whole else version
            items = ",".join(f"{json.dumps(name)}:{text}" for name, (at, text) in self._texts.items() if at > after)
            removed = [] if whole else [name for name, at in self._removed.items() if at > after]
            facts = {"instance": self.instance, "version": self.version, "whole": whole, "removed": removed}
            return f'{json.dumps(facts)[1:-1]},"items":{{{items}}}'
