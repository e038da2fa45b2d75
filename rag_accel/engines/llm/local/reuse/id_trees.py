"""Relation paths found in prompts of token ids that a program has made itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rag_accel.engines.llm.local.reuse.id_segments import head_of, read_ids, without_question
from rag_accel.kv.dependency.lines import find_path_lines, locate_other_lines, locate_paths
from rag_accel.kv.dependency.tokens import prompt_of_lines, tree_of_lines
from rag_accel.kv.segments import SegmentedPrompt, split_prompt


class _OtherTokens(Exception):
    """The tokenizer would not make these ids of their text."""


def tree_of_ids(
    ids: Sequence[int],
    tokenizer: Any,
    documents: Collection[tuple[str, str]],
    asked: Collection[str],
    *,
    least_tokens: int | None = None,
    least_characters: int = 1,
) -> SegmentedPrompt | None:
    """Return a prompt of ids with the tree of its relation paths, and with its texts.

    Its text is that of the ids, but for what labels the paths. None where nothing would be shared,
    or where the tokenizer, asked again, does not make the same ids of the same text.

    Args:
        ids: the whole prompt.
        tokenizer: made them; another than a fast one of transformers finds nothing.
        documents: the id and the text of each retrieved text.
        asked: the queries of the documents' search, without white space around them.
        least_tokens: shorter texts are computed; None for all texts.
        least_characters: shorter texts are not looked for.
    """
    read = read_ids(ids, tokenizer)
    if read is None:
        return None
    text = read.text
    lines = find_path_lines(text, locate_paths(text, documents, asked))
    if lines is None:
        return None

    def encode(piece: str) -> tuple[int, ...]:
        encoding = tokenizer.backend_tokenizer.encode(piece, add_special_tokens=False)
        # Other threads set these on the tokenizer, for calls of their own.
        is_padded, is_cut = 0 in encoding.attention_mask, bool(encoding.overflowing)
        if is_padded or is_cut:
            raise _OtherTokens
        return tuple(encoding.ids)

    try:
        if encode(text) != tuple(ids):
            return None
        tree, prompt = tree_of_lines(lines, encode), None
        if least_tokens is not None:
            spans = locate_other_lines(text, documents, least_characters, asked)
            chunks = [(tokens, span) for span in spans if (tokens := read.inside(span))]
            texts = [span for _, span in without_question(read, chunks)]
            head = head_of(read, min([lines.start, *(span.start for span in texts)]), asked)
            head_stop = read.ends[head - 1] if head else 0
            paths = lines.place(text), tree
            prompt = split_prompt(text, head_stop, texts, encode, least_tokens, paths)
        prompt = prompt or prompt_of_lines(text, lines, tree, encode)
    except _OtherTokens:
        return None
    # Short names have more tokens alone: then a tree saves nothing, and may have no room.
    return prompt if prompt is not None and len(prompt.ids) <= len(ids) else None
