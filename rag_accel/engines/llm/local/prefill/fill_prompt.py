"""The prompt that texts are encoded for ahead of any question.

Its head ends before the first message that is not the system's, or that holds a text; the rest of
the prompt does not affect the stored states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rag_accel.engine_api import ChunkSpan, Message
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.kv.prompt_chunks import PLACE, message_with_place
from rag_accel.kv.segments import SegmentedPrompt

#: Stands for the question, which a prompt of texts alone lacks.
_QUESTION = "\n\n?"


def prompt_of(system: str | None = None, before: str = "") -> tuple[Message, ...]:
    """Return the messages of a prompt whose texts stand in the user's message.

    Args:
        system: the text of the system's message; None for no such message.
        before: what stands before the first text in the user's.
    """
    user = Message("user", f"{before}{PLACE}{_QUESTION}")
    return (user,) if system is None else (Message("system", system), user)


class FillPrompt:
    """A prompt with a place for texts.

    Args:
        prompting: of the model's tokenizer and template.
        messages: as a program sends them, one with ``{context}`` where the texts stand.
        least_tokens: shorter texts are never reused.

    Raises:
        ConfigError: there is no such place, or more than one.
    """

    def __init__(
        self, prompting: Prompting, messages: Sequence[Message], least_tokens: int
    ) -> None:
        self._prompting = prompting
        self._least = least_tokens
        self._messages = tuple(messages)
        at = message_with_place(messages)
        self._at, self._holder = at, self._messages[at]
        self._before, _, self._after = self._holder.content.partition(PLACE)
        if self._holder.role == "user" and not (self._before + self._after).strip():
            self._after += _QUESTION  # a message of texts alone is the question

    def around(self, text: str) -> SegmentedPrompt | None:
        """Return the prompt with a text; None where no program would reuse the text in it.

        That is so of texts that are too short, and where the template rewrites them.
        """
        start = len(self._before)
        filled = replace(self._holder, content=f"{self._before}{text}{self._after}")
        messages = [*self._messages[: self._at], filled, *self._messages[self._at + 1 :]]
        if messages[-1].role != "user":
            messages.append(Message("user", _QUESTION.strip()))
        chunk_spans = [ChunkSpan(self._at, start, start + len(text))]
        found = self._prompting.segmented(messages, chunk_spans, self._least)
        return found if found is not None and len(found.chunks) == 1 else None
