"""The time to the first token by other ways to keep a stream of prompts with paths of a graph.

- A radix cache with LRU over flat text, as servers share the beginnings of prompts: the engine's
  own, with as many whole prompts as have room, at least one.
- Each path a text of the engine's ``kv_reuse="full"``.
- DepCache as printed, with re-encoding and without (``bench.baselines.depcache``).

Each has the same bytes as the tree and has seen the same stream. What is kept in the end is known
without a model, so that no prompt before the last ones is computed but for what is kept of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile
from typing import Any

from bench.arms import bench_accelerator
from bench.baselines.depcache import DepCache, preorder_prompt
from bench.graph.first_token import (
    HEAD,
    QUESTION,
    Arm,
    Chats,
    First,
    FirstTokens,
    Retrieved,
    room_bytes,
    stream_workload,
    token_bytes,
)
from bench.measure import rotate
from rag_accel.engine_api import ChunkSpan, Message
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.fidelity.prompts import SYSTEM
from rag_accel.kv.dependency.paths import Segments
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.kv.store import ChunkStore
from rag_accel_demo.load import torch_threads

RADIX = "causal, flat text, radix cache"
CHUNKS = "each path a text"
DEPCACHE = "DepCache as printed"
UNMOVED = "DepCache, not re-encoded"

_PATHS_AT_ONCE = 300


def measure_opponents(
    model: Any, tokenizer: Any, stream: Sequence[Retrieved], share: float, counted: int
) -> FirstTokens:
    """Ask for the last prompts of a stream in turn, by each way, after all those before them.

    Args:
        model: of transformers.
        tokenizer: its own.
        stream: the paths of each question.
        share: of the distinct tokens of the stream's trees whose states have room.
        counted: the last questions, which count.
    """
    limit = room_bytes(model, tokenizer, stream, share)
    before, last = stream[:-counted], stream[-counted:]
    with bench_accelerator(threads=1) as accelerator:
        chats = Chats(model, tokenizer, accelerator)
        runner = load(model, tokenizer, options=LocalOptions(max_threads=1)).runner
        arms = {
            RADIX: radix_arm(chats, before, last, limit),
            CHUNKS: chunks_arm(chats, before, limit),
        }
        for name, re_encodes in ((DEPCACHE, True), (UNMOVED, False)):
            cache = DepCache(runner, limit, re_encodes=re_encodes)
            arms[name] = depcache_arm(cache, tokenizer, before)
        found = rotate(
            {name: lambda turn, arm=arm: arm(last[turn]) for name, arm in arms.items()}, counted
        )
    return FirstTokens(stream_workload(share), found)


def radix_arm(
    chats: Chats, before: Sequence[Retrieved], last: Sequence[Retrieved], limit_bytes: int
) -> Arm:
    """Return an arm of flat text that has the latest prompts, as far as any of the last needs them.

    Args:
        chats: of the model.
        before: the stream so far.
        last: what the arm will be asked.
        limit_bytes: of the prompts that are kept; the latest one is in any case.
    """
    room = limit_bytes // token_bytes(chats.model.config)
    sizes = accumulate(len(_ids(chats.tokenizer, found.flat)) for found in reversed(before))
    prompts = max(1, sum(1 for _ in takewhile(lambda size: size <= room, sizes)))
    arm = chats.flat(kv_reuse="exact", prefix_lanes=prompts)
    for found in before[len(before) - prompts :]:
        shared = max(_common(found.paths, other.paths) for other in last)
        # The path in which it is another one from all of them ends what any of them takes over.
        arm(Retrieved(found.paths[: shared + 1]))
    return arm


def _common(paths: Sequence[Segments], others: Sequence[Segments]) -> int:
    """Return with how many same paths both begin."""
    pairs = zip(paths, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def chunks_arm(chats: Chats, before: Sequence[Retrieved], limit_bytes: int) -> Arm:
    """Return an arm with the states of paths that are kept after a stream.

    That a path was asked for but not kept, which a full store counts, it does not know.
    """
    arm = chats.flat(kv_reuse="full", reuse_always=True, chunk_bytes=limit_bytes)
    lines = kept_lines(chats.tokenizer, before, limit_bytes, token_bytes(chats.model.config))
    for at in range(0, len(lines), _PATHS_AT_ONCE):
        arm(Retrieved(tuple((line,) for line in lines[at : at + _PATHS_AT_ONCE])))
    return arm


def kept_lines(
    tokenizer: Any, stream: Sequence[Retrieved], limit_bytes: int, bytes_of_token: int
) -> list[str]:
    """Return the paths whose texts the engine's store keeps after a stream, the latest last."""
    store, latest = ChunkStore(limit_bytes), dict[str, None]()
    least = LocalOptions().least_chunk_tokens
    for found in stream:
        for line in found.lines:
            latest.pop(line, None)
            latest[line] = None
            tokens = len(_ids(tokenizer, line))
            if tokens >= least and store.find(line.encode()) is None:
                store.put(line.encode(), _Sized(tokens, bytes_of_token))
    return [line for line in latest if line.encode() in store]


def depcache_arm(cache: DepCache, tokenizer: Any, before: Sequence[Retrieved]) -> Arm:
    """Return an arm of DepCache, whose cache has what it keeps after a stream."""
    prompting = Prompting(tokenizer)
    for found in before:
        cache.replay(preorder_of(prompting, found))

    def answer(found: Retrieved) -> First:
        started, cpu_started = time.perf_counter(), time.process_time()
        prompt = preorder_of(prompting, found)
        with torch_threads(1):
            given = cache.answer(prompt)
        token = tokenizer.decode(given.tokens)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        size, tree = len(prompt.ids), len(prompt.tree.ids)
        cached = len(prompt.head) + given.reused_tokens
        return First(seconds, cpu_seconds, token, size, tree, given.reused_tokens, cached)

    return answer


def preorder_of(prompting: Prompting, found: Retrieved) -> SegmentedPrompt:
    """Return the tokens of the prompt that the tree has, too, but with positions in pre-order."""
    turns = (Message("system", SYSTEM), Message("user", HEAD + found.flat + QUESTION))
    return preorder_prompt(prompting, turns, tuple(_spans(found.lines)))


def _spans(lines: Sequence[str]) -> Iterator[ChunkSpan]:
    at = len(HEAD)
    for line in lines:
        yield ChunkSpan(1, at, at + len(line), line)
        at += len(line) + 1


class _Sized:
    """A state of so many tokens that holds nothing."""

    seen: frozenset[str] = frozenset()

    def __init__(self, tokens: int, bytes_of_token: int) -> None:
        self._tokens = tokens
        self.nbytes = tokens * bytes_of_token

    def having_seen(self, digests: frozenset[str]) -> _Sized:
        raise NotImplementedError

    def __len__(self) -> int:
        return self._tokens


def _ids(tokenizer: Any, text: str) -> Sequence[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
