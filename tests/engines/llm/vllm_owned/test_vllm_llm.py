"""A model of vLLM's with its bounds, named once: stages, components, sharing, refusals."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fake_vllm import FakeVllm, fake_library

from langchain_rag_accel import ChatRagAccel
from llama_index_rag_accel import RagAccelLLM
from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engines import LocalLLM, VllmLLM, VllmOptions
from rag_accel.engines.llm.vllm import engine as vllm_engine_module
from rag_accel.engines.llm.vllm.library import load_library
from rag_accel.errors import ConfigError
from rag_accel.registry import engine_registry


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, vllm: FakeVllm) -> FakeVllm:
    monkeypatch.setattr(vllm_engine_module, "load_library", lambda: fake_library(vllm))
    return vllm


def answer_graph() -> RAGraph:
    graph = RAGraph().add_generation("answer", "Answer briefly: {input}", max_tokens=3)
    graph.add_edge(START, "answer").add_edge("answer", END)
    return graph


def test_a_stage_a_chat_model_and_an_llm_share_one_engine(
    installed: FakeVllm, folder: Path
) -> None:
    with Accelerator(llm=VllmLLM(folder)) as accelerator:
        assert accelerator.run(answer_graph(), input="what is rag") == " 5 6 7"
        chat = ChatRagAccel(model=VllmLLM(folder), max_tokens=2, accelerator=accelerator)
        answer = chat.invoke("what is rag")
        assert answer.content == " 5 6"
        assert answer.usage_metadata is not None
        assert answer.response_metadata["model_name"] == str(folder)
        llm = RagAccelLLM(VllmLLM(folder), max_tokens=1, accelerator=accelerator)
        assert str(llm.complete("what is rag")) == " 5"
        assert "vLLM" in chat.explain_on(accelerator)
    assert (len(installed.calls), installed.shutdowns) == (3, 1)


def test_what_a_component_names_goes_over_the_object_it_holds(folder: Path) -> None:
    held = VllmLLM(folder, kv_reuse="full", kv_folder="texts")
    over = held.with_named(kv_reuse="exact", dtype=None)
    assert over.named == {"kv_reuse": "exact", "kv_folder": "texts"}
    assert held.with_named(kv_reuse=None) is held


def test_a_bound_of_other_models_is_refused_with_those_there_are(folder: Path) -> None:
    with pytest.raises(ValueError, match="runner") as refused:
        ChatRagAccel(model=VllmLLM(folder), runner="torch")
    assert "max_requests" in str(refused.value)
    with pytest.raises(ConfigError, match="tokenizer"):
        RagAccelLLM(VllmLLM(folder), tokenizer=object())


def test_options_of_the_accelerator_hold_where_none_is_named(folder: Path, tmp_path: Path) -> None:
    with Accelerator(kv_reuse="full", kv_folder=str(tmp_path)) as accelerator:
        bounds: Any = accelerator.local_llms.model(VllmLLM(folder)).bounds
        assert (bounds.kv_reuse, bounds.kv_folder) == ("full", str(tmp_path))


def test_a_model_of_another_kind_gives_it_no_bounds(folder: Path, installed: FakeVllm) -> None:
    assert not VllmLLM(folder).is_same_model(LocalLLM(folder))
    assert not LocalLLM(folder).is_same_model(VllmLLM(folder))


def test_equal_models_are_one_until_files_change(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    first = VllmLLM(tmp_path).resolved({})
    assert VllmLLM(str(tmp_path)).resolved({}) is first
    assert VllmLLM(tmp_path, engine_args={"max_model_len": 9}).resolved({}) is not first
    (tmp_path / "config.json").write_text('{"changed": 1}')
    assert VllmLLM(tmp_path).resolved({}) is not first


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ({"kv_reuse": "dependency"}, "LocalLLM"),
        ({"kv_reuse": "full"}, "kv_folder"),
        ({"kv_reuse": "ful"}, "exact | full | fused"),
        ({"max_requests": 0}, "max_requests"),
        ({"pool_bytes": 1.5}, "pool_bytes"),
        ({"recompute_ratio": 2}, "recompute_ratio"),
        ({"work_timeout_s": 0}, "work_timeout_s"),
        ({"asked": "first"}, "asked"),
        ({"kv_recipe": "together"}, "alone | neighbours"),
        ({"engine_args": ["x"]}, "engine_args"),
        ({"engine_args": {"max_num_seqs": 3}}, "max_requests"),
        ({"engine_args": {"kv_transfer_config": {}}}, "kv_folder"),
    ],
)
def test_a_bound_out_of_range_is_refused_by_name(bounds: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        VllmOptions(**bounds)
    assert says in str(refused.value)


def test_a_model_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="a folder, or a name on the hub"):
        VllmLLM(object())  # type: ignore[arg-type]


def test_without_vllm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("rag_accel.engines.llm.vllm.library.importlib.import_module", missing)
    with pytest.raises(ImportError, match="pip install"):
        load_library()


def test_a_vllm_without_a_name_is_told_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("vllm")
    package.__version__ = "9.9"  # type: ignore[attr-defined]
    package.SamplingParams = object  # type: ignore[attr-defined]
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "vllm", package)
    with pytest.raises(ConfigError, match=r"another interface.*9\.9"):
        load_library()


def test_it_is_found_by_its_entry_point(installed: FakeVllm, folder: Path) -> None:
    if "vllm" not in engine_registry().names():
        pytest.skip("the installed distribution is older than this checkout")
    made = engine_registry().get("vllm")(folder, max_requests=2)
    made.close()
    assert installed.config.arguments.max_num_seqs == 2
