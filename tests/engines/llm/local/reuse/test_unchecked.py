"""Reused texts of a model that no check has passed for are warned of once, with the command."""

from __future__ import annotations

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
from rag_accel.kv.verdicts import FUSED, CheckVerdict, default_folder

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
    source: Path | None = None,
    *,
    template: str | None = None,
    dtype: str | None = None,
    **given: Any,
) -> None:
    bounds = LocalOptions.of(**{"kv_reuse": "fused", "pool_bytes": 1 << 24, **given})
    model_or_path, given_tokenizer = (source, None) if source else (model(), tokenizer())
    made = local_model(
        model_or_path, given_tokenizer, template=template, dtype=dtype, bounds=bounds
    )
    made.make(Options()).close()


def passed(folder: Path, ratio: float | None, identity: str | None = None) -> None:
    found = identity or load(model(), tokenizer(), pool_bytes=1 << 20).runner.identity()
    FUSED.write(folder, CheckVerdict(found, "tiny", 0.95, ratio, 0.97, 0.0, 30, 10, 0.0, {}))


def test_a_model_by_its_folder_is_named_with_the_command(checkpoint: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    command = f"rag-accel check '{checkpoint}' --variant fused --folder {kept} --dtype float32"
    with pytest.warns(UncheckedReuseWarning) as said:
        use(checkpoint, dtype="float32", kv_folder=str(kept), template=TEMPLATE)
    (one,) = said
    assert str(one.message).endswith(f"Run: {command} --template FILE")


def test_of_a_model_object_the_call_is_named_once() -> None:
    call = r'"fused" was not checked .*fidelity\.check\(model, tokenizer, variant=\'fused\'\)'
    with pytest.warns(UncheckedReuseWarning, match=call):
        use()
    use(recompute_ratio=0.2)


def test_exact_reuse_is_not_warned_of() -> None:
    use(kv_reuse="exact")


@pytest.mark.parametrize("in_folder", [False, True])
def test_what_passed_its_check_is_not_warned_of(in_folder: bool, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    passed(kept if in_folder else default_folder(), 0.0)
    for way in ("fused", "full"):
        use(kv_reuse=way, kv_folder=str(kept) if in_folder else None)


@pytest.mark.parametrize(
    ("way", "ratio", "words"),
    [
        ("full", 0.15, r'"full" did not pass its check, kv_reuse="fused" did with 0\.15\.'),
        ("full", None, 'a check found that kv_reuse="full" does not pay on this model'),
        ("fused", 0.3, r"recompute_ratio=0\.3 on, .* used with 0\.15"),
        ("fused", None, 'kv_reuse="fused" does not pay'),
    ],
)
def test_what_failed_its_check_is_warned_of(way: str, ratio: float | None, words: str) -> None:
    passed(default_folder(), ratio)
    with pytest.warns(UncheckedReuseWarning, match=words):
        use(kv_reuse=way)


def test_the_check_of_another_model_does_not_count() -> None:
    passed(default_folder(), 0.0, "b" * 64)
    with pytest.warns(UncheckedReuseWarning, match='kv_reuse="full" was not checked'):
        use(kv_reuse="full")
