"""The integration of a framework: its verbs, its switch and its lazy classes, made of one table.

An ``Integration`` is light: it names where things stand, so that it can be asked whether the
installed version of the framework is understood before anything of it is imported. What needs the
framework's own classes is an ``Acceleration``, in a module that is imported only then.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from importlib import metadata
from typing import Any, Never, TypeVar

from rag_accel.accelerator import PREPARE_S, Accelerator
from rag_accel.config import Options
from rag_accel.errors import ConfigError
from rag_accel.interception import patches, plain
from rag_accel.interception.arguments import chosen, refuse_keywords
from rag_accel.interception.coverage import Coverage, OpenMeters
from rag_accel.interception.explanation import Explain, Explanation
from rag_accel.interception.leaf_table import OWN, Framework, leaf_class
from rag_accel.interception.option_reach import warn_idle, warn_unread
from rag_accel.interception.program import AcceleratedProgram
from rag_accel.interception.twins import known_program, mark_interactive, twin


class ProcessSwitch:
    """A block of ``activate()`` without an end of its own.

    Args:
        activate: returns such a block.
    """

    def __init__(self, activate: Callable[[], AbstractContextManager[object]]) -> None:
        self._activate = activate
        self._lock = threading.Lock()
        self._block: ExitStack | None = None

    def on(self) -> None:
        """Open the block; once is enough."""
        with self._lock:
            if self._block is None:
                block = ExitStack()
                block.enter_context(self._activate())
                self._block = block

    def off(self) -> None:
        """Close it again."""
        with self._lock:
            block, self._block = self._block, None
        if block is not None:
            block.close()


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Acceleration:
    """The accelerated programs of a framework whose version is understood.

    Args:
        framework: the leaf methods; they are intercepted from now on.
        make: returns an object accelerated, on an accelerator or on that of the moment; None for
            what is nothing of the framework's. By default, leaves have twins.
        takes: the objects that can be accelerated, as an error names them.
        hint: returns what to do with another object.
        is_open: tells of an object whose parts are only known once it has made them, so that
            nothing is concluded of options that none of them reads.
        explain: returns how an object runs, on an accelerator of its own or the shared one.
        prepare: prepares what a program computes with, on an accelerator of its own or that of the
            moment, within some seconds; tells whether it is ready.
        coverage: returns the coverage of a program.
        program_of: returns the program that an accelerated object is; None for a single model.
        methods: the methods, by class, without which what is done in them is not accelerated.
    """

    framework: Framework
    _: KW_ONLY
    make: Callable[[Any, Accelerator | None], Any] | None = None
    takes: str = "an object that does work"
    hint: Callable[[Any], str] = lambda obj: "call the program that uses it inside activate()"
    is_open: Callable[[Any], bool] = lambda obj: False
    explain: Explain
    prepare: Callable[[Any, Accelerator | None, float], bool] = lambda program, own, timeout_s: True
    coverage: Callable[[Any], Coverage]
    program_of: Callable[[Any], AcceleratedProgram | None] = known_program
    methods: Sequence[tuple[type, str]] = ()

    def __post_init__(self) -> None:
        patches.intercept(self.framework)

    @classmethod
    def of(cls, framework: Framework) -> Acceleration:
        """Return the acceleration of a framework whose leaves are all there is to know of it."""
        kinds = {base.__name__: base.__name__ for base in framework.leaves}
        meters = OpenMeters(framework, kinds)
        return cls(framework, explain=Explanation(framework).of, coverage=meters.coverage)

    def made(self, obj: Any, accelerator: Accelerator | None) -> Any:
        """Return an object accelerated; None for what is nothing of the framework's."""
        if self.make is not None:
            return self.make(obj, accelerator)
        is_leaf = leaf_class(type(obj)).framework is self.framework
        return twin(obj, accelerator) if is_leaf else None


