"""The tokens of texts in a prompt, found by the model's own tokenizer."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

#: Tokens at either end of a text that may be others in a prompt, as they merge with what is around.
EDGE = 3
#: Tokens on either side of a place that are read to tell whether a text stands there.
AROUND = 8
#: Texts of which fewer tokens stand in a prompt are computed: reuse would save less than it costs.
LEAST_TOKENS = 8
#: The most places of a prompt that are looked at and hold the middle of a text alone.
MOST_OTHERS = 1024
#: Texts of so many characters for each token of the prompt are cut, those behind are left out: no
#: prompt holds more, and cutting them would hold up the engine.
CHARACTERS_A_TOKEN = 32
#: The most texts whose tokens are kept, and the most characters of one.
_MOST_KEPT, _LONGEST_KEPT = 4096, 1 << 16


@dataclass(frozen=True, slots=True)
class FoundText:
    """The place of a text in a prompt's tokens.

    Args:
        text: as it was named.
        ids: the tokens that it has alone.
        offset: the first of them that stands in the prompt.
        start: its place in the prompt.
        stop: the place behind the last one that does.
    """

    text: str
    ids: tuple[int, ...]
    offset: int
    start: int
    stop: int


class TextFinder:
    """A tokenizer as it finds texts.

    Args:
        encode: returns the tokens of a text alone, without special ones.
        decode: returns the text of tokens, special ones included.
    """

    def __init__(
        self, encode: Callable[[str], Sequence[int]], decode: Callable[[Sequence[int]], str]
    ) -> None:
        self._encode = encode
        self._decode = decode
        self._kept: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def ids(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text alone."""
        found = self._kept.pop(text, None)
        if found is None:
            found = tuple(self._encode(text))
        if len(text) <= _LONGEST_KEPT:
            self._kept[text] = found
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return found

    def text(self, ids: Sequence[int]) -> str:
        return self._decode(ids)

    def find(self, prompt: Sequence[int], texts: Iterable[str]) -> list[FoundText]:
        """Return the texts that stand in a prompt one behind the other, as far as their tokens do.

        Each is found at its first place behind the one before, where it stands as it was named. A
        text that is not there, or not behind the one before, is left out, and so are those that
        are too long for the prompt, with all behind them.
        """
        room = CHARACTERS_A_TOKEN * len(prompt)
        octets = array("q", prompt).tobytes()
        found: list[FoundText] = []
        at = others = 0
        for text in texts:
            room -= len(text)
            if room < 0:
                break
            ids = self.ids(text)
            if len(ids) < LEAST_TOKENS:
                continue
            for offset, start, stop in _places(octets, ids, at):
                one = FoundText(text, ids, offset, start, stop)
                if self._stands(prompt, one):
                    found.append(one)
                    at = stop
                    break
                others += 1
                if others > MOST_OTHERS:  # a prompt made to hold up the engine
                    return found
        return found

    def _stands(self, prompt: Sequence[int], one: FoundText) -> bool:
        """Tell whether the whole text stands around those of its tokens that do."""
        if one.stop - one.start == len(one.ids):
            return True
        around = slice(max(0, one.start - AROUND), one.stop + AROUND)
        before = self._decode(prompt[around.start : one.start])
        start = len(before) - len(self._decode(one.ids[: one.offset]))
        return start >= 0 and self._decode(prompt[around]).startswith(one.text, start)

    def head(self, prompt: Sequence[int], stop: int, before: str | None) -> int:
        """Return the number of tokens of a prompt's head.

        Args:
            prompt: its tokens.
            stop: the place of its first text.
            before: the text that stands between head and first text; None for none.
        """
        if not before:
            return stop
        place = self._decode(prompt[:stop]).rfind(before)
        if place < 0:
            return stop
        low, high = 0, stop
        while low < high:  # the most tokens whose text ends at the place or before it
            middle = (low + high + 1) // 2
            if len(self._decode(prompt[:middle])) <= place:
                low = middle
            else:
                high = middle - 1
        return low


def _places(octets: bytes, ids: tuple[int, ...], at: int) -> Iterator[tuple[int, int, int]]:
    """Yield offset, start and stop where a text's tokens stand in a prompt, from a place on.

    At least ``LEAST_TOKENS`` of them stand there, and all but ``EDGE`` at either end.
    """
    prompt = memoryview(octets).cast("q")
    size = max(LEAST_TOKENS, len(ids) - 2 * EDGE)
    offsets = range(max(0, len(ids) - EDGE - size), min(EDGE, len(ids) - size) + 1)
    cores = {offset: array("q", ids[offset : offset + size]).tobytes() for offset in offsets}
    nexts = {offset: _find(octets, core, at) for offset, core in cores.items()}
    while there := [(start, offset) for offset, start in nexts.items() if start is not None]:
        start, offset = min(there)
        nexts[offset] = _find(octets, cores[offset], start + 1)
        stop = start + size
        while offset and start > at and prompt[start - 1] == ids[offset - 1]:
            offset, start = offset - 1, start - 1
        last = offset + stop - start
        while last < len(ids) and stop < len(prompt) and prompt[stop] == ids[last]:
            last, stop = last + 1, stop + 1
        yield offset, start, stop


def _find(octets: bytes, core: bytes, at: int) -> int | None:
    place = octets.find(core, at * 8)
    while place >= 0 and place % 8:
        place = octets.find(core, place + 1)
    return None if place < 0 else place // 8
