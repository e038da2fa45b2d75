"""Figures inside of sentences and cells of documents, each between marks that name its ratio.

``<!-- kv_ttft.reuse_vs_full:.0f -->43<!-- / -->`` is the ratio ``reuse_vs_full`` of the suite
``kv_ttft``, written as Python's format ``.0f``. Readers see the figure alone;
``python -m bench.table`` fills it. It stands behind a word of its line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.results import SuiteResult
from rag_accel.errors import ConfigError

FIGURE = re.compile(r"(<!-- (\w+)\.(\w+):(\S+) -->)([^\n]*?)<!-- / -->")
#: A page's line that begins with a comment is HTML up to its end, of which nothing else is read.
_FIRST = re.compile(r"^[\s>*-]*<!-- \w+\.\w+:[^\n]*?-->", re.MULTILINE)
#: What is left of a mark that is not whole.
_PART = re.compile(r"<!-- \w+\.\w+:[^\n]*?-->|<!-- / -->")


def documents(root: Path) -> list[Path]:
    """Return the pages that may hold such figures: those that are read by users and developers."""
    pages = [root / f"{name}.md" for name in ("README", "COMPATIBILITY", "ARCHITECTURE")]
    pages += [*(root / "docs").glob("*.md"), *(root / "docs" / "guides").glob("*.md")]
    return sorted(page for page in pages if page.exists())


def fill_pages(pages: Sequence[Path], results: Sequence[SuiteResult]) -> None:
    """Write the figures of results into pages.

    Raises:
        ConfigError: if a page names a ratio that no result has, or if a mark is not whole. Then no
            page is written.
    """
    ratios = {result.suite: result.ratios for result in results}
    filled = {page: _filled(page, ratios) for page in pages}
    for page, text in filled.items():
        page.write_text(text, encoding="utf-8")


def _filled(page: Path, ratios: Mapping[str, Mapping[str, float]]) -> str:
    def figure(mark: re.Match[str]) -> str:
        opening, suite, ratio, form, _ = mark.groups()
        try:
            return f"{opening}{ratios[suite][ratio]:{form}}<!-- / -->"
        except (KeyError, ValueError) as error:
            raise ConfigError(
                "no figure for a mark",
                where=str(page),
                found=f"{opening}: {error!r}",
                valid="<!-- suite.ratio:format -->, a ratio of a published result",
                hint="publish a result that has it, or strike the figure",
            ) from error

    text = page.read_text(encoding="utf-8")
    if part := _PART.search(FIGURE.sub("", text)) or _FIRST.search(text):
        raise ConfigError(
            "a mark that is not whole, or begins its line",
            where=str(page),
            found=part.group(),
            valid="<!-- suite.ratio:format -->figure<!-- / --> on one line, behind a word",
        )
    return FIGURE.sub(figure, text)
