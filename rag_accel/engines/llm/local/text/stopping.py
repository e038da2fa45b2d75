"""The text of a completion as its tokens come, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from rag_accel.errors import ConfigError

Decode = Callable[[list[int]], str]
"""The text of token ids, special ones left out."""

_UNKNOWN = "\ufffd"
_WINDOW = 48  # tokens decoded at once, at most about
_CONTEXT = 12  # of them, those whose text was given out and that the next ones may depend on
_CLEANED = 3  # characters: a space this near to the end may still be taken out of the text


class Detokenizer:
    """The text of tokens that come one by one.

    What is given out never changes: half a character is held back until it is whole. Where the
    tokenizer takes spaces out before punctuation, what may become such a place is held back too.

    Args:
        decode: the text of token ids.
        cleans_up: whether ``decode`` takes spaces out of the text.
    """

    def __init__(self, decode: Decode, *, cleans_up: bool = False) -> None:
        self._decode = decode
        self._cleans_up = cleans_up
        self._window: list[int] = []
        self._given = 0

    def add(self, token: int) -> str:
        """Take a token and return the text that is certain by now and was not given out."""
        self._window.append(token)
        text = self._decode(self._window)
        certain = self._certain(text)
        piece = text[self._given : certain]
        self._given = max(self._given, certain)
        if len(self._window) > _WINDOW and self._given == len(text):
            self._shorten(text)
        return piece

    def rest(self) -> str:
        """Return the text held back."""
        text = self._decode(self._window)
        piece = text[self._given :]
        self._given = max(self._given, len(text))
        return piece

    def _certain(self, text: str) -> int:
        size = len(text.rstrip(_UNKNOWN))
        if not self._cleans_up:
            return size
        space = text.find(" ", max(0, size - _CLEANED), size)
        return size if space < 0 else space

    def _shorten(self, text: str) -> None:
        """Forget the first tokens, if the others read the same without them.

        They do not where a character or a run of bytes would be cut; the next token tries again.
        """
        kept = self._decode(self._window[-_CONTEXT:])
        if text.endswith(kept):
            del self._window[:-_CONTEXT]
            self._given = len(kept)


def stop_strings(given: Any) -> tuple[str, ...]:
    """Return the strings that end a text: one, several or, of None, none.

    Raises ConfigError on anything else.
    """
    if given is None:
        return ()
    several = (given,) if isinstance(given, str) else given
    if not isinstance(several, Sequence) or not all(isinstance(text, str) for text in several):
        raise ConfigError(
            "stop strings are texts",
            where="stop",
            found=repr(given),
            valid="a text, or a list of texts",
        )
    return tuple(several)


class StopScanner:
    """Text up to the first stop string, given out as soon as no stop string can begin in it."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = [mark for mark in stop if mark]
        self._held = ""
        self.is_over = False

    def add(self, piece: str) -> str:
        """Take more text and return the certain part; nothing once a stop string was found."""
        if self.is_over:
            return ""
        text = self._held + piece
        if found := [at for at in map(text.find, self._stop) if at >= 0]:
            self.is_over, self._held = True, ""
            return text[: min(found)]
        certain = len(text) - max((_begun(text, mark) for mark in self._stop), default=0)
        self._held = text[certain:]
        return text[:certain]

    def rest(self) -> str:
        """Return the text held back as the beginning of a stop string that did not come."""
        piece, self._held = self._held, ""
        return piece


class CompletionText:
    """The text of one completion and when it ends.

    Args:
        detokenizer: its own.
        stop: strings that end the text and are not in it.
        eos: tokens that end it.
        max_tokens: most tokens of it.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        stop: Sequence[str] = (),
        eos: Collection[int] = (),
        max_tokens: int,
    ) -> None:
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stop)
        self._eos = eos
        self._max_tokens = max_tokens
        self._pieces: list[str] = []
        self.num_tokens = 0
        self.finish_reason: str | None = None

    @property
    def text(self) -> str:
        """Return all text given out."""
        return "".join(self._pieces)

    def add(self, token: int) -> str:
        """Take a token and return the text that is certain by now and was not given out.

        Sets ``finish_reason``, to ``stop`` or ``length``, where the token is the last one.
        """
        self.num_tokens += 1
        is_eos = token in self._eos
        piece = "" if is_eos else self._scanner.add(self._detokenizer.add(token))
        is_last = is_eos or self.num_tokens >= self._max_tokens
        if is_last and not self._scanner.is_over:
            piece += self._scanner.add(self._detokenizer.rest())
            piece += self._scanner.rest()
        if is_eos or self._scanner.is_over:
            self.finish_reason = "stop"
        elif is_last:
            self.finish_reason = "length"
        if piece:
            self._pieces.append(piece)
        return piece


def end_tokens(*sources: Any) -> frozenset[int]:
    """Return the tokens that end a completion, by ``eos_token_id`` of all sources.

    Sources are tokenizers, configurations and generation configurations of transformers: each names
    one token, several or none.
    """
    found: set[int] = set()
    for source in sources:
        ends = getattr(source, "eos_token_id", None)
        found.update([] if ends is None else [ends] if isinstance(ends, int) else ends)
    return frozenset(found)


def _begun(text: str, mark: str) -> int:
    """Return the length of the longest end of a text that is a beginning of the stop string."""
    most = min(len(text), len(mark) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(mark[:size])), 0)
