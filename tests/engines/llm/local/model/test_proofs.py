"""A runner is proved once for the files of a checkpoint, and again for whatever else computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import fresh, shared, tiny_tokenizer

from rag_accel.engines.llm.local.model import loading, proofs, runner_choice
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import ConfigError
from rag_accel.kv.verdicts import default_folder


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shared("qwen3").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def proved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the models that are proved from now on."""
    found: list[Any] = []
    check = runner_choice.check_equality
    monkeypatch.setattr(
        runner_choice, "check_equality", lambda model: found.append(model) or check(model)
    )
    return found


def load_twice(model: Any, **given: Any) -> None:
    for options in ({}, given):
        named = {"runner": "torch", "max_threads": 2, **options}
        dtype = named.pop("dtype", None)
        load(model, dtype=dtype, options=LocalOptions(**named), needs_tokenizer=False)


def test_a_checkpoint_is_proved_once(checkpoint: Path, proved: list[Any]) -> None:
    load_twice(checkpoint)
    assert len(proved) == 1
    assert len(list(default_folder().glob("*.proof"))) == 1


@pytest.mark.parametrize(
    "given", [{"max_threads": 1}, {"kv_reuse": "dependency"}, {"dtype": "bfloat16"}], ids=str
)
def test_what_computes_otherwise_is_proved_by_itself(
    given: dict[str, Any], checkpoint: Path, proved: list[Any]
) -> None:
    load_twice(checkpoint, **given)
    assert len(proved) == 2


@pytest.mark.parametrize("place", ["processor", "library", "code"])
def test_a_proof_of_another_machine_or_release_is_not_used(
    place: str, checkpoint: Path, proved: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_twice(checkpoint)
    if place == "processor":
        monkeypatch.setattr(runner_choice, "cpu_model", lambda: "another")
    elif place == "library":
        monkeypatch.setattr(runner_choice, "installed_version", lambda name: "another")
    else:
        monkeypatch.setattr(proofs, "_own_code", lambda: "another")
    load_twice(checkpoint)
    assert len(proved) == 2


def test_other_weights_in_the_same_folder_are_proved(checkpoint: Path, proved: list[Any]) -> None:
    load_twice(checkpoint)
    changed = fresh("qwen3")
    with torch.no_grad():
        changed.model.norm.weight[0] += 1
    changed.save_pretrained(checkpoint)
    load_twice(checkpoint)
    assert len(proved) == 2


def test_files_replaced_during_the_load_stand_for_nothing(
    checkpoint: Path, proved: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = loading._loaded

    def replaced(folder: Path, *given: Any) -> Any:
        model = read(folder, *given)
        shared("qwen3").save_pretrained(folder)
        return model

    monkeypatch.setattr(loading, "_loaded", replaced)
    load_twice(checkpoint)
    assert len(proved) == 2
    assert not default_folder().exists()


def test_a_model_object_is_proved_at_each_load(proved: list[Any]) -> None:
    load_twice(shared("qwen3"))
    assert len(proved) == 2
    assert not default_folder().exists()


def test_a_failed_proof_is_not_kept(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rag_accel.engines.llm.local.model import self_check

    monkeypatch.setattr(self_check, "BOUNDS", dict.fromkeys(self_check.BOUNDS, 0.0))
    for _ in range(2):
        with pytest.raises(ConfigError, match="cannot be proved equal"):
            load(checkpoint, options=LocalOptions(runner="torch"))
    assert not default_folder().exists()


def test_a_folder_open_to_others_is_not_believed(checkpoint: Path, proved: list[Any]) -> None:
    load_twice(checkpoint)
    default_folder().chmod(0o755)
    load_twice(checkpoint)
    assert len(proved) == 3


def test_the_proof_of_another_folder_is_not_believed(
    checkpoint: Path, proved: list[Any], tmp_path: Path
) -> None:
    load_twice(checkpoint)
    (default_folder() / ".secret").unlink()
    load_twice(checkpoint)
    assert len(proved) == 2


def test_the_oldest_proofs_go(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "PROOFS", replace(proofs.PROOFS, most=2))
    for number in range(4):
        proofs.keep_proof({"number": number})
    assert [proofs.is_proved({"number": number}) for number in range(4)] == [False] * 2 + [True] * 2


def test_paged_attention_is_proved_once(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    calls: list[Any] = []
    check = runner_choice.check_runner
    monkeypatch.setattr(
        runner_choice,
        "check_runner",
        lambda *given, **named: calls.append(named) or check(*given, **named),
    )
    for kv_reuse in ("exact", "exact", "full", "full"):
        options = LocalOptions(runner="paged", max_threads=2, kv_reuse=kv_reuse)
        load(checkpoint, options=options)
    assert [named["reused"] for named in calls] == [False, True]
