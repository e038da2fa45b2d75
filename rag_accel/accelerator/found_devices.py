"""The devices of this machine that compute embeddings when none are listed (WindVE 4.3, Alg. 2).

Differs: as printed, the algorithm falls to the processor where both kinds are there and only one
is to be used, and never says that both are; the paper's text, which is followed here, says the
opposite of both.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rag_accel.errors import ConfigError

AUTO = "auto"
"""What stands for the devices that are found here, instead of a list."""


def is_auto(given: object) -> bool:
    """Tell whether the devices that are found here were asked for."""
    return isinstance(given, str) and given == AUTO


@dataclass(frozen=True, slots=True)
class FoundDevices:
    """The devices that compute, in order of preference.

    Args:
        main: a queue each; they are given texts first.
        auxiliary: given what the main ones cannot end in time.
    """

    main: tuple[str, ...]
    auxiliary: tuple[str, ...] = ()

    @property
    def listed(self) -> tuple[str, ...]:
        """Return all of them, the most preferred first."""
        return self.main + self.auxiliary


def choose_devices(
    accelerators: Sequence[str], processors: Sequence[str], uses_both: bool = True
) -> FoundDevices:
    """Return which of the devices that were found compute.

    ``(cuda:0, cuda:1), (cpu)`` -> main ``cuda:0, cuda:1``, auxiliary ``cpu``

    Args:
        accelerators: in order of preference.
        processors: of them one computes, with all its cores: a machine has one instance there.
        uses_both: whether the processor computes as well as accelerators; it always does alone.

    Raises:
        ConfigError: nothing was found.
    """
    processors = processors[:1]
    if accelerators:
        return FoundDevices(tuple(accelerators), tuple(processors) if uses_both else ())
    if processors:
        return FoundDevices(tuple(processors))
    raise ConfigError(
        "no device that computes embeddings was found",
        where='embedder="auto"',
        valid="a processor, or an accelerator that torch knows",
    )


def find_devices() -> FoundDevices:
    """Return the devices that torch finds here, accelerators first; the processor is always one."""
    return choose_devices(_accelerators(), ("cpu",))


def _accelerators() -> list[str]:
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:  # what loads the model names the extra
        return []
    if torch.cuda.is_available():
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        return ["mps:0"]
    return []
