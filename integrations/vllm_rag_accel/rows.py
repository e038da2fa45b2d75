"""Rows of prompts that the worker computes outside the server's schedule."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rag_accel.kv.entry import KeyValues
from rag_accel.kv.selection import QuestionGuided, scored_layer
from vllm_rag_accel.loading import BlockStates
from vllm_rag_accel.row_forward import RowForward, RowRun
from vllm_rag_accel.step_plan import PromptLoad, PromptPart

#: The most rows whose attention is scored together.
_SCORED_ROWS = 64
#: The most prompts whose choices are kept.
_MOST_CHOICES = 1024


class VirtualRows:
    """Rows computed by the model of one worker.

    Args:
        config: vLLM's ``VllmConfig``.
        runner: the worker's model runner.
        row_block: tokens to compute again are chosen by aligned blocks of so many.
    """

    def __init__(self, config: Any, runner: Any, row_block: int = 1) -> None:
        self._forward = RowForward(config, runner)
        self._block = config.cache_config.block_size
        self._row_block = row_block
        # A prompt that is preempted and resumed is computed with the same choice again.
        self._choices: OrderedDict[bytes, list[int]] = OrderedDict()

    def encode(
        self, wanted: Sequence[tuple[PromptLoad, int, Sequence[PromptPart]]], blocks: BlockStates
    ) -> dict[bytes, KeyValues]:
        """Return states of parts behind the heads of their prompts, by key.

        Args:
            wanted: prompts, each with the first token of its head that is not there yet, which is
                computed with all behind it, and with its missing parts.
            blocks: those of a prompt behind its head, which are written later, hold states
                meanwhile; parts that do not fit into them together are computed one after another.
                One that is too long for all of them is left out.
        """
        states: dict[bytes, KeyValues] = {}
        heads = [
            RowRun(load.ids[begin : load.layout.head], begin, load.blocks)
            for load, begin, _ in wanted
            if begin < load.layout.head
        ]
        while True:
            placed = self._placed(wanted, states.keys())
            runs = [*heads, *(run for run, _ in placed.values())]
            if runs:
                self._forward.run(runs)
            if not placed:
                return states
            heads = []
            for key, (run, head) in placed.items():
                slots = blocks.slots(run.blocks, head, run.stop)
                states[key] = blocks.read(slots, head)

    def fill(self, wanted: Sequence[tuple[PromptLoad, Sequence[range]]]) -> None:
        runs = [run for load, places in wanted for run in _runs(load, places)]
        if runs:
            self._forward.run(runs)

    def choose(
        self, wanted: Sequence[tuple[PromptLoad, Sequence[range]]], blocks: BlockStates
    ) -> list[list[int]]:
        """Return the places of each prompt's texts to compute again, ascending.

        They are those that its question attends to most in one layer, as a selector of
        ``kv.selection`` has it. The question's rows are computed as far as the step has blocks for
        them, over states that are there and with the gaps between those.

        Args:
            wanted: prompts with their gaps.
            blocks: hold the states of their texts.
        """
        texts = [_reused_texts(load, gaps) for load, gaps in wanted]
        keys = [_choice_key(load, found) for (load, _), found in zip(wanted, texts, strict=True)]
        fresh = [at for at, key in enumerate(keys) if key not in self._choices]
        found = self._scores([wanted[at] for at in fresh], blocks) if fresh else []
        for at, scores in zip(fresh, found, strict=True):
            self._choices[keys[at]] = self._selected(wanted[at][0], texts[at], scores.tolist())
        chosen: list[list[int]] = []
        for (load, _), key in zip(wanted, keys, strict=True):
            self._choices.move_to_end(key)
            # What stands before it is there, as the same choice once left it.
            chosen.append([at for at in self._choices[key] if at >= load.begin])
        while len(self._choices) > _MOST_CHOICES:
            self._choices.popitem(last=False)
        return chosen

    def _scores(
        self, wanted: Sequence[tuple[PromptLoad, Sequence[range]]], blocks: BlockStates
    ) -> list[torch.Tensor]:
        """Return the attention that each place gets from the rows asked, by prompt."""
        layer = scored_layer(len(blocks.layers))
        runs: list[RowRun] = []
        asked: list[int] = []
        for at, (load, gaps) in enumerate(wanted):
            stop = min(load.scheduled, len(load.ids))
            behind = max(load.end, load.layout.parts[-1].stop)
            asked.append(stop - 1 if load.layout.asked == "last" else min(behind, stop - 1))
            runs += _runs(load, gaps)
            runs.append(RowRun(load.ids[load.end : stop], load.end, load.blocks, at))
        scores = [torch.zeros(load.scheduled) for load, _ in wanted]

        def take(run: RowRun, queries: torch.Tensor) -> None:
            if run.prompt is None or run.stop <= asked[run.prompt]:
                return
            load = wanted[run.prompt][0]
            first = max(run.start, asked[run.prompt])
            slots = blocks.slots(load.blocks, 0, run.stop)
            keys, _ = blocks.layout.read(blocks.caches[layer], slots)
            found = attention_scores(
                queries[first - run.start :],
                keys,
                blocks.layers[layer].impl.scale,
                getattr(blocks.layers[layer].impl, "logits_soft_cap", None) or 0.0,
            )
            scores[run.prompt][: run.stop] += found.cpu()

        self._forward.run_up_to(runs, blocks.layers[layer], take)
        return scores

    def _selected(
        self, load: PromptLoad, texts: Sequence[range], scores: Sequence[float]
    ) -> list[int]:
        """Return the chosen places of a prompt, those of the server's own cache among them."""
        selector = QuestionGuided(load.layout.asked, self._row_block)
        count = math.ceil(load.layout.ratio * sum(map(len, texts)))
        return list(selector.choose(scores, texts, count))

    def _placed(
        self,
        wanted: Sequence[tuple[PromptLoad, int, Sequence[PromptPart]]],
        known: Iterable[bytes],
    ) -> dict[bytes, tuple[RowRun, int]]:
        """Return runs of parts that are not known, with the lengths of their heads, by key."""
        placed: dict[bytes, tuple[RowRun, int]] = {}
        known = set(known)
        for load, _, parts in wanted:
            head, block = load.layout.head, self._block
            whole = head // block
            own = max(-(-load.begin // block), -(-head // block))
            free = load.blocks[own : -(-load.scheduled // block)]
            for part in parts:
                count = -(-(head - whole * block + len(part.ids)) // block)
                if part.key in placed or part.key in known or count > len(free):
                    continue
                table = [*load.blocks[:whole], *free[:count]]
                free = free[count:]
                ids = (*load.ids[whole * block : head], *part.ids)
                placed[part.key] = RowRun(ids, whole * block, table), head
        return placed


def _reused_texts(load: PromptLoad, gaps: Sequence[range]) -> list[range]:
    """Return the places of texts that are not computed as gaps."""
    return [
        range(part.start, part.stop)
        for part in load.layout.texts
        if part.stop <= load.end
        and not any(gap.start < part.stop and part.start < gap.stop for gap in gaps)
    ]


def _choice_key(load: PromptLoad, texts: Sequence[range]) -> bytes:
    layout = load.layout
    digest = hashlib.sha256(array("q", load.ids).tobytes())
    digest.update(repr((layout.head, layout.ratio, layout.asked, texts)).encode())
    for part in layout.parts:
        digest.update(part.key)
    return digest.digest()


def attention_scores(
    queries: torch.Tensor, keys: torch.Tensor, scale: float, soft_cap: float = 0.0
) -> torch.Tensor:
    """Return the attention of rows to each place, meaned over heads and summed: ``[place]``.

    Args:
        queries: of the last rows, ``[row, head, dim]``, rotated.
        keys: of all places up to the last row, ``[place, kv head, dim]``, rotated.
        scale: of their products.
        soft_cap: of the products; 0 for none.
    """
    rows, places = len(queries), len(keys)
    grouped = keys.float().permute(1, 2, 0)[:, None]  # [kv head, 1, dim, place]
    at = torch.arange(places, device=keys.device)
    total = torch.zeros(places, device=keys.device)
    for start in range(0, rows, _SCORED_ROWS):
        part = queries[start : start + _SCORED_ROWS].float()
        part = part.unflatten(1, (keys.shape[1], -1)).permute(1, 2, 0, 3)
        products = part @ grouped * scale
        if soft_cap:
            products = soft_cap * torch.tanh(products / soft_cap)
        own = torch.arange(start, start + part.shape[2], device=keys.device) + places - rows
        products.masked_fill_(at > own[:, None], -torch.inf)
        total += products.softmax(-1).mean((0, 1)).sum(0)
    return total


def _runs(load: PromptLoad, places: Iterable[range]) -> list[RowRun]:
    return [
        RowRun(load.ids[place.start : place.stop], place.start, load.blocks) for place in places
    ]
