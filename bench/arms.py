"""Set up both arms fairly: the plain one at its best, the accelerated one without sharing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.config import Options, is_enabled
from rag_accel.errors import ConfigError, EngineError
from rag_accel.system.processor import usable_cores
from rag_accel_demo.load import torch_threads

TUNING_ROUNDS = 2


@contextmanager
def bench_accelerator(**options: Any) -> Iterator[Accelerator]:
    """Give an accelerator that computes every result, and check that it was really used.

    Args:
        options: of the accelerator, besides; ``single_flight=True`` shares results after all.

    Raises:
        ConfigError: if ``RAG_ACCEL=0`` would make the accelerated arm a second plain one.
        EngineError: if a leaf ran plainly: the figures would not be ours.
    """
    if not is_enabled():
        raise ConfigError(
            "the accelerated arm is switched off", where="RAG_ACCEL", hint="unset RAG_ACCEL"
        )
    computing = {"single_flight": False, "hosted_cache_mb": 0, **options}
    with Accelerator(options=Options.load(**computing)) as accelerator:
        yield accelerator
        if accelerator.bypassed:
            raise EngineError(
                "leaves of the accelerated arm ran plainly",
                found=accelerator.bypassed,
                hint="see the log under rag_accel",
            )


def best_torch_threads(rate: Callable[[], float]) -> int:
    """Return the number of torch threads at which ``rate`` (work per second) is highest.

    Tries powers of two up to the cores that may be used; the better of two rounds counts.
    """
    candidates = thread_candidates(usable_cores())
    if len(candidates) == 1:
        return candidates[0]
    best: dict[int, float] = {}
    for _ in range(TUNING_ROUNDS):
        for count in candidates:
            with torch_threads(count):
                best[count] = max(best.get(count, 0.0), rate())
    return max(candidates, key=lambda count: best[count])


def thread_candidates(cores: int) -> list[int]:
    """Return 1, 2, 4, ... below ``cores``, and ``cores``."""
    powers = [1 << exponent for exponent in range(cores.bit_length())]
    return sorted({*(power for power in powers if power < cores), cores})
