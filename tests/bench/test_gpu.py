"""The command that measures a card, tried in tiny shapes on the processor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from bench import command
from bench.gpu import decoding, embedding, kv_reuse, recomputed, search
from bench.gpu import device as device_module
from bench.gpu.command import SHARES
from bench.gpu.device import MeasuredDevice, PartRun
from bench.gpu.models import TINY_LLAMA, make_decoder, make_tokenizer
from bench.report import TINY, report
from bench.results import Row, SuiteResult, load
from bench.suites import ratio_definitions, suite_names

ROOT = Path(__file__).parents[2]
CPU = MeasuredDevice("cpu", "", True)
ABSENT = ("langchain_core", "faiss", "psutil", "sentence_transformers", "llama_index", "openvino")
BLOCK = "import sys\nfor one in {absent}: sys.modules[one] = None\n"
RUN = "from bench.command import main\nsys.exit(main({words}))\n"
Part = Callable[[PartRun], None]


def run_of(seconds: float = 60.0) -> PartRun:
    return PartRun(CPU, time.monotonic() + seconds)


def started(code: str) -> subprocess.Popen[str]:
    """Start Python on the project's packages, without an install."""
    paths = [str(ROOT / name) for name in ("", "adapters", "integrations", "demo")]
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_WAIT_POLICY": "PASSIVE"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that replaces parts; those that it does not name add a row."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")

    def replaced(**named: Part) -> None:
        for name, module in zip(SHARES, (embedding, search, kv_reuse, decoding), strict=True):
            monkeypatch.setattr(module, "measure", named.get(name, adds(name)))

    return replaced


def adds(name: str) -> Part:
    return lambda run: run.rows.append(Row(name, "work", "texts_per_s", 2, None, 1))


def systems(path: Path) -> list[str]:
    (kept,) = load(path)
    return [row.system for row in kept.rows]


# The parts.


def test_embedding_measures_both_ways_on_equal_vectors() -> None:
    run = run_of()
    embedding.measure(run)
    assert run.wrong == []
    assert {row.metric for row in run.rows} >= {"texts_per_s", "callers", "max_vector_difference"}
    assert run.ratios.keys() == {"embedding_texts_per_s", "embedding_capacity"}


def test_a_processor_with_other_vectors_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    own, calls = embedding.embed, iter([0.0, 0.0, 1e-3])  # two of the card, then of the processor
    monkeypatch.setattr(embedding, "embed", lambda *given: own(*given) + next(calls))
    run = run_of()
    embedding.measure(run)
    assert len(run.wrong) == 1
    assert "max_vector_difference" in run.wrong[0]
    assert run.ratios == {}


@pytest.mark.parametrize(
    ("limit", "found"), [(0, 0), (3, 3), (4, 4), (9, 8), (10, 10), (11, 10), (100, 16)]
)
def test_callers_are_doubled_and_then_halved(limit: int, found: int) -> None:
    def share(callers: int) -> float:
        return 1.0 if callers <= limit else 0.5

    sizes = embedding.EmbeddingSizes(first=4, most=16, halvings=2)
    assert embedding.most_callers(share, sizes, run_of()) == found


def test_search_measures_scans_and_indexes() -> None:
    pytest.importorskip("faiss")
    run = run_of()
    search.measure(run)
    assert run.wrong == []
    keys = ("gpu_vs_cpu", "flat_hot_vs_cpu", "hot_vs_cpu")
    assert run.ratios.keys() == {f"{key}_{count}" for key in keys for count in (1, 16, 64)}


def test_other_ids_are_wrong_and_ties_are_not() -> None:
    vectors = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    query = np.array([[1, 0]], np.float32)

    def different(ours: list[int], plain: list[int]) -> int:
        arms = {search.CARD: lambda _: [ours], search.PROCESSOR: lambda _: [plain]}
        return search.different_answers(arms, vectors, query)

    assert different([0, 1], [1, 0]) == 0
    assert different([0, 2], [0, 1]) == 1
    assert different([0, 0], [0, 1]) == 1
    assert different([0], [0, 1]) == 1


def test_a_scan_that_finds_others_has_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_scan_here", lambda *_: lambda queries: [[0]] * len(queries))
    run = run_of()
    search.measure(run)
    assert "different_answers is 64" in run.wrong[0]
    assert not {name for name in run.ratios if name.startswith("gpu_vs_cpu")}


