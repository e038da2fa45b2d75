"""Rows of prompts that the worker computes outside the server's schedule."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from rag_accel.kv.entry import KeyValues
from rag_accel.kv.selection import QuestionGuided, scored_layer
from vllm_rag_accel.load_state import ComputedText, Encoding, LoadState
from vllm_rag_accel.loading import BlockStates
from vllm_rag_accel.row_forward import RowForward, RowRun
from vllm_rag_accel.step_plan import PromptLoad

#: The most rows whose attention is scored together.
_SCORED_ROWS = 64
#: The most prompts whose choices are kept.
_MOST_CHOICES = 1024
#: Chosen places, and by key of each text the digests that its state had seen.
_Choice = tuple[list[int], Mapping[bytes, frozenset[str]]]


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
        # A prompt that is preempted and resumed is computed with the same choice again, as long as
        # the states of its texts have seen what they had.
        self._choices: OrderedDict[bytes, _Choice] = OrderedDict()

    def encode(
        self, states: Sequence[LoadState], blocks: BlockStates
    ) -> dict[ComputedText, KeyValues]:
        """Return the states of the texts in the encodings of prompts.

        Args:
            states: prompts; their heads are computed from the first token that is not there yet.
            blocks: those of a prompt behind its head, which are written later, hold states
                meanwhile; encodings that do not fit into them together are computed one after
                another. One that is too long for all of them is left out.
        """
        found: dict[ComputedText, KeyValues] = {}
        runs = [
            RowRun(load.ids[state.begin : load.layout.head], state.begin, load.blocks)
            for state in states
            for load in (state.load,)
        ]
        left = [(state.load, encoding) for state in states for encoding in state.encodings]
        while True:
            placed, left = self._placed(left)
            for load, encoding, table in placed:
                head = load.layout.head
                whole, before = head - head % self._block, encoding.before
                if before is not None:
                    slots = blocks.slots(table, head, head + len(before))
                    blocks.write(slots, before.keys, before.values)
                ids = tuple(id for text in encoding.texts for id in text.part.ids)
                runs.append(RowRun(load.ids[whole:head], whole, table))
                runs.append(RowRun(ids, encoding.start, table))
            if any(run.ids for run in runs):
                self._forward.run(runs)
            if not placed:
                return found
            runs = []
            for _, encoding, table in placed:
                at = encoding.start
                for text in encoding.texts:
                    slots = blocks.slots(table, at, at + len(text.part.ids))
                    found[text] = blocks.read(slots, at).having_seen(text.seen)
                    at += len(text.part.ids)

    def fill(self, wanted: Sequence[tuple[PromptLoad, Sequence[range]]]) -> None:
        runs = [run for load, places in wanted for run in _runs(load, places)]
        if runs:
            self._forward.run(runs)

    def choose(self, states: Sequence[LoadState], blocks: BlockStates) -> list[list[int]]:
        """Return the places of each prompt's texts to compute again, ascending.

        They are those that its question attends to most in one layer, as a selector of
        ``kv.selection`` has it. The question's rows are computed as far as the step has blocks for
        them, over states that are there and with the gaps between those.

        Args:
            states: prompts with their gaps and what the states of their texts have seen.
            blocks: hold the states of their texts.
        """
        texts = [_reused_texts(state.load, state.gaps) for state in states]
        keys = [_choice_key(state.load, found) for state, found in zip(states, texts, strict=True)]
        fresh = [
            at
            for at, (key, state) in enumerate(zip(keys, states, strict=True))
            if key not in self._choices or not state.seen.items() <= self._choices[key][1].items()
        ]
        found = self._scores([states[at] for at in fresh], blocks) if fresh else []
        for at, scores in zip(fresh, found, strict=True):
            chosen = self._selected(states[at].load, texts[at], scores.tolist())
            self._choices[keys[at]] = chosen, states[at].seen
        places: list[list[int]] = []
        for state, key in zip(states, keys, strict=True):
            self._choices.move_to_end(key)
            # What stands before it is there, as the same choice once left it.
            places.append([at for at in self._choices[key][0] if at >= state.load.begin])
        while len(self._choices) > _MOST_CHOICES:
            self._choices.popitem(last=False)
        return places

    def _scores(self, states: Sequence[LoadState], blocks: BlockStates) -> list[torch.Tensor]:
        """Return the attention that each place gets from the rows asked, by prompt."""
        layer = scored_layer(len(blocks.layers))
        runs: list[RowRun] = []
        asked: list[int] = []
        for at, state in enumerate(states):
            load = state.load
            stop = min(load.scheduled, len(load.ids))
            behind = max(load.end, load.layout.parts[-1].stop)
            asked.append(stop - 1 if load.layout.asked == "last" else min(behind, stop - 1))
            runs += _runs(load, state.gaps)
            runs.append(RowRun(load.ids[load.end : stop], load.end, load.blocks, at))
        scores = [torch.zeros(state.load.scheduled) for state in states]

        def take(run: RowRun, queries: torch.Tensor) -> None:
            if run.prompt is None or run.stop <= asked[run.prompt]:
                return
            load = states[run.prompt].load
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
        self, left: Sequence[tuple[PromptLoad, Encoding]]
    ) -> tuple[list[tuple[PromptLoad, Encoding, list[int]]], list[tuple[PromptLoad, Encoding]]]:
        """Return the encodings that have blocks now, with these, and those that have to wait.

        Each has a block of its own for the last tokens of the head.
        """
        placed: list[tuple[PromptLoad, Encoding, list[int]]] = []
        later: list[tuple[PromptLoad, Encoding]] = []
        free: dict[str, list[int]] = {}
        for load, encoding in left:
            blocks = free.setdefault(load.request, load.free_blocks(self._block))
            whole = load.layout.head // self._block
            tokens = sum(len(text.part.ids) for text in encoding.texts)
            count = -(-(encoding.start + tokens) // self._block) - whole
            if count > len(blocks):
                later.append((load, encoding))
            else:
                placed.append((load, encoding, [*load.blocks[:whole], *blocks[:count]]))
                del blocks[:count]
        return placed, later


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
