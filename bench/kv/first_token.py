"""The time to the first token of prompts whose texts were seen before, in another order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch
from langchain_core.messages import HumanMessage, SystemMessage

from bench.arms import bench_accelerator
from bench.baselines.cacheblend import CacheBlend
from bench.measure import estimate, median, rotate
from bench.paired import in_ms
from bench.results import Row, row_of
from langchain_rag_accel import ChatRagAccel
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import KvReuse, LocalOptions
from rag_accel.fidelity.prompts import SYSTEM, TextCutter, TextPrompt
from rag_accel_demo.load import torch_threads

PLAIN = "plain"
METRIC = "first_token_ms"
EXACT, FUSED, REUSE = "exact", "fused", "full"
#: Further ways reuse relation paths, of which no prompt has any here.
WAYS: tuple[KvReuse, ...] = ("exact", "fused", "full")
CACHEBLEND, SHARE = "CacheBlend 15 %", 0.15
QUESTION = "{number}. What do all of these passages say?"


def ours(way: str, is_cold: bool = False, is_on_disk: bool = False) -> str:
    """Return the name of an arm of the engine."""
    name = f"accelerated, {way}, new texts" if is_cold else f"accelerated, {way}"
    return f"{name}, from files" if is_on_disk else name


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama of random weights in bfloat16, with the vocabulary of a real tokenizer."""

    hidden: int = 768
    layers: int = 10
    heads: int = 12
    kv_heads: int = 4
    mlp: int = 2048
    context: int = 8192

    def model(self, vocabulary: int) -> Any:
        """Return the model; its weights are the same each time."""
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.mlp,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=self.context,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made: Any = LlamaForCausalLM(config)
        return made.to(torch.bfloat16).eval()


@dataclass(frozen=True, slots=True)
class First:
    """The first token of an answer, as text, and the seconds it took."""

    seconds: float
    token: str


Arm = Callable[[TextPrompt], First]


def plain_arm(model: Any, tokenizer: Any) -> Arm:
    """Return a prefill by the model's own forward, with scaled dot product attention.

    The keys and values are kept, as whatever answers further needs them.
    """

    def answer(prompt: TextPrompt) -> First:
        started = time.perf_counter()
        turns = [{"role": one.role, "content": one.content} for one in prompt.messages]
        text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        with torch.inference_mode(), torch_threads(1):
            output = model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
            token = tokenizer.decode([int(output.logits[0, -1].argmax())])
        return First(time.perf_counter() - started, token)

    return answer


def our_arm(model: Any, tokenizer: Any, way: str, accelerator: Any, **bounds: Any) -> Arm:
    """Return a call of the drop-in that says which texts it has.

    Args:
        model: of transformers.
        tokenizer: its own.
        way: of reuse.
        accelerator: computes.
        bounds: of the drop-in, besides.
    """
    options: dict[str, Any] = {"kv_reuse": way, "max_tokens": 1, **bounds}
    chat = ChatRagAccel(model=model, tokenizer=tokenizer, accelerator=accelerator, **options)

    def answer(prompt: TextPrompt) -> First:
        messages = [SystemMessage(SYSTEM), HumanMessage(prompt.content)]
        started = time.perf_counter()
        found = chat.invoke(messages, documents=list(prompt.texts), logprobs=True)
        seconds = time.perf_counter() - started
        return First(seconds, found.response_metadata["logprobs"][0]["token"])

    return answer


def cacheblend_arm(model: Any, tokenizer: Any, prompts: Iterable[TextPrompt]) -> Arm:
    """Return CacheBlend without an engine: a prompt's tokens, the states and the first token.

    Args:
        model: a Llama of transformers.
        tokenizer: its own.
        prompts: their texts are encoded now.
    """
    on_torch = LocalOptions(runner="torch")  # whose tensors it looks into
    blend = CacheBlend(model, load(model, tokenizer, options=on_torch).runner, SHARE)
    with torch_threads(1):
        for prompt in prompts:
            blend.prefill(prompt.segmented(tokenizer))

    def answer(prompt: TextPrompt) -> First:
        started = time.perf_counter()
        with torch_threads(1):
            logits = blend.prefill(prompt.segmented(tokenizer))
            token = tokenizer.decode([int(logits[0].argmax())])
        return First(time.perf_counter() - started, token)

    return answer


