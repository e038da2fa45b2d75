"""vLLM's requests, steps and attention layers as far as the connector looks at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from rag_accel.kv.reuse_request import ReuseRequest
from vllm_rag_accel.prompt_texts import TextFinder

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
