"""Texts and relation paths of one prompt are both reused: as a mask and positions say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chunk_prompts import A, B, C, answer
from fake_runner import tokenizer
from tiny_chat import model
from transformers import AttentionInterface
from transformers.models.llama.modeling_llama import repeat_kv, rotate_half
from tree_prompts import RUNNERS

from rag_accel.engine_api import (
    ChunkSpan,
    EngineRequest,
    GenerationInput,
    Message,
    PrimitiveKind,
    WorkId,
)
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.kv.dependency.visibility import dense_mask
from rag_accel.kv.rotation import rotation_of
from rag_accel.kv.segments import SegmentedPrompt

TOKENS = 4
SYSTEM = "Answer by the documents."
TEXTS = (A, B, C, "The keys of the guide are values.", "Documents said the height of one lane.")
#: five times as many as there are names for, which share their beginnings
PATHS = tuple(
    f"{first} -> {relation} -> {last}"
    for first in ("Fuji", "lane", "guide", "keys")
    for relation in ("is in", "holds")
    for last in ("documents", "metres", "Mount", "values", "sequence")
)


def engine_on(runner: str, **options: Any) -> LocalLLMEngine:
    chosen = LocalOptions(
        **{
            "kv_reuse": "full+dependency",
            "kv_recipe": "alone",
            "reuse_always": True,
            **options,
        }
    )
    return LocalLLMEngine(RUNNERS[runner](model()), tokenizer(), options=chosen)


def asked(id: str, *parts: Sequence[str], question: str = "How high is it?") -> EngineRequest:
    """Return work whose prompt has lists of texts and of paths, in this order."""
    content, spans = "", list[ChunkSpan]()
    for part in parts:
        between = "\n" if " -> " in part[0] else "\n\n"
        for text in part:
            spans.append(ChunkSpan(1, len(content), len(content) + len(text), text[:8]))
            content += text + between
        content += "\n"
    messages = (Message("system", SYSTEM), Message("user", content + question))
    payload = GenerationInput(
        messages, max_tokens=TOKENS, chunk_spans=tuple(spans), options={"logprobs": True}
    )
    return EngineRequest(WorkId(id), id, PrimitiveKind.DECODING, payload)


def prompt_of(work: EngineRequest) -> SegmentedPrompt:
    payload = work.payload
    found = Prompting(tokenizer()).texts_and_paths(payload.messages, payload.chunk_spans, 1)
    assert found is not None
    assert found.paths is not None
    assert found.chunks
    return found


@torch.inference_mode()
def reference(prompt: SegmentedPrompt) -> list[float]:
    """Return the log probabilities of the greedy answer by forwards of transformers.

    A text's rows, and a path's, see the head and themselves, right behind the head; all other rows
    see them at their places in the prompt.
    """
    source, head, slots = model(), len(prompt.head), prompt.slots
    size = len(prompt.ids) + TOKENS
    seen_at = np.array(
        [
            *range(slots.start),
            *prompt.positions.positions.tolist(),
            *range(prompt.positions.behind, prompt.positions.behind + size - slots.stop),
        ]
    )
    own, unit_of = seen_at.copy(), np.arange(size)
    mask = np.tril(np.ones((size, size), bool))
    units = [range(chunk.start, chunk.end) for chunk in prompt.chunks]
    for unit in [*units, slots]:
        rows = slice(unit.start, unit.stop)
        mask[rows, head : unit.stop] = False
        mask[rows, rows] = np.tril(np.ones((len(unit), len(unit)), bool))
        own[rows], unit_of[rows] = np.arange(head, head + len(unit)), unit.start
    rows = slice(slots.start, slots.stop)
    mask[rows, rows] = dense_mask(prompt.tree)
    own[rows] = prompt.tree.token_depths + head
    ids, found = list(prompt.ids), list[float]()
    for _ in range(TOKENS):
        of = slice(len(ids))
        moved = seen_at[of] - own[of]
        logits = _forward(source, ids, own[of], moved, unit_of[of], mask[of, of])
        likeliest = logits[-1].log_softmax(-1).max(-1)
        ids.append(int(likeliest.indices))
        found.append(float(likeliest.values))
    return found


def _forward(
    source: Any, ids: list[int], own: Any, moved: Any, unit_of: Any, mask: Any
) -> torch.Tensor:
    """Return logits of rows that see their own unit where it was computed, and others as placed."""
    frequencies = rotation_of(source)
    assert frequencies is not None
    angles = torch.outer(torch.from_numpy(moved).float(), torch.as_tensor(frequencies))
    angles = torch.cat([angles, angles], dim=-1)
    is_own = torch.from_numpy(unit_of[:, None] == unit_of)

    def attend(module: Any, q: Any, k: Any, v: Any, *_: Any, scaling: float, **__: Any) -> Any:
        k, v = repeat_kv(k, module.num_key_value_groups), repeat_kv(v, module.num_key_value_groups)
        placed = k * angles.cos() + rotate_half(k) * angles.sin()
        near, far = q @ k.transpose(2, 3), q @ placed.transpose(2, 3)
        scores = torch.where(is_own, near, far) * scaling
        scores = scores.masked_fill(~torch.from_numpy(mask), -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).contiguous(), None

    AttentionInterface.register("placed", attend)
    before = source.config._attn_implementation
    source.set_attn_implementation("placed")
    try:
        return source(
            torch.tensor([ids]), position_ids=torch.from_numpy(own)[None], use_cache=False
        ).logits[0]
    finally:
        source.set_attn_implementation(before)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("parts", [(TEXTS, PATHS), (PATHS, TEXTS)], ids=["texts", "paths"])
def test_it_is_one_forward_under_its_mask_and_positions(
    runner: str, parts: tuple[Sequence[str], Sequence[str]]
) -> None:
    engine = engine_on(runner)
    work = asked("one", *parts)
    expected = reference(prompt_of(work))
    for id in ("new", "seen"):  # computed, then spliced
        found = answer(engine, EngineRequest(WorkId(id), id, work.kind, work.payload))
        told = [one.logprob for one in found.logprobs]
        assert told == pytest.approx(expected, abs=1e-5)
    engine.close()


def test_texts_that_are_computed_again_see_the_paths_before_them() -> None:
    engine = engine_on("torch", kv_reuse="fused+dependency", recompute_ratio=1.0)
    work = asked("one", PATHS, TEXTS)
    found = answer(engine, work)
    told = [one.logprob for one in found.logprobs]
    assert told == pytest.approx(reference(prompt_of(work).without_chunks()), abs=1e-5)
    assert found.use is not None
    assert found.use.recomputed == sum(len(chunk.ids) for chunk in prompt_of(work).chunks)
    engine.close()


def test_the_report_counts_both(tmp_path: Path) -> None:
    work = asked("one", TEXTS, PATHS)
    prompt, counted = prompt_of(work), list[dict[str, Any]]()
    texts, tree = sum(len(chunk.ids) for chunk in prompt.chunks), len(prompt.tree.ids)
    for id in ("new", "kept"):  # by two engines of one folder
        engine = engine_on("torch", kv_folder=str(tmp_path / "kept"))
        found = answer(engine, EngineRequest(WorkId(id), id, work.kind, work.payload))
        counted.append(LocalOptions(kv_reuse="full+dependency").report(found) or {})
        engine.close()
    new, kept = counted
    assert (new["reused_tokens"], new["reused_tree_tokens"], new["tree_tokens"]) == (0, 0, tree)
    assert (kept["reused_tokens"], kept["reused_tree_tokens"]) == (texts + tree, tree)
    for report in counted:
        assert report["approximate_tokens"] == texts + tree
        assert (report["attention"], report["document_tokens"]) == ("dependency", 0)
        assert not report["exact"]


def test_parts_are_found_again_in_any_order_and_company() -> None:
    engine = engine_on("torch")
    answer(engine, asked("one", TEXTS[:3], PATHS[:20]))
    work = asked("two", PATHS[5:20], (TEXTS[2], TEXTS[0]))
    prompt, found = prompt_of(work), answer(engine, work)
    assert found.use is not None
    assert found.use.from_chunks == found.use.approximate
    assert found.use.from_tree == len(prompt.tree.ids)
    engine.close()


@pytest.mark.parametrize(("alone", "parts"), [("full", (TEXTS,)), ("dependency", (PATHS,))])
def test_a_prompt_of_one_kind_is_as_with_that_kind_alone(
    alone: str, parts: tuple[Sequence[str]]
) -> None:
    outputs: list[tuple[str, list[float]]] = []
    for kv_reuse in (alone, "full+dependency"):
        engine = engine_on("torch", kv_reuse=kv_reuse)
        for id in ("new", "seen"):
            found = answer(engine, asked(id, *parts))
            outputs.append((found.text, [one.logprob for one in found.logprobs]))
        engine.close()
    assert outputs[:2] == outputs[2:]


def test_forgotten_parts_of_both_kinds_are_computed_again() -> None:
    engine = engine_on("torch")
    answer(engine, asked("one", TEXTS, PATHS))
    engine.forget([TEXTS[0], PATHS[0]])
    work = asked("two", TEXTS, PATHS)
    prompt, found = prompt_of(work), answer(engine, work)
    assert found.use is not None
    texts = sum(len(chunk.ids) for chunk in prompt.chunks[1:])
    assert found.use.from_chunks - found.use.from_tree == texts
    assert found.use.from_tree < len(prompt.tree.ids)
    engine.close()


def test_texts_that_do_not_pay_leave_the_tree() -> None:
    engine = engine_on("torch", reuse_always=False, chunk_bytes=0)
    engine._running.reuse_pays = lambda prompt, namespace, *, is_asked: False  # type: ignore[method-assign]
    work = asked("one", TEXTS, PATHS)
    found, prompt = answer(engine, work), prompt_of(work)
    told = [one.logprob for one in found.logprobs]
    assert told == pytest.approx(reference(prompt.without_chunks()), abs=1e-5)
    assert found.use is not None
    assert (found.use.tree, found.use.approximate) == (len(prompt.tree.ids),) * 2
    assert found.use.documents == sum(len(chunk.ids) for chunk in prompt.chunks)
    engine.close()
