"""Teacher forcing: an engine's logits for tokens that another run has chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    GenerationInput,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.llm.local.batching.rows import SequenceRows
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.errors import EngineError


class ForcedRunner:
    """A runner whose logits force given tokens; the logits of the model are kept.

    Otherwise it is the runner it wraps. One sequence is decoded at a time.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._size = 0
        self._tokens: Sequence[int] | None = None
        self._kept: dict[int, torch.Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def begin(self, size: int, tokens: Sequence[int] | None) -> None:
        """Begin a prompt of so many tokens; None leaves the choice to the model."""
        self._size, self._tokens, self._kept = size, tokens, {}

    @property
    def logits(self) -> torch.Tensor:
        """Return the model's logits for each token behind the prompt: ``[token, vocabulary]``."""
        return torch.stack([self._kept[at] for at in sorted(self._kept)])

    def run(self, rows: Sequence[SequenceRows]) -> torch.Tensor:
        """Compute the rows; the logits returned are those of the forced tokens."""
        logits = self._runner.run(rows)
        places = [part.slots[row] + 1 - self._size for part in rows for row in part.asked]
        self._kept.update(zip(places, logits, strict=True))
        if self._tokens is None:
            return logits
        said = torch.zeros(logits.shape)
        for row, at in enumerate(places):
            # A prompt of another size than announced is refused at its end.
            said[row, self._tokens[at] if 0 <= at < len(self._tokens) else 0] = 1
        return said


class ForcedEngine:
    """An engine of its own, asked for one answer at a time.

    Args:
        loaded: a model as the engine's loader gives it; while this engine works, it has the pool.
        options: of the engine.
        threads: of each step.
        template: a chat template in place of the tokenizer's.
    """

    def __init__(
        self, loaded: Any, options: Any, threads: int, template: str | None = None
    ) -> None:
        self._runner = ForcedRunner(loaded.runner)
        self._threads = threads
        self._number = 0
        runner: Any = self._runner
        self.engine = LocalLLMEngine(
            runner, loaded.tokenizer, eos=loaded.ends, template=template, options=options
        )

    def answer(
        self, prompt: GenerationInput, size: int, tokens: Sequence[int] | None = None
    ) -> tuple[Any, torch.Tensor]:
        """Return the completion of a prompt and the model's logits for each of its tokens.

        Args:
            prompt: as the engine is given it.
            size: its tokens.
            tokens: forced, whatever the logits; None leaves the choice to them.

        Raises EngineError where the engine had the prompt as another number of tokens.
        """
        self._number += 1
        id = WorkId(str(self._number))
        self._runner.begin(size, tokens)
        self.engine.submit([EngineRequest(id, str(id), PrimitiveKind.DECODING, prompt)])
        output = self._finished().value
        found: Any = output
        if found.prompt_tokens != size:
            raise EngineError("another prompt", found=found.prompt_tokens, valid=f"{size} tokens")
        return found, self._runner.logits

    def close(self) -> None:
        self.engine.close()

    def _finished(self) -> EngineOutput:
        while True:
            for output in self.engine.step(StepBudget(threads=self._threads)):
                if output.error is not None:
                    raise output.error
                if output.kind == "final":
                    return output
