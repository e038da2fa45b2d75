"""The site of `make docs` has every page, and its staging leaves what MkDocs can read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
#: pages that a page leads to, for whoever looks for them
NOT_LISTED = {
    "changes/README.md",
    *(f"docs/results/{page.name}" for page in ROOT.glob("docs/results/*.md")),
}


def listed(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    entries = nav.values() if isinstance(nav, dict) else nav
    return {page for entry in entries for page in listed(entry)}


def test_every_page_is_listed_and_staged(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    command = [sys.executable, "docs/stage_site.py", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    staged = {str(path.relative_to(folder)) for path in folder.rglob("*.md")}
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert listed(nav) == staged - NOT_LISTED
    assert "```python\n" in (folder / "docs/chunk_reuse.md").read_text()
    assert (
        "::: rag_accel.accelerator.accelerator.Accelerator"
        in (folder / "reference/rag_accel.md").read_text()
    )
