"""Write the pages that are made of the code: ``python docs/generate.py``.

``options.md`` is what ``Options`` says of itself, ``known_classes.md`` what the adapters say of the
classes that they know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from rag_accel.adoption.known_classes import ClassRow
from rag_accel.config import Options
from rag_accel_adapters.langchain import models as langchain
from rag_accel_adapters.langchain import proxies as langchain_proxies
from rag_accel_adapters.langchain import stores as langchain_stores
from rag_accel_adapters.llama_index import graph_stores as llama_index_graphs
from rag_accel_adapters.llama_index import models as llama_index
from rag_accel_adapters.llama_index import proxies as llama_index_proxies
from rag_accel_adapters.llama_index import stores as llama_index_stores
from rag_accel_adapters.neo4j_graphrag import models as neo4j_graphrag

PAGE = Path(__file__).with_name("options.md")
CLASSES_PAGE = Path(__file__).with_name("known_classes.md")
HEAD = """# Options

Give them to `Accelerator(...)`, to `Options.load(...)`, or as `RAG_ACCEL_<NAME>` in the
environment. An argument wins over a variable, a variable over the default; unknown names are errors
in both places. `rag-accel doctor` prints every effective value and where it comes from.
`RAG_ACCEL=0` is no option but the master switch, and `RAG_ACCEL_SUMMARY=0` silences the line of a
process that is accelerated as a whole. This page is generated
(`python docs/generate.py`).

| option | default | valid | meaning |
| --- | --- | --- | --- |
"""

CLASSES_HEAD = """# Known classes

Engines run objects of these classes, and of subclasses that override none of the methods concerned.
All other objects are admitted by the scheduler and run where their caller is. `explain(program)`
and `coverage(program)` give the reason for each part that no engine runs, and the setting that
would change it. This page is generated (`python docs/generate.py`).
"""

CLASSES: Mapping[str, Iterable[ClassRow]] = {
    "LangChain": (
        *langchain.EMBEDDINGS.rows(),
        langchain_stores.ROW,
        *langchain_proxies.PROXIES.rows(),
    ),
    "LlamaIndex": (
        *llama_index.EMBEDDINGS.rows(),
        llama_index_stores.ROW,
        llama_index_graphs.ROW,
        *llama_index_proxies.PROXIES.rows(),
    ),
    "neo4j-graphrag": tuple(neo4j_graphrag.EMBEDDERS.rows()),
}


def page() -> str:
    """Return the page as it should be."""
    return HEAD + "".join(map(_row, fields(Options)))


def classes_page() -> str:
    """Return the page of the known classes as it should be."""
    return CLASSES_HEAD + "".join(
        f"\n## {framework}\n\n| class | acts | unless |\n| --- | --- | --- |\n"
        + "".join(f"| `{row.name}` | {row.acts} | {'; '.join(row.unless)} |\n" for row in rows)
        for framework, rows in CLASSES.items()
    )


def _row(option: Field[Any]) -> str:
    return (
        f"| `{option.name}` | {_default(option.default)} | {_valid(option.metadata)} "
        f"| {option.metadata['doc']} |\n"
    )


def _default(value: object) -> str:
    if value is None:
        return "none"
    return f"`{value}`" if value not in ("", ()) else "empty"


def _valid(metadata: Any) -> str:
    low, high = (metadata[name] for name in ("low", "high"))
    if low is None:
        return ""
    return f"from {low:g}" if high is None else f"{low:g} to {high:g}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    CLASSES_PAGE.write_text(classes_page(), encoding="utf-8")
