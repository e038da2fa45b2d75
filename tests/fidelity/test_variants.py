"""Trees of paths and int8 weights are checked, kept, said, and warned of until they have passed."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from check_kit import PROMPTS, check_tiny, save_prompts
from fake_runner import tokenizer
from int8_kit import give_folders
from tiny_chat import model

from rag_accel import ConfigError, UncheckedReuseWarning, UncheckedWeightsWarning
from rag_accel.cli import main
from rag_accel.config import Options
from rag_accel.engines.llm.local.choice import LocalModel, local_model
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.paged import int8_weights
from rag_accel.fidelity import TextPrompt
from rag_accel.fidelity.variants import path_prompts

TREES: dict[str, Any] = {"kv_reuse": "dependency"}
INT8: dict[str, Any] = {"weights": "int8"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for verdicts, in place of the room's cache folder."""
    give_folders(tmp_path / "cache", monkeypatch)
    return tmp_path / "cache"


def use(source: Path | None = None, **given: Any) -> LocalModel:
    """Make an engine, end it, and return the model."""
    bounds = LocalOptions(pool_bytes=1 << 25, **given)
    made = local_model(source or model(), None if source else tokenizer(), bounds=bounds)
    made.make(Options()).close()
    return made


def use_silently(source: Path | None = None, **given: Any) -> LocalModel:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return use(source, **given)


def test_trees_that_do_not_agree_are_said_and_warned_of() -> None:
    found = str(check_tiny("dependency"))
    assert 'kv_reuse="dependency" does not agree' in found
    assert "the paths have 312 tokens instead of 416 (-25%), and prompts 78% of" in found
    with pytest.warns(UncheckedReuseWarning, match=r"agrees in 44% of the tokens.* Run: rag_accel"):
        use(**TREES)


def test_trees_that_passed_are_silent() -> None:
    assert check_tiny("dependency", target=0.0).passed
    use_silently(**TREES)


def test_each_way_is_warned_of_once() -> None:
    with pytest.warns(UncheckedReuseWarning, match="variant='fused'"):
        use(kv_reuse="fused")
    with pytest.warns(UncheckedReuseWarning, match="variant='dependency'"):
        use(**TREES)
    use_silently(**TREES)


def test_prompts_without_paths_are_named() -> None:
    plain = [TextPrompt(("A crane lifts loads by a rope.",), str(at)) for at in range(8)]
    with pytest.raises(ConfigError, match="no two texts of a prompt are relation paths"):
        check_tiny("dependency", prompts=plain)


@pytest.mark.slow  # parses the whole standard library
def test_generated_prompts_have_a_tree_each() -> None:
    prompts = path_prompts(8)
    assert prompts == path_prompts(8)
    for prompt in prompts:
        heads = [text.split(" -> ")[0] for text in prompt.texts]
        assert len(set(heads)) < len(heads)
        assert any(head in prompt.question for head in heads)


def test_int8_weights_that_passed_are_described_by_their_figures() -> None:
    found = check_tiny("int8", target=0.0)
    assert 'weights="int8" agrees' in str(found)
    described = use_silently(**INT8).describe_parts()[1]
    assert f"(top 1 {found.top1:.2f} on 8 prompts)" in described


def test_coarser_weights_are_measured_said_and_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = check_tiny("int8")
    monkeypatch.setattr(int8_weights, "_LARGEST", 40)  # so coarse that some tokens differ
    coarse = check_tiny("int8", target=1.0)
    assert coarse.kl > 2 * fine.kl
    with pytest.warns(UncheckedWeightsWarning, match="below the 1 asked for"):
        made = use(**INT8)
    assert "below the 1 asked for" in made.describe_parts()[1]


def test_unchecked_weights_are_warned_of_once_with_the_command(checkpoint: Path) -> None:
    with pytest.warns(UncheckedWeightsWarning, match=r"rag-accel check .* --variant int8"):
        first = use(checkpoint, **INT8)
    use_silently(checkpoint, prefix_lanes=3, **INT8)
    assert "not checked: rag-accel check" in first.describe_parts()[1]


@pytest.mark.parametrize(
    ("command", "way"),
    [(["check"], ["--variant", "int8"]), (["cache", "check"], ["--weights", "int8"])],
)
def test_the_command_checks(
    command: list[str],
    way: list[str],
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = save_prompts(tmp_path / "prompts")
    line = [*command, str(checkpoint), *way, "--prompts", str(file), "--target", "0", "--json"]
    assert main(line) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["prompts"], found["passed"]) == (len(PROMPTS["fused"]), True)
    use_silently(checkpoint, **INT8)


@pytest.mark.parametrize(
    "options",
    [
        ["--text", "One."],
        ["--namespace", "mine"],
        ["FOLDER", "--traces"],
    ],
)
def test_files_that_are_not_named_are_not_removed(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "purge", *options]) == 2
    assert "the files to remove are not named" in capsys.readouterr().err
