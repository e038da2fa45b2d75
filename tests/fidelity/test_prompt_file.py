"""A user's own prompts are read from a file; what is no prompt is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from rag_accel.errors import DocumentError
from rag_accel.fidelity import TextPrompt, load_prompts
from rag_accel.fidelity.prompts import SYSTEM

GOOD = '{"question": "How high?", "documents": ["Fuji.\u2028Crane.", "Lane."], "id": 3}'


def test_each_line_is_a_prompt(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    system = '{"question": "Why?", "documents": ["Filter."], "system": ""}'
    file.write_text(f"{GOOD}\n\n{system}\n", encoding="utf-8-sig")
    assert load_prompts(file) == [
        TextPrompt(("Fuji.\u2028Crane.", "Lane."), "How high?", SYSTEM),
        TextPrompt(("Filter.",), "Why?", ""),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "a list"),
        ('{"documents": ["Fuji."]}', "no question"),
        ('{"question": " ", "documents": ["Fuji."]}', "no question"),
        ('{"question": "How?"}', "no list of documents"),
        ('{"question": "How?", "documents": []}', "no list of documents"),
        ('{"question": "How?", "documents": ["Fuji.", 3]}', "no list of documents"),
        ('{"question": "How?", "documents": "Fuji."}', "no list of documents"),
        ('{"question": "How?", "documents": ["Fuji."], "system": 3}', "system"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(DocumentError, match=said) as refused:
        load_prompts(file)
    assert str(refused.value.where).endswith("prompts.jsonl, line 2")


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    with pytest.raises(DocumentError, match="prompts"):
        load_prompts(file)


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot read prompts"):
        load_prompts(tmp_path / "none.jsonl")
