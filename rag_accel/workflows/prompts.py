"""The default prompts. A workflow's arguments replace any of them.

A replacement may name the same values in braces; which these are stands beside each prompt.
"""

from __future__ import annotations

ANSWER = "Use these passages to answer the question.\n\n{docs}\n\nQuestion: {input}\nAnswer:"
"""Of ``docs`` and ``input``."""

CONVERSATION = "Conversation so far:\n\n{turns}\n\n"
"""Of ``turns``; before each prompt of a request that has any, where a workflow has a history."""

HYPOTHESIS = "Write a short passage that answers the question.\n\nQuestion: {input}\nPassage:"
"""Of ``input``."""

COMPRESS = (
    "Summarise what these passages say that helps to answer the question. If nothing in them "
    "helps, write nothing.\n\n{docs}\n\nQuestion: {input}\nSummary:"
)
"""Of ``docs`` and ``input``."""

ANSWER_FROM_SUMMARY = (
    "Use this summary to answer the question.\n\n{summary}\n\nQuestion: {input}\nAnswer:"
)
"""Of ``summary`` and ``input``."""

PROXY = "Answer the question from what you know.\n\nQuestion: {input}\nAnswer:"
"""Of ``input``."""

JUDGE = (
    "Is this answer surely correct, or does the question have to be looked up? Reply with the "
    "one word ANSWER or SEARCH.\n\nQuestion: {input}\nAnswer: {draft}\nReply:"
)
"""Of ``input`` and ``draft``."""

DECOMPOSE = (
    "Which simpler questions have to be answered first, to answer this one? Write one a line, at "
    "most {count}.\n\nQuestion: {input}\nSimpler questions:"
)
"""Of ``input``; ``{count}`` is replaced by the bound."""

ANSWER_STEP = (
    "Use these passages to answer the question.\n\n{docs}\n\nQuestion: {question}\nAnswer:"
)
"""Of ``docs``, ``question``, ``notes`` (what was answered before) and ``input``."""

ANSWER_FROM_NOTES = (
    "Use these answers to simpler questions to answer the last one.\n\n{notes}\n\n"
    "Question: {input}\nAnswer:"
)
"""Of ``notes`` and ``input``."""

EXPAND = (
    "Write {count} search queries, one a line, that together find what is needed to answer the "
    "question.\n\nQuestion: {input}\nQueries:"
)
"""Of ``input``; ``{count}`` is replaced by the number of queries."""

ANSWER_PASSAGE = (
    "Use this passage to answer the question.\n\n{passage}\n\nQuestion: {input}\nAnswer:"
)
"""Of ``passage`` and ``input``; begins a refinement, and is each leaf of a tree."""

COMBINE = (
    "Combine these answers to the question, each from another passage, into one.\n\n{partials}\n\n"
    "Question: {input}\nAnswer:"
)
"""Of ``partials`` and ``input``."""

REFINE = (
    "Improve the answer with what the passage says; repeat the answer if it says nothing new.\n\n"
    "Passage: {passage}\n\nQuestion: {input}\nAnswer so far: {answer}\nBetter answer:"
)
"""Of ``passage``, ``input`` and ``answer`` (the answer so far)."""
