"""A member in a child process, which ends with its parent."""

from __future__ import annotations

import copy
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from functools import partial
from typing import Any

from rag_accel.config import EmbeddingRuntime
from rag_accel.engines.devices.members import EngineMember, guess_tokens, restrict
from rag_accel.engines.embedding.model_encoding import ModelEncoding
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.engines.replicas.child_process import ChildProcess
from rag_accel.engines.replicas.processes import HostGoneError
from rag_accel.errors import ConfigError, EngineLostError, ForkedError
from rag_accel.system.processor import usable_cores


class _ChildMember:
    """The far side of a ``ProcessMember``: its model, and calls to it one after another.

    Args:
        source: a function that returns a model or an engine, pickled; or a model's name or path,
            or None for the packaged one.
        options: further arguments of ``SentenceTransformerEngine``.
    """

    def __init__(self, source: bytes | str | None, options: Mapping[str, Any]) -> None:
        self._source = source
        self._options = options
        self._member: EngineMember | None = None

    def load(self) -> None:
        from rag_accel.engines.embedding.engine import SentenceTransformerEngine

        source, engine = self._source, None
        if isinstance(source, bytes):
            source = pickle.loads(source)()
            engine = source if hasattr(source, "profile") else None
        engine = engine or SentenceTransformerEngine(source, **self._options)
        self._member = EngineMember(engine, max_texts=sys.maxsize)

    def embed(self, texts: SequenceOf[str], role: Role, threads: int) -> Any:
        assert self._member is not None, "a model is loaded before it embeds"
        return self._member.embed(texts, role, threads)


