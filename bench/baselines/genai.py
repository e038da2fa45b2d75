"""Drive openvino-genai's continuous batching in a process and an environment of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bench.baselines.peer_process import ENVIRONMENTS, PeerProcess, interpreter

ENVIRONMENT = interpreter("genai")
#: Where ``make peers`` puts SmolLM2 as optimum-intel exports it, in the checkpoint's bfloat16.
EXPORTED = ENVIRONMENTS / "genai" / "smollm2"
SCRIPT = Path(__file__).with_name("genai_load.py")
#: How OpenVINO calls torch's dtypes.
PRECISIONS = {"bfloat16": "bf16", "float32": "f32"}


@dataclass(frozen=True, slots=True)
class Answered:
    """The ids of each prompt's answer, and the seconds all of them took, by the process's clock."""

    answers: tuple[tuple[int, ...], ...]
    wall_s: float


class Genai:
    """Answers of openvino-genai, all prompts of a call at once.

    Args:
        dtype: ``bfloat16`` or ``float32``, of what is computed and of keys and values.
        threads: of its own.

    Raises:
        FileNotFoundError: the environment or the exported model was not made.
        EngineError: the process ended before it was ready.
    """

    def __init__(self, dtype: str, threads: int) -> None:
        if not EXPORTED.exists():
            raise FileNotFoundError(f"no model {EXPORTED}: make peers")
        self._process = PeerProcess(
            ENVIRONMENT, SCRIPT, str(EXPORTED), PRECISIONS[dtype], str(threads)
        )

    def __enter__(self) -> Genai:
        """Return it; the block's end ends the process."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self._process.close()

    def answer(self, prompts: Sequence[Sequence[int]], tokens: int, eos: int) -> Answered:
        """Return the most probable tokens, at most so many each, up to ``eos``.

        Raises:
            EngineError: the process ended instead.
        """
        asked = {"prompts": [list(ids) for ids in prompts], "tokens": tokens, "eos": eos}
        found = self._process.ask(asked)
        return Answered(tuple(map(tuple, found["answers"])), found["wall_s"])
