"""vLLM's requests, steps and attention layers as far as the connector looks at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from rag_accel.kv.reuse_request import ReuseRequest
from rag_accel.kv.rotation import rotated
from vllm_rag_accel.loading import BlockStates
from vllm_rag_accel.prompt_texts import TextFinder
from vllm_rag_accel.row_forward import RowRun

BLOCK, HEADS, DIM, LAYERS = 16, 2, 8, 3


def letters() -> TextFinder:
    """Return a tokenizer with a token for each character."""
    return TextFinder(lambda text: [ord(one) for one in text], _text)


def _text(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


@dataclass(eq=False)
class FakeRequest:
    """A request over letters."""

    request_id: str
    prompt: str
    kv_transfer_params: Any = None
    cache_salt: str | None = None
    lora_request: Any = None
    mm_features: tuple[()] = ()
    skip_reading_prefix_cache: bool = False

    @property
    def prompt_token_ids(self) -> list[int]:
        return [ord(one) for one in self.prompt]

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt)


def asking(name: str, prompt: str, wanted: ReuseRequest) -> FakeRequest:
    """Return a request as a client sends it."""
    return FakeRequest(name, prompt, wanted.params(), wanted.salt())


def fake_step(
    new: Mapping[str, tuple[Sequence[int], int]] | None = None,
    running: Mapping[str, tuple[Sequence[int], int]] | None = None,
    resumed: Mapping[str, tuple[Sequence[int], int]] | None = None,
    scheduled: Mapping[str, int] | None = None,
) -> Any:
    """Return a ``SchedulerOutput``: of each request its new blocks and its computed tokens."""
    old = {**(running or {}), **(resumed or {})}
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, block_ids=(list(blocks),), num_computed_tokens=computed)
            for name, (blocks, computed) in (new or {}).items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(old),
            new_block_ids=[(list(blocks),) if blocks else None for blocks, _ in old.values()],
            num_computed_tokens=[computed for _, computed in old.values()],
            resumed_req_ids=set(resumed or {}),
        ),
        num_scheduled_tokens=dict(scheduled or {}),
    )


class TransposedWriter:
    """A backend that keeps a block's keys transposed, then its values, as vLLM's on processors."""

    def do_kv_cache_update(
        self,
        layer: Any,
        keys: torch.Tensor,
        values: torch.Tensor,
        cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        block, dim = cache.shape[2], cache.shape[3] // 2
        flat = cache.view(cache.shape[0], cache.shape[1], -1)
        for at, slot in enumerate(slots.tolist()):
            number, place = divmod(slot, block)
            flat[number][:, place : block * dim : block] = keys[at]
            first = block * dim + place * dim
            flat[number][:, first : first + dim] = values[at]


@dataclass(eq=False)
class FakeLayer:
    """An attention layer with its writer."""

    layer_name: str
    impl: Any = field(default_factory=TransposedWriter)


class CausalForward:
    """A small model with rotation over the blocks: each row sees all rows up to its own."""

    def __init__(self, blocks: BlockStates, frequencies: torch.Tensor) -> None:
        self._blocks, self._frequencies = blocks, frequencies
        generator = torch.Generator().manual_seed(1)
        self._embedded = torch.randn(128, HEADS, DIM, generator=generator)
        self._weights = torch.randn(LAYERS, 2, DIM, DIM, generator=generator) / DIM**0.5
        self.runs: list[RowRun] = []

    def run(self, runs: Sequence[RowRun]) -> None:
        """Write keys and values of all runs, layer by layer."""
        self.runs += [run for run in runs if run.ids]
        hidden = [self._embedded[torch.tensor(run.ids, dtype=torch.int64) % 128] for run in runs]
        for layer, cache in enumerate(self._blocks.caches):
            turned = [
                self._turned(rows, run, layer) for rows, run in zip(hidden, runs, strict=True)
            ]
            for at, run in enumerate(runs):
                slots = self._blocks.slots(run.blocks, run.start, run.stop)
                values = hidden[at] @ self._weights[layer, 1]
                TransposedWriter().do_kv_cache_update(None, turned[at], values, cache, slots)
            for at, run in enumerate(runs):
                slots = self._blocks.slots(run.blocks, 0, run.stop)
                keys, values = self._blocks.layout.read(cache, slots)
                products = torch.einsum("rhd,phd->hrp", turned[at], keys)
                places = torch.arange(run.stop)
                products.masked_fill_(places > places[run.start :, None], -torch.inf)
                hidden[at] = hidden[at] + torch.einsum("hrp,phd->rhd", products.softmax(-1), values)

    def _turned(self, hidden: torch.Tensor, run: RowRun, layer: int) -> torch.Tensor:
        keys = (hidden @ self._weights[layer, 0]).transpose(0, 1)
        places = enumerate(range(run.start, run.stop))
        rows = [rotated(keys[:, at, None], place, self._frequencies) for at, place in places]
        return torch.cat([keys[:, :0], *rows], 1).transpose(0, 1)
