"""Write ``docs/options.md`` from what ``Options`` says of itself: ``python docs/generate.py``."""

from __future__ import annotations

from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from rag_accel.config import Options

PAGE = Path(__file__).with_name("options.md")
HEAD = """# Options

Give them to `Accelerator(...)`, to `Options.load(...)`, or as `RAG_ACCEL_<NAME>` in the
environment. An argument wins over a variable, a variable over the default; unknown names are errors
in both places. `rag-accel doctor` prints every effective value and where it comes from.
`RAG_ACCEL=0` is no option but the master switch. This page is generated
(`python docs/generate.py`).

| option | default | valid | meaning |
| --- | --- | --- | --- |
"""


def page() -> str:
    """Return the page as it should be."""
    return HEAD + "".join(map(_row, fields(Options)))


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
