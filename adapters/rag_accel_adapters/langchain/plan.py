"""A LangChain program as a RAGraph whose stages call the program's own parts.

Each prompt, model, retriever, parser and function is a stage. A composite is none: its children get
the callbacks, tags, metadata and context that it would hand to them, but it has no run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.output_parsers import BaseLLMOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableConfig,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import (
    ensure_config,
    get_async_callback_manager_for_config,
    get_callback_manager_for_config,
    patch_config,
    set_config_context,
)
from langchain_core.runnables.passthrough import RunnableAssign
from langchain_core.runnables.retry import RunnableRetry
from langchain_core.runnables.router import RouterRunnable
from langchain_core.runnables.utils import coro_with_context
from langchain_core.tools import BaseTool

from rag_accel.errors import ConfigError, TranslationError
from rag_accel.graph.framework_calls import FrameworkCall, PlanBuilder
from rag_accel.graph.ragraph import RAGraph

#: What a class has to inherit unchanged to be taken apart: what runs its children, and how.
_RUNNING = ("invoke", "ainvoke")
_BINDING = (*_RUNNING, "_merge_configs")

_WHOLE: tuple[tuple[type, str], ...] = (
    (BasePromptTemplate, "prompt"),
    (BaseLanguageModel, "model"),
    (BaseLLMOutputParser, "parser"),
    (BaseRetriever, "retriever"),
    (BaseTool, "tool"),
    (RunnablePassthrough, "passthrough"),
    (RunnablePick, "pick"),
    (RunnableLambda, "function"),
    (RunnableBranch, "branch"),
    (RouterRunnable, "router"),
    (RunnableWithFallbacks, "fallbacks"),
    (RunnableRetry, "retry"),
)
_COMPOSITE: tuple[tuple[type, str], ...] = (
    (RunnableSequence, "sequence"),
    (RunnableAssign, "assign"),
    (RunnableParallel, "parallel"),
)


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """One part of a program at one place.

    Args:
        path: the place, for people.
        kind: what it is.
        runnable: the framework's own object: what is invoked, or the composite taken apart.
        bindings: bindings around a composite, outermost first.
        children: in order; an assign has one, its mapper.
        key: its key in the parallel around it, if that is a parallel.
        tag: how its callback run is marked by its parent.
        takes_kwargs: whether it gets the keyword arguments its parent was called with.
    """

    path: str
    kind: str
    runnable: Runnable[Any, Any]
    bindings: tuple[RunnableBindingBase[Any, Any], ...] = ()
    children: tuple[ProgramPart, ...] = ()
    key: str | None = None
    tag: str | None = None
    takes_kwargs: bool = True

    def walk(self) -> Iterator[ProgramPart]:
        """Yield this part and all inside, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def width(self) -> int:
        """Return the most branches of any parallel inside, 0 without a parallel."""
        return max(
            (len(part.children) for part in self.walk() if part.kind == "parallel"), default=0
        )


def parts_of(program: Any) -> ProgramPart:
    """Return a program taken apart.

    Raises:
        TranslationError: naming the first part that is not declared, and its place.
    """
    return _part(program, "program")


def _part(obj: Any, path: str, **place: Any) -> ProgramPart:
    bindings: list[RunnableBindingBase[Any, Any]] = []
    inner = obj
    while _is(inner, RunnableBindingBase, _BINDING):
        bindings.append(inner)
        inner = inner.bound
    kind = next((kind for cls, kind in _COMPOSITE if _is(inner, cls)), None)
    if kind is None or (kind == "parallel" and not inner.steps__):
        # Without branches a parallel is called as it is, and gives an empty dict.
        return ProgramPart(path, kind or _whole_kind(inner, path), obj, **place)
    children = tuple(_children(kind, inner, path))
    part = ProgramPart(path, kind, inner, tuple(bindings), children, **place)
    _check_bindings(part)
    return part


def _is(obj: Any, cls: type, methods: tuple[str, ...] = _RUNNING) -> bool:
    """Tell whether an object runs exactly as ``cls`` does; generic aliases are subclasses."""
    return isinstance(obj, cls) and all(
        getattr(type(obj), name) is getattr(cls, name) for name in methods
    )


def _children(kind: str, obj: Any, path: str) -> Iterator[ProgramPart]:
    if kind == "assign":
        yield _part(obj.mapper, path)
    elif kind == "parallel":
        for key, step in obj.steps__.items():
            yield _part(step, f"{path}.{key}", key=key, tag=f"map:key:{key}", takes_kwargs=False)
    else:
        for place, step in enumerate(obj.steps):
            tag = f"seq:step:{place + 1}"
            yield _part(step, f"{path}.{place}", tag=tag, takes_kwargs=place == 0)


def _whole_kind(obj: Any, path: str) -> str:
    for cls, kind in _WHOLE:
        if isinstance(obj, cls):
            return kind
    names = ", ".join(cls.__name__ for cls, _ in (*_WHOLE, *_COMPOSITE))
    raise TranslationError(
        "a part of the program is not declared",
        where=path,
        found=f"{type(obj).__module__}.{type(obj).__qualname__}",
        valid=f"{names}, and bindings of these, none of them accelerated",
        hint="accelerate(...) runs any program",
    )


def _check_bindings(part: ProgramPart) -> None:
    """Refuse what a graph without runs of composites has no place for."""
    for binding in part.bindings:
        limit = binding.config.get("max_concurrency")
        if limit and limit < part.width:
            raise _refused(part, f"max_concurrency={limit}", f"from {part.width}, its branches")
        if getattr(binding, "config_factories", None):
            raise _refused(part, "with_listeners", "listeners of prompts, models and retrievers")


