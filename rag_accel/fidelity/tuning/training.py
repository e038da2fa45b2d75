"""Training steps of a causal model on packed prompts, and the exact match of its answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn import functional

from rag_accel.errors import ConfigError
from rag_accel.fidelity.tuning.options import Precision
from rag_accel.fidelity.tuning.packing import IGNORED, PackedBatch, PackedPrompt, batch_of

_LEAST_RATE = 0.05
_MOST_NORM = 1.0


class Trainer:
    """A model of transformers that is trained, with AdamW.

    Args:
        model: a causal language model in float32.
        rate: the learning rate of the first step.
        steps: in which it falls.
        precision: of matrix products, ``float32`` or ``bfloat16``.
    """

    def __init__(
        self, model: Any, rate: float, steps: int, precision: Precision = "float32"
    ) -> None:
        self.model = model
        self._rate, self._steps = rate, steps
        self._precision: Precision = precision
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    def train(self, prompts: Sequence[PackedPrompt], step: int) -> float:
        """Train one step, and return the loss before it: nats a token of the answers.

        Args:
            prompts: of the step.
            step: its number, from 0.

        Raises:
            ConfigError: the loss is not a finite number.
        """
        batch = batch_of(prompts)
        with autocast(self._precision):
            logits = answer_logits(self.model, batch)
        loss = functional.cross_entropy(logits, batch.labels[batch.labels != IGNORED])
        if not torch.isfinite(loss):
            raise ConfigError(
                "the loss is not a finite number",
                where=f"step {step + 1}",
                found=float(loss.detach()),
                hint="take a smaller rate, and a new folder",
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), _MOST_NORM)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate * max(_LEAST_RATE, 1 - step / self._steps)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())


def autocast(precision: Precision) -> Any:
    """Return a context in which matrix products have this precision."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16")


def answer_logits(model: Any, batch: PackedBatch) -> torch.Tensor:
    """Return the logits where an answer's token is to be predicted: ``[labels, vocabulary]``."""
    found = model.model(
        batch.ids,
        position_ids=batch.positions,
        attention_mask=batch.mask.to(model.dtype),
        use_cache=False,
    )
    return model.lm_head(found.last_hidden_state[batch.labels != IGNORED]).float()


@torch.no_grad()
def exact_match(
    model: Any, prompts: Iterable[PackedPrompt], precision: Precision = "float32"
) -> tuple[int, int]:
    """Return how many answers were the most probable ones in each token, and of how many."""
    right = total = 0
    for prompt in prompts:
        batch = batch_of([prompt])
        with autocast(precision):
            found = answer_logits(model, batch).argmax(-1)
        labels = batch.labels[0]
        asked = labels != IGNORED
        # Answers are runs of labels: a question of its own stands before each.
        is_first = asked & ~torch.cat([asked.new_zeros(1), asked[:-1]])
        answer = (is_first.cumsum(0) - 1)[asked]
        wrong = torch.zeros(int(is_first.sum()), dtype=torch.int64)
        wrong.index_add_(0, answer, (found != labels[asked]).long())
        right, total = right + int((wrong == 0).sum()), total + len(wrong)
    return right, total
