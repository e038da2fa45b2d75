"""The builder of a workflow, step by step (HedraRAG section 4.1, Listing 1).

``RAGraph`` is a thin mutable shell. Passes and the scheduler never see it: they take the
immutable value that ``freeze()`` returns, and while nothing is added that is the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self, TypeAlias, cast, get_args

from rag_accel.engine_api import Direction
from rag_accel.errors import GraphError
from rag_accel.graph.frozen import FrozenRAGraph, Link
from rag_accel.graph.nodes import (
    DEFAULT_QUERY,
    Condition,
    EngineName,
    OnLoopLimit,
    Reducer,
    StageName,
)
from rag_accel.graph.option_inputs import Input
from rag_accel.graph.prompt import PromptPiece, ValueName, join_prompt, placeholders, split_prompt
from rag_accel.graph.stages import (
    Branch,
    Function,
    Generation,
    GraphRetrieval,
    Ingestion,
    Rerank,
    Retrieval,
    Stage,
    kind_of,
)
from rag_accel.graph.stages.graph_retrieval import Link as EntityLink
from rag_accel.graph.stages.retry import (
    Constant,
    Retry,
    as_retry,
    check_edge_options,
    with_default,
)

Name: TypeAlias = str | int

#: the name that HedraRAG's Listing 1 has for the request's input
_QUERY: Final = ValueName("query")


class RAGraph:
    """A RAG workflow: stages, and edges that say what follows what.

    Every ``add_`` method of a stage takes ``retry`` and ``fallback``. ``retry`` is how many further
    attempts follow one that failed with a transient error, or a ``Retry``. After the last,
    ``fallback`` runs: an engine of the same kind by its name, or a ``Constant`` in place of the
    stage's output. What has reached a stream is never made again.

    Stage names are text or integers (kept as text). Every ``add_`` method returns the graph.
    Nothing is checked across stages before the graph is verified, so they may come in any order.
    Numbers and filters may be an ``Input``, which each request sets. Where the only input is
    ``input`` and no stage writes ``query``, that name stands for it, as in the paper.

    Args:
        inputs: names of the values a request brings along.
        optional: those among them that a request may leave out; they are None then.
        on_loop_limit: a stage that ``max_loops`` would not let start again is an error; with
            ``"end"`` the request ends there, with the values it has and a ``LoopLimitWarning``.

    Raises:
        GraphError: if ``on_loop_limit`` is neither ``"raise"`` nor ``"end"``, or an optional input
            is none of the inputs.
    """

    def __init__(
        self,
        inputs: str | Sequence[str] = ("input",),
        *,
        optional: str | Sequence[str] = (),
        on_loop_limit: OnLoopLimit = "raise",
    ) -> None:
        if on_loop_limit not in get_args(OnLoopLimit):
            raise GraphError(
                "bad option of a graph",
                where="on_loop_limit",
                found=repr(on_loop_limit),
                valid=", ".join(map(repr, get_args(OnLoopLimit))),
            )
        self._inputs = _values(inputs)
        self._optional = _values(optional)
        if not set(self._optional) <= set(self._inputs):
            raise GraphError(
                "an optional input is none of the graph's inputs",
                where="optional",
                found=", ".join(self._optional),
                valid=", ".join(self._inputs),
            )
        self._on_loop_limit: OnLoopLimit = on_loop_limit
        self._stages: list[Stage] = []
        self._links: list[Link] = []
        self._reducers: dict[ValueName, Reducer] = {}
        self._retry: Retry | None = None
        self._frozen: FrozenRAGraph | None = None

    def add_generation(
        self,
        name: Name,
        prompt: str,
        *,
        output: str | None = None,
        stop: str | Sequence[str] = (),
        max_tokens: int | Input | None = None,
        system: str | None = None,
        engine: str = "llm",
        retry: int | Retry | None = None,
        fallback: str | Constant | None = None,
    ) -> Self:
        """Add a stage that completes ``prompt``, where ``{value}`` names what it reads.

        Args:
            output: the value it writes; by default its own name.
            stop: text, or several, at which the completion ends.
            max_tokens: most tokens to generate; by default the engine decides.
            system: template of the system message.
        """
        return self.add_stage(
            Generation(
                name=_stage_name(name),
                prompt=prompt,
                output=ValueName(output or ""),
                system=system,
                stop=_several(stop),
                max_tokens=max_tokens,
                engine=EngineName(engine),
                retry=retry,
                fallback=fallback,
            )
        )

    def add_retrieval(
        self,
        name: Name,
        *,
        query: str = "input",
        top_k: int | Input = 5,
        where: Mapping[str, Any] | Input | None = None,
        output: str | None = None,
        engine: str = "index",
        embedder: str = "embedder",
        topk: int | Input | None = None,
        retry: int | Retry | None = None,
        fallback: str | Constant | None = None,
    ) -> Self:
        """Add a stage that finds the ``top_k`` documents nearest to the value ``query``.

        Args:
            where: keep only documents whose metadata equals every given value.
            topk: the name that the paper has for ``top_k``, in its place.
            output: the value it writes; by default its own name.
            embedder: the engine that embeds the query if ``engine`` does not.
        """
        return self.add_stage(
            Retrieval(
                name=_stage_name(name),
                query=ValueName(query),
                top_k=top_k if topk is None else topk,
                where=where if isinstance(where, Input) else _filter(where),
                output=ValueName(output or ""),
                engine=EngineName(engine),
                embedder=EngineName(embedder),
                retry=retry,
                fallback=fallback,
            )
        )

    def add_graph_retrieval(
        self,
        name: Name,
        *,
        query: str = "input",
        top_k: int | Input = 10,
        hops: int = 2,
        seeds: int | Input = 5,
        link: EntityLink = "vector",
        keywords: str | None = None,
        relations: Sequence[str] | None = None,
        direction: Direction = "both",
        fan_out: int | Input = 32,
        max_paths: int | Input = 256,
        output: str | None = None,
        engine: str = "graph",
        embedder: str = "embedder",
        retry: int | Retry | None = None,
        fallback: str | Constant | None = None,
    ) -> Self:
        """Add a stage that finds the ``top_k`` paths of a knowledge graph nearest to ``query``.

        Args:
            hops: longest path, in edges.
            seeds: most entities to start from.
            link: how they are found: by ``vector``, or by the ``words`` of their names.
            keywords: a value that names them instead, such as what an LLM stage wrote: a list, or a
                text that separates them by commas or lines.
            relations: which relations to follow; by default all.
            direction: along edges (``out``), against them (``in``) or both ways.
            fan_out: most edges of one entity in one direction.
            max_paths: most paths of each length.
            output: the value it writes; by default its own name.
            embedder: the engine that embeds the query and the texts of paths.
        """
        return self.add_stage(
            GraphRetrieval(
                name=_stage_name(name),
                query=ValueName(query),
                top_k=top_k,
                hops=hops,
                seeds=seeds,
                link=link,
                keywords=ValueName(keywords or ""),
                relations=None if relations is None else _several(relations),
                direction=direction,
                fan_out=fan_out,
                max_paths=max_paths,
                output=ValueName(output or ""),
                engine=EngineName(engine),
                embedder=EngineName(embedder),
                retry=retry,
                fallback=fallback,
            )
        )

    def add_rerank(
        self,
        name: Name,
        *,
        documents: str,
        query: str = "input",
        top_n: int | Input | None = None,
        output: str | None = None,
        engine: str = "reranker",
        retry: int | Retry | None = None,
        fallback: str | Constant | None = None,
    ) -> Self:
        """Add a stage that orders the value ``documents`` by relevance to the value ``query``.

        Args:
            top_n: how many of the best to keep; by default all.
            output: the value it writes; by default its own name.
        """
        return self.add_stage(
            Rerank(
                name=_stage_name(name),
                documents=ValueName(documents),
                query=ValueName(query),
                top_n=top_n,
                output=ValueName(output or ""),
                engine=EngineName(engine),
                retry=retry,
                fallback=fallback,
            )
        )

    def add_ingestion(
        self,
        name: Name,
        *,
        documents: str,
        output: str | None = None,
        engine: str = "index",
        embedder: str = "embedder",
        retry: int | Retry | None = None,
        fallback: str | Constant | None = None,
    ) -> Self:
        """Add a stage that embeds the value ``documents`` and adds them to an owned index.

        Searches find them that run after this stage, in this request and in others.

        Args:
            documents: a value that holds documents or texts.
            output: the value it writes, the documents' ids; by default its own name.
            embedder: the engine that embeds the documents, the same as for the queries.
        """
        return self.add_stage(
            Ingestion(
                name=_stage_name(name),
                documents=ValueName(documents),
                output=ValueName(output or ""),
                engine=EngineName(engine),
                embedder=EngineName(embedder),
                retry=retry,
                fallback=fallback,
            )
        )

    def add_function(
        self,
        name: Name,
        fn: Callable[..., Any],
        inputs: str | Sequence[str] | None = None,
        output: str | None = None,
        *,
        retry: int | Retry | None = None,
        fallback: Constant | None = None,
    ) -> Self:
        """Add a stage that calls ``fn``, a function or coroutine function.

        Args:
            inputs: values to call it with, in order; by default it gets one mapping of all values.
            output: the value it writes; by default its own name.
        """
        return self.add_stage(
            Function(
                name=_stage_name(name),
                fn=fn,
                inputs=_values(inputs or ()),
                reads_all=inputs is None,
                output=ValueName(output or ""),
                retry=retry,
                fallback=fallback,
            )
        )

    def with_retry(self, retry: int | Retry) -> Self:
        """Give every stage that calls an engine these attempts, unless it has its own.

        Stages added later have them as well; functions and conditions only what they are given.
        Returns the graph.

        Raises:
            GraphError: if it is neither a number of attempts nor a ``Retry``.
        """
        self._retry = as_retry(retry, "the graph")
        self._frozen = None
        return self

    def add_stage(self, stage: Stage) -> Self:
        """Add a stage of any registered kind.

        Raises:
            GraphError: if its kind is not known.
        """
        kind_of(stage)
        self._stages.append(stage)
        self._frozen = None
        return self

    def add_edge(
        self,
        src: Name | Sequence[Name],
        dst: Name | Sequence[Name] | Condition,
        targets: Name | Sequence[Name] | None = None,
        *,
        retry: int | Retry | None = None,
        fallback: None = None,
    ) -> Self:
        """Say what runs after what.

        Args:
            src: a stage or START; a list joins: what follows waits for all of them.
            dst: a stage or END; a list runs all of them at once; a condition is called with the
                mapping of all values and answers with a name, a list of names or END.
            targets: all that a condition may answer; by default any stage and END.
            retry: further attempts of a condition that fails, as of a stage.

        Raises:
            GraphError: on a ``fallback``, which neither a condition nor an edge has.
        """
        sources = _names(src)
        check_edge_options(sources, callable(dst), retry, fallback)
        if callable(dst):
            declared = None if targets is None else _names(targets)
            branch = Branch(self._branch_name(sources), dst, declared, retry)
            self.add_stage(branch)
            destinations: tuple[StageName, ...] = (branch.name,)
        elif targets is None:
            destinations = _names(dst)
        else:
            raise GraphError(
                "targets= given for an edge without a condition",
                where=f"edge from {', '.join(sources)}",
                hint="leave targets= out, or pass a callable as dst",
            )
        self._links.extend((source, target) for target in destinations for source in sources)
        self._frozen = None
        return self

    def add_reducer(self, output: str, fn: Reducer) -> Self:
        """Combine what several unordered stages write to ``output``.

        ``fn(left, right)`` folds the values: earlier turns of a loop first, then in the order in
        which the stages were added, whichever ends first.
        """
        self._reducers[ValueName(output)] = fn
        self._frozen = None
        return self

    def freeze(self) -> FrozenRAGraph:
        """Return the graph as an immutable value; the same object until something is added."""
        if self._frozen is None:
            reducers = tuple(self._reducers.items())
            stages = _by_their_inputs(self._stages, self._inputs)
            if (retry := self._retry) is not None:
                stages = tuple(with_default(stage, retry) for stage in stages)
            self._frozen = FrozenRAGraph(
                stages,
                tuple(self._links),
                self._inputs,
                reducers,
                self._on_loop_limit,
                self._optional,
            )
        return self._frozen

    def _branch_name(self, sources: Iterable[str]) -> StageName:
        first = "+".join(sources) + "?"
        taken = {stage.name for stage in self._stages}
        name, number = first, 1
        while name in taken:
            number += 1
            name = f"{first}{number}"
        return StageName(name)


def _filter(where: object) -> tuple[tuple[str, Any], ...]:
    if where is not None and not isinstance(where, Mapping):
        raise GraphError(
            "this is no filter of documents",
            where="where=",
            found=repr(where),
            valid="a mapping of metadata fields to values, or an Input",
        )
    return tuple(cast("Mapping[str, Any]", where or {}).items())


def _several(texts: str | Sequence[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)


def _values(names: str | Sequence[str]) -> tuple[ValueName, ...]:
    return tuple(ValueName(name) for name in _several(names))


def _names(names: Name | Sequence[Name]) -> tuple[StageName, ...]:
    several = (names,) if isinstance(names, str | int) else names
    return tuple(dict.fromkeys(_stage_name(name) for name in several))


def _stage_name(name: object) -> StageName:
    if isinstance(name, str | int) and not isinstance(name, bool):
        return StageName(str(name))
    raise GraphError("bad stage name", found=repr(name), valid="text or an integer")


def _by_their_inputs(stages: Sequence[Stage], inputs: Sequence[ValueName]) -> tuple[Stage, ...]:
    """Return the stages with the input ``input`` for the name ``query``.

    Only where a request brings along that input alone and no stage writes a value of that name.
    """
    if tuple(inputs) != (DEFAULT_QUERY,) or any(stage.output == _QUERY for stage in stages):
        return tuple(stages)
    return tuple(_by_its_input(stage) if _QUERY in stage.inputs else stage for stage in stages)


def _by_its_input(stage: Stage) -> Stage:
    if isinstance(stage, Generation):
        system = None if stage.system is None else _renamed(stage.system)
        return replace(stage, prompt=_renamed(stage.prompt), system=system)
    if isinstance(stage, Retrieval | GraphRetrieval | Rerank) and stage.query == _QUERY:
        return replace(stage, query=DEFAULT_QUERY)
    return stage


def _renamed(template: str) -> str:
    if _QUERY not in placeholders(template):
        return template
    return join_prompt(
        PromptPiece(piece.literal, DEFAULT_QUERY if piece.value == _QUERY else piece.value)
        for piece in split_prompt(template)
    )