class Turns:
    """The prompts of each turn: known texts in an order of its own, and texts that are new.

    Args:
        cutter: of texts.
        count: of a prompt's texts.
        tokens: of each text.
    """

    def __init__(self, cutter: TextCutter, count: int, tokens: int) -> None:
        self._cutter, self._count, self._tokens = cutter, count, tokens
        self.known = self._texts()

    def again(self, turn: int) -> TextPrompt:
        """Return the prompt of known texts."""
        texts = Random(turn).sample(self.known, len(self.known))
        return TextPrompt(tuple(texts), QUESTION.format(number=turn))

    def new(self, turn: int) -> TextPrompt:
        """Return a prompt of texts that no prompt had before, nor has later."""
        return TextPrompt(self._texts(), QUESTION.format(number=f"New {turn}"))

    def _texts(self) -> tuple[str, ...]:
        return tuple(self._cutter.text(self._tokens) for _ in range(self._count))


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """What every arm gave, turn by turn."""

    workload: str
    found: Mapping[str, Sequence[First]]

    def gain(self, name: str) -> float:
        """Return the better full prefill's time / an arm's: the median over turns."""
        return self.ratio(self.opponent, name)

    def ratio(self, other: str, name: str) -> float:
        """Return another arm's time / an arm's: the median over turns."""
        pairs = zip(self.found[other], self.found[name], strict=True)
        return estimate([one.seconds / ours.seconds for one, ours in pairs])

    @property
    def opponent(self) -> str:
        """Return the faster of the two arms that compute every token."""
        return min((PLAIN, ours(EXACT)), key=lambda name: median(_times(self.found[name])))

    def rows(self) -> list[Row]:
        """Return the times of each arm, and how many first tokens are plain's."""
        rows: list[Row] = []
        for name, each in self.found.items():
            rows.append(row_of(name, self.workload, METRIC, [in_ms(one) for one in _times(each)]))
            if name != PLAIN and "new texts" not in name:
                pairs = zip(self.found[PLAIN], each, strict=True)
                same = sum(one.token == other.token for one, other in pairs)
                metric = "first_tokens_equal_to_plain"
                rows.append(Row(name, self.workload, metric, same, None, len(each)))
        return rows


def measure(
    model: Any, tokenizer: Any, texts: Sequence[str], count: int, tokens: int, turns: int
) -> FirstTokens:
    """Ask in turn: plain, exact, CacheBlend, and each way of reuse, known texts and new ones.

    Known texts are in memory, and in another arm in files that were just written.

    Everything is on one thread. A turn before all others, which does not count, encodes the texts.
    """
    prompts = Turns(TextCutter(tokenizer, texts), count, tokens)
    with ExitStack() as stack:
        # Folders are removed once the accelerator, which writes them, is closed.
        folders = {way: stack.enter_context(TemporaryDirectory()) for way in WAYS}
        accelerator = stack.enter_context(bench_accelerator(threads=1))
        arms = {PLAIN: _asked(plain_arm(model, tokenizer), prompts.again)}
        for way in WAYS:
            arm = our_arm(model, tokenizer, way, accelerator)
            arms[ours(way)] = _asked(arm, prompts.again)
            if way != EXACT:
                arms[ours(way, is_cold=True)] = _asked(arm, prompts.new)
                bounds = {"kv_folder": folders[way], "chunk_bytes": 0}  # memory keeps nothing
                arm = our_arm(model, tokenizer, way, accelerator, **bounds)
                arms[ours(way, is_on_disk=True)] = _asked(arm, prompts.again)
        blend = cacheblend_arm(model, tokenizer, [prompts.again(0)])
        arms[CACHEBLEND] = _asked(blend, prompts.again)
        found = rotate(arms, turns + 1)
    size = len(prompts.again(0).segmented(tokenizer).ids)
    workload = f"{count} texts of {tokens} tokens, prompts of about {size}"
    return FirstTokens(workload, {name: each[1:] for name, each in found.items()})


def _asked(arm: Arm, prompt: Callable[[int], TextPrompt]) -> Callable[[int], First]:
    return lambda turn: arm(prompt(turn))


def _times(each: Sequence[First]) -> list[float]:
    return [one.seconds for one in each]
