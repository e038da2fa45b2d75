"""Names tell things apart: of classes, and of files that stand side by side."""

from __future__ import annotations

import ast
from collections import defaultdict
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [
    path
    for name in (
        "rag_accel",
        "integrations/langchain_rag_accel",
        "integrations/llama_index_rag_accel",
        "integrations/neo4j_graphrag_rag_accel",
        "integrations/vllm_rag_accel",
        "adapters/rag_accel_adapters",
        "demo/rag_accel_demo",
    )
    for path in sorted((ROOT / name).rglob("*.py"))
]

#: Classes of one name, and why: the second says of the first, or the two never meet.
SAME_NAME = {
    "StepEnded": "the event of the scheduler, and the event of the trace that records it",
    "RagAccelGraphRetriever": "a component for LangChain, and one for LlamaIndex",
    "RagAccelRetriever": "a component for LangChain, and one for LlamaIndex",
    "RagAccelVectorStore": "a component for LangChain, and one for LlamaIndex",
}


def classes() -> dict[str, list[str]]:
    """Return where each top-level class name is defined."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def differ_by_a_letter(one: str, other: str) -> bool:
    """Tell whether a letter is added, left out or another."""
    short, long = sorted((one, other), key=len)
    if len(short) == len(long):
        return sum(a != b for a, b in zip(short, long, strict=True)) == 1
    return any(long[:i] + long[i + 1 :] == short for i in range(len(long)))


def test_no_two_classes_share_a_name() -> None:
    several = {name: places for name, places in classes().items() if len(places) > 1}
    assert several.keys() == SAME_NAME.keys(), several


def test_no_two_files_side_by_side_differ_by_a_letter() -> None:
    rooms: dict[Path, list[str]] = defaultdict(list)
    for path in SOURCES:
        rooms[path.parent].append(path.stem)
    near = [
        f"{room.relative_to(ROOT)}: {one} and {other}"
        for room, names in rooms.items()
        for one, other in combinations(names, 2)
        if differ_by_a_letter(one, other)
    ]
    assert near == []


def test_a_letter_is_noticed() -> None:
    assert differ_by_a_letter("embedding", "embeddings")
    assert differ_by_a_letter("runs", "rung")
    assert not differ_by_a_letter("runs", "turned")
    assert not differ_by_a_letter("runs", "runs")


def test_every_room_says_what_belongs_in_it() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if path.name == "__init__.py" and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []
