"""A LangChain program as a RAGraph whose stages call the program's own parts.

Each prompt, model, retriever, parser and function is a stage. A composite is none: its children get
the callbacks, tags, metadata and context that it would hand to them, but it has no run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    ensure_config,
    get_async_callback_manager_for_config,
    get_callback_manager_for_config,
    patch_config,
    set_config_context,
)
from langchain_core.runnables.utils import coro_with_context

from rag_accel.errors import ConfigError
from rag_accel.graph.framework_calls import FrameworkCall, PlanBuilder
from rag_accel.graph.ragraph import RAGraph
from rag_accel_adapters.langchain.parts import ProgramPart, parts_of

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
