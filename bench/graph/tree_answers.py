"""Answers over trees of paths of which nothing, some or all is kept: they have to be the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from langchain_core.messages import HumanMessage, SystemMessage

from bench.arms import bench_accelerator
from bench.graph.first_token import HEAD, QUESTION, Retrieved
from bench.results import Row
from langchain_rag_accel import ChatRagAccel
from rag_accel.fidelity.prompts import SYSTEM

#: Natural logarithms of probabilities in float32 differ by some 1e-5 with the shapes of matrices.
MOST_DIFFERENCE = 1e-3
SYSTEM_NAME = "tree, some or all kept"
#: Of an answer.
TOKENS = 8


@dataclass(frozen=True, slots=True)
class TreeAnswers:
    """Answers over trees of which some or all was kept against those over new ones.

    Args:
        compared: answers.
        different: those of other tokens.
        difference: the largest of the logarithm of a token's probability.
        not_as_asked: prompts whose trees were not kept as they should have been.
    """

    compared: int
    different: int
    difference: float
    not_as_asked: int

    def rows(self, workload: str) -> list[Row]:
        """Return all counts and the difference."""
        figures = {
            "different_answers": self.different,
            "max_logprob_difference": self.difference,
            "not_as_asked": self.not_as_asked,
        }
        return [
            Row(SYSTEM_NAME, workload, metric, figure, None, self.compared)
            for metric, figure in figures.items()
        ]


def sharpened(model: Any) -> Any:
    """Return a model of random weights in float32 with matrices that keep the size of a vector.

    They are drawn much smaller; attention is then nearly even, and wrong states hardly show.
    The model is changed.
    """
    model = model.float()
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, torch.nn.Linear):
                part.weight.mul_(part.in_features**-0.5 / part.weight.std())
    return model


def compare(model: Any, tokenizer: Any, asked: Sequence[Retrieved]) -> TreeAnswers:
    """Ask greedily over trees that are new, known, and known by every second path.

    Args:
        model: of transformers, in float32: rounding then leaves the tokens alone.
        tokenizer: its own.
        asked: the paths of each prompt, none of them in two.
    """
    different = not_as_asked = 0
    difference = 0.0
    with bench_accelerator(threads=1) as accelerator:
        options: dict[str, Any] = {"kv_reuse": "dependency", "max_tokens": TOKENS}
        options |= {"model": model, "tokenizer": tokenizer, "accelerator": accelerator}
        # Of different bounds, so that they are two engines with a store each.
        first, second = (ChatRagAccel(**options, chunk_bytes=size) for size in (1 << 28, 1 << 29))
        for found in asked:
            cold, warm = ask(first, found), ask(first, found)
            ask(second, Retrieved(found.paths[::2]))
            some = ask(second, found)
            different += sum(one.tokens != cold.tokens for one in (warm, some))
            difference = max(difference, *(one.difference(cold) for one in (warm, some)))
            shares = [one.kept_share for one in (cold, some, warm)]
            not_as_asked += shares[0] != 0 or shares[2] != 1 or not 0 < shares[1] < 1
    return TreeAnswers(2 * len(asked), different, difference, not_as_asked)


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer.

    Args:
        tokens: of it, as texts.
        logprobs: the logarithm of each one's probability.
        kept_share: of the tree in its prompt, 0 where there is none.
    """

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    kept_share: float

    def difference(self, other: Answer) -> float:
        """Return the largest one up to the first token that is another."""
        pairs = list(zip(self.tokens, other.tokens, strict=False))
        same = next((at for at, (one, two) in enumerate(pairs) if one != two), len(pairs))
        both = zip(self.logprobs[:same], other.logprobs[:same], strict=True)
        return max((abs(one - two) for one, two in both), default=0.0)


def ask(chat: ChatRagAccel, found: Retrieved) -> Answer:
    """Return the answer to flat text whose paths are given as documents, too."""
    messages = [SystemMessage(SYSTEM), HumanMessage(HEAD + found.flat + QUESTION)]
    said = chat.invoke(messages, documents=found.lines, logprobs=True).response_metadata
    reuse, each = said.get("kv_reuse", {}), said["logprobs"]
    in_tree = reuse.get("tree_tokens", 0)
    return Answer(
        tuple(one["token"] for one in each),
        tuple(one["logprob"] for one in each),
        reuse["reused_tokens"] / in_tree if in_tree else 0.0,
    )
