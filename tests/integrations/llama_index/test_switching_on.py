"""A LlamaIndex program is accelerated by an import or by the command line, and runs as it did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: a program that says whether its model's calls were scheduled
PROGRAM = """
from llama_index.core.llms import MockLLM

print(MockLLM(max_tokens=2).complete("how?"))
from rag_accel.accelerator import default_accelerator

print("scheduled:", "MockLLM" in str(default_accelerator().metrics.snapshot()))
"""


def said(*line: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a Python interpreter with these arguments."""
    command = [sys.executable, *map(str, line)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_a_program_run_by_the_command_line_is_scheduled(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = said("-m", "rag_accel.cli", "run", path)
    assert done.returncode == 0
    assert done.stderr.startswith("rag-accel: acts: nothing; does not: MockLLM, because ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == "text text\nscheduled: True\n"


GONE = """
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core import MockEmbedding
from llama_index.core.llms import MockLLM

del BaseEmbedding._get_text_embeddings
from llama_index_rag_accel import activate
from llama_index_rag_accel.coverage import coverage

with activate(), coverage() as meter:
    MockLLM(max_tokens=2).complete("how?")
    MockEmbedding(embed_dim=2).get_text_embedding("a")
print([(row.kind, row.passed_by) for row in meter.rows()])
"""


def test_a_method_that_is_gone_is_named_once_and_the_others_are_scheduled(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(GONE)
    done = said(path)
    assert done.stdout == "[('embedding', 0), ('language model', 0)]\n", done.stderr
    assert done.stderr.count("BaseEmbedding._get_text_embeddings") == 1
    assert "not all is accelerated" in done.stderr
