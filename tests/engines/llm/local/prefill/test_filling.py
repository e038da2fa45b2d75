"""A folder is filled before any prompt is asked, and an engine finds what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import chunk_prompts
import numpy as np
import pytest
import torch
from chunk_prompts import SYSTEM, A, B, C, asked, tokens
from fake_runner import tokenizer
from kept_engines import engine_over, reused
from tiny_chat import model

from rag_accel.engine_api import (
    GenerationOutput,
    Message,
)
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.prefill.fill_prompt import prompt_of
from rag_accel.engines.llm.local.prefill.filling import FillOptions, FillReport, fill_folder
from rag_accel.errors import ConfigError, EngineError
from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import KeyValues
from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.rotation import rotated

TEXTS = [A, B, C]
#: The second text is the nearest of the first, the third the farthest.
ANGLES = [0.0, 0.4, 1.0]


def embed(texts: Sequence[str]) -> Any:
    angles = np.array([ANGLES[TEXTS.index(one)] for one in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def fill(
    folder: Path, texts: Sequence[str] = TEXTS, source: Any = None, **given: Any
) -> FillReport:
    options = {name: given.pop(name) for name in list(given) if name in FillOptions.__slots__}
    given.setdefault("prompt", prompt_of(SYSTEM))
    given.setdefault("embed", embed)
    options.setdefault("pool_bytes", 1 << 24)
    return fill_folder(
        folder,
        model() if source is None else source,
        texts,
        tokenizer=tokenizer(),
        options=FillOptions(**options),
        **given,
    )


def ids(text: str) -> tuple[int, ...]:
    return tuple(tokenizer()(text, add_special_tokens=False)["input_ids"])


HEAD = f"<|turn|>system\n{SYSTEM}</s>\n<|turn|>user\n"


def disk_of(folder: Path) -> tuple[DiskStore, ChunkSource]:
    identity = load(model(), tokenizer(), pool_bytes=1 << 24).runner.identity()
    disk = DiskStore(folder, limit_bytes=1 << 30, model=identity, dtype=torch.float32)
    return disk, ChunkSource(identity, "", ids(HEAD))


def kept(folder: Path, text: str, *before: str) -> KeyValues:
    disk, source = disk_of(folder)
    if before:
        source = source.behind(map(ids, before))
    found = disk.find(source.key(ids(text)))
    assert found is not None
    return found


def answer(folder: Path, *texts: str, namespace: str = "", **options: Any) -> GenerationOutput:
    engine = engine_over(folder, **options)
    try:
        return chunk_prompts.answer(engine, asked("one", *texts, namespace=namespace))
    finally:
        engine.close()


def direct(text: str, *before: str) -> KeyValues:
    """Return the state of a text behind the head and texts that have seen the head alone."""
    from transformers import DynamicCache

    own, head = model(), ids(HEAD)
    frequencies = own.get_decoder().rotary_emb.inv_freq
    at, parts = len(head), [list(_computed(DynamicCache(), head, 0))]
    for one in before:
        state = _computed(DynamicCache(), (*head, *ids(one)), 0)
        parts.append(
            [
                (rotated(k[:, :, len(head) :], at - len(head), frequencies), v[:, :, len(head) :])
                for k, v in state
            ]
        )
        at += len(ids(one))
    cache = DynamicCache()
    for layer, pieces in enumerate(zip(*parts, strict=True)):
        keys, values = (torch.cat(one, dim=2) for one in zip(*pieces, strict=True))
        cache.update(keys, values, layer)
    states = [(k[0, :, at:], v[0, :, at:]) for k, v in _computed(cache, ids(text), at)]
    return KeyValues(*(torch.stack(one) for one in zip(*states, strict=True)), at)


@torch.inference_mode()
def _computed(cache: Any, tokens: tuple[int, ...], start: int) -> list[tuple[Any, Any]]:
    places = torch.arange(start, start + len(tokens))[None]
    name = "cache" if "cache" in signature(model().forward).parameters else "past_key_values"
    model()(input_ids=torch.tensor([tokens]), position_ids=places, **{name: cache})
    return [(layer.keys, layer.values) for layer in cache.layers]


def assert_close(one: KeyValues, other: KeyValues) -> None:
    assert one.position == other.position
    torch.testing.assert_close(one.keys, other.keys, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(one.values, other.values, atol=1e-5, rtol=1e-5)


def test_an_engine_computes_no_token_of_what_was_filled(tmp_path: Path) -> None:
    report = fill(tmp_path / "kept")
    assert (report.texts, report.encoded, report.found, report.head) == (3, 3, 0, HEAD)
    assert report.tokens == tokens(*TEXTS)
    assert reused(answer(tmp_path / "kept", TEXTS[2], TEXTS[0])) == tokens(TEXTS[2], TEXTS[0])


def test_what_was_filled_is_what_an_engine_would_have_encoded(tmp_path: Path) -> None:
    fill(tmp_path / "filled")
    first = answer(tmp_path / "asked", *TEXTS, kv_recipe="alone")
    for text in TEXTS:
        one, other = kept(tmp_path / "filled", text), kept(tmp_path / "asked", text)
        assert one.position == other.position
        torch.testing.assert_close(one.keys, other.keys, atol=1e-6, rtol=0)
        torch.testing.assert_close(one.values, other.values, atol=1e-6, rtol=0)
    assert answer(tmp_path / "filled", *TEXTS, kv_recipe="alone").text == first.text


@pytest.mark.parametrize("before", [(), (1,), (2, 1)])
def test_a_state_is_that_of_a_direct_computation(tmp_path: Path, before: tuple[int, ...]) -> None:
    fill(tmp_path / "kept", neighbours=len(before))
    texts = [TEXTS[at] for at in before]
    assert_close(kept(tmp_path / "kept", TEXTS[0], *texts), direct(TEXTS[0], *texts))


def test_the_order_of_the_paper_is_an_option(tmp_path: Path) -> None:
    fill(tmp_path / "kept", neighbours=2, neighbour_order="nearest_first")
    before = TEXTS[1], TEXTS[2]
    assert_close(kept(tmp_path / "kept", TEXTS[0], *before), direct(TEXTS[0], *before))


def test_texts_alone_are_kept_beside_those_with_neighbours(tmp_path: Path) -> None:
    report = fill(tmp_path / "kept", neighbours=1)
    assert (report.encoded, report.preprocessed) == (3, 3)
    assert_close(kept(tmp_path / "kept", TEXTS[0]), direct(TEXTS[0]))


def test_an_engine_finds_neighbours_unless_it_takes_texts_alone(tmp_path: Path) -> None:
    fill(tmp_path / "kept", neighbours=2)
    alone = answer(tmp_path / "kept", *TEXTS, kv_recipe="alone")
    found = answer(tmp_path / "kept", *TEXTS)
    assert alone.use is not None
    assert found.use is not None
    assert reused(found) == reused(alone) == tokens(*TEXTS)
    assert (alone.use.preprocessed, found.use.preprocessed) == (0, tokens(*TEXTS))


def test_a_part_of_them_may_be_computed_again(tmp_path: Path) -> None:
    fill(tmp_path / "kept", neighbours=2)
    ways = {"kv_reuse": "fused", "recompute_ratio": 0.25}
    found = answer(tmp_path / "kept", *TEXTS, **ways, reuse_always=True)
    assert found.use is not None
    assert found.use.recomputed > 0
    assert found.use.from_chunks + found.use.recomputed == tokens(*TEXTS)
    assert found.use.preprocessed == tokens(*TEXTS)


def test_without_states_behind_neighbours_those_alone_are_used(tmp_path: Path) -> None:
    fill(tmp_path / "kept")
    found = answer(tmp_path / "kept", *TEXTS)
    assert found.use is not None
    assert (found.use.from_chunks, found.use.preprocessed) == (tokens(*TEXTS), 0)


def test_a_text_that_is_not_filled_is_computed(tmp_path: Path) -> None:
    fill(tmp_path / "kept", TEXTS[:2], neighbours=1)
    found = answer(tmp_path / "kept", *TEXTS)
    assert reused(found) == tokens(*TEXTS[:2])


def test_another_tenant_finds_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "kept", neighbours=1, namespace="mine")
    theirs = answer(tmp_path / "kept", *TEXTS, namespace="theirs")
    mine = answer(tmp_path / "kept", *TEXTS, namespace="mine")
    assert (reused(theirs), reused(mine)) == (0, tokens(*TEXTS))


def test_a_fill_that_was_stopped_goes_on_after_its_last_batch(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "kept", batch=1, progress=stop)
    report = fill(tmp_path / "kept")
    assert (report.encoded, report.found) == (1, 2)


def test_progress_is_told_after_each_batch(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    fill(tmp_path / "kept", batch=2, neighbours=1, progress=lambda *one: told.append(one))
    assert told == [(0, 6), (2, 6), (3, 6), (5, 6), (6, 6)]


def test_texts_of_a_batch_share_forwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rag_accel.engines.llm.local.model.runner import PackedRunner

    shared: list[int] = []
    run = PackedRunner.run

    def counted(self: Any, rows: Any) -> Any:
        shared.append(len(rows))
        return run(self, rows)

    monkeypatch.setattr(PackedRunner, "run", counted)
    fill(tmp_path / "kept", neighbours=1)
    assert max(shared) >= 2


def test_new_neighbours_make_another_state_that_is_preferred(tmp_path: Path) -> None:
    fill(tmp_path / "kept", [TEXTS[0], TEXTS[2]], neighbours=1)
    report = fill(tmp_path / "kept", neighbours=1)
    assert report.preprocessed == 3  # the first and the third have another nearest one now
    for before in (TEXTS[2], TEXTS[1]):
        assert_close(kept(tmp_path / "kept", TEXTS[0], before), direct(TEXTS[0], before))
    disk, source = disk_of(tmp_path / "kept")
    name = disk.folder.name(source.behind_others().key(ids(TEXTS[0])))
    wanted = source.behind([ids(TEXTS[1])]).key(ids(TEXTS[0]))
    assert disk.folder.referred(name) == disk.folder.name(wanted)


def test_equal_and_short_texts_are_left_out(tmp_path: Path) -> None:
    report = fill(tmp_path / "kept", [TEXTS[0], "", "a", TEXTS[0], TEXTS[1]])
    assert (report.texts, report.left_out, report.encoded) == (5, 3, 2)


@pytest.mark.parametrize("before", ["", "These are the documents:\n"])
def test_what_the_user_says_before_the_texts_does_not_matter(tmp_path: Path, before: str) -> None:
    fill(tmp_path / "kept", prompt=prompt_of(SYSTEM, before))
    assert reused(answer(tmp_path / "kept", *TEXTS)) == tokens(*TEXTS)


def test_another_system_message_is_another_head(tmp_path: Path) -> None:
    fill(tmp_path / "kept", prompt=prompt_of("Answer at length."))
    assert reused(answer(tmp_path / "kept", *TEXTS)) == 0


def test_texts_may_stand_in_the_system_message(tmp_path: Path) -> None:
    report = fill(tmp_path / "kept", prompt=[Message("system", "By these: {context}")])
    assert report.head == "<|turn|>system\n"
    assert report.encoded == 3


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"texts": []}, "no texts"),
        ({"neighbours": -1}, "neighbours"),
        ({"neighbours": 33}, "neighbours"),
        ({"neighbour_order": "any"}, "neighbour_order"),
        ({"batch": 0}, "batch"),
        ({"neighbours": 1, "embed": None}, "vectors"),
        ({"neighbours": 1, "embed": lambda texts: np.zeros((2, 3))}, "vectors"),
        ({"neighbours": 1, "embed": lambda texts: np.full((3, 2), np.nan)}, "vectors"),
        ({"texts": [TEXTS[0], TEXTS[1] * 300]}, "text 2"),
        ({"pool_bytes": 4096, "texts": TEXTS}, "pool"),
        ({"disk_bytes": 10_000}, "disk_bytes"),
        ({"prompt": [Message("user", "Where?")]}, "prompt"),
        ({"prompt": [Message("user", "{context} {context}")]}, "prompt"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        fill(tmp_path / "kept", **given)


def test_a_folder_that_is_open_to_others_is_refused_before_anything_is_loaded(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match="0755"):
        fill(folder, source=object())


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rag_accel.kv.disk as disk

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "write_chunk", full)
    with pytest.raises(EngineError, match="could not be written"):
        fill(tmp_path / "kept")


def test_the_recipe_is_one_of_the_bounds() -> None:
    assert LocalOptions.of(kv_recipe="alone").kv_recipe == "alone"
    with pytest.raises(ConfigError, match="kv_recipe"):
        LocalOptions.of(kv_recipe="any")
