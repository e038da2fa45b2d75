"""A model is converted by a child, refused by name, and run plainly where that is not possible."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embedded_texts import embedded

pytest.importorskip("openvino")
torch = pytest.importorskip("torch")

from rag_accel.engines.compiled import compile_process  # noqa: E402
from rag_accel.engines.compiled.compile_process import (  # noqa: E402
    convert,
    private_folder,
)
from rag_accel.engines.embedding.compiled_model import (  # noqa: E402
    BackgroundRuntime,
    CompiledTransformer,
    NotCompilableError,
    prove,
)
from rag_accel.engines.embedding.engine import SentenceTransformerEngine  # noqa: E402

PATIENCE_S = 120.0
TEXTS = ("a", "Who may cross the bridge in winter?")


def test_a_child_that_nobody_waits_for_is_ended(tmp_path: Path) -> None:
    begun, program = tmp_path / "begun", tmp_path / "program.py"
    program.write_text(
        "import pathlib, time\n"
        "def convert(folder, spec):\n"
        f"    pathlib.Path({str(begun)!r}).touch(); time.sleep(600)\n"
    )

    class Model:
        """Something that can be seen going."""

    def runtime_of(model: Model) -> BackgroundRuntime:
        def build() -> Any:
            with private_folder() as folder:
                convert(str(program), folder, {}, 0)
            return model

        return BackgroundRuntime(build, str)

    model = Model()
    made, gone = runtime_of(model), weakref.ref(model)
    made.current()
    end = time.monotonic() + PATIENCE_S
    while not begun.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    task = made._task  # pyright: ignore[reportPrivateUsage]
    del made, model
    assert task is not None
    task.wait(PATIENCE_S)
    assert not compile_process._children.running  # pyright: ignore[reportPrivateUsage]
    gc.collect()
    assert gone() is None


@pytest.mark.processes  # test_compiled_transformer.py compiles models, one at a time
@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
def test_two_models_compile_at_once_and_no_trace_of_the_user_fails(small_model: Any) -> None:
    made: list[CompiledTransformer] = []

    def build() -> None:
        made.append(CompiledTransformer(small_model, 1))

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        torch.jit.trace(torch.nn.Linear(3, 3), torch.ones(2, 3))
        threads[0].join(0.02)  # leaves the cores to what compiles
    assert len(made) == 2


@pytest.mark.usefixtures("kept_conversions")
def test_settings_that_no_configuration_names_count(model: Any) -> None:
    before = model.encode(list(TEXTS))
    model[0].model.encoder.layer[0].attention.output.LayerNorm.eps = 0.5
    compiled = CompiledTransformer(model, 1)
    assert "same vectors" in prove(model, 1, "f32", compiled)
    assert np.abs(model.encode(list(TEXTS)) - before).max() > 1e-3


def test_a_replaced_forward_is_refused_by_name(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.nn.LayerNorm.forward
    monkeypatch.setattr(torch.nn.LayerNorm, "forward", lambda self, rows: 2 * real(self, rows))
    with pytest.raises(NotCompilableError, match=r"forward of .*LayerNorm has been replaced"):
        CompiledTransformer(model, 1)


def test_adapters_and_foreign_classes_are_refused_by_name(model: Any) -> None:
    class Layer(torch.nn.Linear):
        """A layer of another package."""

    layer = model[0].model.encoder.layer[0].attention.self
    layer.query = Layer(96, 96)
    with pytest.raises(NotCompilableError, match="Layer is not known"):
        CompiledTransformer(model, 1)
    Layer.__module__ = "peft.tuners.lora.layer"
    with pytest.raises(NotCompilableError, match="adapters"):
        CompiledTransformer(model, 1)


@pytest.mark.processes  # the one that nobody waits for is the one in `make test`
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs limits of memory")
def test_a_child_over_its_memory_ends_and_the_model_stays_plain(
    model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compile_process, "_WEIGHT_COPIES", 0)
    monkeypatch.setattr(compile_process, "_LEAST_BYTES", 2**20)
    monkeypatch.setattr(compile_process, "_TRIES", 1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    engine = SentenceTransformerEngine(model)
    embedded(engine, TEXTS)
    assert engine.runtime is not None
    engine.runtime.wait(PATIENCE_S)
    assert engine.runtime.describe() == (
        "runs on torch: the process that compiles it had too little memory"
    )
    assert np.allclose(embedded(engine, TEXTS), model.encode(list(TEXTS)), atol=1e-6)
    assert not compile_process._children.running  # pyright: ignore[reportPrivateUsage]
    assert list(tmp_path.iterdir()) == []
