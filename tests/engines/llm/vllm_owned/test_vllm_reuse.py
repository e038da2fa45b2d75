"""Texts of prompts as vLLM is told of them, and the origin of tokens as it tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_vllm import FakeVllm, fake_library
from llm_harness import run, work

from rag_accel.engine_api import (
    ChunkSpan,
    EngineRequest,
    GenerationInput,
    Message,
    PrimitiveKind,
    PromptUse,
)
from rag_accel.engines import VllmEngine, VllmOptions
from rag_accel.engines.llm.vllm.calls import VllmCall
from rag_accel.errors import ConfigError
from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel, KeyValues
from rag_accel.kv.reuse_request import ReuseRequest, read_reuse_request

SYSTEM = Message("system", "answer by the context")
TEXTS = ("a b c d e f g h i j", "k l m n o p q r s t")


def prompt(texts: tuple[str, ...] = TEXTS, question: str = "what is rag") -> GenerationInput:
    content, spans, at = "", [], 0
    for text in texts:
        spans.append(ChunkSpan(1, at, at + len(text)))
        content += text + "\n\n"
        at = len(content)
    messages = (SYSTEM, Message("user", content + question))
    return GenerationInput(messages, max_tokens=2, chunk_spans=tuple(spans))


def asked(payload: GenerationInput, id: str = "a", **fields: Any) -> EngineRequest:
    return replace(work(id, **fields), payload=payload)


def reuse_of(call: Any) -> ReuseRequest:
    found = read_reuse_request(call.extra_args["kv_transfer_params"])
    assert found is not None
    return found


@pytest.fixture
def reusing(make: Any, tmp_path: Path) -> Any:
    return make(kv_reuse="full", kv_folder=str(tmp_path / "kv"))


def test_texts_are_named_by_places_behind_the_head(reusing: Any, vllm: FakeVllm) -> None:
    run(reusing, asked(prompt()))
    call = vllm.calls[0]
    told = reuse_of(call)
    assert (told.reuse, len(told.spans), call.salt) == ("full", 2, told.salt())
    assert 0 < told.head <= told.spans[0][0]
    again = run(reusing, asked(prompt(TEXTS[::-1]), "b"))
    assert again.kind == "final"
    other = vllm.calls[1]
    first, second = reuse_of(call).spans, reuse_of(other).spans
    ids = [call.ids[slice(*span)] for span in first]
    assert [other.ids[slice(*span)] for span in second] == ids[::-1]
    assert other.ids[: told.head] == call.ids[: told.head]


def test_the_connector_and_the_worker_are_configured(make: Any, vllm: FakeVllm) -> None:
    make(kv_reuse="fused", kv_folder="texts", chunk_bytes=5, kv_disk_bytes=7, kv_max_age_s=9)
    given = vllm.config.arguments
    assert given.worker_cls == "vllm_rag_accel.worker.Worker"
    assert given.kv_transfer_config.kv_connector == "RagAccelConnector"
    extra = given.kv_transfer_config.kv_connector_extra_config
    assert extra == {"folder": "texts", "memory_bytes": 5, "disk_bytes": 7, "max_age_s": 9}


def test_fused_states_fit_one_question_alone(make: Any, vllm: FakeVllm, tmp_path: Path) -> None:
    given: dict[str, Any] = {"recompute_ratio": 0.3, "kv_recipe": "alone"}
    engine = make(kv_reuse="fused", kv_folder=str(tmp_path), **given)
    for at, question in enumerate(["what is rag", "what is"]):
        run(engine, asked(prompt(question=question), str(at)))
    one, other = map(reuse_of, vllm.calls)
    assert (one.ratio, one.recipe, one.spans) == (0.3, "alone", other.spans)
    assert one.salt() != other.salt()


def test_tenants_have_texts_of_their_own(reusing: Any, vllm: FakeVllm) -> None:
    for at, name in enumerate(["one", "two"]):
        run(reusing, asked(prompt(), str(at), namespace=name))
    one, other = vllm.calls
    assert (reuse_of(one).namespace, reuse_of(other).namespace) == ("one", "two")
    assert one.salt != other.salt


@pytest.mark.parametrize("spans", [True, False])
def test_exact_prompts_say_nothing_of_texts(make: Any, vllm: FakeVllm, spans: bool) -> None:
    payload = prompt() if spans else replace(prompt(), chunk_spans=())
    run(make(), asked(payload))
    assert not hasattr(vllm.calls[0], "extra_args")


def test_a_prompt_computed_ahead_is_the_head_kept_as_it_is(reusing: Any, vllm: FakeVllm) -> None:
    beginning = GenerationInput((SYSTEM, Message("user", "Context: ")))
    partial = PrimitiveKind.PARTIAL_PREFILLING
    handle = run(reusing, asked(beginning, kind=partial)).handle
    run(reusing, asked(prompt(), "b", handle=handle))
    ahead, call = vllm.calls
    told = reuse_of(ahead)
    assert (told.reuse, ahead.salt) == ("exact", None)
    assert told.spans == ((0, reuse_of(call).head),)
    assert ahead.ids == call.ids[: len(ahead.ids)]


def test_nothing_is_computed_ahead_of_a_head_that_is_not_known_yet(
    reusing: Any, vllm: FakeVllm
) -> None:
    partial = PrimitiveKind.PARTIAL_PREFILLING
    output = run(reusing, asked(GenerationInput((SYSTEM,)), kind=partial))
    assert (output.kind, output.handle is None, vllm.calls) == ("final", False, [])


def test_a_model_that_the_connector_refuses_is_named_before_vllm_starts(
    folder: Path, vllm: FakeVllm, tmp_path: Path
) -> None:
    copy = tmp_path / "mla"
    copy.symlink_to(folder)
    options = VllmOptions(kv_reuse="full", kv_folder=str(tmp_path))
    with pytest.raises(ConfigError, match="MLA"):
        VllmEngine(copy, options=options, library=fake_library(vllm))
    assert vllm.config is None


def told(**counts: int) -> dict[str, Any]:
    return {"rag_accel": {f"{name}_tokens": count for name, count in counts.items()}}


SPANS = ((32, 73), (74, 111))


def call(reuse: str = "full", size: int = 124) -> VllmCall:
    request = ReuseRequest(reuse, spans=SPANS, head=29)  # type: ignore[arg-type]
    return VllmCall(tuple(range(size)), {}, 0, reuse=request)


class TestUse:
    """Numbers of a live engine: head 29, texts of 41 and 37 tokens, 124 tokens together."""

    @pytest.mark.parametrize(
        ("cached", "counts", "use"),
        [
            pytest.param(0, {}, PromptUse(124), id="nothing"),
            pytest.param(
                111,
                {"reused": 29, "encoded": 41, "computed": 41},
                PromptUse(95, 29, approximate=41),
                id="one encoded, one computed in the prompt",
            ),
            pytest.param(
                111,
                {"reused": 107, "computed": 4},
                PromptUse(17, 29, 78, approximate=78),
                id="all from texts",
            ),
            pytest.param(
                111,
                {"reused": 95, "computed": 4, "recomputed": 12},
                PromptUse(29, 29, 66, recomputed=12, approximate=66),
                id="fused",
            ),
            pytest.param(
                111,
                {"reused": 15},
                PromptUse(13, 96, 15, approximate=78),
                id="the beginning from vLLM's own cache",
            ),
            pytest.param(111, {}, PromptUse(13, 111, approximate=78), id="all of it from there"),
            pytest.param(
                111,
                {"encoded": 78, "computed": 33},
                PromptUse(124, approximate=78),
                id="all encoded, behind a head that was computed",
            ),
        ],
    )
    def test_tokens_by_origin(self, cached: int, counts: dict[str, int], use: PromptUse) -> None:
        found = call().use(cached, told(**counts), range(0))
        assert found == use
        assert found.computed + found.from_prefix + found.from_chunks == 124

    def test_a_count_beyond_the_prompt_is_bounded(self) -> None:
        found = call().use(10**6, {"rag_accel": {"refused": "it is"}}, range(0))
        assert found.computed + found.from_prefix + found.from_chunks == 124

    def test_exact_reuse_is_a_prefix(self) -> None:
        found = call("exact").use(100, told(reused=100), range(0))
        assert found == PromptUse(24, 100)


def test_forgotten_texts_leave_the_folder_for_their_tenant_alone(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "kv"
    store = DiskStore(path, limit_bytes=1 << 20, model="m" * 64, dtype=torch.float32)
    keys = {(name, text): f"{name} {text}".encode() for name in ("one", "two") for text in TEXTS}
    for (name, text), key in keys.items():
        tensor = torch.zeros(1, 1, 4, 2)
        assert store.put(key, KeyValues(tensor, tensor, 0), ChunkLabel(name, text))
    make(kv_reuse="full", kv_folder=str(path)).forget([TEXTS[0]], "one")
    left = {which for which, key in keys.items() if store.has(key)}
    assert left == keys.keys() - {("one", TEXTS[0])}


def test_an_engine_without_reuse_has_nothing_to_forget(make: Any, tmp_path: Path) -> None:
    make(kv_folder=str(tmp_path / "kv")).forget(TEXTS)
    assert not (tmp_path / "kv").exists()
