"""Reused states of texts and trees against a forward that computes them as they should be.

In float32, on two layers of a shape's width: rounding then hides no wrong state.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.gpu.device import PartRun, need
from bench.gpu.models import (
    DecoderShape,
    make_decoder,
    make_tokenizer,
    paths_of,
    prompt_of,
    texts_of,
)
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import KvReuse, LocalOptions
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.fidelity.forced import ForcedEngine
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.kv.dependency.visibility import dense_mask
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.system.processor import usable_cores

#: Of the largest logit, at least 1.
TOLERANCE = 1e-3
SYSTEM_NAME = "reused states"
#: How many texts, and how many tokens each.
_TEXTS = (4, 48)
_LAYERS = 2
_POOL_BYTES = 1 << 28


def check_reuse(shape: DecoderShape, run: PartRun) -> None:
    """Compare the logits behind texts and behind trees that were all seen before."""
    small = replace(shape, layers=_LAYERS, context=4096)
    workload = f"{shape.name}, {_LAYERS} layers in float32"

    def check() -> None:
        model = make_decoder(small, run.device, "float32")
        for way in ("full", "dependency"):
            _check(model, way, workload, run)

    run.attempt(SYSTEM_NAME, workload, check)


def _check(model: Any, way: KvReuse, workload: str, run: PartRun) -> None:
    is_tree, vocabulary = way == "dependency", model.config.vocab_size
    tokenizer = make_tokenizer(vocabulary)
    texts = paths_of(2, 4, vocabulary, 3) if is_tree else texts_of(*_TEXTS, vocabulary, 3)
    options = LocalOptions(
        kv_reuse=way,
        kv_recipe="alone",
        reuse_always=True,
        runner="torch",
        pool_bytes=_POOL_BYTES,
        chunk_bytes=_POOL_BYTES,
    )
    first, second = prompt_of(texts, 0), prompt_of([*texts[2:], *texts[:2]], 1)
    engine = ForcedEngine(load(model, tokenizer, options=options), options, usable_cores())

    def asked(prompt: TextPrompt) -> tuple[SegmentedPrompt, Any, Any]:
        found = Prompting(tokenizer)
        placed = _tree(found, prompt) if is_tree else prompt.segments(found)
        whole = prompt.generation_input(1, paths_first=is_tree)
        return placed, *engine.answer(whole, len(placed.ids))

    try:
        asked(first)
        placed, said, logits = asked(second)
    finally:
        engine.close()
    expected = tree_logits(model, placed) if is_tree else text_logits(model, placed)
    most = TOLERANCE * max(1.0, float(expected.abs().max()))
    difference = float((logits[0].to(expected.device).float() - expected).abs().max())
    named = f"{workload}, {'trees' if is_tree else 'texts'}"
    run.check(difference <= most, SYSTEM_NAME, named, "max_logit_difference", difference)
    kept = len(placed.tree.ids) if is_tree else sum(len(one.ids) for one in placed.chunks)
    left = kept - said.use.from_chunks
    run.check(not left, SYSTEM_NAME, named, "tokens_not_reused", left)


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
    head = list(prompt.head)
    cache, logits = _grown(model, None, head)
    for part in prompt.segments[1:]:
        if part.kind != "chunk":
            cache, logits = _grown(model, cache, part.ids)
            continue
        alone, _ = _grown(model, None, [*head, *part.ids])
        for at, layer in enumerate(alone.layers):
            keys, values = (states[:, :, len(head) :] for states in (layer.keys, layer.values))
            cache.update(_turned(model, keys, part.start - len(head)), values, at)
    return logits


def _grown(model: Any, cache: Any, ids: Sequence[int]) -> tuple[Any, Any]:
    """Return a cache, a new one for None, with these tokens at its end, and the last logits."""
    torch = need("torch")
    cache = need("transformers").DynamicCache() if cache is None else cache
    start = cache.get_seq_length()
    parameters = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"
    with torch.inference_mode():
        output = model(
            torch.tensor([list(ids)], device=model.device),
            position_ids=torch.arange(start, start + len(ids), device=model.device)[None],
            use_cache=True,
            **{name: cache},
        )
    return cache, output.logits[0, -1].float()


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
