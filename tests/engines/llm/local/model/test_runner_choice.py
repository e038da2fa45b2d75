"""Whatever keeps a model from paged attention is named, and torch runs it unless it may not."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import fresh, ids_of, own_logits, part, shared

from rag_accel.engines.llm.local.model import runner_choice
from rag_accel.engines.llm.local.model.loading import LoadedModel, load
from rag_accel.engines.llm.local.options import LocalOptions, RunnerName
from rag_accel.engines.llm.local.paged import block_pool, making, tracing
from rag_accel.engines.torch_threads import thread_count
from rag_accel.errors import ConfigError

pytest.importorskip("openvino")

Break = Callable[[pytest.MonkeyPatch, Path], None]
#: Of keys and values of 32 slots: 3 layers of 2 heads with 32 components.
BLOCK_BYTES = 2 * 3 * 2 * 32 * 32 * 4
CRASHING = """
import os, signal

def convert(folder, spec):
    os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.fixture(autouse=True)
def _every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_choice, "LEAST_WEIGHTS", 0)


def loaded(runner: RunnerName, model: Any = None, pool_bytes: int = 1 << 26) -> LoadedModel:
    options = LocalOptions(runner=runner, pool_bytes=pool_bytes, max_threads=2)
    return load(model or shared("qwen3"), needs_tokenizer=False, options=options)


def _without_openvino(patch: pytest.MonkeyPatch, folder: Path) -> None:
    find = importlib.util.find_spec
    patch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "openvino" else find(name)
    )


def _with_another_operator(patch: pytest.MonkeyPatch, folder: Path) -> None:
    from openvino._pyopenvino import op

    def refuse(inputs: list[Any]) -> None:
        raise RuntimeError(f"the number of inputs should be 30, not {len(inputs)}")

    patch.setattr(op, "_PagedAttentionExtension", refuse)


def _without_an_operator(patch: pytest.MonkeyPatch, folder: Path) -> None:
    from openvino._pyopenvino import op

    patch.delattr(op, "_PagedAttentionExtension")


def _with_wrong_numbers(patch: pytest.MonkeyPatch, folder: Path) -> None:
    graph = making.paged_graph
    kept: list[Any] = []

    def wrong(topology: bytes, weights: dict[str, torch.Tensor], *rest: Any) -> Any:
        kept.append({name: weight * 1.01 for name, weight in weights.items()})
        return graph(topology, kept[-1], *rest)

    patch.setattr(making, "paged_graph", wrong)


def _with_a_crash(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("XDG_CACHE_HOME", str(folder))
    program = folder / "program.py"
    program.write_text(CRASHING)
    patch.setattr(tracing, "__file__", str(program))


def _without_memory(patch: pytest.MonkeyPatch, folder: Path) -> None:
    def refuse(*_: Any) -> None:
        raise MemoryError

    patch.setattr(block_pool, "np", SimpleNamespace(zeros=refuse))


BREAKS: dict[str, tuple[Break, str]] = {
    "no openvino": (_without_openvino, "OpenVINO is not installed: pip install"),
    "an operator of other inputs": (_with_another_operator, "should be 30, not 28"),
    "no operator": (_without_an_operator, "no operator for paged attention"),
    "wrong numbers": (_with_wrong_numbers, "cannot be proved equal"),
    "a crash": (_with_a_crash, "ended with signal 11"),
    "no memory": (_without_memory, "no memory for the blocks"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_torch_runs_what_paged_attention_cannot_and_says_why(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spoil, reason = BREAKS[name]
    spoil(monkeypatch, tmp_path)
    chosen = loaded("auto").chosen
    assert chosen.name == "torch"
    assert chosen.describe().startswith("runs on torch: ")
    assert reason in chosen.describe()


@pytest.mark.parametrize("name", BREAKS)
def test_paged_attention_asked_for_by_name_is_refused_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spoil, reason = BREAKS[name]
    spoil(monkeypatch, tmp_path)
    with pytest.raises(ConfigError, match="not run by paged attention") as refused:
        loaded("paged")
    assert reason in str(refused.value)
    assert "auto | torch" in str(refused.value)


def test_a_trace_that_openvino_cannot_read_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from rag_accel.engines.llm.local.paged import topology

    made: list[Path] = []

    def convert(program: str, folder: Path, *_: Any) -> None:
        made.append(folder)
        (folder / "trace").write_text("<net")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(topology, "convert", convert)
    for _ in range(2):
        with pytest.raises(ConfigError, match="not run by paged attention") as refused:
            loaded("paged")
        said = str(refused.value)
        assert str(topology.kept_folder()) in said
        assert "rag-accel cache purge --traces" in said
        assert "Exception from" not in said
    assert len(made) == 1


def test_a_pool_without_room_for_a_block_is_named() -> None:
    with pytest.raises(ConfigError, match="not even one block"):
        loaded("paged", pool_bytes=1 << 14)


def test_paged_attention_is_taken_by_name_and_says_what_it_holds() -> None:
    chosen = loaded("paged").chosen
    assert chosen.name == "paged"
    assert chosen.describe().startswith(
        "runs on OpenVINO's paged attention: as asked for; compiled"
    )
    assert "with a copy of the weights" in chosen.describe()


@pytest.mark.parametrize(("pool_bytes", "context"), [(BLOCK_BYTES, None), (1 << 26, 20)])
def test_paged_attention_by_name_runs_in_the_least_room(
    pool_bytes: int, context: int | None
) -> None:
    options = LocalOptions(runner="paged", pool_bytes=pool_bytes, max_threads=2)
    model = shared("qwen3")
    runner = load(model, needs_tokenizer=False, options=options, context=context).runner
    assert runner.pool.fits(20)
    assert not runner.pool.fits(33)
    assert runner.pool.held_bytes == 0
    ids = ids_of(20, 1)
    found = runner.run([part(runner.pool.take(20), ids, 0, 20)])
    torch.testing.assert_close(found, own_logits(model, ids), rtol=0, atol=1e-3)


def test_on_one_usable_core_the_form_for_one_thread_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner_choice, "usable_cores", lambda: 1)
    model, ids = shared("qwen3"), ids_of(40, 1)
    options = LocalOptions(runner="paged", pool_bytes=1 << 26)
    chosen = load(model, needs_tokenizer=False, options=options).chosen
    lane = chosen.runner.pool.take(len(ids))
    with thread_count(4):  # whatever torch would take: the quota bounds it
        found = chosen.runner.run([part(lane, ids, 0, len(ids))])
    assert float((found - own_logits(model, ids)).abs().max()) <= 1e-5
    assert "compiled for 1 thread, with a copy" in chosen.describe()


def test_a_small_model_stays_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert "gains nothing by another" in loaded("auto").chosen.reason


def test_a_model_that_is_in_a_program_is_traced_meanwhile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from rag_accel.engines.llm.local.paged import topology

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    traced: list[Any] = []
    monkeypatch.setattr(topology, "trace_in_background", traced.append)
    found = load(fresh("qwen3"), needs_tokenizer=False, waits=False).chosen
    assert found.name == "torch"
    assert "traced meanwhile" in found.reason
    assert len(traced) == 1
