"""A flat prompt convention for question answering over passages: its writer and its parser.

    Context:
    [1] title of the first passage
    its text

    [2] title of the second passage
    its text

    Question: the question

The parser is tolerant: the two parts may come in either order, an ``Answer:`` cue may follow, the
passages may lack numbers, and a text of another shape is question and context at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rag_accel.engine_api import Document, Message

_LABEL = (
    r"(?:#+[ ])?(?:(?P<context>(?:retrieved[ ]|relevant[ ])?(?:context|documents|passages|sources))"
    r"|(?P<question>(?:user[ ])?question|query)|(?:helpful[ ])?answer):"
)
_SECTION = re.compile(rf"^{_LABEL}[ \t]*", re.IGNORECASE | re.MULTILINE)
_NUMBERED = re.compile(r"^\[(\d{1,4})\][ \t]*(.*)$", re.MULTILINE)
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
_ASKING_LINE = re.compile(r"^.*\?[ \t]*$", re.MULTILINE)
_LOOKS_LIKE_PROMPT = re.compile(rf"^(?=\[\d{{1,4}}\]|{_LABEL})", re.IGNORECASE | re.MULTILINE)


def format_passages(documents: Sequence[Document]) -> str:
    """Write documents as numbered passages, each under its title.

    A line of a document that would read as part of the convention is indented by one space, so
    that ``parse_prompt`` finds exactly ``len(documents)`` passages again.
    """
    return "\n\n".join(
        f"[{number}] {_title(document)}\n{_guarded(document.text)}"
        for number, document in enumerate(documents, start=1)
    )


def parse_prompt(text: str) -> tuple[str, tuple[Document, ...]]:
    """Find the question and the passages of a flat prompt; never raises.

    Passages get their number as ``id`` and their title as ``metadata["title"]``. Unnumbered
    context is cut at blank lines. Text of an unknown shape is both the question and the context.
    """
    sections = list(_SECTION.finditer(text))
    asked = [match for match in sections if match["question"]]
    context_start = next((match for match in sections if match["context"]), None)
    if not asked:
        return _parse_unlabelled(text, context_start)
    if context_start is not None and asked[0].start() < context_start.start():
        question = _body(text, asked[0], sections)
        context = text[context_start.end() : _end_of_context(text, sections)]
    else:
        question = _body(text, asked[-1], sections)
        start = 0 if context_start is None else context_start.end()
        context = text[start : asked[-1].start()]
    return question, _passages(context)


def parse_messages(messages: Sequence[Message]) -> tuple[str, tuple[Document, ...]]:
    """Find the question and the passages of a chat, wherever its passages stand.

    The last user turn is parsed as a flat prompt. If it holds a question only, the passages are
    taken from the system turns and earlier user turns.
    """
    turns = [message for message in messages if message.role != "assistant" and message.content]
    if not turns:
        return "", ()
    last = next((turn for turn in reversed(turns) if turn.role == "user"), turns[-1])
    others = "\n\n".join(turn.content for turn in turns if turn is not last)
    question, passages = parse_prompt(last.content)
    is_bare = _SECTION.search(last.content) is None and _NUMBERED.search(last.content) is None
    if others and (is_bare or not passages):
        bare_question = last.content.strip() if is_bare else question
        return bare_question, parse_prompt(f"{others}\n\nQuestion: {_guarded(bare_question)}")[1]
    return question, passages


def _title(document: Document) -> str:
    return " ".join(str(document.metadata.get("title") or document.id).split())


def _guarded(text: str) -> str:
    return _LOOKS_LIKE_PROMPT.sub(" ", text.strip())


def _body(text: str, section: re.Match[str], sections: Sequence[re.Match[str]]) -> str:
    later = (match.start() for match in sections if match.start() > section.start())
    return text[section.end() : next(later, len(text))].strip()


def _end_of_context(text: str, sections: Sequence[re.Match[str]]) -> int:
    last = sections[-1]
    is_cue = not last["context"] and not last["question"] and not text[last.end() :].strip()
    return last.start() if is_cue else len(text)


def _parse_unlabelled(text: str, context: re.Match[str] | None) -> tuple[str, tuple[Document, ...]]:
    lines = list(_ASKING_LINE.finditer(text))
    if not lines:
        return text.strip(), _passages(text[context.end() :] if context else text)
    asked = lines[-1]
    rest = f"{text[: asked.start()]}\n\n{text[asked.end() :]}"
    body = rest[context.end() :] if context and context.end() <= asked.start() else rest
    return asked.group().strip(), _passages(body) or _passages(text)


def _passages(context: str) -> tuple[Document, ...]:
    headers: list[re.Match[str]] = []
    for match in _NUMBERED.finditer(context):
        if int(match[1]) == len(headers) + 1:
            headers.append(match)
    if not headers:
        blocks = (block.strip() for block in _PARAGRAPH.split(context))
        return tuple(
            Document(id=str(number), text=block)
            for number, block in enumerate((block for block in blocks if block), start=1)
        )
    ends = [match.start() for match in headers[1:]] + [len(context)]
    return tuple(
        _numbered(match, context[match.end() : end].strip())
        for match, end in zip(headers, ends, strict=True)
    )


def _numbered(header: re.Match[str], body: str) -> Document:
    title = header[2].strip()
    if not body:
        return Document(id=header[1], text=title)
    return Document(id=header[1], text=body, metadata={"title": title} if title else {})
