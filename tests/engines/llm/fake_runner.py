"""A model that is a hash of all tokens its lane holds, and a small tokenizer for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import torch

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    GenerationInput,
    Message,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.llm.local.batching.rows import SequenceRows
from rag_accel.engines.llm.local.engine import LocalLLMEngine

TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
SENTENCES = [
    "The height of Mount Fuji is 3776 metres, said the guide.",
    "Which of the documents says how high it is? Héllo, wörld — 日本語 😀!",
    "A lane holds keys and values of one sequence of tokens.",
]


@cache
def tokenizer() -> Any:
    """Return a byte-level BPE tokenizer of some 340 tokens with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<s>", "</s>", "<|turn|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(SENTENCES * 3, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    fast.chat_template = TEMPLATE
    return fast


class FakeState(tuple[int, ...]):
    """The token ids of neighbouring slots."""

    seen: frozenset[str] = frozenset()

    @property
    def nbytes(self) -> int:
        return len(self)

    def having_seen(self, digests: frozenset[str]) -> FakeState:
        state = FakeState(self)
        state.seen = digests
        return state


class FakePool:
    """Lanes of token ids in place of keys and values; a byte a token."""

    dtype = torch.float32
    on_cpu = True

    def __init__(self, size: int) -> None:
        self.size = size
        self.lanes: dict[int, dict[int, int]] = {}
        self.sizes: dict[int, int] = {}
        self.copied = 0
        self._next = 0

    @property
    def held_bytes(self) -> int:
        return sum(self.sizes.values())

    def fits(self, tokens: int) -> bool:
        return tokens <= self.size

    def take(self, tokens: int) -> int | None:
        if self.held_bytes + tokens > self.size:
            return None
        self._next += 1
        self.lanes[self._next], self.sizes[self._next] = {}, tokens
        return self._next

    def fork(self, source: int, shared: int, tokens: int) -> int | None:
        lane = self.take(tokens)
        if lane is not None:
            self.lanes[lane].update((slot, self.lanes[source][slot]) for slot in range(shared))
            self.copied += shared
        return lane

    def read(self, lane: int, slots: range, position: int | None = None) -> FakeState:
        return FakeState(self.lanes[lane][slot] for slot in slots)

    def write(self, lane: int, slot: int, state: Any) -> None:
        assert slot + len(state) <= self.sizes[lane]
        self.lanes[lane].update(enumerate(state, slot))

    def place(self, lane: int, slot: int, states: Sequence[Any], positions: Sequence[int]) -> None:
        for state, position in zip(states, positions, strict=True):
            assert position == slot
            self.write(lane, slot, state)
            slot += len(state)

    def free(self, lane: int) -> None:
        del self.lanes[lane], self.sizes[lane]


class FakeRunner:
    """A runner whose logits depend on every token before them, at its slot of its lane.

    Args:
        pool_size: tokens all lanes together hold.
        context: most tokens of a sequence.
        poison: a token after which all logits are NaN.
        peak: raises the logit of a token that is given for a history, if any is.
    """

    def __init__(
        self,
        pool_size: int = 100_000,
        context: int = 4096,
        poison: int | None = None,
        peak: Callable[[tuple[int, ...]], int | None] | None = None,
    ) -> None:
        self.pool = FakePool(pool_size)
        self.vocabulary = len(tokenizer())
        self.context = context
        self.forwards: list[list[SequenceRows]] = []
        self.before: Callable[[], None] = lambda: None
        self._poison = poison
        self._peak = peak or (lambda history: None)

    @property
    def layers(self) -> int:
        return 1

    @property
    def computed(self) -> int:
        return sum(len(rows) for forward in self.forwards for rows in forward)

    def identity(self) -> str:
        return "fake"

    def run(self, rows: Sequence[SequenceRows]) -> torch.Tensor:
        self.before()
        self.forwards.append(list(rows))
        asked = [logits for part in rows for logits in self._part(part)]
        return torch.stack(asked) if asked else torch.zeros(0, self.vocabulary)

    def logits(self, history: tuple[int, ...]) -> torch.Tensor:
        """Return ``[vocabulary]``, float32: what a model makes of these tokens."""
        generator = torch.Generator().manual_seed(hash(history) & 0xFFFFFFFF)
        made = torch.randn(self.vocabulary, generator=generator)
        if self._poison in history:
            made.fill_(torch.nan)
        if (token := self._peak(history)) is not None:
            made[token] = 20.0
        return made

    def greedy(self, prompt: Iterable[int], count: int) -> list[int]:
        """Return the tokens a plain loop over the whole sequence chooses."""
        made = list(prompt)
        for _ in range(count):
            made.append(int(self.logits(tuple(made)).argmax()))
        return made[-count:]

    def _part(self, part: SequenceRows) -> Iterable[torch.Tensor]:
        lane = self.pool.lanes[part.lane]
        assert list(part.positions) == list(part.slots)
        assert max(part.slots) < self.pool.sizes[part.lane]
        lane.update(zip(part.slots, part.ids, strict=True))
        if part.probe is not None:
            reach = part.slots[part.probe.rows[-1]] + 1
            part.probe.scores = torch.tensor([float(lane.get(at, 0)) for at in range(reach)])
        for at in part.asked:
            yield self.logits(tuple(lane[slot] for slot in range(part.slots[at] + 1)))


def work(id: str, *texts: str, **options: Any) -> EngineRequest:
    """Return work for DECODING of a user's turn, or of the texts as turns.

    ``options`` are fields of EngineRequest, or else of its GenerationInput.
    """
    outer = {"kind", "namespace", "handle", "stream", "depth", "arrived_at", "request_id"}
    request = {name: value for name, value in options.items() if name in outer}
    payload = {name: value for name, value in options.items() if name not in outer}
    turns = tuple(Message("user", text) for text in texts or (f"Question {id}?",))
    payload.setdefault("max_tokens", 8)
    request.setdefault("kind", PrimitiveKind.DECODING)
    request.setdefault("request_id", id)
    return EngineRequest(WorkId(id), payload=GenerationInput(turns, **payload), **request)


def prompt_ids(*texts: str) -> tuple[int, ...]:
    """Return the ids of the prompt that ``work`` makes of these texts."""
    turns = [{"role": "user", "content": text} for text in texts]
    made = tokenizer().apply_chat_template(turns, add_generation_prompt=True)
    return tuple(made["input_ids"])


def finish(engine: LocalLLMEngine, *ids: str, time_s: float | None = None) -> list[EngineOutput]:
    """Step until these works have ended; return all outputs on the way."""
    outputs: list[EngineOutput] = []
    left = set(ids)
    for _ in range(10_000):
        if not left:
            return outputs
        found = engine.step(StepBudget(time_s))
        outputs += found
        left -= {str(one.id) for one in found if one.kind in ("final", "error")}
    raise AssertionError(f"no end of {sorted(left)}")


def value(outputs: Sequence[EngineOutput], id: str) -> Any:
    """Return the value that a work ended with."""
    (end,) = [one for one in outputs if one.id == id and one.kind in ("final", "error")]
    assert end.error is None, end.error
    return end.value


def error(outputs: Sequence[EngineOutput], id: str) -> BaseException:
    """Return the error that a work ended with."""
    (end,) = [one for one in outputs if one.id == id and one.kind in ("final", "error")]
    assert end.error is not None
    return end.error
