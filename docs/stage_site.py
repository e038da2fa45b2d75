"""Stage the pages of the site: those of the repository, and one of each public module.

python docs/stage_site.py FOLDER
"""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    *("*.md", "LICENSE", "docs/*.md", "docs/guides/*", "docs/results/*"),
    *("cookbook/*.ipynb", "changes/README.md"),
)
#: The words behind the language of an example are for its test.
FENCE = re.compile(r"^(```[a-z]+) .*$", re.MULTILINE)
MODULES = (
    "rag_accel",
    "rag_accel.engines",
    "rag_accel.passes",
    "rag_accel.telemetry",
    "rag_accel.workflows",
    "langchain_rag_accel",
    "llama_index_rag_accel",
    "neo4j_graphrag_rag_accel",
)


def reference_page(module: str) -> str:
    """Return a page with the documented names of a module, as mkdocstrings reads it."""
    found = importlib.import_module(module)
    lines = [f"# {module}", "", (found.__doc__ or "").partition("\n")[0], ""]
    for name in sorted(found.__all__):
        value = getattr(found, name)
        if getattr(value, "__doc__", None) and hasattr(value, "__qualname__"):
            lines += [f"::: {value.__module__}.{value.__qualname__}", ""]
    return "\n".join(lines)


def stage(folder: Path) -> None:
    """Write all pages into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    for pattern in PAGES:
        for path in ROOT.glob(pattern):
            target = folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".md":
                target.write_text(FENCE.sub(r"\1", path.read_text()))
            else:
                shutil.copyfile(path, target)
    for module in MODULES:
        page = folder / "reference" / f"{module}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text(reference_page(module))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    stage(Path(sys.argv[1]))
