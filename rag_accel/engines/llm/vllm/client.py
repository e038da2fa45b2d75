"""vLLM's asynchronous engine as one event loop uses it; its errors and outputs in our terms."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rag_accel.engines.llm.vllm.calls import VllmCall
from rag_accel.engines.llm.vllm.library import (
    WHERE,
    VllmLibrary,
    check_model,
    engine_arguments,
    environment,
    moved,
)
from rag_accel.engines.llm.vllm.options import VllmOptions
from rag_accel.errors import ConfigError, EngineError, EngineLostError, RagAccelError
from rag_accel.system.locks import RenewedLock

#: Seconds that vLLM's processes are given to end by themselves.
SHUTDOWN_S = 20.0


@dataclass(frozen=True, slots=True)
class VllmResult:
    """The end of a call.

    Args:
        text: the completion; "" where tokens are wanted.
        tokens: those generated, with the one that ended it.
        finish_reason: ``stop`` or ``length``.
        logprobs: of the tokens, where asked for.
        cached: tokens of the prompt that were not computed as a part of it.
        params: what the connector says.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[float, ...]
    cached: int
    params: Mapping[str, Any] | None


class VllmClient:
    """One engine of vLLM's, in processes of its own. All but ``shut_down`` runs on one loop.

    Args:
        library: the installed vLLM.
        model: a folder or a name on the hub.
        dtype: None for that of the checkpoint.
        options: bounds.
    """

    def __init__(
        self, library: VllmLibrary, model: str, dtype: str | None, options: VllmOptions
    ) -> None:
        self._library = library
        self._model = model
        self._dtype = dtype
        self._options = options
        self._engine: Any = None
        self._is_ended = False
        self._context = 0

    @property
    def context(self) -> int:
        """Return the most tokens of a prompt and its completion; known once it is started."""
        return self._context

    @property
    def is_lost(self) -> bool:
        """Tell whether vLLM's processes have ended without being asked to; from any thread."""
        engine = self._engine
        return engine is not None and bool(engine.errored)

    async def start(self) -> None:
        """Load the model in processes of its own. Takes long, and holds up the loop.

        Raises:
            ConfigError: vLLM or the connector refuses the model or an argument.
        """
        library = self._library
        arguments = engine_arguments(library, self._model, self._dtype, self._options)
        try:
            with _variables(environment(self._options)):
                config = arguments.create_engine_config()
                if self._options.reuses_texts:
                    check_model(library, config)
                self._context = int(config.model_config.max_model_len)
                made = library.engine.from_vllm_config(
                    config, enable_log_requests=False, disable_log_stats=True
                )
        except RagAccelError:
            raise
        except (AttributeError, TypeError) as error:
            raise moved(library.version, error) from error
        except Exception as error:
            raise ConfigError(
                "vLLM does not start",
                where=f"{WHERE} {library.version}, {self._model}",
                found=f"{type(error).__name__}: {error}",
                valid="a model and arguments that vLLM runs",
                hint="its log has the reason; a program must start its work under "
                "if __name__ == '__main__'",
            ) from error
        self._engine = made
        _living.add(self)
        if self._is_ended:  # given up meanwhile
            self.shut_down()

    async def run(self, call: VllmCall, id: str, emit: Callable[[str], None]) -> VllmResult:
        """Compute a call; cancelling this frees its place.

        Args:
            call: its prompt and options.
            id: unique among all calls.
            emit: takes text as it comes, where the call wants it.

        Raises:
            EngineError: vLLM has refused it, or has ended.
        """
        prompt: dict[str, Any] = {"prompt_token_ids": list(call.ids)}
        if call.salt is not None:
            prompt["cache_salt"] = call.salt
        collected = _Collected()
        try:
            outputs = self._engine.generate(
                prompt, self._sampling(call), id, priority=call.priority
            )
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    piece = collected.add(output)
                    if piece and call.stream:
                        emit(piece)
        except Exception as error:
            raise self.describe(error) from error
        return collected.result(call)

    def describe(self, error: BaseException) -> EngineError:
        """Return the error of a call that has failed."""
        if isinstance(error, EngineError):
            return error
        if isinstance(error, self._library.lost):
            return EngineLostError(
                "vLLM's engine has ended",
                where=f"{WHERE}, {self._model}",
                found=str(error),
                valid="a running engine",
                hint="its log has the reason; close the accelerator and make another",
            )
        cause = error.__cause__ or error
        return EngineError(
            "vLLM has refused a request or failed on it",
            where=f"{WHERE}, {self._model}",
            found=f"{type(cause).__name__}: {cause}",
        )

    def shut_down(self) -> None:
        """End vLLM's processes, and wait for it; idempotent. From any thread."""
        self._is_ended = True
        _living.discard(self)
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown(timeout=SHUTDOWN_S)

    def forget_in_child(self) -> None:
        """Leave the processes to the parent: this is a forked child, which did not start them."""
        self._is_ended = True
        engine, self._engine = self._engine, None
        if engine is not None:
            _orphans.append(engine)
            _disown(engine)

    def _sampling(self, call: VllmCall) -> Any:
        library = self._library
        named = dict(call.sampling)
        if call.reuse is not None:
            named["extra_args"] = {"kv_transfer_params": call.reuse.params()}
        kind = library.delta if call.stream else library.final
        return library.sampling(**named, output_kind=kind)


class _Collected:
    """The outputs of one call so far."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._reason: str | None = None
        self._cached = 0
        self._params: Mapping[str, Any] | None = None

    def add(self, output: Any) -> str:
        completion = output.outputs[0]
        tokens = list(completion.token_ids)
        self._text.append(completion.text)
        self._tokens += tokens
        if completion.logprobs:
            pairs = zip(tokens, completion.logprobs, strict=True)
            self._logprobs += [float(found[token].logprob) for token, found in pairs]
        self._reason = completion.finish_reason or self._reason
        self._cached = output.num_cached_tokens or self._cached
        self._params = output.kv_transfer_params or self._params
        return completion.text

    def result(self, call: VllmCall) -> VllmResult:
        if self._reason in (None, "abort", "error"):
            raise EngineError(
                "vLLM has ended a request before its completion",
                where=WHERE,
                found=f"finish_reason={self._reason!r}",
                valid="stop or length",
            )
        return VllmResult(
            "" if call.is_tokens else "".join(self._text),
            tuple(self._tokens),
            str(self._reason),
            tuple(self._logprobs),
            self._cached,
            self._params,
        )


def _disown(engine: Any) -> None:
    """Keep the end of a forked child from waiting for processes that are its parent's."""
    core = getattr(engine, "engine_core", None)
    manager = getattr(getattr(core, "resources", None), "engine_manager", None)
    for owner in (core, manager):
        finalizer = getattr(owner, "_finalizer", None)
        if finalizer is not None:
            finalizer.detach()
    children = getattr(multiprocessing.process, "_children", set[Any]())
    children.difference_update(getattr(manager, "processes", ()))


_environment = RenewedLock()
_living: weakref.WeakSet[VllmClient] = weakref.WeakSet()
#: vLLM's engines in a forked child, kept so that they do not end their parent's processes
_orphans: list[Any] = []


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment that processes inherit that are started meanwhile."""
    with _environment.lock:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _forget_in_child() -> None:
    for client in list(_living):
        client.forget_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
