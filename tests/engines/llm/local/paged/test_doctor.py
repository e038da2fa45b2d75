"""``rag-accel doctor`` says what computes local language models, and compiles nothing for it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from rag_accel.cli import main
from rag_accel.engines.llm.local.paged import topology

openvino = pytest.importorskip("openvino")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Keep a trace and a refusal; let nothing be compiled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def refuse(*_: Any) -> None:
        raise AssertionError("a model is compiled")

    monkeypatch.setattr(openvino, "Core", refuse)
    monkeypatch.setattr(topology, "convert", refuse)
    topology.TRACES.write("of a model", bytes(1 << 20))
    topology.REFUSALS.write("of another", b"the trial crashed")
    return topology.kept_folder()


def doctor(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], list[str]]:
    """Return what is said of local models: as JSON, and the lines of text."""
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["local_models"]
    assert main(["doctor"]) == 0
    _, _, text = capsys.readouterr().out.partition("local language models:\n")
    return found, [" ".join(line.split()) for line in text.splitlines()]


def without(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == library else find(name)
    )


def test_it_names_the_operator_and_the_traces(
    capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    found, lines = doctor(capsys)
    assert found["openvino"] == openvino.__version__
    assert found["operator_inputs"] > 12
    assert found["folder"] == str(cache)
    (refused,) = (trace["id"] for trace in found["traces"] if trace["refused"] is not None)
    assert {trace["refused"] for trace in found["traces"]} == {None, "the trial crashed"}
    assert f"with {found['operator_inputs']} inputs as expected" in lines[1]
    assert lines[2] == f"kept traces 1 of models, 1 refused, 1.0 MiB in {cache}"
    assert lines[3:] == [
        f"{refused} refused: the trial crashed (rag-accel cache purge --traces forgets it)"
    ]


def test_an_operator_of_other_inputs_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from openvino._pyopenvino import op

    def refuse(inputs: list[Any]) -> None:
        raise RuntimeError(f"the number of inputs should be 30, not {len(inputs)}")

    monkeypatch.setattr(op, "_PagedAttentionExtension", refuse)
    found, lines = doctor(capsys)
    assert found["operator_inputs"] is None
    assert "not to be had: the operator for paged attention takes other inputs" in lines[1]


@pytest.mark.parametrize("library", ["openvino", "transformers"])
def test_what_is_not_installed_is_named(
    library: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, library)
    _, lines = doctor(capsys)
    expected = {
        "openvino": "paged attention not to be had: OpenVINO is not installed: pip install"
        " 'rag-accel[fast]'",
        "transformers": "runner none: missing transformers",
    }
    assert expected[library] in lines


def test_a_folder_that_others_may_write_to_is_named(
    capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    cache.chmod(0o777)
    found, lines = doctor(capsys)
    assert found["traces"] is None
    assert "found mode 0777" in lines[2]


def test_without_a_folder_there_are_no_traces_and_none_is_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    found, _ = doctor(capsys)
    assert found["traces"] == []
    assert not (tmp_path / "none").exists()
