"""Prompts of a program as its runs have shown them: literals, and slots for known values.

A prompt's beginning is recorded from two runs of different inputs on: what both have in common is
literal, what stands where a run had a value is a slot, and at the first place at which they differ
the record ends. Each further run may only shorten it. Of the first run hashes alone are kept, so
that a record holds no text that only one run had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from rag_accel.engine_api import Message, Role
from rag_accel.leaves.early_answers import Remake
from rag_accel.scheduler.messages import EngineName
from rag_accel.system.locks import RenewedLock

#: What a run knows by name: texts, and turns of a conversation.
Values: TypeAlias = Mapping[str, "str | tuple[Message, ...]"]

MOST_CHARACTERS: Final = 1 << 16
"""Of a longer prompt, only the beginning is read."""
MOST_VALUES: Final = 64
"""Of more values, only the first ones are looked for."""
LEAST_VALUE: Final = 3
"""Shorter texts, in characters, stand anywhere by chance."""
LEAST_HITS: Final = 0.8
"""A record is dropped once its beginnings come true less often."""
MOST_PLACES: Final = 64
"""Prompts of a run that are recorded; what comes later is not."""
MOST_ITEMS: Final = 1024
"""Literals and slots of a prompt that are recorded."""
_TRIALS, _RESTS = 8, 6
_BLOCK = 16


class _Turn(NamedTuple):
    """The beginning of a message."""

    role: Role


class _TextPlace(NamedTuple):
    """The place of a text."""

    value: str


class _TurnsPlace(NamedTuple):
    """The place of whole messages."""

    value: str


class _Hashed(NamedTuple):
    """A text of which only hashes are kept: of each longer beginning, and of the whole."""

    blocks: tuple[bytes, ...]
    whole: bytes


_Item: TypeAlias = "str | _Hashed | _Turn | _TextPlace | _TurnsPlace"


@dataclass(slots=True)
class RecordedPrompt:
    """The record of one prompt of a program, by its place among those of a run. Not thread-safe."""

    #: of the first run
    _first: tuple[_Item, ...] | None = None
    _digest: bytes = b""
    #: once two runs have agreed
    _shape: tuple[_Item, ...] | None = None
    #: the shape is that of whole prompts, which have not differed at any place
    _is_whole: bool = False
    _hits: float = 0.0
    _trials: int = 0
    #: how often it was dropped, and how many runs it is not recorded for
    _drops: int = 0
    _resting: int = 0

    def learn(self, messages: Sequence[Message], values: Values) -> None:
        """Take a run's prompt into account, and the values that the run had before it."""
        if self._resting:
            self._resting -= 1
            return
        items = tuple(islice(_read(messages, values), MOST_ITEMS))
        if self._shape is not None:
            self._narrow(self._shape, items)
            return
        digest = _digest_of(values)
        if self._first is None:
            self._first, self._digest = tuple(map(_without_text, items)), digest
            self._is_whole = _is_read_whole(messages, items)
        elif digest != self._digest:
            self._narrow(self._first, items)
            self._first = None

    def _narrow(self, known: tuple[_Item, ...], items: tuple[_Item, ...]) -> None:
        self._shape = tuple(_common(known, items))
        self._is_whole = self._is_whole and self._shape == items and len(known) == len(items)

    def beginning(self, values: Values) -> tuple[Message, ...]:
        """Return the messages that a run's prompt will begin with, of the last one a beginning.

        Empty unless at least one value of the run is in it: all runs have the rest in common.
        """
        return self._told(values)[0]

    def whole(self, values: Values) -> tuple[Message, ...]:
        """Return the prompt of a run, as a whole; empty where anything in it is not known."""
        if not self._is_whole:
            return ()
        messages, is_whole = self._told(values)
        return messages if is_whole else ()

    def _told(self, values: Values) -> tuple[tuple[Message, ...], bool]:
        """Return the messages as far as they are known, and whether that is all of the shape."""
        roles: list[Role] = []
        contents: list[list[str]] = []
        has_value = is_all = False
        for item in self._shape or ():
            if isinstance(item, _Turn):
                roles.append(item.role)
                contents.append([])
                continue
            if isinstance(item, str):
                contents[-1].append(item)
                continue
            value = values.get(item.value) if isinstance(item, _TextPlace | _TurnsPlace) else None
            if isinstance(item, _TextPlace) and isinstance(value, str):
                contents[-1].append(value)
            elif isinstance(item, _TurnsPlace) and isinstance(value, tuple):
                roles.extend(message.role for message in value)
                contents += [[message.content] for message in value]
            else:
                break
            has_value = True
        else:
            is_all = True
        if not has_value:
            return (), False
        told = zip(roles, contents, strict=True)
        return tuple(Message(role, "".join(content)) for role, content in told), is_all

    def drawn(self) -> str:
        """Return what runs have shown, literals by their length; empty before two have agreed."""
        parts: list[str] = []
        for item in self._shape or ():
            if isinstance(item, _Turn):
                parts.append(f"{item.role}:")
            elif isinstance(item, _TextPlace | _TurnsPlace):
                parts.append(f"{{{item.value or 'input'}}}")
            else:
                parts.append(f"{len(item)} characters" if isinstance(item, str) else "...")
        if parts and not self._is_whole:
            parts.append("...")
        return " ".join(parts)

    def judge(self, is_hit: bool) -> None:
        """Take into account whether a prompt began as foretold."""
        self._trials += 1
        self._hits += (float(is_hit) - self._hits) / min(self._trials, _TRIALS)
        if self._trials >= _TRIALS // 2 and self._hits < LEAST_HITS:
            self._drops = min(self._drops + 1, _RESTS)
            self._resting = _TRIALS << self._drops
            self._first = self._shape = None
            self._hits, self._trials = 0.0, 0


