"""A model is compiled for as many threads as a step is granted, and never for a few more copies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import fresh, ids_of, own_logits, paged_runner_for, part, shared

from rag_accel.engines.compiled import compile_process
from rag_accel.engines.compiled.compiled_forms import BackgroundTask
from rag_accel.engines.llm.local.model.runner_choice import ChosenRunner
from rag_accel.engines.llm.local.paged import making
from rag_accel.engines.llm.local.paged.making import Compilation, GraphForms, trace_spec
from rag_accel.engines.llm.local.paged.runner import PagedRunner
from rag_accel.engines.llm.local.paged.topology import traced
from rag_accel.engines.torch_threads import thread_count

PATIENCE_S = 60.0
CLOSE = 1e-5


class FakeCompilation:
    """Forms that are their numbers of threads."""

    def __init__(self, threads: int, fewest: int = 1) -> None:
        self.threads = threads
        self.fewest = fewest
        self.made = {threads}
        self.fails = False

    def form(self, threads: int, pool: Any) -> Any:
        return threads if threads in self.made else None

    def compile(self, threads: int) -> None:
        if self.fails:
            raise MemoryError("no room")
        self.made.add(threads)


def forms_of(compilation: Any) -> Any:
    return GraphForms(compilation, None)  # type: ignore[arg-type]


def found(forms: Any, threads: int) -> Any:
    """Return the form once what it waits for is there."""
    forms.find(threads)
    forms.wait(PATIENCE_S)
    return forms.find(threads)


def test_no_form_takes_more_threads_than_were_granted() -> None:
    forms = forms_of(FakeCompilation(16))
    assert forms.find(1) == 16  # until there is one
    assert [found(forms, threads) for threads in (1, 16, 8, 15, 9, 7, 3, 2)] == [
        *(1, 16, 8, 8, 8, 1, 1, 1),
    ]
    assert found(forms, 40) == 16


def test_where_one_thread_is_too_few_a_step_of_one_runs_on_the_fewest_that_work() -> None:
    compilation = FakeCompilation(16, fewest=2)
    forms = forms_of(compilation)
    assert [found(forms, threads) for threads in (1, 2, 3, 8)] == [2, 2, 2, 8]
    assert forms_of(FakeCompilation(2, fewest=2)).find(1) == 2
    assert 1 not in compilation.made


@pytest.mark.parametrize(
    ("features", "dtype", "fewest"),
    [
        ("avx2 amx_bf16", torch.bfloat16, 2),
        ("avx2 amx_bf16", torch.float32, 1),
        ("avx2", torch.bfloat16, 1),
    ],
)
def test_a_form_of_one_thread_that_would_end_the_process_is_never_made(
    features: str, dtype: torch.dtype, fewest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "has_feature", lambda name: name in features.split())
    assert making.fewest_threads(dtype) == fewest


def test_a_model_that_may_have_one_thread_alone_is_refused_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr(making, "fewest_threads", lambda _: 2)
    model = shared("qwen3")
    with pytest.raises(compile_process.CompileError, match="one thread on this processor"):
        Compilation(model, traced(trace_spec(model)), threads=1)


def test_a_copy_of_the_weights_for_every_number_is_not_made() -> None:
    compilation = FakeCompilation(16)
    forms = forms_of(compilation)
    for threads in range(16, 0, -1):
        found(forms, threads)
    assert len(compilation.made) == 2 + making.MOST_BETWEEN
    assert 1 in compilation.made


def test_a_form_that_cannot_be_compiled_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    compilation = FakeCompilation(2)
    compilation.fails = True
    forms = forms_of(compilation)
    with caplog.at_level(logging.WARNING, "rag_accel.llm"):
        assert [found(forms, 1) for _ in range(3)] == [2, 2, 2]
    (record,) = caplog.records
    assert "not compiled for 1 threads as well: no room" in record.getMessage()


def test_a_process_without_another_thread_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(task: BackgroundTask) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(BackgroundTask, "start", refuse)
    forms = forms_of(FakeCompilation(2))
    assert [forms.find(1), forms.find(1)] == [2, 2]
    assert len(caplog.records) == 1


def logits(runner: PagedRunner, threads: int) -> torch.Tensor:
    lane = runner.pool.take(5)
    try:
        with thread_count(threads):
            return runner.run([part(lane, ids_of(5, 3), 0, 5)])
    finally:
        assert lane is not None
        runner.pool.free(lane)


def test_each_form_has_its_threads_and_what_it_holds_is_told() -> None:
    pytest.importorskip("openvino")
    model = shared("qwen3")
    compilation = Compilation(model, traced(trace_spec(model)), threads=2)
    runner = compilation.runner(1 << 26)
    chosen = ChosenRunner(runner, "paged", "as asked for", runner.copies)
    size = sum(weight.nbytes for weight in model.parameters())
    kind = "runs on OpenVINO's paged attention: as asked for; compiled for"
    assert chosen.describe() == (
        f"{kind} 2 threads, with a copy of the weights each, {size >> 20} MiB"
    )
    expected = own_logits(model, ids_of(5, 3))
    for _ in range(2):
        assert float((logits(runner, 1) - expected).abs().max()) <= CLOSE
        runner.forms.wait(PATIENCE_S)
    assert chosen.describe() == (
        f"{kind} 2 threads and 1 thread, with a copy of the weights each, {2 * size >> 20} MiB"
    )
    numbers = {
        threads: compiled.get_property("INFERENCE_NUM_THREADS")
        for threads, compiled in compilation._compiled.items()
    }
    assert numbers == {1: 1, 2: 2}


def test_a_runner_goes_while_a_form_of_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    began, release, ended = threading.Event(), threading.Event(), threading.Event()
    runner = paged_runner_for(fresh("qwen3"))
    compile_form: Callable[..., None] = Compilation.compile

    def compile_late(compilation: Compilation, threads: int) -> None:
        began.set()
        assert release.wait(PATIENCE_S)
        compile_form(compilation, threads)
        ended.set()

    monkeypatch.setattr(Compilation, "compile", compile_late)
    logits(runner, 1)
    assert began.wait(PATIENCE_S)
    del runner
    release.set()
    assert ended.wait(PATIENCE_S)


def test_nothing_is_compiled_while_the_process_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = paged_runner_for(shared("qwen3"))
    monkeypatch.setattr(compile_process._children, "is_ending", True)
    logits(runner, 1)
    runner.forms.wait(PATIENCE_S)
    assert "this process is ending" in caplog.text
    assert logits(runner, 1).shape[0] == 5