@pytest.mark.filterwarnings("ignore::rag_accel.errors.UncheckedReuseWarning")
def test_reuse_is_compared_and_measured() -> None:
    run = run_of()
    kv_reuse.measure(run)
    assert run.wrong == []
    assert run.ratios.keys() == {"reuse_tiny_4k", "trees_tiny"}
    reused = [row.median for row in run.rows if row.metric == "reused_percent"]
    assert len(reused) == 2
    assert min(reused) > 50


@pytest.mark.parametrize(
    ("what", "other"),
    [("_turned", lambda model, keys, by: keys), ("tree_logits", lambda model, _: torch.zeros(1))],
)
def test_reused_states_that_give_other_logits_end_the_part(
    what: str, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recomputed, what, other)
    run = run_of()
    kv_reuse.measure(run)
    assert ["max_logit_difference" in one for one in run.wrong] == [True]
    assert run.ratios == {}


def test_decoding_measures_both() -> None:
    run = run_of()
    decoding.measure(run)
    assert run.wrong == []
    assert run.ratios.keys() == {"decoding_vs_continuous"}
    rates = {row.system: row.median for row in run.rows if row.metric == "tokens_per_s"}
    assert rates.keys() == {decoding.OURS, decoding.CONTINUOUS}


def test_an_opponent_that_fails_leaves_our_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Mock(side_effect=AttributeError("no such manager"))
    monkeypatch.setattr(decoding, "generate_together", missing)
    run = run_of()
    decoding.measure(run)
    failed = [row.workload for row in run.rows if row.metric == decoding.FAILED]
    assert failed == ["AttributeError: no such manager"]
    assert "tokens_per_s" in {row.metric for row in run.rows}
    assert run.ratios == {}


def test_tokens_are_compared_with_the_models_own() -> None:
    model = make_decoder(TINY_LLAMA, CPU, "float32")
    prompt = make_tokenizer(TINY_LLAMA.vocabulary)("w1 w2 w3")["input_ids"]
    ids = torch.tensor([prompt])
    made = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    said = made[0, len(prompt) :].tolist()
    assert decoding.far_tokens(model, prompt, said) == 0
    assert decoding.far_tokens(model, prompt, [*said[:2], 9, *said[3:]]) >= 1


# Time and memory.


def test_a_turn_that_would_end_late_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(device_module.time, "monotonic", lambda: now[0])

    def arm(turn: int) -> int:
        now[0] += 1.0
        return turn

    run = PartRun(CPU, 10.0)
    assert run.turns({"a": arm, "b": arm}, 9) == {"a": [1, 2, 3], "b": [1, 2, 3]}
    assert now[0] == 8.0
    now[0] = 10.0
    assert run.turns({"a": arm}, 9) == {"a": []}


def test_what_a_part_leaves_is_the_next_ones(parts: Callable[..., None]) -> None:
    left: list[float] = []
    parts(**dict.fromkeys(SHARES, lambda run: left.append(run.left_s)))
    assert command.main(["gpu", "--device", "cpu", "--budget-s", "1000"]) == 0
    assert len(left) == len(SHARES)
    assert [left[0], left[-1]] == pytest.approx([0.2 * 920, 920], abs=20)


def test_without_time_all_parts_end_soon(tmp_path: Path) -> None:
    path, began = tmp_path / "gpu.json", time.monotonic()
    words = ["gpu", "--device", "cpu", "--budget-s", "0.01", "--json", str(path)]
    assert command.main(words) == 0
    assert time.monotonic() - began < 15
    (kept,) = load(path)
    assert {"no time"} <= {row.metric for row in kept.rows}
    assert not {row.metric for row in kept.rows} & {"tokens_per_s", "first_token_ms", "latency_ms"}


def test_a_size_without_room_is_a_row() -> None:
    run, wrapped = run_of(), ValueError("a step failed")
    wrapped.__cause__ = torch.OutOfMemoryError("CUDA out of memory")
    run.attempt("ours", "8B", Mock(side_effect=wrapped))
    assert [row.key for row in run.rows] == [("ours", "8B", "out of memory")]
    with pytest.raises(KeyError):
        run.attempt("ours", "1B", Mock(side_effect=KeyError))


