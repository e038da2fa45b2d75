"""The seams of language models that users name: their bounds, and their engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from rag_accel.config import Options
from rag_accel.engine_api import Engine, GenerationOutput
from rag_accel.errors import ConfigError


class LLMBounds(Protocol):
    """The bounds of a language model."""

    @property
    def kv_reuse(self) -> str:
        """Return the way in which texts of prompts are reused."""
        ...

    def notes(self, output: GenerationOutput) -> dict[str, Any]:
        """Return what an answer says of its own making, by name; {} for one that is exact."""
        ...


class RunnableLLM(Protocol):
    """A language model with all bounds, and what makes an engine of it."""

    @property
    def name(self) -> str:
        """Return the model's name."""
        ...

    @property
    def bounds(self) -> LLMBounds:
        """Return its bounds."""
        ...

    @property
    def reuses_texts(self) -> bool:
        """Tell whether it reuses the retrieved texts of prompts."""
        ...

    @property
    def reuses_paths(self) -> bool:
        """Tell whether it computes the relation paths of prompts as trees."""
        ...

    def describe_parts(self) -> Sequence[str]:
        """Return what runs it; from any thread."""
        ...

    def make(self, options: Options) -> Engine:
        """Return an engine. Takes long."""
        ...


class NamedLLM(Protocol):
    """A language model as users name it, with the bounds that they name."""

    named: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return the model's name."""
        ...

    @cached_property
    def context(self) -> int:
        """Return the most tokens of a prompt and its completion."""
        ...

    def is_same_model(self, other: Any) -> bool:
        """Tell whether another one is the same model, whatever its bounds."""
        ...

    def resolved(self, defaults: Mapping[str, Any]) -> RunnableLLM:
        """Return the model that is run, with defaults where no bound is named."""
        ...


def refuse_in_process(given: Any, where: str) -> None:
    """Refuse an engine of vLLM's that runs in this process: vLLM is reached through its server.

    Raises:
        ConfigError: it is one; names the command of the server.
    """
    if type(given).__module__.partition(".")[0] == "vllm":
        raise ConfigError(
            "an engine of vLLM's in this process cannot be shared",
            where=where,
            found=f"{type(given).__module__}.{type(given).__name__}",
            valid="VllmLLM(model), which starts a server, or RemoteLLM(base_url, model)",
            hint="start one: python -m vllm_rag_accel.serve MODEL --kv-folder DIR",
        )
