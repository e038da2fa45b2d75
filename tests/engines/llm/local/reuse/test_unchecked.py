"""Reused texts of a model that no check has passed for are warned of once, with the command."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from fake_runner import TEMPLATE, tokenizer
from tiny_chat import model

from rag_accel import UncheckedReuseWarning
from rag_accel.config import Options
from rag_accel.engines.llm.local.choice import local_model
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.reuse import unchecked
from rag_accel.kv.reuse_check import REUSE_CHECKS, ReuseCheckResult
from rag_accel.kv.verdicts import default_folder

pytestmark = pytest.mark.filterwarnings("error::rag_accel.UncheckedReuseWarning")


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(unchecked, "_warned", set[tuple[str, str]]())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny model")
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def use(
    source: Any, *, template: str | None = None, dtype: str | None = None, **given: Any
) -> None:
    bounds = LocalOptions.of(**{"kv_reuse": "fused", "pool_bytes": 1 << 24, **given})
    given_tokenizer = None if isinstance(source, Path) else tokenizer()
    made = local_model(source, given_tokenizer, template=template, dtype=dtype, bounds=bounds)
    made.make(Options()).close()


def passed(folder: Path, ratio: float | None, identity: str | None = None) -> None:
    found = identity or load(model(), tokenizer(), pool_bytes=1 << 20).runner.identity()
    REUSE_CHECKS.write(
        folder, ReuseCheckResult(found, "tiny", 0.95, ratio, 0.97, 0.0, 30, 10, 0.0, {})
    )


def test_a_model_by_its_folder_is_named_with_the_command(checkpoint: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with pytest.warns(UncheckedReuseWarning) as said:
        use(checkpoint, dtype="float32", kv_folder=str(kept), template=TEMPLATE)
    (one,) = said
    command = f"rag-accel cache check '{checkpoint}' --folder {kept} --dtype float32"
    assert str(one.message).endswith(f"Run: {command} --template FILE")


def test_of_a_model_object_the_call_is_named() -> None:
    with pytest.warns(UncheckedReuseWarning, match=r"fidelity\.check_reuse\(model, tokenizer\)"):
        use(model())


def test_it_is_said_once(checkpoint: Path) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        use(checkpoint)
        use(checkpoint, recompute_ratio=0.2)
    assert [one.category for one in said] == [UncheckedReuseWarning]


def test_full_reuse_is_warned_of(checkpoint: Path) -> None:
    with pytest.warns(UncheckedReuseWarning) as said:
        use(checkpoint, kv_reuse="full")
    (one,) = said
    said_so = 'kv_reuse="full" was not checked on this model, whose answers it may change.'
    command = f"rag-accel cache check '{checkpoint}'"
    assert str(one.message).endswith(f": {said_so} Run: {command}")


def test_exact_reuse_is_not_warned_of() -> None:
    use(model(), kv_reuse="exact")


def test_full_reuse_that_passed_its_check_is_not_warned_of() -> None:
    passed(default_folder(), 0.0)
    use(model(), kv_reuse="full")


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (0.15, r'"full" did not pass its check, kv_reuse="fused" did with 0\.15\.'),
        (None, 'a check found that kv_reuse="full" does not pay on this model'),
    ],
)
def test_full_reuse_that_failed_its_check_is_warned_of(ratio: float | None, words: str) -> None:
    passed(default_folder(), ratio)
    with pytest.warns(UncheckedReuseWarning, match=words):
        use(model(), kv_reuse="full")


@pytest.mark.parametrize("where", [default_folder, None])
def test_what_passed_its_check_is_not_warned_of(
    where: Callable[[], Path] | None, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    passed(kept if where is None else where(), 0.15)
    use(model(), kv_folder=None if where is not None else str(kept))


def test_a_smaller_ratio_than_proposed_is_warned_of() -> None:
    passed(default_folder(), 0.3)
    with pytest.warns(UncheckedReuseWarning, match=r"recompute_ratio=0\.3 on, .* used with 0\.15"):
        use(model())


def test_a_model_on_which_fused_does_not_pay_is_warned_of() -> None:
    passed(default_folder(), None)
    with pytest.warns(UncheckedReuseWarning, match="does not pay"):
        use(model(), recompute_ratio=0.9)


def test_the_check_of_another_model_does_not_count() -> None:
    passed(default_folder(), 0.0, "b" * 64)
    with pytest.warns(UncheckedReuseWarning, match="not checked"):
        use(model())