# The command.


def test_a_part_that_is_wrong_or_fails_leaves_the_others(
    parts: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(run: PartRun) -> None:
        run.rows.append(Row("before", "work", "ms", 1, None, 1))
        raise RuntimeError("no kernel image")

    path = tmp_path / "gpu.json"
    parts(
        search=lambda run: run.check(False, "card", "scan", "different_answers", 3), kv_reuse=fails
    )
    assert command.main(["gpu", "--device", "cpu", "--json", str(path)]) == 1
    said = capsys.readouterr().err
    assert "card, scan: different_answers is 3" in said
    assert "kv_reuse: RuntimeError: no kernel image" in said
    assert systems(path) == ["embedding", "before", "kv_reuse", "decoding"]


def test_a_kill_leaves_earlier_parts(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    code = (
        "import sys, time\nfrom bench.gpu import embedding, search\n"
        "from bench.results import Row\n"
        "embedding.measure = lambda run: run.rows.append(Row('kept', 'w', 'ms', 1, None, 1))\n"
        "search.measure = lambda run: time.sleep(600)\n"
        + RUN.format(words=["gpu", "--device", "cpu", "--json", str(path)])
    )
    process = started(code)
    until = time.monotonic() + 60
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert systems(path) == ["kept"]


def test_without_faiss_and_all_frameworks_scans_are_measured(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    modules = ("command", "device", "decoding", "embedding", "kv_reuse", "models", "recomputed")
    imports = "".join(f"import bench.gpu.{name}\n" for name in modules)
    words = ["gpu", "--device", "cpu", "--part", "search", "--json", str(path)]
    block = BLOCK.format(absent=(*ABSENT, "httpx"))  # which transformers needs
    process = started(block + imports + RUN.format(words=words))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    (kept,) = load(path)
    missing = [row.workload for row in kept.rows if row.metric == "missing"]
    assert len([row for row in kept.rows if row.metric == "latency_ms"]) == 6
    assert missing == ["faiss", "faiss"]


@pytest.mark.bench
def test_a_bare_machine_runs_all_parts(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    words = ["gpu", "--quick", "--device", "cpu", "--json", str(path)]
    process = started(BLOCK.format(absent=ABSENT) + RUN.format(words=words))
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert TINY in output
    wanted = {"callers", "latency_ms", "first_token_ms", "tokens_per_s"}
    assert wanted <= {row.metric for row in load(path)[0].rows}


def test_a_missing_package_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    path = tmp_path / "gpu.json"
    words = ["gpu", "--device", "cpu", "--part", "embedding", "--part", "decoding"]
    assert command.main([*words, "--json", str(path)]) == 0
    (kept,) = load(path)
    rows = [(row.system, row.workload, row.metric) for row in kept.rows]
    assert rows == [(name, "transformers", "missing") for name in ("embedding", "decoding")]


@pytest.mark.parametrize(
    ("words", "said"), [([], "--device cpu"), (["--device", "no-such"], "--device")]
)
def test_a_device_that_is_not_there_is_named(
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(["gpu", *words]) == 2
    assert said in capsys.readouterr().err


def test_it_is_no_suite_and_defines_its_ratios() -> None:
    assert "gpu" not in suite_names()
    sizes = kv_reuse.ReuseSizes()
    searched = ("gpu_vs_cpu", "flat_hot_vs_cpu", "hot_vs_cpu")
    names = {f"{key}_{count}" for key in searched for count in search.SearchSizes().together}
    for shape in sizes.shapes:
        names |= {f"reuse_{shape.key}_{key}" for key, _ in sizes.texts} | {f"trees_{shape.key}"}
    names |= {"embedding_capacity", "embedding_texts_per_s", "decoding_vs_continuous"}
    definitions = ratio_definitions("gpu")
    assert definitions.keys() == names
    assert all(one.startswith("against ") for one in definitions.values())


def test_a_result_names_its_card() -> None:
    told = {"cards": ["NVIDIA H200"], "tiny": False}
    found = report(SuiteResult("gpu", (), {"trees_1b": 2.0}, environment=told))
    assert "NVIDIA H200" in found
    assert TINY not in found
    assert "trees_1b = 2" in found
    assert TINY in report(SuiteResult("gpu", (), {}, environment={"tiny": True}))
