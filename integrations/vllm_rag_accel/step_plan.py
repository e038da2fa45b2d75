"""The message of the connector's scheduler half to its worker half about one step."""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_accel.kv.reuse_request import AskedRows, ServedReuse


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A range of a prompt whose states are kept by themselves.

    Args:
        key: under what.
        text: that it is the state of, for purges.
        ids: the tokens of the text alone.
        offset: the first of them that stands in the prompt.
        start: its place in the prompt.
        stop: the place behind the last one that does.
        behind: under what its state behind other texts is kept; empty where that is not used.
    """

    key: bytes
    text: str
    ids: tuple[int, ...]
    offset: int
    start: int
    stop: int
    behind: bytes = b""

    @property
    def used(self) -> slice:
        """Return the range of the text's own tokens that stand in the prompt."""
        return slice(self.offset, self.offset + self.stop - self.start)


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of one prompt.

    Args:
        reuse: the way of reuse.
        head: the number of tokens that texts are encoded behind.
        parts: ascending; of a way that is not exact the head may be the first.
        namespace: tenant.
        ratio: of ``fused``, the share of the texts' tokens to compute again.
        asked: of ``fused``, the rows whose attention chooses them.
        save: whether states that are computed are kept.
    """

    reuse: ServedReuse
    head: int
    parts: tuple[PromptPart, ...]
    namespace: str = ""
    ratio: float = 0.0
    asked: AskedRows = "last"
    save: bool = True

    @property
    def texts(self) -> tuple[PromptPart, ...]:
        """Return the parts behind the head."""
        return tuple(part for part in self.parts if part.start >= self.head)


@dataclass(slots=True)
class PromptLoad:
    """States to put into a request's blocks before the step.

    Args:
        request: its id.
        ids: the prompt's tokens.
        blocks: the request's, in order.
        begin: the first token that the server's own cache does not have.
        end: behind the last token claimed.
        scheduled: behind the last token whose block is allocated.
        layout: its parts.
    """

    request: str
    ids: tuple[int, ...]
    blocks: list[int]
    begin: int
    end: int
    scheduled: int
    layout: Layout

    def free_blocks(self, block: int) -> list[int]:
        """Return its blocks, of so many tokens, that hold nothing up to the end of the head."""
        first = max(-(-self.begin // block), -(-self.layout.head // block))
        return self.blocks[first : -(-self.scheduled // block)]


@dataclass(slots=True)
class PromptSave:
    """Parts of a prompt to keep after the step, which has computed the last of them."""

    request: str
    blocks: list[int]
    layout: Layout


@dataclass(slots=True)
class StepPlan:
    """The loads and saves of one step."""

    loads: list[PromptLoad] = field(default_factory=list[PromptLoad])
    saves: list[PromptSave] = field(default_factory=list[PromptSave])


@dataclass(frozen=True, slots=True)
class PromptLoadReport:
    """The origin of the claimed tokens of a request.

    Args:
        request: its id.
        reused: tokens of texts whose kept states were taken.
        encoded: tokens of texts whose states were computed outside the prompt and kept.
        computed: tokens between texts, computed in the prompt.
        recomputed: tokens of texts that were computed again in the prompt.
        seconds: that all of it took.
    """

    request: str
    reused: int = 0
    encoded: int = 0
    computed: int = 0
    recomputed: int = 0
    seconds: float = 0.0
