"""One sequence of tokens: what it still has to compute and where its attention state lies."""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_accel.engines.llm.local.rows import SequenceRows


@dataclass(slots=True, eq=False)
class Lane:
    """A place in the pool that a sequence writes to, or that an ended one has left filled.

    Args:
        number: the pool's name of it.
        namespace: tenant; no other one's sequences are begun with what it holds.
        ids: the tokens whose keys and values it holds, in slots from 0.
        pins: handles whose prompt it holds; such lanes are given up last.
        in_use: whether a sequence still writes to it.
    """

    number: int
    namespace: str
    ids: tuple[int, ...] = ()
    pins: int = 0
    in_use: bool = True


@dataclass(slots=True, eq=False)
class TokenSequence:
    """One prompt and the tokens generated after it. Equal only to itself.

    Args:
        prompt: token ids, at least one.
        max_new: most tokens to generate; 0 where only the prompt is to be computed.
        request: the request it belongs to.
        namespace: tenant.
        arrived_at: when the request arrived, in seconds.
        depth: longest remaining path to the request's end, in primitives.
    """

    prompt: tuple[int, ...]
    max_new: int
    request: str = ""
    namespace: str = ""
    arrived_at: float = 0.0
    depth: int = 1
    generated: list[int] = field(default_factory=list[int])
    lane: Lane | None = None
    from_prefix: int = 0
    computed: int = 0

    @property
    def capacity(self) -> int:
        """Return the most tokens its lane will have to hold."""
        return len(self.prompt) + self.max_new

    @property
    def pending(self) -> int:
        """Return how many known tokens are not computed yet."""
        return len(self.prompt) + len(self.generated) - self.computed

    @property
    def is_decoding(self) -> bool:
        """Tell whether its prompt is computed and a token was chosen after it."""
        return bool(self.generated)

    @property
    def computed_ids(self) -> tuple[int, ...]:
        """Return the tokens whose keys and values its lane holds."""
        return (*self.prompt, *self.generated)[: self.computed]

    def begin(self, lane: Lane, from_prefix: int) -> None:
        """Take a lane that holds the first ``from_prefix`` tokens of the prompt already."""
        self.lane = lane
        self.from_prefix = self.computed = from_prefix

    def rows(self, most: int) -> SequenceRows:
        """Return the next rows, at most so many; the last known token's logits are asked for."""
        assert self.lane is not None
        first, last = self.computed, self.computed + min(most, self.pending)
        size = len(self.prompt)
        ids = (
            self.prompt[first:last] if first < size else self.generated[first - size : last - size]
        )
        slots = range(first, last)
        is_last = last == size + len(self.generated)
        asked = (len(slots) - 1,) if is_last and self.max_new else ()
        return SequenceRows(self.lane.number, ids, slots, slots, asked)
