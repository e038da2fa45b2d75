"""Prompts with relation paths as tensors: tokens, positions, masks and the tokens to predict.

    head  tree of paths  question 1, answer 1  question 2, answer 2

Questions of one prompt are packed behind one tree, all at the same positions. Each sees the head,
the whole tree and itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rag_accel.errors import ConfigError
from rag_accel.fidelity.tuning.questions import GraphQuestions
from rag_accel.kv.dependency.encoded import encode_prompt
from rag_accel.kv.dependency.layouts import Layout
from rag_accel.kv.dependency.positions import PositionScheme
from rag_accel.kv.dependency.prompt import DepPrompt

#: A token that no loss is taken of, as transformers has it.
IGNORED = -100
_PATHS, _QUESTION = "\ue000", "\ue001"
_CONTENT = f"Facts:\n{_PATHS}Question: {_QUESTION}"


@dataclass(frozen=True, slots=True, eq=False)
class PackedPrompt:
    """A prompt with all of its questions and answers.

    Args:
        ids: ``[tokens], int64``.
        positions: ``[tokens], int64``.
        mask: ``[tokens, tokens], bool``: whether a row sees a slot.
        labels: ``[tokens], int64``: the token to predict behind each, or ``IGNORED``.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """Prompts padded to one length; padding sees itself alone and nothing sees it.

    Args:
        ids: ``[prompts, tokens], int64``.
        positions: ``[prompts, tokens], int64``.
        mask: ``[prompts, 1, tokens, tokens], float32``: 0, or the least number where unseen.
        labels: ``[prompts, tokens], int64``.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    labels: torch.Tensor


class PromptPacker:
    """Packs the prompts of one tokenizer, in its chat template if it has one.

    Args:
        tokenizer: of transformers.
        layout: of the paths; ``flat`` is ordinary causal text.
        scheme: the positions of a tree.

    Raises:
        ConfigError: the chat template rewrites the user's message.
    """

    def __init__(
        self, tokenizer: Any, *, layout: Layout = "tree", scheme: PositionScheme = "shared"
    ) -> None:
        self._tokenizer = tokenizer
        self._layout: Layout = layout
        self._scheme: PositionScheme = scheme
        rendered = _rendered(tokenizer)
        head, found, behind = rendered.partition(_PATHS)
        self._before, asked, self._after = behind.partition(_QUESTION)
        self._head = head
        if not found or not asked:
            raise ConfigError(
                "the chat template rewrites the user's message",
                where="fine-tuning",
                found=repr(rendered[:80]),
                valid="a template that lets it stand as it is",
            )
        end = tokenizer.eos_token_id
        self._end: tuple[int, ...] = () if end is None else (int(end),)

    def pack(self, prompt: GraphQuestions) -> PackedPrompt:
        """Return a prompt as tensors.

        Raises:
            ConfigError: it has no question, or a path or a text is empty.
        """
        if not prompt.questions:
            raise ConfigError("a prompt has no question", valid="at least one, with its answer")
        tasks = [self._task(*asked) for asked in prompt.questions]
        first = f"{self._before}{prompt.questions[0][0]}{self._after}"
        whole = DepPrompt.chain(self._head, prompt.paths, first, layout=self._layout)
        encoded = encode_prompt(whole, self._encode, self._scheme)
        start = encoded.nodes[-1].slots.start
        size = start + sum(len(ids) for ids, _ in tasks)
        mask = np.zeros((size, size), np.bool_)
        mask[:start, :start] = encoded.mask()[:start, :start]
        ids, labels = [encoded.ids[:start]], [np.full(start, IGNORED, np.int64)]
        positions = [encoded.positions[:start]]
        behind = int(encoded.nodes[-1].positions[0])
        for task, wanted in tasks:
            rows = slice(start, start + len(task))
            mask[rows, : len(ids[0])] = True
            mask[rows, rows] = np.tril(np.ones((len(task), len(task)), np.bool_))
            positions.append(np.arange(behind, behind + len(task), dtype=np.int32))
            ids.append(np.asarray(task, np.int32))
            labels.append(np.asarray(wanted, np.int64))
            start = rows.stop
        return PackedPrompt(
            torch.from_numpy(np.concatenate(ids).astype(np.int64)),
            torch.from_numpy(np.concatenate(positions).astype(np.int64)),
            torch.from_numpy(mask),
            torch.from_numpy(np.concatenate(labels)),
        )

    def _task(self, question: str, answer: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a question and its answer but the last, and those to predict."""
        asked = self._encode(f"{self._before}{question}{self._after}")
        said = [*self._encode(answer), *self._end]
        if not said:
            raise ConfigError("an answer has no tokens", found=repr(answer))
        return [*asked, *said[:-1]], [*[IGNORED] * (len(asked) - 1), *said]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]


def batch_of(prompts: Sequence[PackedPrompt]) -> PackedBatch:
    """Return prompts as one batch, padded at their ends."""
    longest = max(len(prompt.ids) for prompt in prompts)
    shape = (len(prompts), longest)
    ids, positions = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    labels = torch.full(shape, IGNORED, dtype=torch.int64)
    seen = torch.eye(longest, dtype=torch.bool).repeat(len(prompts), 1, 1)
    for row, prompt in enumerate(prompts):
        size = len(prompt.ids)
        ids[row, :size], positions[row, :size] = prompt.ids, prompt.positions
        labels[row, :size], seen[row, :size, :size] = prompt.labels, prompt.mask
    least = torch.finfo(torch.float32).min
    mask = torch.zeros(seen.shape).masked_fill_(~seen, least)[:, None]
    return PackedBatch(ids, positions, mask, labels)


def _rendered(tokenizer: Any) -> str:
    if not getattr(tokenizer, "chat_template", None):
        return f"{tokenizer.bos_token or ''}{_CONTENT}\nAnswer:"
    turns = [{"role": "user", "content": _CONTENT}]
    return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
