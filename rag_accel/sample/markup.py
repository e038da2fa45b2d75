"""Paragraphs of lightly marked-up text: docstrings, reStructuredText, Markdown, plain text.

A paragraph is one line without wrapping; a list item or a described parameter starts with
``"- "``. ``paragraphs`` keeps every word; ``prose_paragraphs`` drops what reads badly as a
sentence: doctests, code blocks, tables, rulers and badges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rag_accel.sample.sentences import split_sentences

_BULLET = re.compile(r"(?:[-*+\u2022\u25cf]|#\.|\(?\d{1,2}[.)])\s+")
_FIELD = re.compile(r":(?:param|parameter|arg|key|keyword|ivar|cvar|var)\s([^:]*[^:\s]):\s*")
_OUTCOME = re.compile(r":(returns?|raises?|rtype|type|yields?)([^:]*):\s*")
_TYPED = re.compile(r"(\*{0,2}[A-Za-z_]\w*(?:, \*{0,2}\w+)*)\s+:\s+(\S.*)$")
_NAMED = re.compile(r"(\*{0,2}[A-Za-z_][\w.]*(?:\s?\([^)]*\))?):(?:\s+|$)")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_RULER = re.compile(r"([=\-~^*+#_`\"'<>:.])\1{2,}$")
_HEADING = re.compile(r"^ {0,3}#{1,6}\s")
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_DIRECTIVE = re.compile(r"^\s*\.\.\s+(?:([\w-]+)::\s*(.*)|.*)$")
_SPOKEN_DIRECTIVES = frozenset(
    {
        "note",
        "warning",
        "tip",
        "important",
        "seealso",
        "deprecated",
        "versionadded",
        "versionchanged",
    }
)
_HEADER_WORDS = re.compile(
    r"^(?:- )?(?:args|arguments|parameters|params|other parameters|attributes|keyword arguments|"
    r"keyword args|kwargs|returns?|raises?|yields?|examples?|notes?|see also|references|usage|"
    r"example usage|warnings?|warns|methods|class|functions?):?$",
    re.IGNORECASE,
)
_Replacement = str | Callable[[re.Match[str]], str]
_URL = r"\([^()]*(?:\([^()]*\)[^()]*)*\)"
# What a pattern encloses cannot hold the mark it opens with, so that a text of opening marks alone
# is not looked through from each of them to its end.
_INLINE: tuple[tuple[re.Pattern[str], _Replacement], ...] = (
    (re.compile(rf"\[!\[[^\[\]]*\]{_URL}\]{_URL}|!\[[^\[\]]*\]{_URL}"), ""),
    (re.compile(r"\[([^\[\]\n]+)\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*\)"), r"\1"),
    (
        re.compile(r":(?:[\w+-]+:)?[\w+-]+:`(?:([^`<]+)<[^`>]*>|[~!]?([^`]+))`"),
        lambda found: found[1].rstrip() if found[1] else found[2],
    ),
    (re.compile(r"`([^`<]+)<[^`>]*>`_{1,2}"), lambda found: found[1].rstrip()),
    (re.compile(r"``([^`]+)``"), r"\1"),
    (re.compile(r"`([^`\n]+)`_{0,2}"), r"\1"),
    (re.compile(r"\*\*([^*\n]+)\*\*"), r"\1"),
    (re.compile(r"(?<![\w*])\*([^*\s][^*\n]*)\*(?![\w*])"), r"\1"),
    (re.compile(r"</?[A-Za-z][^<>]*>"), ""),
    (re.compile(r"\|[\w -]+\|(?=\s|$)"), ""),
    (re.compile(r"::(?=\s|$)"), ":"),
)
_MARKED = re.compile(r"[`*<|]|\]\(|::")
_SYMBOL = re.compile(r"[={}<>\\|;$@^~]|\(\)|->|::")


@dataclass(frozen=True, slots=True)
class _Block:
    indent: int
    lines: tuple[str, ...]
    is_heading: bool = False


def paragraphs(text: str) -> list[str]:
    """Unwrap ``text`` into paragraphs and list items, keeping all its words but not its rulers."""
    return [item for block in _blocks(text) for item in _unwrap(block.lines)]


def prose_paragraphs(text: str) -> list[str]:
    """Unwrap ``text`` into paragraphs and list items that read as prose, without their markup."""
    kept: list[str] = []
    for block in _without_code(_blocks(_without_fences_and_headings(text))):
        for item in _unwrap(_speaking_lines(block.lines)):
            plain = plain_text(item)
            if is_prose(plain) and not _HEADER_WORDS.match(plain):
                kept.append(plain)
    return _without_lead_ins(kept)


def plain_text(text: str) -> str:
    """Return ``text`` without inline markup: links, roles, emphasis, code quotes and HTML tags."""
    for pattern, replacement in _INLINE if _MARKED.search(text) else ():
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


def is_prose(text: str) -> bool:
    """Tell whether a paragraph is made of words rather than of code, symbols or numbers."""
    words = text.split()
    if len(words) < 3 or len(text) > 15 * len(words):
        return False
    spoken = sum(word.strip("\"'(),.:;?!-`").isalpha() for word in words)
    return spoken >= 0.6 * len(words) and len(_SYMBOL.findall(text)) <= 0.15 * len(words)


def _blocks(text: str) -> list[_Block]:
    """Cut at blank lines and at rulers; a short line above a ruler is a heading."""
    blocks: list[_Block] = []
    lines: list[str] = []
    for line in [*text.expandtabs(4).splitlines(), ""]:
        stripped = line.strip()
        if stripped and (stripped[0].isalnum() or not _RULER.match(stripped)):
            lines.append(line.rstrip())
            continue
        if lines:
            is_heading = bool(stripped) and len(lines) == 1 and len(lines[0].split()) <= 8
            blocks.append(_Block(_indent(lines[0]), tuple(lines), is_heading))
        lines = []
    return blocks


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _without_fences_and_headings(text: str) -> str:
    if "#" not in text and "```" not in text and "~~~" not in text:
        return text
    kept: list[str] = []
    is_open = False
    for line in text.splitlines():
        if _FENCE.match(line):
            is_open = not is_open
            kept.append("")
        elif not is_open:
            kept.append("" if _HEADING.match(line) else line)
    return "\n".join(kept)


def _without_code(blocks: Sequence[_Block]) -> Iterator[_Block]:
    """Drop headings, doctests and what is indented below a ``::`` or below a silent directive."""
    hidden_below: int | None = None
    for block in blocks:
        if hidden_below is not None and block.indent > hidden_below:
            continue
        hidden_below = None
        first, last = block.lines[0].strip(), block.lines[-1].strip()
        directive = _DIRECTIVE.match(first)
        if directive and directive[1] not in _SPOKEN_DIRECTIVES:
            hidden_below = block.indent
            continue
        if last.endswith("::"):
            hidden_below = _indent(block.lines[-1])
        if not block.is_heading and not first.startswith((">>>", "$ ", "|", "+-")):
            yield block


def _without_lead_ins(texts: Sequence[str]) -> list[str]:
    """Drop a last sentence ending in a colon whose code or table is gone."""
    kept: list[str] = []
    for text, following in zip(texts, [*texts, ""][1:], strict=True):
        if text.endswith(":") and not following.startswith("- "):
            text = " ".join(split_sentences(text)[:-1]) if not text.startswith("- ") else ""
        if text:
            kept.append(text)
    return kept


def _speaking_lines(lines: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for line in lines:
        directive = _DIRECTIVE.match(line) if ".." in line else None
        if line.lstrip().startswith((">>>", "+-", "|")):
            break
        if directive and directive[1] in _SPOKEN_DIRECTIVES:
            line = f"{directive[1].capitalize()}: {directive[2]}"
        elif directive:
            break
        kept.append(line)
    return kept


def _unwrap(lines: Sequence[str]) -> Iterator[str]:
    """Join wrapped lines; start anew at list items, fields and described names."""
    item: list[str] = []
    previous = ""
    for line in lines:
        opening = _opening(line, previous)
        if opening is not None and item:
            yield " ".join(" ".join(item).split())
            item = []
        item.append(opening if opening is not None else line.strip())
        previous = line
    if item:
        yield " ".join(" ".join(item).split())


def _opening(line: str, previous: str) -> str | None:
    """Return the line as the beginning of an item, or ``None`` if it continues the last one."""
    stripped = line.lstrip()
    if stripped[0] not in _LETTERS:
        if field := _FIELD.match(stripped):
            return f"- {field[1].split()[-1]}: {stripped[field.end() :]}"
        if outcome := _OUTCOME.match(stripped):
            return f"- {outcome[1]} {outcome[2]}: {stripped[outcome.end() :]}"
        if bullet := _BULLET.match(stripped):
            return f"- {stripped[bullet.end() :]}"
    if ":" not in stripped:
        return None
    starts = (
        not previous
        or previous.rstrip().endswith((".", ":", ";"))
        or (_indent(line) < _indent(previous))
    )
    if starts and (match := _TYPED.match(stripped)):
        return f"- {match[1]} ({match[2]}):"
    if starts and _NAMED.match(stripped):
        return stripped if stripped.endswith(":") else f"- {stripped}"
    return None
