"""A model is converted in a process of its own: bounded, private, and ended with this one."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openvino")
torch = pytest.importorskip("torch")

from rag_accel.engines.compiled import compile_process  # noqa: E402
from rag_accel.engines.compiled.compile_process import (  # noqa: E402
    CompileError,
    convert,
    private_folder,
)
from rag_accel.engines.embedding.compiled_transformer import (  # noqa: E402
    CompiledTransformer,
    NotCompilableError,
)
from rag_accel.engines.embedding.runtime import BackgroundRuntime  # noqa: E402

PATIENCE_S = 120.0


def program(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """Run this instead of what converts a model."""
    path = folder / "program.py"
    path.write_text(text)
    monkeypatch.setattr(compile_process, "_PROGRAM", str(path))


def test_no_module_of_the_user_is_seen_by_the_child(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "statistics.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program(monkeypatch, tmp_path, "import statistics, sys; assert 'site' not in sys.modules")
    with private_folder() as folder:
        convert(folder, {}, 0)


def test_one_death_by_chance_is_forgiven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    once = "import os, pathlib, sys; p = pathlib.Path(sys.argv[1], 'once')\n"
    once += "if not p.exists(): p.touch(); os.kill(os.getpid(), 9)\n"
    program(monkeypatch, tmp_path, once)
    with private_folder() as folder:
        convert(folder, {}, 0)
    program(monkeypatch, tmp_path, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(CompileError, match="signal 9"), private_folder() as folder:
        convert(folder, {}, 0)
    assert not folder.exists()


def test_a_child_that_takes_too_long_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(monkeypatch, tmp_path, "import time; time.sleep(600)")
    monkeypatch.setattr(compile_process, "LIMIT_S", 0.2)
    with pytest.raises(CompileError, match="took longer"), private_folder() as folder:
        convert(folder, {}, 0)


def test_the_end_of_a_process_ends_its_child_at_once(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        f"import pathlib, time; pathlib.Path({str(tmp_path / 'begun')!r}).touch(); time.sleep(600)"
    )
    text = (
        "import pathlib, time\n"
        "from rag_accel.engines.compiled import compile_process\n"
        "from rag_accel.engines.compiled.background_task import BackgroundTask\n"
        f"compile_process._PROGRAM = {str(tmp_path / 'program.py')!r}\n"
        "def build():\n"
        "    with compile_process.private_folder() as folder:\n"
        f"        pathlib.Path({str(tmp_path / 'folder')!r}).write_text(str(folder))\n"
        "        compile_process.convert(folder, {}, 0)\n"
        "def call():\n"
        "    try: build()\n"
        "    except compile_process.CompileError: pass\n"
        "for _ in range(2): BackgroundTask(call).start()\n"
        f"while not pathlib.Path({str(tmp_path / 'begun')!r}).exists(): time.sleep(0.01)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (run.returncode, run.stderr) == (0, b"")
    assert not Path((tmp_path / "folder").read_text()).exists()


def test_a_child_that_nobody_waits_for_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    program(
        monkeypatch,
        tmp_path,
        f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(600)",
    )

    class Model:
        """Something that can be seen going."""

    def runtime_of(model: Model) -> BackgroundRuntime:
        def build() -> Any:
            with private_folder() as folder:
                convert(folder, {}, 0)
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_a_forked_process_leaves_the_child_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    text = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    program(monkeypatch, tmp_path, text)
    failed: list[Exception] = []

    def call() -> None:
        try:
            with private_folder() as folder:
                convert(folder, {}, 0)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while not compile_process._children.running:  # pyright: ignore[reportPrivateUsage]
        pass
    child = os.fork()
    if child == 0:
        compile_process.end_all()
        os._exit(0)
    os.waitpid(child, 0)
    go.touch()
    thread.join(PATIENCE_S)
    assert not failed


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


def test_a_model_that_its_configuration_does_not_give_is_refused_by_name(model: Any) -> None:
    model[0].model.encoder.layer[0].attention.output.LayerNorm.eps = 0.5
    with pytest.raises(CompileError, match=r"eps of its module .*LayerNorm is not as configured"):
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