class ProcessMember:
    """A sentence-transformers model in a child process, as a member of a device group.

    The child is a new interpreter, started with the first call: nothing of this process is forked,
    and a script needs no ``if __name__ == "__main__"`` for it. It computes with the threads granted
    to each call. It ends with ``close``, or with this process however that ends. One that dies ends
    its call in EngineLostError, and the group goes on without it.

    Args:
        model: a model's name or path, as of ``SentenceTransformerEngine``; or a function that can
            be imported and returns a model or an embedding engine, called in the child.
        cpus: the cores the child may run on; by default all that this process may use.
        device: where the child computes.
        query_kwargs: as of ``SentenceTransformerEngine``.
        document_kwargs: as of ``SentenceTransformerEngine``.
        runtime: as of ``SentenceTransformerEngine``.
        name: its name in reports.
        max_threads: most threads of a step; by default one for each core it may run on.
        max_texts: most texts of one call.
        max_tokens: about the most tokens of one call.
        start_timeout_s: how long the child may take to load its model.
        step_timeout_s: how long a call may take; a child that takes longer is ended.
        roles: whose texts it may be given: ``query``, ``document`` or both; by default both.
        namespaces: of which tenants it may be given texts; by default of all.

    Raises:
        ConfigError: a function that the child could not import, cores that this process may not
            use, no interpreter to start, or a bad restriction.
    """

    def __init__(
        self,
        model: str | Callable[[], Any] | None = None,
        *,
        cpus: Iterable[int] | None = None,
        device: str = "cpu",
        query_kwargs: Mapping[str, Any] | None = None,
        document_kwargs: Mapping[str, Any] | None = None,
        runtime: EmbeddingRuntime = "auto",
        name: str = "process",
        max_threads: int | None = None,
        max_texts: int = 64,
        max_tokens: int = 4096,
        start_timeout_s: float = 300.0,
        step_timeout_s: float = 120.0,
        roles: Iterable[str] | None = None,
        namespaces: Iterable[str] | None = None,
    ) -> None:
        mask = None if cpus is None else frozenset(cpus)
        threads = usable_cores() if mask is None else len(mask)
        if device != "cpu":
            threads = 0
        restrict(self, roles, namespaces)
        self.name = name
        #: the model's name, None for the packaged one, or the function that makes it
        self.model = model
        self.max_threads = threads if max_threads is None else min(threads, max_threads)
        self.max_texts = max_texts
        self.max_tokens = max_tokens
        self._parent = os.getpid()
        self._cpus = mask
        source = model if model is None or isinstance(model, str) else _pickled(model)
        self._options = {
            "device": device,
            "query_kwargs": None if query_kwargs is None else dict(query_kwargs),
            "document_kwargs": None if document_kwargs is None else dict(document_kwargs),
            "runtime": runtime,
            "max_threads": self.max_threads,
        }
        self._start_timeout_s = start_timeout_s
        self._step_timeout_s = step_timeout_s
        self._use(source)

    def _use(self, source: bytes | str | None) -> None:
        make = partial(_ChildMember, source, self._options)
        self._child = ChildProcess(f"ProcessMember({self.name!r})", make, cpus=self._cpus)
        self._is_loaded = False

    @property
    def takes_any_model(self) -> bool:
        """Tell whether it names no model and no arguments of ``encode``."""
        encodes = self._options["query_kwargs"] or self._options["document_kwargs"]
        return self.model is None and not encodes

    def with_model(self, folder: str, encoding: ModelEncoding) -> ProcessMember:
        """Return another member like this one, with a child of its own, for a model on disk.

        Args:
            folder: where the model is until the member has embedded its first texts.
            encoding: the arguments of ``encode``.
        """
        made = copy.copy(self)
        made.model = folder
        made._options = {
            **self._options,
            "query_kwargs": dict(encoding.query_kwargs),
            "document_kwargs": dict(encoding.document_kwargs),
        }
        made._use(folder)
        return made

    @property
    def pid(self) -> int | None:
        """Return the id of the child, None before the first call."""
        return self._child.pid

    def embed(self, texts: SequenceOf[str], role: Role, threads: int) -> Any:
        """Let the child embed texts.

        Raises:
            EngineLostError: the child has died, could not load its model, or took too long.
            ForkedError: this is a process forked off the one that made the member.
            Exception: what the model raised.
        """
        if os.getpid() != self._parent:
            raise ForkedError(
                "a member made before fork() was used in the child",
                where=self.name,
                hint="make it after the fork",
            )
        if not self._is_loaded:
            self._load()
        # Plain strings: the child may not know a class of the caller's.
        plain = [str.__str__(text) for text in texts]
        return self._result(self._step_timeout_s, "embed", plain, role, threads)

    def estimate(self, text: str) -> int:
        """Guess the tokens of a text from its length."""
        return guess_tokens(text)

    def abort(self) -> None:
        """End the child, so that a call that runs ends at once; from any thread."""
        self._child.abort()

    def close(self) -> None:
        """End the child, by force if it does not end by itself within a second."""
        self._child.end(restart=False)

    def _load(self) -> None:
        try:
            self._result(self._start_timeout_s, "load")
        except EngineLostError:
            raise
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            hint = "load the model in this process to see the whole error"
            raise self._lost("could not load its model", found, hint) from error
        self._is_loaded = True

    def _result(self, timeout_s: float, method: str, *arguments: Any) -> Any:
        try:
            call = self._child.call(method, *arguments)
            try:
                return call.result(timeout_s)
            except TimeoutError as error:
                if call.is_done():  # the model's own
                    raise
                self.abort()
                hint = "raise start_timeout_s or step_timeout_s of the member"
                raise self._lost("took too long and was ended", str(error), hint) from error
        except HostGoneError as gone:
            hint = "make another accelerator to have it back"
            raise self._lost("has ended", str(gone), hint) from gone
        except Exception:
            raise
        except BaseException:
            # What was interrupted goes on there, and its engine takes one call at a time.
            self.abort()
            raise

    def _lost(self, how: str, found: str, hint: str) -> EngineLostError:
        what = f"the process of a member {how}"
        return EngineLostError(what, where=self.name, found=found, hint=hint)


def _pickled(model: Callable[[], Any]) -> bytes:
    where = "ProcessMember(model=)"
    if not callable(model):
        raise ConfigError(
            "a model in memory cannot be given to another process",
            where=where,
            found=f"{type(model).__module__}.{type(model).__qualname__}",
            valid="a model's name or path, or a function that returns a model",
        )
    try:
        sent = pickle.dumps(model)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    else:
        if b"__main__" not in sent:
            return sent
        found = "something of the script itself, which the process does not run"
    raise ConfigError(
        "this function cannot be sent to the process of a member",
        where=where,
        found=found,
        valid="a function of a module that can be imported, or a functools.partial of one",
        hint="move it from the script into a module",
    )
