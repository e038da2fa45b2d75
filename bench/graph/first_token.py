"""The time to the first token of prompts with the paths that a question retrieves from a graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage

from bench.arms import bench_accelerator
from bench.measure import alternate, median, rotate
from bench.paired import PairedTimes, in_ms
from bench.results import Row, row_of
from langchain_rag_accel import ChatRagAccel
from rag_accel.engines.llm.local.local_llm import LocalLLM
from rag_accel.engines.llm.local.options import RunnerName
from rag_accel.fidelity.prompts import SYSTEM
from rag_accel.kv.dependency.layouts import lay_out
from rag_accel.kv.dependency.paths import Segments
from rag_accel.kv.dependency.tree import path_tree

FLAT, GROUPED = "causal, flat text", "causal, grouped text"
COLD, WARM, STREAM = "tree, nothing kept", "tree, all kept", "tree, some kept"
HEAD, QUESTION = "Facts:\n", "\n\nWhich of these depend on each other?"


@dataclass(frozen=True, slots=True)
class First:
    """The first token of an answer and what it took.

    Args:
        seconds: from the call to its end.
        cpu_seconds: of all threads of the process meanwhile.
        token: as text.
        prompt_tokens: of the whole prompt.
        tree_tokens: of the tree in it, 0 where there is none.
        reused_tokens: of the tree, those that were kept.
        cached_tokens: of the whole prompt, those that were not computed for it.
    """

    seconds: float
    cpu_seconds: float
    token: str
    prompt_tokens: int
    tree_tokens: int
    reused_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The paths that one question retrieved."""

    paths: tuple[Segments, ...]

    @property
    def lines(self) -> list[str]:
        """Return each path as a retriever gives it."""
        return ["".join(path) for path in self.paths]

    @property
    def flat(self) -> str:
        """Return path below path."""
        return "\n".join(self.lines)

    @property
    def grouped(self) -> str:
        """Return each entity once and its edges behind it, as a careful user writes them."""
        return lay_out(self.paths, "grouped", lambda text: (0,)).text.rstrip("\n")


Arm = Callable[[Retrieved], First]


@dataclass(frozen=True, slots=True)
class Chats:
    """Makes the arms of one model, each an engine of its own.

    Args:
        model: of transformers.
        tokenizer: its own.
        accelerator: computes.
        runner: as the option of that name.
    """

    model: Any
    tokenizer: Any
    accelerator: Any
    runner: RunnerName = "auto"

    def causal(self) -> tuple[Arm, Arm]:
        """Return one engine's arms of ordinary attention: over flat text, and over grouped."""
        chat = self.chat(kv_reuse="exact", max_tokens=1)
        return (
            lambda found: _first(chat, found.flat, found.lines),
            lambda found: _first(chat, found.grouped, found.lines),
        )

    def tree(self, **bounds: Any) -> Arm:
        """Return an arm that computes the paths as a tree, and keeps its nodes."""
        return self.flat(kv_reuse="dependency", **bounds)

    def flat(self, **options: Any) -> Arm:
        """Return an arm that is given flat text, of an engine with options of its own."""
        chat = self.chat(max_tokens=1, **options)
        return lambda found: _first(chat, found.flat, found.lines)

    def chat(self, max_tokens: int, **options: Any) -> ChatRagAccel:
        """Return a chat model of an engine with options of its own."""
        model = LocalLLM(self.model, self.tokenizer, runner=self.runner, **options)
        return ChatRagAccel(model=model, accelerator=self.accelerator, max_tokens=max_tokens)


def _first(chat: ChatRagAccel, text: str, lines: Sequence[str]) -> First:
    messages = [SystemMessage(SYSTEM), HumanMessage(HEAD + text + QUESTION)]
    started, cpu_started = time.perf_counter(), time.process_time()
    found = chat.invoke(messages, documents=list(lines), logprobs=True)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    assert found.usage_metadata is not None
    said = found.response_metadata
    reuse = said.get("kv_reuse") or {}
    return First(
        seconds,
        cpu_seconds,
        said["logprobs"][0]["token"],
        found.usage_metadata["input_tokens"],
        reuse.get("tree_tokens", 0),
        reuse.get("reused_tokens", 0),
        found.usage_metadata.get("input_token_details", {}).get("cache_read", 0),
    )


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """What every arm gave, turn by turn: for each turn, all arms had the same paths."""

    workload: str
    found: Mapping[str, Sequence[First]]

    def gain(self, over: str, name: str) -> float:
        """Return another arm's time / an arm's: the median over turns."""
        pairs = zip(self.found[over], self.found[name], strict=True)
        return median([other.seconds / ours.seconds for other, ours in pairs])

    @property
    def hit_percent(self) -> Mapping[str, float]:
        """Return of each arm with trees how many of their tokens were kept."""
        return {
            name: 100 * sum(one.reused_tokens for one in each) / trees
            for name, each in self.found.items()
            if (trees := sum(one.tree_tokens for one in each))
        }

    def rows(self) -> list[Row]:
        """Return the times and the tokens of each arm."""
        rows: list[Row] = []
        for name, each in self.found.items():
            for metric, values in (
                ("first_token_ms", [in_ms(one.seconds) for one in each]),
                ("first_token_cpu_ms", [in_ms(one.cpu_seconds) for one in each]),
            ):
                rows.append(row_of(name, self.workload, metric, values))
            tokens = [one.prompt_tokens for one in each]
            cached = 100 * sum(one.cached_tokens for one in each) / sum(tokens)
            for metric, figure in (
                ("prompt_tokens", median(tokens)),
                ("prompt_reused_percent", cached),
            ):
                rows.append(Row(name, self.workload, metric, figure, None, len(each)))
        for name, percent in self.hit_percent.items():
            n = len(self.found[name])
            rows.append(Row(name, self.workload, "token_hit_percent", percent, None, n))
        return rows


