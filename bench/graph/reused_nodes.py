"""Answers of a reader by DepCache as printed, of whose trees nothing, or a half, was kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.baselines.depcache import DepCache, preorder_prompt
from bench.graph.reading import GraphPrompt
from bench.results import Row
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.fidelity.tuning.questions import GraphQuestions
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel_demo.load import torch_threads

ANEW, REUSED = "DepCache, tuned, nothing kept", "DepCache, tuned, paths kept"
UNMOVED = "DepCache, tuned, paths kept, not re-encoded"

_POOL_BYTES, _CONTEXT = 1 << 28, 2048

#: Of each way, whether half of the paths are kept, and whether kept keys are re-encoded.
_WAYS = {ANEW: (False, True), REUSED: (True, True), UNMOVED: (True, False)}


def depcache_rows(
    model: Any, tokenizer: Any, prompts: Iterable[GraphQuestions], threads: int, workload: str
) -> list[Row]:
    """Return the share of answers that are right, of each way.

    What is kept is every second path of the graph, which stood in the reverse order in a prompt
    before: they have lost siblings, and moved.
    """
    options = LocalOptions(runner="torch")
    runner = load(
        model, tokenizer, context=_CONTEXT, pool_bytes=_POOL_BYTES, options=options
    ).runner
    prompting = Prompting(tokenizer)
    right = dict.fromkeys(_WAYS, 0)
    total = 0
    with torch_threads(threads):
        for prompt in prompts:
            total += len(prompt.questions)
            for name, (is_kept, re_encodes) in _WAYS.items():
                cache = DepCache(runner, _POOL_BYTES, re_encodes=re_encodes)
                right[name] += _num_right(cache, prompting, prompt, is_kept)
    return [
        Row(name, workload, "exact_match", count / total, None, total)
        for name, count in right.items()
    ]


def _num_right(cache: DepCache, prompting: Prompting, prompt: GraphQuestions, is_kept: bool) -> int:
    lines = tuple("".join(path) for path in prompt.paths)
    if is_kept:
        cache.answer(_tokens(prompting, GraphPrompt(lines[::-2], prompt.questions[0][0])))
    return sum(
        cache.answer(_tokens(prompting, GraphPrompt(lines, question))).tokens[0]
        == prompting.alone(answer)[0]
        for question, answer in prompt.questions
    )


def _tokens(prompting: Prompting, prompt: GraphPrompt) -> SegmentedPrompt:
    payload = prompt.payload(1)
    return preorder_prompt(prompting, payload.messages, payload.chunk_spans)
