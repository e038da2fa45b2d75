"""The visible text of HTML, read off its tokens.

The standard's tokenizer takes time in proportion to the page. Its tree builder does not: formatting
that is left open is made anew in every later block, and an end tag without a start is looked for in
all that is open. So no tree is built; what a text needs of the structure is known from the tags.
"""

from __future__ import annotations

from typing import Any

from rag_accel.sample.file_text import FileText, TextBuilder, parser_module, reject_binary

_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_HIDDEN = frozenset(
    ("script", "style", "nav", "noscript", "template", "svg", "iframe", "noembed", "noframes")
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_CELLS = frozenset(("td", "th"))
_BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "body", "br", "caption", "dd", "details"),
        *("div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hr"),
        *("li", "main", "ol", "option", "p", "pre", "section", "summary", "table", "tr", "ul"),
    )
)


def read_html(data: bytes) -> FileText:
    """Read the visible text of an HTML page, cut at its headings."""
    if not data.startswith(_BYTE_ORDER_MARKS):
        reject_binary(data)
    encoding = parser_module("turbohtml.detect", "HTML").detect(data).codec or "utf-8"
    builder = TextBuilder()
    page = HtmlText(builder)
    page.feed(data.decode(encoding, "replace").removeprefix("\ufeff"))
    return builder.file_text(page.title)


class HtmlText:
    """A parser of HTML that hands headings and blocks to a builder.

    ``title`` is that of the page.
    """

    def __init__(self, builder: TextBuilder) -> None:
        self._html = parser_module("turbohtml", "HTML")
        self._builder = builder
        self._title: list[str] = []
        self._is_title = False
        #: the text of the block under way
        self._texts: list[str] = []
        self._has_words = False
        self._is_item = False
        #: the level of the heading under way, else 0
        self._level = 0
        #: the outermost tag that hides what is here, and how many of its kind are open
        self._hidden_by = ""
        self._num_hiding = 0

    @property
    def title(self) -> str | None:
        """Return the text of the first ``title`` that is not hidden."""
        return " ".join("".join(self._title).split()) or None

    def feed(self, text: str) -> None:
        """Read a whole page, or a part of one that stands in another text."""
        kinds = self._html.TokenType
        for token in self._html.tokenize(text, capture_attributes=False):
            if token.type == kinds.TEXT:
                self._take_text(token.data)
            elif token.type == kinds.START_TAG:
                self._start(token)
            elif token.type == kinds.END_TAG:
                self._end(token.tag)
        self._flush()

    def _take_text(self, text: str) -> None:
        if self._hidden_by:
            return
        if self._is_title:
            self._title.append(text)
        else:
            self._texts.append(text)
            self._has_words = self._has_words or not text.isspace()

    def _start(self, token: Any) -> None:
        tag: str = token.tag
        if self._hidden_by or tag in _HIDDEN:
            self._hide(tag, is_empty=tag == "svg" and token.self_closing)
        elif tag == "title":
            self._is_title = not self._title
        elif tag in _HEADINGS:
            self._flush()
            self._level = _HEADINGS[tag]
        elif self._level and not (tag == "p" and self._has_words):
            self._texts.append(" ")
        elif tag in _BLOCKS:
            self._flush()
            self._is_item = self._is_item or tag == "li"
        elif tag in _CELLS and self._has_words:
            self._texts.append(" | ")

    def _hide(self, tag: str, *, is_empty: bool) -> None:
        if not is_empty and self._hidden_by in ("", tag):
            self._hidden_by = tag
            self._num_hiding += 1

    def _end(self, tag: str) -> None:
        if self._hidden_by:
            self._num_hiding -= tag == self._hidden_by
            self._hidden_by = self._hidden_by if self._num_hiding else ""
        elif tag == "title":
            self._is_title = False
        elif tag in _HEADINGS:
            self._flush()
        elif self._level:
            self._texts.append(" ")
        elif tag in _BLOCKS:
            self._flush()
            self._is_item = self._is_item and tag != "li"

    def _flush(self) -> None:
        text = "".join(self._texts)
        if self._level:
            # Generators of pages put a mark with a link to itself behind each heading.
            self._builder.add_heading(self._level, text.rstrip(" \n\t\u00b6#"))
        elif self._has_words:
            self._builder.add_text(text, is_item=self._is_item)
            self._is_item = False
        self._texts.clear()
        self._has_words = False
        self._level = 0