class RecordedPrompts:
    """The prompts of one program on one accelerator, by their place among those of a run.

    Attributes:
        engines: where each was computed last, if prompts can be begun there.
        remakes: what answers each early, and where, if its last call can be answered so.
    """

    def __init__(self) -> None:
        self.places: dict[int, RecordedPrompt] = {}
        self.engines: dict[int, EngineName] = {}
        self.remakes: dict[int, tuple[EngineName, Remake]] = {}
        self._lock = RenewedLock()

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Return what is to be held while runs read and write records; reentrant."""
        return self._lock.lock

    def at(self, place: int) -> RecordedPrompt | None:
        """Return the record of the prompt of a place; None beyond the bound."""
        if place not in self.places and place < MOST_PLACES:
            self.places[place] = RecordedPrompt()
        return self.places.get(place)


def is_beginning(beginning: Sequence[Message], whole: Sequence[Message]) -> bool:
    """Tell whether a prompt begins with messages, of the last one with a beginning."""
    last = len(beginning) - 1
    return (
        0 <= last < len(whole)
        and tuple(beginning[:last]) == tuple(whole[:last])
        and beginning[last].role == whole[last].role
        and whole[last].content.startswith(beginning[last].content)
    )


def _is_read_whole(messages: Sequence[Message], items: Sequence[_Item]) -> bool:
    """Tell whether the bounds have left nothing of a prompt out."""
    num_characters = sum(len(message.content) for message in messages)
    return len(items) < MOST_ITEMS and num_characters < MOST_CHARACTERS


def _read(messages: Sequence[Message], values: Values) -> Iterator[_Item]:
    """Yield a prompt as it is recorded."""
    texts, turns = _ordered(values)
    left, at = MOST_CHARACTERS, 0
    while at < len(messages) and left > 0:
        name = next((name for name, told in turns if _stand_at(told, messages, at)), None)
        if name is not None:
            told = values[name]
            yield _TurnsPlace(name)
            at += len(told)
            continue
        yield _Turn(messages[at].role)
        content = messages[at].content[:left]
        yield from _pieces(content, texts)
        left -= len(content)
        at += 1


def _stand_at(told: Sequence[Message], messages: Sequence[Message], at: int) -> bool:
    return messages[at] == told[0] and tuple(messages[at : at + len(told)]) == tuple(told)


def _ordered(
    values: Values,
) -> tuple[list[tuple[str, str]], list[tuple[str, tuple[Message, ...]]]]:
    """Return texts and conversations that may stand in a prompt, the longest first."""
    texts: list[tuple[str, str]] = []
    turns: list[tuple[str, tuple[Message, ...]]] = []
    for name, value in islice(values.items(), MOST_VALUES):
        if isinstance(value, str):
            if LEAST_VALUE <= len(value) <= MOST_CHARACTERS:
                texts.append((name, value))
        elif value:
            turns.append((name, value))
    texts.sort(key=lambda text: -len(text[1]))
    turns.sort(key=lambda told: -len(told[1]))
    return texts, turns


def _pieces(content: str, texts: Sequence[tuple[str, str]]) -> Iterator[_Item]:
    """Yield literals and slots; a text inside a longer one does not count."""
    if not texts:
        if content:
            yield content
        return
    (name, text), *shorter = texts
    for number, piece in enumerate(content.split(text)):
        if number:
            yield _TextPlace(name)
        yield from _pieces(piece, shorter)


def _common(known: Iterable[_Item], items: Iterable[_Item]) -> Iterator[_Item]:
    """Yield what two runs have in common, up to the first place at which they differ."""
    for one, other in zip(known, items, strict=False):
        if isinstance(one, _Hashed) and isinstance(other, str):
            common = _common_text(one, other)
        elif isinstance(one, str) and isinstance(other, str):
            common = other[: _common_length(one, other)]
        elif one == other:
            yield other
            continue
        else:
            return
        if common:
            yield common
        if common != other or one not in (other, _hashed(other)):
            return


def _common_length(one: str, other: str) -> int:
    same, differs = 0, min(len(one), len(other)) + 1  # the first so many are, or are not, the same
    while differs - same > 1:
        middle = (same + differs) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            differs = middle
    return same


def _common_text(known: _Hashed, text: str) -> str:
    found = _hashed(text)
    if found.whole == known.whole:
        return text
    blocks = 0
    for mine, theirs in zip(known.blocks, found.blocks, strict=False):
        if mine != theirs:
            break
        blocks += 1
    return text[: blocks * _BLOCK]


def _without_text(item: _Item) -> _Item:
    return _hashed(item) if isinstance(item, str) else item


def _hashed(text: str) -> _Hashed:
    """Return the hashes of a text's beginnings."""
    hasher = blake2b(digest_size=12)
    blocks: list[bytes] = []
    data = [text[at : at + _BLOCK] for at in range(0, len(text), _BLOCK)]
    for block in data:
        hasher.update(block.encode(errors="surrogatepass"))
        if len(block) == _BLOCK:
            blocks.append(hasher.digest())
    return _Hashed(tuple(blocks), hasher.digest() + len(text).to_bytes(8, "big"))


def _digest_of(values: Values) -> bytes:
    hasher = blake2b(digest_size=16)
    for name, value in islice(values.items(), MOST_VALUES):
        told = value if isinstance(value, str) else "\0".join(turn.content for turn in value)
        for text in (name, told):
            hasher.update(len(text).to_bytes(8, "big"))
            hasher.update(text.encode(errors="surrogatepass"))
    return hasher.digest()
