"""A check measures what int8 weights change, keeps its verdict, and the engine says it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from fake_runner import tokenizer
from int8_kit import give_folders
from tiny_chat import model

from rag_accel import UncheckedWeightsWarning
from rag_accel.cli import main
from rag_accel.config import Options
from rag_accel.engines.llm.local.choice import LocalModel, local_model
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.paged import int8_weights
from rag_accel.engines.llm.local.paged.int8_files import list_weights, purge_weights
from rag_accel.errors import ConfigError
from rag_accel.fidelity import AgreementCheck, TextPrompt, check_weights
from rag_accel.kv.verdicts import default_folder
from rag_accel.testing.clock import ManualClock

POOL = 1 << 24
TEXTS = (
    "The height of Mount Fuji is 3776 metres, said the guide to those who came along.",
    "A crane lifts loads by a rope over a pulley, and lets them down by it.",
)
PROMPTS = [TextPrompt(TEXTS, f"What is said of number {at}?") for at in range(8)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for weights and verdicts, in place of the room's cache folder."""
    give_folders(tmp_path / "cache", monkeypatch)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny model")
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def check(**given: Any) -> AgreementCheck:
    given = {"prompts": PROMPTS, "tokens": 4, "pool_bytes": POOL, **given}
    return check_weights(model(), tokenizer(), **given)


def use(source: Any = None, **given: Any) -> LocalModel:
    """Make an engine by int8 weights, end it, and return the model."""
    bounds = LocalOptions(**{"weights": "int8", "pool_bytes": POOL, **given})
    named = source is not None
    made = local_model(source if named else model(), None if named else tokenizer(), bounds=bounds)
    made.make(Options()).close()
    return made


def test_it_is_measured_kept_and_said() -> None:
    found = check(target=0.0)
    assert (found.passed, found.prompts, found.tokens, found.complete) == (True, 8, 4, True)
    assert 0 < found.kl < 0.1  # near, and not the same
    assert found.top1 > 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = use()
    assert f"(top 1 {found.top1:.2f} on 8 prompts)" in made.describe_parts()[1]
    assert "agrees" in str(found)
    assert found.file.parent == default_folder()


def test_coarser_weights_are_measured_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = check(target=0.0)
    assert purge_weights() == 1
    monkeypatch.setattr(int8_weights, "_LARGEST", 40)
    coarse = check(target=0.0)
    assert coarse.kl > 2 * fine.kl


def test_what_misses_the_target_is_said_and_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_weights, "_LARGEST", 40)  # so coarse that some tokens differ
    found = check(target=1.0)
    assert not found.passed
    with pytest.warns(UncheckedWeightsWarning, match="below the 1 asked for"):
        made = use()
    assert "below the 1 asked for" in made.describe_parts()[1]
    assert "does not agree" in str(found)


def test_unchecked_weights_are_warned_of_once_with_the_command(checkpoint: Path) -> None:
    with pytest.warns(UncheckedWeightsWarning, match=r"cache check .* --weights int8"):
        first = use(checkpoint)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use(checkpoint, prefix_lanes=3)
    assert "not checked: rag-accel cache check" in first.describe_parts()[1]


def test_unchecked_weights_of_an_object_are_warned_of_with_the_call() -> None:
    with pytest.warns(UncheckedWeightsWarning, match=r"check_weights\(model, tokenizer\)"):
        use()


def test_the_command_checks(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts"
    lines = [{"question": p.question, "documents": list(p.texts)} for p in PROMPTS]
    file.write_text("\n".join(map(json.dumps, lines)))
    command = ["cache", "check", str(checkpoint), "--weights", "int8", "--prompts", str(file)]
    assert main([*command, "--target", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["prompts"], found["passed"]) == (8, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use(checkpoint)


def test_bad_bounds_are_named() -> None:
    with pytest.raises(ConfigError, match="too few prompts"):
        check(prompts=PROMPTS[:3])
    with pytest.raises(ConfigError, match="target"):
        check(target=2.0)
    clock = ManualClock()
    with pytest.raises(ConfigError, match="the time was over"):
        check(limit_s=2.5, clock=clock, progress=lambda *_: clock.advance(1.0))


def test_the_lists_show_and_purge(capsys: pytest.CaptureFixture[str], checkpoint: Path) -> None:
    with pytest.warns(UncheckedWeightsWarning):
        use(checkpoint)
    assert main(["cache", "list"]) == 0
    shown = capsys.readouterr().out
    assert f"int8, model {checkpoint}, unused for" in shown
    assert "\n1 models with int8 weights, " in shown
    assert main(["cache", "list", "--json"]) == 0
    kept = map(json.loads, capsys.readouterr().out.splitlines())
    assert [said["model"] for said in kept if said["kind"] == "int8"] == [str(checkpoint)]
    assert main(["cache", "purge", "--model", "another"]) == 0
    assert len(list_weights()) == 1
    assert main(["cache", "purge", "--model", str(checkpoint)]) == 0
    assert list_weights() == []
    capsys.readouterr()
    assert main(["cache", "list"]) == 0
    assert capsys.readouterr().out.startswith("0 models with int8 weights, 0.0 MiB\n")


@pytest.mark.parametrize(
    "options",
    [
        ["--text", "One."],
        ["--namespace", "mine"],
        ["FOLDER", "--model", "tiny"],
        ["FOLDER", "--traces"],
    ],
)
def test_files_that_are_not_named_are_not_removed(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "purge", *options]) == 2
    assert "the files to remove are not named" in capsys.readouterr().err
