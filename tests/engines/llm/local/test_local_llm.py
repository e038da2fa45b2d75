"""A model with its bounds, named once: what components and accelerators make of it."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import tiny_chat
from fake_runner import tokenizer

from rag_accel import Accelerator
from rag_accel.engines import LocalLLM
from rag_accel.errors import ConfigError


def model(accelerator: Accelerator, llm: LocalLLM) -> Any:
    return accelerator.local_llms.model(llm)


def test_an_unknown_bound_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"kv_reus\b") as refused:
        LocalLLM("folder", kv_reus="full")
    assert "kv_reuse" in str(refused.value)


def test_what_a_component_names_goes_over_the_object_it_holds() -> None:
    held = LocalLLM("folder", dtype="bfloat16", kv_reuse="full", pool_bytes=1 << 20)
    over = LocalLLM.of(held, kv_reuse="exact", dtype=None)
    assert over.named == {"kv_reuse": "exact", "pool_bytes": 1 << 20}
    assert (over.model, over.dtype) == ("folder", "bfloat16")


def test_a_component_that_names_nothing_holds_the_object_itself() -> None:
    held = LocalLLM("folder", kv_reuse="full")
    assert LocalLLM.of(held, dtype=None, kv_reuse=None) is held


def test_what_is_not_named_is_the_accelerators_option(tmp_path: Path) -> None:
    with Accelerator(kv_reuse="full", kv_folder=str(tmp_path)) as accelerator:
        bounds = model(accelerator, LocalLLM(tiny_chat.model(), tokenizer())).bounds
    assert (bounds.kv_reuse, bounds.kv_folder) == ("full", str(tmp_path))


def test_what_is_named_wins_over_the_accelerators_option() -> None:
    with Accelerator(kv_reuse="full") as accelerator:
        llm = LocalLLM(tiny_chat.model(), tokenizer(), kv_reuse="exact")
        assert model(accelerator, llm).bounds.kv_reuse == "exact"


def test_an_accelerators_model_names_the_bounds_of_others_of_the_same_model() -> None:
    given = LocalLLM(tiny_chat.model(), tokenizer(), kv_reuse="full", pool_bytes=1 << 24)
    with Accelerator(llm=given) as accelerator:
        component = LocalLLM(tiny_chat.model(), tokenizer())
        assert model(accelerator, component) is model(accelerator, given)
        other = LocalLLM(copy.deepcopy(tiny_chat.model()), tokenizer())
        assert model(accelerator, other).bounds.kv_reuse == "exact"


def test_two_names_for_one_model_are_one_engine() -> None:
    given = LocalLLM(tiny_chat.model(), tokenizer(), pool_bytes=1 << 24)
    with Accelerator(llm=given, engines={"writer": given}) as accelerator:
        assert [one.name for one in accelerator.health().parts] == ["llm"]


def test_another_accelerator_runs_it_by_its_own_options() -> None:
    llm = LocalLLM(tiny_chat.model(), tokenizer())
    with Accelerator(kv_reuse="full") as one, Accelerator() as other:
        ways = [model(accelerator, llm).bounds.kv_reuse for accelerator in (one, other)]
    assert ways == ["full", "exact"]


def test_it_survives_pickling() -> None:
    made = pickle.loads(pickle.dumps(LocalLLM("folder", dtype="float32", kv_reuse="fused")))
    assert (made.model, made.dtype, dict(made.named)) == (
        "folder",
        "float32",
        {"kv_reuse": "fused"},
    )


def test_its_text_holds_no_weights() -> None:
    assert repr(LocalLLM("folder", kv_reuse="full")) == "LocalLLM('folder', kv_reuse='full')"


@pytest.mark.parametrize("way", ["ful", None, 3])
def test_an_accelerators_option_is_checked(way: Any) -> None:
    with pytest.raises(ConfigError, match="kv_reuse"):
        Accelerator(kv_reuse=way)
