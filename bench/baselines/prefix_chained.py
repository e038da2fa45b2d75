"""A store of texts' attention state whose keys are chained and whose look-up goes by content.

So LMCache's blending keeps and finds texts:

- a state's key is that of its text and of all texts before it in the prompt, so the same text
  behind others is another entry (its store);
- a text is found wherever any entry of it is kept, behind whatever it was computed (its look-up);
- after each prompt all its texts are kept, those that were found, too;
- the entry used longest ago goes first.

Its grid of 256 tokens, which loses the ends of texts, is left out: entries are whole texts.
Without ``touches`` it is a queue: the entry kept longest ago goes first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SizedText:
    """A retrieved text as far as a store's counts need it.

    Args:
        number: tells texts apart.
        tokens: of the text.
    """

    number: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _Entry:
    key: bytes
    text: SizedText


class PrefixChained:
    """Entries of texts by chained keys, bounded in bytes.

    Args:
        limit_bytes: most bytes of all entries; None for no limit.
        token_bytes: of the state of each token.
        touches: whether an entry that is found was used by that.
    """

    def __init__(
        self,
        limit_bytes: int | None,
        token_bytes: int,
        touches: bool = True,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._token_bytes = token_bytes
        self._touches = touches
        self._order: OrderedDict[bytes, SizedText] = OrderedDict()
        self._entries: dict[int, OrderedDict[bytes, None]] = {}
        #: bytes of all entries
        self.held_bytes = 0

    @property
    def num_texts(self) -> int:
        """Return how many texts have an entry at least."""
        return len(self._entries)

    def __len__(self) -> int:
        return len(self._order)

    def missed(self, texts: Sequence[SizedText]) -> int:
        """Look for a prompt's texts, keep them all, and return the tokens that were not found."""
        entries = list(_chained(texts))
        found = [entry.text for entry in self._found(entries)]
        for entry in entries:
            self._keep(entry)
        return sum(one.tokens for one in texts) - sum(one.tokens for one in found)

    def _found(self, entries: Iterable[_Entry]) -> Iterator[_Entry]:
        for entry in entries:
            key = self._look_up(entry)
            if key is not None:
                if self._touches:
                    self._order.move_to_end(key)
                yield entry

    def _look_up(self, entry: _Entry) -> bytes | None:
        """Return the key of the entry itself, or else of the latest of its text."""
        if entry.key in self._order:
            return entry.key
        if entry.text.number in self._entries:
            return next(reversed(self._entries[entry.text.number]))
        return None

    def _keep(self, entry: _Entry) -> None:
        key, text = entry.key, entry.text
        if key in self._order:
            if self._touches:
                self._order.move_to_end(key)
            return
        size = text.tokens * self._token_bytes
        if self._limit_bytes is not None:
            if size > self._limit_bytes:
                return
            while self.held_bytes + size > self._limit_bytes:
                self._give_up()
        self._order[key] = text
        self._entries.setdefault(text.number, OrderedDict())[key] = None
        self.held_bytes += size

    def _give_up(self) -> None:
        key, text = self._order.popitem(last=False)
        others = self._entries[text.number]
        del others[key]
        if not others:
            del self._entries[text.number]
        self.held_bytes -= text.tokens * self._token_bytes


def _chained(texts: Iterable[SizedText]) -> Iterator[_Entry]:
    """Yield the entry of each text: its key is a hash of the key before it and of the text."""
    key = b""
    for text in texts:
        key = hashlib.sha256(key + text.number.to_bytes(8, "little")).digest()
        yield _Entry(key, text)
