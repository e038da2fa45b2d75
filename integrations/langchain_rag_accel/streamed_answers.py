"""Programs of which every streamed text is known to be the answer's, before it has ended.

What a chat's client has received cannot be taken back. So text is sent at once only where nothing
can come between a model's tokens and the answer; anything else is answered as a whole.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections import ChainMap
from collections.abc import Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

from langchain_core.language_models import BaseChatModel, BaseLanguageModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableGenerator,
    RunnableParallel,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.passthrough import RunnableAssign, RunnablePick
from langchain_core.runnables.retry import RunnableRetry

from rag_accel.serving.served import MESSAGES
from rag_accel.system.methods import syntax_of
from rag_accel_adapters.langchain.callables import free_variables
from rag_accel_adapters.langchain.walk import LEAF_BASES, is_graph, is_users, leaves

_CALLS = ("invoke", "ainvoke")
#: names under which objects of the frameworks run; what is looked for where the object is unknown
_RUNS = (*_CALLS, "stream", "astream", "batch", "abatch", "generate", "agenerate", "run", "arun")
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.comprehension, ast.Try, ast.TryStar)


def streams_its_answer(runnable: Any) -> bool:
    """Tell whether the texts that a runnable streams are, joined, what it returns.

    They are where the last step is a language model whose text passes through nothing but
    ``StrOutputParser``: alone, bound, with fallbacks, in each branch, or picked from a mapping.
    """
    return _streams([runnable])


def _streams(steps: Sequence[Any]) -> bool:
    *before, last = steps
    if isinstance(last, RunnableSequence):
        return _streams([*before, *last.steps])
    if isinstance(last, RunnableBindingBase):
        return _streams([*before, last.bound])
    if isinstance(last, StrOutputParser):
        return bool(before) and _streams(before)
    if isinstance(last, RunnableBranch):
        return all(
            _streams([body]) for body in (*(then for _, then in last.branches), last.default)
        )
    if isinstance(last, RunnableWithFallbacks):
        return all(_streams([body]) for body in (last.runnable, *last.fallbacks))
    if isinstance(last, RunnablePick):
        made = _mapping(before).get(last.keys) if isinstance(last.keys, str) else None
        return made is not None and _streams([made])
    if isinstance(last, RunnableGenerator):  # invoked, it joins what it yields of one whole input
        return not before
    return isinstance(last, BaseLanguageModel)


def _mapping(steps: Sequence[Any]) -> dict[str, Any]:
    """Return what the last step makes by name, where it is one that makes a mapping."""
    last = steps[-1] if steps else None
    if isinstance(last, RunnableSequence):
        return _mapping(last.steps)
    if isinstance(last, RunnableBindingBase):
        return _mapping([last.bound])
    made = last.mapper if isinstance(last, RunnableAssign) else last
    return dict(made.steps__) if isinstance(made, RunnableParallel) else {}


def answering_nodes(graph: Any) -> frozenset[str]:
    """Return the nodes of a compiled graph whose model's text is the graph's answer.

    All edges of such a node lead to the end, and its function calls one model, once, and returns
    that message as the last one. It must be the only node that runs in its step, which only the run
    itself shows. A graph of the functional API has none.
    """
    add_messages = getattr(sys.modules.get("langgraph.graph.message"), "add_messages", None)
    builder: Any = getattr(graph, "builder", None)
    if not is_graph(graph) or builder is None:
        return frozenset()
    reducer = getattr(graph.channels.get(MESSAGES), "operator", None)
    is_chat = reducer is not None and reducer is add_messages and MESSAGES in graph.output_channels
    specs: dict[str, Any] = builder.nodes
    if not is_chat or graph.retry_policy or any(spec.defer for spec in specs.values()):
        return frozenset()
    return frozenset(
        name
        for name, spec in specs.items()
        if _ends(builder, name)
        and not (spec.ends or spec.retry_policy or spec.cache_policy)
        and _answers_once(spec.runnable)
    )


def _ends(builder: Any, name: str) -> bool:
    targets = {target for source, target in builder.edges if source == name}
    joins = any(name in sources for sources, _ in builder.waiting_edges)
    return targets <= {"__end__"} and not joins and not builder.branches.get(name)


def _answers_once(node: Any) -> bool:
    """Tell whether a node's function calls one model, once, and returns that very message."""
    function = getattr(node, "func", None) or getattr(node, "afunc", None)
    inner = getattr(function, "__func__", function)
    if not isinstance(inner, FunctionType) or hasattr(inner, "__wrapped__"):
        return False
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        return False
    models = [part.obj for part in leaves(function) if isinstance(part.obj, BaseLanguageModel)]
    tree = syntax_of(inner)
    definition = tree.body[0] if tree is not None and len(tree.body) == 1 else None
    if (
        len(models) != 1
        or not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
        or definition.decorator_list
    ):
        return False
    scope = _Scope(function, inner)
    calls = [node for node in ast.walk(definition) if isinstance(node, ast.Call)]
    answers = [call for call in calls if scope.is_answer(call, models[0])]
    others = [call for call in calls if call not in answers]
    return (
        len(answers) == 1
        and all(scope.is_harmless(call) for call in others)
        and _is_returned(definition, answers[0])
    )


