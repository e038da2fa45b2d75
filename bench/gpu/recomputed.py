"""Reused states of texts and trees against a forward that computes them as they should be.

In float32, on two layers of a shape's width: rounding then hides no wrong state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.gpu.device import MeasuredDevice, PartFound, need
from bench.gpu.models import (
    DecoderShape,
    make_decoder,
    make_tokenizer,
    paths_of,
    prompt_of,
    texts_of,
)
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.fidelity.forced import ForcedEngine
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.kv.dependency.visibility import dense_mask
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.system.processor import usable_cores

#: Of the largest logit, at least 1.
TOLERANCE = 1e-3
_WORDS, _TEXTS = 48, 4
_LAYERS = 2
_POOL_BYTES = 1 << 28


def check_reuse(shape: DecoderShape, device: MeasuredDevice, found: PartFound) -> None:
    """Compare the logits behind texts and behind trees that were all seen before."""
    small = replace(shape, layers=_LAYERS, context=4096)
    workload = f"{shape.name}, {_LAYERS} layers in float32"
    found.within_memory(
        device, "reused states", workload, lambda: _check(small, workload, device, found)
    )


def _check(shape: DecoderShape, workload: str, device: MeasuredDevice, found: PartFound) -> None:
    model, tokenizer = make_decoder(shape, device, "float32"), make_tokenizer(shape.vocabulary)
    prompting = Prompting(tokenizer)
    for way in ("full", "dependency"):
        is_tree = way == "dependency"
        texts = (
            paths_of(2, 4, shape.vocabulary, 3)
            if is_tree
            else texts_of(_TEXTS, _WORDS, shape.vocabulary, 3)
        )
        prompts = [prompt_of(texts, 0), prompt_of([*texts[2:], *texts[:2]], 1)]
        placed = [_tree(prompting, one) if is_tree else one.segments(prompting) for one in prompts]
        options = LocalOptions(
            kv_reuse=way,  # type: ignore[arg-type]
            kv_recipe="alone",
            reuse_always=True,
            runner="torch",
            pool_bytes=_POOL_BYTES,
            chunk_bytes=_POOL_BYTES,
        )
        engine = ForcedEngine(load(model, tokenizer, options=options), options, usable_cores())
        try:
            for asked, one in zip(prompts, placed, strict=True):
                whole = asked.generation_input(1, paths_first=is_tree)
                said, logits = engine.answer(whole, len(one.ids))
        finally:
            engine.close()
        last = placed[-1]
        expected = tree_logits(model, last) if is_tree else text_logits(model, last)
        most = TOLERANCE * max(1.0, float(expected.abs().max()))
        difference = float((logits[0].to(expected.device).float() - expected).abs().max())
        named = f"{workload}, {'trees' if is_tree else 'texts'}"
        metric = "max_logit_difference"
        found.check(difference <= most, "reused states", named, metric, difference)
        left = len(last.ids) - len(last.head) - len(last.task) - said.use.from_chunks
        found.check(not left, "reused states", named, "tokens_not_reused", left)


def _tree(prompting: Prompting, prompt: TextPrompt) -> SegmentedPrompt:
    whole = prompt.generation_input(1, paths_first=True)
    tree = prompting.tree(whole.messages, whole.chunk_spans)
    assert tree is not None, "paths of an entity begin alike"
    return tree


def tree_logits(model: Any, prompt: SegmentedPrompt) -> Any:
    """Return ``[vocabulary]`` behind a tree, of one forward of all tokens under a dense mask."""
    torch = need("torch")
    head, behind, size = len(prompt.head), prompt.slots.stop, len(prompt.ids)
    mask = np.tril(np.ones((size, size), bool))
    mask[head:behind, :behind] = dense_mask(prompt.tree, past=head)
    first = prompt.positions.behind
    after = range(first, first + size - behind)
    positions = [*range(head), *prompt.positions.positions.tolist(), *after]
    additive = torch.zeros(mask.shape).masked_fill_(torch.from_numpy(~mask), -torch.inf)
    with torch.inference_mode():
        output = model(
            torch.tensor([prompt.ids], device=model.device),
            position_ids=torch.tensor([positions], device=model.device),
            attention_mask=additive[None, None].to(model.device),
            use_cache=False,
        )
    return output.logits[0, -1].float()


def text_logits(model: Any, prompt: SegmentedPrompt) -> Any:
    """Return ``[vocabulary]`` behind texts, each computed alone behind the head, then moved.

    Their keys are turned from the place behind the head to that in the prompt; the last tokens see
    all of them.
    """
    torch, transformers = need("torch"), need("transformers")
    head, task = list(prompt.head), list(prompt.task)
    parts: list[list[tuple[Any, Any]]] = []
    with torch.inference_mode():
        for chunk in prompt.chunks:
            alone = _states(model, [*head, *chunk.ids])
            moved = chunk.start - len(head)
            parts.append(
                [
                    (_turned(model, keys[:, :, len(head) :], moved), values[:, :, len(head) :])
                    for keys, values in alone
                ]
            )
        cache = transformers.DynamicCache()
        for layer, own in enumerate(_states(model, head)):
            each = [own, *(part[layer] for part in parts)]
            keys, values = (torch.cat(states, dim=2) for states in zip(*each, strict=True))
            cache.update(keys, values, layer)
        start = len(prompt.ids) - len(task)
        output = model(
            torch.tensor([task], device=model.device),
            past_key_values=cache,
            position_ids=torch.arange(start, len(prompt.ids), device=model.device)[None],
            use_cache=True,
        )
    return output.logits[0, -1].float()


def _states(model: Any, ids: Sequence[int]) -> list[tuple[Any, Any]]:
    """Return the keys and values ``[1, heads, tokens, dim]`` of each layer."""
    torch = need("torch")
    made = model(torch.tensor([list(ids)], device=model.device), use_cache=True).past_key_values
    return [(layer.keys, layer.values) for layer in made.layers]


def _turned(model: Any, keys: Any, by: int) -> Any:
    """Return keys as they are ``by`` places further on."""
    torch = need("torch")
    dim = keys.shape[-1]
    theta = model.config.rope_parameters["rope_theta"]
    places = torch.arange(0, dim, 2, device=keys.device, dtype=torch.float64)
    angles = (by / theta ** (places / dim)).repeat(2)
    cosine, sine = (one.to(keys.dtype) for one in (angles.cos(), angles.sin()))
    first, second = keys.chunk(2, dim=-1)
    return keys * cosine + torch.cat((-second, first), dim=-1) * sine