def measure(
    model: Any, tokenizer: Any, asked: Sequence[Retrieved], runner: RunnerName, *, with_flat: bool
) -> FirstTokens:
    """Ask in turn for flat and grouped text, and for a tree of which nothing and then all is kept.

    Args:
        model: of transformers.
        tokenizer: its own.
        asked: the paths of each turn, none of them in two; the first turn does not count.
        runner: of all arms.
        with_flat: whether flat text is asked for.
    """
    with bench_accelerator(threads=1) as accelerator:
        chats = Chats(model, tokenizer, accelerator, runner)
        flat, grouped = chats.causal()
        tree = chats.tree()
        arms: dict[str, Callable[[int], Sequence[First]]] = {
            GROUPED: lambda turn: (grouped(asked[turn]),),
            COLD: lambda turn: (tree(asked[turn]), tree(asked[turn])),
        }
        if with_flat:
            arms[FLAT] = lambda turn: (flat(asked[turn]),)
        found = rotate(arms, len(asked))
    counted = {name: each[1:] for name, each in found.items()}
    of_arms = {name: [one[0] for one in each] for name, each in counted.items()}
    of_arms[WARM] = [one[1] for one in counted[COLD]]
    size = round(median([len(one.paths) for one in asked[1:]]))
    return FirstTokens(f"about {size} paths, runner {runner}", of_arms)


def measure_stream(
    model: Any, tokenizer: Any, stream: Sequence[Retrieved], share: float, counted: int
) -> FirstTokens:
    """Ask for a stream one after the other, and for the last ones as grouped text, too.

    Args:
        model: of transformers.
        tokenizer: its own.
        stream: the paths of each question.
        share: of the distinct tokens of the stream whose states have room.
        counted: the last questions, which count.
    """
    with bench_accelerator(threads=1) as accelerator:
        chats = Chats(model, tokenizer, accelerator)
        limit = room_bytes(model, tokenizer, stream, share)
        tree = chats.tree(eviction="lookahead", chunk_bytes=limit)
        _, grouped = chats.causal()
        for found in stream[:-counted]:
            tree(found)
        last = stream[-counted:]
        pairs = alternate(lambda turn: grouped(last[turn]), lambda turn: tree(last[turn]), counted)
    return FirstTokens(stream_workload(share), {GROUPED: pairs.plain, STREAM: pairs.other})


def measure_short(model: Any, tokenizer: Any, asked: Sequence[Retrieved]) -> PairedTimes:
    """Ask for paths that were never seen as causal text and as a tree, in turn.

    Args:
        model: of transformers.
        tokenizer: its own.
        asked: the paths of each turn, none of them in two; the first does not count.
    """
    with bench_accelerator(threads=1) as accelerator:
        chats = Chats(model, tokenizer, accelerator)
        flat, _ = chats.causal()
        tree = chats.tree()
        for arm in (flat, tree):
            arm(asked[0])
        pairs = alternate(
            lambda turn: flat(asked[1 + turn]), lambda turn: tree(asked[1 + turn]), len(asked) - 1
        )
    paths = len(asked[0].paths)
    return PairedTimes(
        f"{paths} paths of one entity, never seen", pairs.map(lambda one: in_ms(one.seconds))
    )


def stream_workload(share: float) -> str:
    """Return the name of a stream as rows have it."""
    return f"Zipf stream, {100 * share:g} % of its tokens have room"


def room_bytes(model: Any, tokenizer: Any, stream: Sequence[Retrieved], share: float) -> int:
    """Return the bytes of a share of the distinct tokens of a stream's trees."""
    return int(share * distinct_tokens(tokenizer, stream) * token_bytes(model.config))


def distinct_tokens(tokenizer: Any, stream: Sequence[Retrieved]) -> int:
    """Return the tokens of all nodes of a stream's trees, each counted once."""
    paths = [path for found in stream for path in found.paths]
    whole = path_tree(paths, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"])
    return len(whole.ids)


def token_bytes(config: Any) -> int:
    """Return the bytes of a token's keys and values in bfloat16."""
    head_dim = config.hidden_size // config.num_attention_heads
    return 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim
