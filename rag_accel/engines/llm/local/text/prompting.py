"""Messages to token ids by the tokenizer's chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rag_accel.engine_api import ChunkSpan, Message
from rag_accel.engines.llm.local.text.tools import chat_turns
from rag_accel.errors import ConfigError, EngineError
from rag_accel.kv.dependency.lines import PathLines, find_path_lines, spans_around
from rag_accel.kv.dependency.prompt import DepPrompt
from rag_accel.kv.dependency.tokens import (
    prompt_of_lines,
    saves_tokens,
    tree_of_lines,
    tree_prompt,
)
from rag_accel.kv.dependency.tree import DependencyTree
from rag_accel.kv.segments import SegmentedPrompt, TextSpan, split_prompt

_WHERE = "local language model"

#: Functions that an answer may call, as JSON schemas.
Tools = Sequence[Mapping[str, Any]]

#: Characters no text has a use for; one that is in no message marks places in the prompt.
_PRIVATE = [chr(code) for code in range(0xE000, 0xF8FF)]


class Prompting:
    """Prompts of one tokenizer.

    Args:
        tokenizer: of transformers.
        template: a chat template (Jinja) in place of the tokenizer's own.
        split_special_tokens: whether the names of special tokens inside messages are read as text,
            so that no document can end its turn. Off, a prompt's ids are exactly those of
            ``apply_chat_template``; on, they are where no message holds such a name.

    Raises ConfigError where there is no chat template.
    """

    def __init__(
        self, tokenizer: Any, *, template: str | None = None, split_special_tokens: bool = False
    ) -> None:
        if template is None and not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "the tokenizer has no chat template",
                where=_WHERE,
                found=type(tokenizer).__name__,
                valid="a tokenizer of an instruct or chat model",
                hint="pass template=, a chat template in Jinja",
            )
        self._tokenizer = tokenizer
        self._template = template
        self._special = _special_names(tokenizer) if split_special_tokens else None

    def whole(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[int, ...]:
        """Return the ids of a whole prompt, up to where the answer begins.

        Raises EngineError where the template refuses the messages or the prompt is empty.
        """
        try:
            ids = self._ids(messages, tools, whole=True)
        except Exception as error:
            raise EngineError(
                "the chat template refuses the messages",
                where=_WHERE,
                found=f"{type(error).__name__}: {error}",
                valid="messages in the order of roles that the model was made for",
            ) from error
        if not ids:
            raise EngineError("an empty prompt", where=_WHERE, valid="at least one token")
        return ids

    def beginning(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return ids of a prompt's beginning, up to the end of the last message's content.

        They may differ from those of the whole prompt where the beginning ends. Empty where the
        template refuses a beginning, such as one without a user's turn: a whole prompt may pass.
        """
        try:
            return self._ids(messages, (), whole=False)
        except Exception:
            return ()

    def segmented(
        self,
        messages: Sequence[Message],
        chunk_spans: Sequence[ChunkSpan],
        least_tokens: int,
        tools: Tools = (),
    ) -> SegmentedPrompt | None:
        """Return a whole prompt by its segments; None where no passage can be told apart in it.

        The head is what stands before the first message that is not the system's, or that has a
        passage. Each segment has the tokens that it has alone. Passages that are all of the last
        message are left out: the question is among them.
        """
        inside = [span for span in chunk_spans if _is_inside(span, messages)]
        used = _without_question(messages, inside)
        found = self._rendered(messages, tools) if used else None
        if found is None:
            return None
        text, contents = found
        head_stop = _head_stop(messages, contents, {span.message for span in used})
        spans = [contents[span.message].span(span) for span in used]
        return split_prompt(text, head_stop, spans, self._encode, least_tokens)

    def head(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the ids of the head that a prompt with this beginning has; () if unknown yet."""
        found = self._rendered(messages)
        if found is None or all(message.role == "system" for message in messages):
            return ()
        text, contents = found
        return self._encode(text[: _head_stop(messages, contents, ())])

    def tree(
        self, messages: Sequence[Message], chunk_spans: Sequence[ChunkSpan], tools: Tools = ()
    ) -> SegmentedPrompt | None:
        """Return a whole prompt with the tree of its relation paths; None where it saves nothing.

        The head is all that stands before the first path. Paths are found by ``find_path_lines``;
        what labels them is left out. Each segment of a path has the tokens that it has alone.
        """
        found = self._with_paths(messages, chunk_spans, tools)
        if found is None:
            return None
        prompt = prompt_of_lines(found.text, found.lines, found.tree, self._encode)
        if prompt is None:
            return None
        return replace(prompt, documents=tuple(found.texts_but(())))

    def texts_and_paths(
        self,
        messages: Sequence[Message],
        chunk_spans: Sequence[ChunkSpan],
        least_tokens: int,
        tools: Tools = (),
    ) -> SegmentedPrompt | None:
        """Return a whole prompt by its segments, its texts and the tree of its paths among them.

        It is as of ``segmented`` where there is no tree, as of ``tree`` where there is no text;
        None where there is neither. The head is as of ``segmented``. Of a passage that holds the
        paths, what stands before and behind them are texts.
        """
        found = self._with_paths(messages, chunk_spans, tools)
        if found is None:
            return self.segmented(messages, chunk_spans, least_tokens, tools)
        text, paths = found.text, (found.lines.place(found.text), found.tree)
        used = _without_question(messages, found.passages)
        chunks = [_stripped(text, span) for span in found.around(used)]
        head_stop = _head_stop(messages, found.contents, {span.message for span in found.passages})
        prompt = split_prompt(text, head_stop, chunks, self._encode, least_tokens, paths)
        if prompt is None:
            return self.tree(messages, chunk_spans, tools)
        reused = {chunk.text for chunk in prompt.chunks}
        return replace(prompt, documents=tuple(found.texts_but(reused)))

    def _with_paths(
        self, messages: Sequence[Message], chunk_spans: Sequence[ChunkSpan], tools: Tools
    ) -> _TextWithPaths | None:
        """Return a whole prompt's text with its paths; None where a tree of them saves nothing."""
        inside = [span for span in chunk_spans if _is_inside(span, messages)]
        found = self._rendered(messages, tools) if inside else None
        if found is None:
            return None
        text, contents = found
        spans = [contents[span.message].span(span) for span in inside]
        lines = find_path_lines(text, spans)
        if lines is None:
            return None
        tree = tree_of_lines(lines, self._encode, self._encode_all)
        if not saves_tokens(text, lines, tree, self._encode):
            return None
        return _TextWithPaths(text, contents, inside, lines, tree)

    def of_nodes(self, prompt: DepPrompt) -> SegmentedPrompt:
        """Return a prompt of nodes as tokens, without a template.

        Raises:
            ConfigError: its nodes depend on each other as no engine computes them.
        """
        return tree_prompt(prompt, self._encode)

    def _rendered(
        self, messages: Sequence[Message], tools: Tools = ()
    ) -> tuple[str, list[_Content]] | None:
        """Return a whole prompt's text, and where the messages stand; None if that cannot be told.

        Messages with names of special tokens that are to be read as text are left out, too.
        """
        try:
            turns = chat_turns(messages)
            if self._marked(turns, _PRIVATE[0]) != turns:
                return None
            text = self._text(turns, tools)
        except Exception:  # the whole prompt is refused by its reason
            return None
        contents = _contents(text, messages)
        return None if contents is None else (text, contents)

    def alone(self, text: str) -> tuple[int, ...]:
        """Return the ids that a text has as a segment."""
        return self._encode(text)

    def _text(self, turns: list[dict[str, Any]], tools: Tools) -> str:
        return self._tokenizer.apply_chat_template(
            turns,
            tools=list(tools) or None,
            chat_template=self._template,
            add_generation_prompt=True,
            tokenize=False,
        )

    def _ids(self, messages: Sequence[Message], tools: Tools, *, whole: bool) -> tuple[int, ...]:
        turns = chat_turns(messages)
        mark = _unused([json.dumps([turns, *tools], ensure_ascii=False)])
        turns = self._marked(turns, mark)
        text = self._text(turns, tools)
        if not whole and turns:
            text = _up_to(text, turns[-1]["content"])
        if self._special is None or mark not in text:
            return self._encode(text)
        # Every second piece is the name of a special token that stood in a message.
        pieces = text.split(mark)
        ids = (self._encode(piece, at % 2 == 1) for at, piece in enumerate(pieces) if piece)
        return tuple(token for piece in ids for token in piece)

    def _marked(self, said: Any, mark: str) -> Any:
        """Put marks around the names of special tokens, if they are to be read as text."""
        if self._special is None:
            return said
        if isinstance(said, list):
            return [self._marked(part, mark) for part in said]
        if isinstance(said, dict):
            return {
                key: part if key == "role" else self._marked(part, mark)
                for key, part in said.items()
            }
        if not isinstance(said, str):
            return said
        return self._special.sub(lambda found: f"{mark}{found.group()}{mark}", said)

    def _encode(self, text: str, as_text: bool = False) -> tuple[int, ...]:
        options = {"split_special_tokens": True} if as_text else {}
        return tuple(self._tokenizer(text, add_special_tokens=False, **options)["input_ids"])

    def _encode_all(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """Return the ids that each text has alone, by one call for all of them."""
        found = self._tokenizer(
            list(texts), add_special_tokens=False, padding=False, return_attention_mask=True
        )
        if any(0 in mask for mask in found["attention_mask"]):
            # Another thread has set padding on the same tokenizer; a text alone is not padded.
            return [self._encode(text) for text in texts]
        return found["input_ids"]


@dataclass(frozen=True, slots=True)
class _Content:
    """The place of a message's content in a rendered prompt.

    Args:
        start: its first character there.
        stop: the place behind its last one.
        stripped: how many characters before ``start`` the template has left out.
    """

    start: int
    stop: int
    stripped: int

    def span(self, span: ChunkSpan) -> TextSpan:
        """Return the place of a passage, without what the template has left out."""
        first, last = (self.start - self.stripped + at for at in (span.start, span.stop))
        return TextSpan(max(first, self.start), min(last, self.stop), span.document)


@dataclass(frozen=True, slots=True)
class _TextWithPaths:
    """A rendered prompt with relation paths.

    Args:
        text: of the whole prompt.
        contents: where the messages stand in it.
        passages: all of them.
        lines: those that are paths.
        tree: of these.
    """

    text: str
    contents: Sequence[_Content]
    passages: Sequence[ChunkSpan]
    lines: PathLines
    tree: DependencyTree

    def around(self, passages: Iterable[ChunkSpan]) -> Iterator[TextSpan]:
        """Yield what passages hold before and behind the paths."""
        spans = (self.contents[passage.message].span(passage) for passage in passages)
        return spans_around(self.text, spans, self.lines)

    def texts_but(self, reused: Container[str]) -> Iterator[str]:
        """Yield the texts before and behind the paths, without these."""
        for span in self.around(self.passages):
            text = self.text[span.start : span.stop]
            if text.strip() not in reused:
                yield text


def _stripped(text: str, span: TextSpan) -> TextSpan:
    """Return a span without the white space at its ends."""
    inner = text[span.start : span.stop]
    start = span.start + len(inner) - len(inner.lstrip())
    return TextSpan(start, start + len(inner.strip()), span.document)


def _contents(text: str, messages: Sequence[Message]) -> list[_Content] | None:
    """Return the place of each message's content; None where a template has rewritten one."""
    found: list[_Content] = []
    at = 0
    for message in messages:
        content = message.content
        stripped = content.strip()
        start = text.find(stripped, at)
        if start < 0:
            return None
        before = content.find(stripped)
        at = start + len(stripped)
        if text.startswith(content, start - before) and start >= before:
            found.append(_Content(start - before, start - before + len(content), 0))
        else:
            found.append(_Content(start, at, before))
    return found


def _head_stop(
    messages: Sequence[Message], contents: Sequence[_Content], with_passage: Container[int]
) -> int:
    """Return the place of the first message that is not the system's, or that has a passage."""
    return min(
        (
            content.start
            for at, content in enumerate(contents)
            if messages[at].role != "system" or at in with_passage
        ),
        default=0,
    )


def _is_inside(span: ChunkSpan, messages: Sequence[Message]) -> bool:
    if not 0 <= span.message < len(messages):
        return False
    return 0 <= span.start < span.stop <= len(messages[span.message].content)


def _without_question(
    messages: Sequence[Message], chunk_spans: Sequence[ChunkSpan]
) -> Sequence[ChunkSpan]:
    """Return the passages without those of a last message that holds nothing else."""
    if not chunk_spans:
        return chunk_spans
    last = len(messages) - 1
    inside = sorted((span.start, span.stop) for span in chunk_spans if span.message == last)
    rest, at = "", 0
    for start, stop in inside:
        rest += messages[last].content[at : max(at, start)]
        at = max(at, stop)
    if (rest + messages[last].content[at:]).strip():
        return chunk_spans
    return [span for span in chunk_spans if span.message != last]


def check_room(prompt: int, max_tokens: int, context: int, where: str = _WHERE) -> int:
    """Return the number of tokens that may follow: ``max_tokens``, or the rest of the context.

    Raises EngineError where it leaves none.
    """
    if prompt >= context:
        raise EngineError(
            "the prompt is longer than the model's context",
            where=where,
            found=f"{prompt} tokens",
            valid=f"less than {context}",
            hint="retrieve fewer or shorter documents",
        )
    return min(max_tokens, context - prompt)


def _special_names(tokenizer: Any) -> re.Pattern[str] | None:
    added = tokenizer.added_tokens_decoder.values()
    names = {str(token) for token in added if token.special} | set(tokenizer.all_special_tokens)
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if names else None


def _unused(texts: Iterable[str]) -> str:
    used = set().union(*texts)
    return next(character for character in _PRIVATE if character not in used)


def _up_to(text: str, content: str) -> str:
    """Cut a rendered prompt after its last message's content, which templates may strip."""
    for form in (content, content.strip()):
        if form and (at := text.rfind(form)) >= 0:
            return text[: at + len(form)]
    return text