class _Scope:
    """The values of the names in a function's code, but for its own variables."""

    def __init__(self, function: Any, inner: FunctionType) -> None:
        own: dict[str, Any] = dict.fromkeys(inner.__code__.co_varnames)
        owner = getattr(function, "__self__", None)
        if owner is not None:
            own[inner.__code__.co_varnames[0]] = owner
        self._globals = inner.__globals__
        self._known = ChainMap(own, free_variables(inner), self._globals, dict(vars(builtins)))

    def is_answer(self, call: ast.Call, model: Any) -> bool:
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _CALLS:
            return False
        called = self._value(call.func.value)
        if called is None or not streams_its_answer(called):
            return False
        steps: Any = called
        while isinstance(steps, RunnableSequence | RunnableBindingBase):
            if isinstance(steps, RunnableRetry):  # invoked, it streams each attempt
                return False
            steps = steps.last if isinstance(steps, RunnableSequence) else steps.bound
        return steps is model and isinstance(model, BaseChatModel)

    def is_harmless(self, call: ast.Call) -> bool:
        """Tell whether a call runs no model that the walk through the function has not seen."""
        if isinstance(call.func, ast.Attribute):
            owner = self._value(call.func.value)
            if owner is None:  # a value made in the function, such as a text or a list
                return call.func.attr not in _RUNS
            if isinstance(owner, ModuleType):
                return owner.__name__.partition(".")[0] in sys.stdlib_module_names
            return isinstance(owner, (Runnable, *LEAF_BASES)) or _is_foreign(type(owner))
        called = self._known.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if isinstance(called, FunctionType) and called.__globals__ is self._globals:
            return True  # the walk has followed it
        return called is not None and _is_foreign(called)

    def _value(self, node: ast.expr) -> Any:
        """Return the object that a dotted name stands for; None if it is not known."""
        if isinstance(node, ast.Name):
            return self._known.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value)
            held = getattr(owner, "__dict__", None)
            return held.get(node.attr) if isinstance(held, dict) else None
        return None


def _is_foreign(obj: Any) -> bool:
    """Tell whether a function or class is Python's own, or of one of the frameworks."""
    module = str(getattr(obj, "__module__", ""))
    return module.partition(".")[0] in sys.stdlib_module_names or not is_users(obj)


def _is_returned(definition: ast.AST, call: ast.Call) -> bool:
    """Tell whether a call's value is what its block returns as the last message, unchanged."""
    for block, inside in _blocks(definition, ()):
        for at, statement in enumerate(block):
            returned = _last_message(statement) is call
            kept_as = _kept_as(statement, call)
            if returned or kept_as is not None:
                is_last = returned or _returns_only(block[at + 1 :], kept_as)
                return is_last and not any(isinstance(outer, _LOOPS) for outer in inside)
    return False


def _kept_as(statement: ast.stmt, call: ast.Call) -> str | None:
    """Return the name that a statement gives a call's value; None of any other statement."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return None
    is_kept = _awaited(statement.value) is call
    return target.id if is_kept and isinstance(target, ast.Name) else None


def _returns_only(rest: list[ast.stmt], name: str | None) -> bool:
    """Tell whether statements lead to one return, which alone uses a name, as the last message."""
    *between, end = rest or [ast.Pass()]
    uses = [
        node
        for statement in rest
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and node.id == name
    ]
    is_straight = all(isinstance(statement, ast.Expr | ast.Assign) for statement in between)
    return is_straight and len(uses) == 1 and _last_message(end) is uses[0]


def _blocks(
    node: ast.AST, inside: tuple[ast.AST, ...]
) -> Iterator[tuple[list[ast.stmt], tuple[ast.AST, ...]]]:
    """Yield the blocks of statements in a function, with what they stand in."""
    for name in ("body", "orelse", "handlers", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block, (*inside, node)
            for statement in block:
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from _blocks(statement, (*inside, node))


def _last_message(statement: ast.stmt) -> ast.expr | None:
    """Return the last of the messages in ``return {"messages": [...]}``; None of another shape."""
    if not isinstance(statement, ast.Return) or not isinstance(statement.value, ast.Dict):
        return None
    for key, value in zip(statement.value.keys, statement.value.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == MESSAGES:
            return _awaited(value.elts[-1] if isinstance(value, ast.List) and value.elts else value)
    return None


def _awaited(node: ast.expr | None) -> ast.expr | None:
    return node.value if isinstance(node, ast.Await) else node