@dataclass(frozen=True, eq=False, repr=False)
class Integration:
    """A framework as its users and the machinery that accelerates it meet it.

    It stands in the module ``integration`` of its package, as ``INTEGRATION``.

    Args:
        name: what users call the framework.
        package: the integration's package.
        module: the framework's module; where it cannot be imported, neither can the package.
        distribution: what that comes in.
        extra: the extra of this library that installs it.
        acceleration: where the ``Acceleration`` stands, or a ``Framework`` if that says it all, as
            ``module:NAME``.
        roots: what the names of the framework's modules begin with. Where one cannot be imported,
            the version is not understood and programs run plainly.
        required: the methods by the full name of their class without which it is not, either.
        components: the classes of the package that need more than the framework, each with the
            module of the package that defines it; imported when first asked for.
        tokens: a context manager, as ``module:NAME``, that counts what the framework's models
            report in its context, and gives a function that returns the tokens in and out.
    """

    name: str
    package: str
    module: str
    distribution: str
    extra: str
    acceleration: str
    roots: tuple[str, ...]
    required: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    components: Mapping[str, str] = field(default_factory=dict[str, str])
    tokens: str = ""

    def __reduce__(self) -> Any:
        return _integration_of, (self.package,)

    # The verbs are methods, so that each integration has them with the same arguments and errors.

    def accelerate(
        self,
        obj: T,
        *,
        accelerator: Accelerator | None = None,
        options: Options | None = None,
        interactive: bool = False,
        **unknown: Never,
    ) -> T:
        """Return an object usable wherever ``obj`` is, whose work is scheduled.

        The result is an instance of the object's own class that shares its state; a sequence, a
        tool or another runnable of LangChain gives a ``RunnableBinding``. Each call of a program
        is one request; a model, embedder, retriever or store on its own is scheduled call by call.
        A warning in the package's log names the parts of a program that gets nothing but admission.

        Args:
            obj: of LangChain or LangGraph for ``langchain_rag_accel``, of LlamaIndex or its
                workflows for ``llama_index_rag_accel``, of neo4j-graphrag for
                ``neo4j_graphrag_rag_accel``; it stays as it is and may be used beside the result.
            accelerator: schedules the work; by default one that all objects of the process share.
            options: options of an accelerator made for this object alone.
            interactive: whether somebody waits for the answers: the object's calls go before
                others, and those of batches last, where an endpoint refuses calls.

        Raises:
            TypeError: on another argument; one that is an option is given to the accelerator.
            ConfigError: if ``obj`` is nothing that the framework's integration knows, or both
                arguments are given, or one of another type.
            UnreadOptionWarning: a given option that no part of the object reads, where the program
                has made warnings errors; otherwise it is a warning, once for an object and an
                option.
        """
        refuse_keywords(unknown)
        accelerator, known = chosen(accelerator, options), self.loaded
        made = self._made("accelerate", obj, accelerator)
        if interactive and made is not obj:
            mark_interactive(made, known.program_of(made))
        if made is not obj and not known.is_open(obj):
            has_unread = warn_unread(obj, known.framework, accelerator)
            if not has_unread:  # which has told of the same parts
                warn_idle(obj, accelerator, known.framework, logging.getLogger(self.package))
        return made

    def explain(self, obj: Any) -> str:
        """Return what is inside an accelerated object and how each part runs, one part a line."""
        return self.loaded.explain(obj, getattr(type(obj), OWN, None))

    def prepare(self, program: Any, *, timeout_s: float = PREPARE_S) -> bool:
        """Load, compile, prove and place what a program computes with, before its first request.

        Models, embeddings and rerankers that engines here run are made ready, each with a small
        sample. No server is asked, no callback fires and no code of the program's is called.

        Args:
            program: accelerated, or one that is called inside ``activate()``.
            timeout_s: the most seconds to wait; the loading of a model cannot be cut short.

        Returns:
            Whether all is ready; what is not by then is finished in the background, or by requests.

        Raises:
            ConfigError: if ``accelerate`` would not know the object either.
            Exception: what a component of this library raises where its model cannot be loaded.
        """
        self._made("prepare", program, None)
        return self.loaded.prepare(program, getattr(type(program), OWN, None), timeout_s)

    def _made(self, verb: str, obj: Any, accelerator: Accelerator | None) -> Any:
        known = self.loaded
        made = known.made(obj, accelerator)
        if made is None:
            raise ConfigError(
                f"{verb}() does not know this object",
                found=f"{type(obj).__module__}.{type(obj).__qualname__}",
                valid=known.takes,
                hint=known.hint(obj),
            )
        return made

    @property
    def activate(self) -> Callable[..., AbstractContextManager[Accelerator]]:
        """Return ``activate``, which schedules nothing where the version is not understood."""
        return patches.activate if self.missing() is None else plain.activate

    @cached_property
    def switch(self) -> ProcessSwitch:
        return ProcessSwitch(lambda: self.activate())

    @cached_property
    def loaded(self) -> Acceleration:
        """Return what needs the framework's classes.

        Raises:
            ImportError: the framework, or what it needs, is not there.
        """
        found = _named(self.acceleration)
        return Acceleration.of(found) if isinstance(found, Framework) else found

    def counted_tokens(self) -> AbstractContextManager[Callable[[], tuple[int, int]]]:
        """Return what counts the tokens that models report, none where they report nothing."""
        return _named(self.tokens)() if self.tokens else nullcontext(lambda: (0, 0))

    def missing(self) -> str | None:
        """Return what the framework lacks, so that nothing of it is accelerated; None if nothing.

        Raises:
            ImportError: something is missing that is not the framework's.
        """
        for path, methods in self.required.items():
            module, _, cls = path.rpartition(".")
            found = getattr(importlib.import_module(module), cls, None)
            for method in methods:
                if not hasattr(found, method):
                    return f"{path}.{method}"
        try:
            _ = self.loaded
        except ImportError as error:
            name = error.name or ""
            if not name.startswith(self.roots) or name.startswith(self.package):
                raise
            return str(error)
        return None

    def missing_methods(self) -> list[str]:
        """Return the leaf methods and entries that the framework lacks."""
        wanted = self.loaded.methods
        return sorted(
            {
                f"{base.__module__}.{base.__qualname__}.{name}"
                for base, name in wanted
                if not hasattr(base, name)
            }
        )

    def verbs(self) -> dict[str, Any]:
        """Return the verbs for the package's namespace; warn if not all programs are accelerated.

        Raises:
            ImportError: the framework is not installed; names the extra.
        """
        try:
            importlib.import_module(self.module)
        except ImportError as error:
            raise ImportError(
                f"{self.package} needs {self.distribution}: pip install 'rag-accel[{self.extra}]'"
            ) from error
        missing = self.missing()
        if missing is not None:
            self._warn("nothing is accelerated", missing)
        elif gone := self.missing_methods():
            self._warn("not all is accelerated", ", ".join(gone))
        verbs: Any = self if missing is None else plain
        return {
            "accelerate": verbs.accelerate,
            "activate": verbs.activate,
            "coverage": plain.coverage if missing is not None else self.loaded.coverage,
            "explain": verbs.explain,
            "prepare": verbs.prepare,
        }

    def component(self, name: str) -> Any:
        """Return a class of the package: its module's ``__getattr__``.

        Raises:
            AttributeError: it has none of this name.
        """
        if name not in self.components:
            raise AttributeError(f"module {self.package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{self.package}.{self.components[name]}"), name)

    def _warn(self, consequence: str, lacking: str) -> None:
        # The package's logger: that of this library drops what no handler was set up for.
        logging.getLogger(self.package).warning(
            "%s: %s %s lacks what interception stands on: %s; programs run plainly there; use a"
            " version that COMPATIBILITY.md names as tested, or one of those that the extra %r of"
            " rag-accel accepts in its pyproject.toml",
            *(consequence, self.distribution, metadata.version(self.distribution), lacking),
            self.extra,
        )


def _named(spec: str) -> Any:
    module, _, name = spec.partition(":")
    return getattr(importlib.import_module(module), name)


def _integration_of(package: str) -> Integration:
    return importlib.import_module(f"{package}.integration").INTEGRATION
