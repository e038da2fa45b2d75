"""The savings of dependency attention for given paths, in tokens and attended pairs.

Numbers of a prompt, before any model runs (DepCache, section 3.2 and Fig. 3b): of paths in each
layout, or of whole prompts as they were written and with their paths as trees.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.layouts import LAYOUTS, Layout, lay_out
from rag_accel.kv.dependency.paths import checked_paths
from rag_accel.kv.dependency.tree import DependencyTree, Encode, encode_once
from rag_accel.kv.segments import SegmentedPrompt


@dataclass(frozen=True, slots=True)
class LayoutCost:
    """The cost of one layout of paths, between a head and a question.

    Args:
        tokens: of the paths alone.
        attended_pairs: pairs of a row and a slot that it sees, of the whole prompt.
    """

    tokens: int
    attended_pairs: int


@dataclass(frozen=True, slots=True)
class LayoutReport:
    """The costs of the same paths in several layouts, ``flat`` among them."""

    costs: dict[Layout, LayoutCost]

    def attended_share(self, layout: Layout = "tree") -> float:
        """Return the attended pairs of a layout for each one of causal attention over ``flat``."""
        pairs = self.costs["flat"].attended_pairs
        return self.costs[layout].attended_pairs / pairs if pairs else 1.0

    def redundant_share(self, layout: Layout = "tree") -> float:
        """Return the share of the tokens of ``flat`` that a layout merges with equal ones.

        It is negative where a layout has more tokens: ``records`` and ``grouped`` write the entity
        between two relations twice.
        """
        tokens = self.costs["flat"].tokens
        return (tokens - self.costs[layout].tokens) / tokens if tokens else 0.0


def report_layouts(
    paths: Iterable[Iterable[str]],
    encode: Encode,
    *,
    head_tokens: int = 0,
    question_tokens: int = 0,
) -> LayoutReport:
    """Return the costs of paths in each layout.

    Args:
        paths: the segments of each; an entity, or entity, relation, entity, ...
        encode: called once for each distinct segment.
        head_tokens: the number of tokens that all of the tree and the question see.
        question_tokens: the number of tokens behind the tree, which see all before them.

    Raises:
        ConfigError: as ``lay_out`` does, and for a negative number.
    """
    for name, value in (("head_tokens", head_tokens), ("question_tokens", question_tokens)):
        if value < 0:
            raise ConfigError(f"{name} is a number of tokens", found=value, valid="0 or more")
    checked = checked_paths(paths)
    remembered = encode_once(encode)
    costs: dict[Layout, LayoutCost] = {}
    for layout in LAYOUTS:
        tree = lay_out(checked, layout, remembered)
        pairs = attended_pairs(tree, head_tokens, question_tokens)
        costs[layout] = LayoutCost(len(tree.ids), pairs)
    return LayoutReport(costs)


def report_prompts(prompts: Iterable[tuple[int, SegmentedPrompt]]) -> LayoutReport:
    """Return the costs of whole prompts: ``flat``, as they were written, and ``tree``; summed.

    Args:
        prompts: of each, the number of its tokens as it was written, and its tokens with a tree.

    Raises:
        ConfigError: a prompt as it was written has fewer tokens than stand around its tree.
    """
    costs = {"flat": [0, 0], "tree": [0, 0]}
    for written, prompt in prompts:
        head, task = len(prompt.head), len(prompt.task)
        if written < head + task:
            raise ConfigError(
                "a prompt has fewer tokens than stand around its paths",
                found=written,
                valid=f"{head + task} or more",
            )
        tree = attended_pairs(prompt.tree, head, task)
        for layout, tokens, pairs in (
            ("flat", written - head - task, _triangle(written)),
            ("tree", len(prompt.tree.ids), tree),
        ):
            costs[layout][0] += tokens
            costs[layout][1] += pairs
    return LayoutReport({"flat": LayoutCost(*costs["flat"]), "tree": LayoutCost(*costs["tree"])})


def attended_pairs(tree: DependencyTree, head_tokens: int = 0, question_tokens: int = 0) -> int:
    """Return the number of pairs of a row and a slot that it sees, itself among them.

    The question sees the head, the tree and itself up to each row.
    """
    num_tokens = len(tree.ids)
    of_tree = int(tree.token_depths.sum(dtype="int64")) + num_tokens * (1 + head_tokens)
    of_question = question_tokens * (head_tokens + num_tokens)
    return _triangle(head_tokens) + of_tree + of_question + _triangle(question_tokens)


def _triangle(size: int) -> int:
    return size * (size + 1) // 2
