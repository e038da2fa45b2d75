"""What ran can be asked for its times, from the accelerator and from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from accel_harness import opened

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.cli import main
from rag_accel.telemetry import JsonLinesSink


def graph() -> RAGraph:
    made = RAGraph()
    made.add_retrieval("search", query="input", top_k=1, output="docs")
    made.add_generation("answer", prompt="Answer {input} using {docs}.")
    made.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)
    return made


def run_some(acc: Accelerator) -> None:
    for number in range(3):
        acc.run(graph(), input=f"question {number}")


def test_the_command_line_reads_a_recorded_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events, chrome = tmp_path / "events.jsonl", tmp_path / "trace.json"
    with opened(llm=str.upper, index=lambda query, k: ["a document"][:k]) as acc:
        acc.tracer.add_sink(JsonLinesSink(events))
        run_some(acc)
    assert main(["trace", str(events), "--json", "--chrome", str(chrome)]) == 0
    assert json.loads(capsys.readouterr().out)["stages"]
    assert json.loads(chrome.read_text())["traceEvents"]
    assert main(["trace", str(tmp_path / "missing.jsonl")]) == 2
    assert "missing.jsonl" in capsys.readouterr().err