def _refused(part: ProgramPart, found: str, valid: str) -> TranslationError:
    return TranslationError(
        f"a {part.kind} is bound to what a graph of it cannot do",
        where=part.path,
        found=found,
        valid=valid,
        hint="accelerate(...) runs any program",
    )


INPUT, CONFIG = "input", "config"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a part in its program.

    Args:
        around: the composites around it, outermost first, with their tags for what is inside.
        prefix: keys of parallels, for names of stages.
        kwargs: keyword arguments that bindings around it give it.
        in_assign: whether its input is that of an assign, which takes dicts only.
    """

    around: tuple[tuple[ProgramPart, str | None], ...] = ()
    prefix: str = ""
    kwargs: Mapping[str, Any] | None = None
    in_assign: bool = False

    def inside(self, part: ProgramPart, child: ProgramPart, is_first: bool) -> Place:
        """Return the place of a child of the part that is here."""
        kwargs = self.kwargs or {}
        for binding in part.bindings:
            kwargs = {**binding.kwargs, **kwargs}
        prefix = "" if child.key is None else f"{child.key}."
        return Place(
            (*self.around, (part, child.tag)),
            self.prefix + prefix,
            kwargs if child.takes_kwargs else None,
            part.kind == "assign" or (self.in_assign and is_first),
        )


@dataclass(frozen=True, slots=True)
class PartCall:
    """A call of one part, with the config and in the context that its program gives it.

    Args:
        part: the part.
        place: where it is.
        width: the most branches that the program runs side by side.
    """

    part: ProgramPart
    place: Place
    width: int

    def call(self, value: Any, config: RunnableConfig | None = None) -> Any:
        """Call the part in this thread."""
        check_concurrency(config, self.width)
        invoke = partial(self.part.runnable.invoke, **(self.place.kwargs or {}))
        if not self.place.around:
            return invoke(value, config)
        config = self._config(value, config, get_callback_manager_for_config)
        with set_config_context(config) as context:
            return context.run(invoke, value, config)

    async def acall(self, value: Any, config: RunnableConfig | None = None) -> Any:
        """Call the part on this loop."""
        invoke = partial(self.part.runnable.ainvoke, **(self.place.kwargs or {}))
        if not self.place.around:
            return await invoke(value, config)
        config = self._config(value, config, get_async_callback_manager_for_config)
        with set_config_context(config) as context:
            return await coro_with_context(invoke(value, config), context, create_task=True)

    def _config(
        self, value: Any, config: RunnableConfig | None, manager_for: Callable[..., Any]
    ) -> RunnableConfig:
        """Return the config that the composites around the part give it for its input."""
        if self.place.in_assign and not isinstance(value, dict):
            raise ValueError("The input to RunnablePassthrough.assign() must be a dict.")
        for composite, tag in self.place.around:
            for binding in composite.bindings:
                config = binding._merge_configs(config)
            config = ensure_config(config)
            config = patch_config(config, callbacks=child_manager(manager_for(config), tag))
        assert config is not None, "something is around the part"
        return config


class BranchResults:
    """The results of a parallel's branches by their keys."""

    def __init__(self, keys: tuple[str | None, ...]) -> None:
        self.__name__, self._keys = "gathered", keys

    def __call__(self, *values: Any) -> dict[str | None, Any]:
        return dict(zip(self._keys, values, strict=True))


def assigned(given: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return the input of an assign with what it adds."""
    return {**given, **found}


def check_concurrency(config: RunnableConfig | None, width: int) -> None:
    """Refuse a bound on calls at once that a program's branches would not keep.

    Raises:
        ConfigError: if ``max_concurrency`` is below ``width``, the most branches at once.
    """
    limit = (config or {}).get("max_concurrency")
    if limit is not None and limit < width:
        raise ConfigError(
            "a graph does not bound how many branches of a program run at once",
            where="config",
            found=f"max_concurrency={limit}",
            valid=f"from {width}, the branches of this program, or None",
            hint="leave it out, or call the program itself",
        )


def child_manager(manager: Any, tag: str | None) -> Any:
    """Return the callback manager for a child of a composite that has no run."""
    child = type(manager)(handlers=[], parent_run_id=manager.parent_run_id)
    child.set_handlers(manager.inheritable_handlers)
    child.add_tags(manager.inheritable_tags)
    child.add_metadata(manager.inheritable_metadata)
    if tag is not None:
        child.add_tags([tag], inherit=False)
    return child


def graph_of(program: Any, name: str, holder: object = None) -> RAGraph:
    """Return a program as a graph of the inputs ``input`` and, where a request has it, ``config``.

    Args:
        program: a runnable.
        name: names the program, for what the scheduler learns of it.
        holder: what must live as long as the graph.

    Raises:
        TranslationError: naming the first part that is not declared, and its place.
    """
    root = parts_of(program)
    builder = PlanBuilder(RAGraph([INPUT, CONFIG], optional=CONFIG))

    def add(part: ProgramPart, given: str, place: Place) -> str:
        """Add the stages of a part; return the value that it makes of the value ``given``."""
        if not part.children:
            one, kind = PartCall(part, place, root.width), place.prefix + part.kind
            call = FrameworkCall(part.runnable.get_name(), one.call, one.acall, name, holder)
            return builder.add(kind, call, given, CONFIG)
        values = [given]
        for child in part.children:
            before = given if part.kind == "parallel" else values[-1]
            values.append(add(child, before, place.inside(part, child, before == given)))
        if part.kind == "parallel":
            keys = tuple(child.key for child in part.children)
            return builder.add(f"{place.prefix}parallel", BranchResults(keys), *values[1:])
        if part.kind == "assign":
            return builder.add(f"{place.prefix}assign", assigned, *values)
        return values[-1]

    return builder.end(add(root, INPUT, Place()))
