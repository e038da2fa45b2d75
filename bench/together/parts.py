"""Ordinary programs, each arm's with its mechanisms, by the public options of its accelerator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from bench.arms import bench_accelerator
from bench.local_llm.answers import Setting
from bench.together.arms import NONE, Arm, Mechanism, embedders, options
from bench.together.material import Asked
from bench.together.programs import Ask, Written
from rag_accel.accelerator import Accelerator
from rag_accel.system.processor import usable_cores
from rag_accel_demo.load import torch_threads

#: The name of a program, and what it is asked.
Question = tuple[str, Asked]


class ArmPrograms:
    """The programs as they are, or accelerated by one accelerator with the mechanisms of an arm.

    Args:
        has: its mechanisms.
        written: the programs.
        setting: the callers and torch threads at which plain models answer soonest.
        stack: closes its accelerator.
    """

    def __init__(
        self, has: Arm, written: Mapping[str, Written], setting: Setting, stack: ExitStack
    ) -> None:
        self._has, self._setting = has, setting
        self._accelerator: Accelerator | None = None
        self._asks: dict[str, Ask] = {name: one.plain for name, one in written.items()}
        if has != NONE:
            accelerator = stack.enter_context(bench_accelerator(**options(has)))
            self._accelerator = accelerator
            if members := embedders(has):
                accelerator.add_engine("embedder", members)
            self._asks = {
                name: one.accelerated(accelerator, is_prepared=bool(members))
                for name, one in written.items()
            }

    def ask(self, question: Question) -> str:
        """Return the answer of one of the programs."""
        name, asked = question
        return self._asks[name](asked)

    @property
    def num_on_devices(self) -> int:
        """Return how many of the programs' models the members of a list really compute."""
        placings: Any = self._accelerator.embedders._placings if self._accelerator else {}
        return sum(one.state == "placed" for one in placings.values())

    def callers(self, users: int) -> int:
        """Return how many ask at once: a plain model answers fewer sooner."""
        plain = Mechanism.LOCAL_ENGINE not in self._has
        return min(self._setting.callers, users) if plain else users

    @contextmanager
    def threads(self, users: int) -> Iterator[None]:
        """Set torch's threads where a plain model answers; our engines set their own.

        Callers share the cores as is fastest for many; one user has them all.
        """
        plain = Mechanism.LOCAL_ENGINE not in self._has
        threads = self._setting.threads if users > 1 else usable_cores()
        with torch_threads(threads) if plain else nullcontext():
            yield


@contextmanager
def opened(
    wanted: Mapping[str, Arm], write: Callable[[], Mapping[str, Written]], setting: Setting
) -> Iterator[Mapping[str, ArmPrograms]]:
    """Give the programs of each arm; their accelerators are closed behind the block.

    All arms share the programs' objects, but for a device group: a model that another arm touches
    would leave its devices.
    """
    written = write()
    with ExitStack() as stack:
        yield {
            name: ArmPrograms(has, write() if embedders(has) else written, setting, stack)
            for name, has in wanted.items()
        }
