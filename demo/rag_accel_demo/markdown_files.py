"""CommonMark with tables and front matter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rag_accel_demo.file_text import FileText, TextBuilder, decoded, parser_module


def read_markdown(data: bytes) -> FileText:
    """Read Markdown: one part for each heading; the first top heading is the title.

    Front matter, images, tags and blocks of HTML are left out, as is what nests more than 20
    levels deep.
    """
    markdown = parser_module("markdown_it", "Markdown").MarkdownIt("commonmark").enable("table")
    plugin = parser_module("mdit_py_plugins.front_matter", "Markdown")
    builder = TextBuilder()
    _MarkdownText(builder).take(markdown.use(plugin.front_matter_plugin).parse(decoded(data)))
    return builder.file_text()


class _MarkdownText:
    """A walk over a Markdown parser's blocks that hands them to a builder."""

    def __init__(self, builder: TextBuilder) -> None:
        self._builder = builder
        #: the level of the heading under way, else 0
        self._level = 0
        self._is_item = False
        #: the cells of the row under way
        self._row: list[str] | None = None

    def take(self, tokens: Iterable[Any]) -> None:
        """Take the tokens of a text's blocks in their order."""
        for token in tokens:
            match token.type:
                case "heading_open":
                    self._level = int(token.tag[1:])
                case "list_item_open":
                    self._is_item = True
                case "list_item_close":
                    self._is_item = False
                case "tr_open":
                    self._row = []
                case "tr_close":
                    row, self._row = self._row or [], None
                    self._add(" | ".join(filter(None, row)))
                case "inline":
                    self._take_inline(_inline_text(token.children))
                case "fence" | "code_block":
                    self._add(token.content)
                case _:
                    pass

    def _take_inline(self, text: str) -> None:
        if self._level:
            self._builder.add_heading(self._level, text)
            self._level = 0
        elif self._row is not None:
            self._row.append(" ".join(text.split()))
        else:
            self._add(text)

    def _add(self, text: str) -> None:
        self._builder.add_text(text, is_item=self._is_item)
        self._is_item = False


def _inline_text(tokens: Iterable[Any]) -> str:
    texts: list[str] = []
    for token in tokens:
        is_tag = token.type == "html_inline"
        if token.type in ("text", "code_inline"):
            texts.append(token.content)
        elif token.type in ("softbreak", "hardbreak") or (is_tag and token.content[:3] == "<br"):
            texts.append("\n")
    return "".join(texts)
