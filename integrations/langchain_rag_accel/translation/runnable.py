"""A LangChain program run as a RAGraph, and how it runs in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, get_config_list
from pydantic import PrivateAttr

from langchain_rag_accel.explanation import EXPLANATION
from langchain_rag_accel.runnables import AcceleratedRunnable
from langchain_rag_accel.translation.batch import arun_batch, run_batch
from langchain_rag_accel.translation.call import TranslatedCall
from rag_accel.accelerator import Accelerator
from rag_accel.config import is_enabled
from rag_accel.graph.text import format as format_graph
from rag_accel.interception.fallback import fail_open
from rag_accel.interception.identity import current_run
from rag_accel_adapters.langchain.parts import ProgramPart
from rag_accel_adapters.langchain.translate import Translation, translate


def explain_translated(translation: Translation, accelerator: Accelerator) -> str:
    """Return the RAGraph of a program as text, and what is to be known about running it."""
    name = translation.program.get_name()
    lines = [
        f"{name} translated: the RAGraph below says when each part runs; LangChain's own",
        "runnables do the work, on the caller's loop or thread.",
        *_indented(format_graph(translation.graph).split("\n")),
        "run as (parts in a straight line follow each other without the scheduler):",
        *_indented(_runs(translation)),
        "opaque (your own code, and what decides itself what runs; run as it is):",
        *_indented([_named(part) for part in translation.opaque] or ["none"]),
        f"leaves (batches of at most {accelerator.options.max_batch}, {accelerator.cores} cores):",
        *EXPLANATION.lines(translation.program, accelerator),
        "notes:",
        *_indented(_notes(translation)),
    ]
    return "\n".join(lines)


def _runs(translation: Translation) -> Iterator[str]:
    for stage in translation.sync_lines.stages:
        after = ", ".join(
            name for name in stage.inputs if name not in translation.sync_lines.inputs
        )
        title = getattr(getattr(stage, "fn", None), "__name__", "")
        yield f"{stage.name}: {title}" + (f"  after {after}" if after else "")


def _notes(translation: Translation) -> Iterator[str]:
    yield "stream, transform, batch_as_completed, astream_events, and calls that are part of"
    yield "  another accelerated run: intercepted"
    for method, parts in translation.own_batch.items():
        if parts:
            yield f"{method}: intercepted, since {_named(parts[0])} does it in a way of its own"
    asides = [aside.path for part in translation.root.walk() for _, aside in part.asides]
    if asides:
        yield f"{', '.join(asides)}: done before the branch beside them"
    if translation.num_branches:
        yield f"blocking calls with max_concurrency below {translation.num_branches}: intercepted,"
        yield "  since LangChain bounds branches by threads"
    if any(part.kind == "assign" for part in translation.root.walk()):
        yield "what follows an assign waits for all of its keys: LangChain ends the assign's run"
        yield "  before it starts another"
    if translation.root.kind == "sequence":
        yield "a batch that raises: inputs beside the one that failed may have got further than in"
        yield "  LangChain, which takes all of them from step to step"


def _named(part: ProgramPart) -> str:
    return f"{part.path}: {part.runnable.get_name()}"


def _indented(lines: Iterator[str] | list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


class TranslatedRunnable(AcceleratedRunnable):
    """The bound runnable, whose parts run as soon as what they need is there.

    ``invoke``, ``ainvoke``, ``batch`` and ``abatch`` run the translation, each input as a request
    of its own. Streams, and calls that are part of another accelerated run, are intercepted.
    """

    _translation: Translation | None = PrivateAttr(default=None)

    @classmethod
    def wrap(cls, runnable: Runnable[Any, Any], accelerator: Accelerator | None) -> Any:
        """Return ``runnable`` translated.

        Raises:
            TranslationError: naming the first part that is not understood, and its place.
        """
        translation = translate(runnable)
        made = super().wrap(runnable, accelerator)
        made._translation = translation
        return made

    @property
    def translation(self) -> Translation | None:
        """Return what calls run; ``None`` where another program came to be bound meanwhile."""
        made = self._translation
        return made if made is not None and made.program is self.bound else None

    def explain(self) -> str:
        """Return the RAGraph this runs as, what of it is opaque, and what stays as it was."""
        if self.translation is None:
            return super().explain()
        return explain_translated(self.translation, self.accelerator)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        call = self._own_call(config, kwargs, is_sync=True)
        if call is None:
            return super().invoke(input, config, **kwargs)
        return call.invoke(input)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        call = self._own_call(config, kwargs, is_sync=False)
        if call is None:
            return await super().ainvoke(input, config, **kwargs)
        return await call.ainvoke(input)

    def batch(
        self,
        inputs: list[Any],
        config: Any = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        calls = self._batch_calls("batch", inputs, config, kwargs)
        if not calls:
            return super().batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return run_batch(calls, inputs, return_exceptions)

    async def abatch(
        self,
        inputs: list[Any],
        config: Any = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        calls = self._batch_calls("abatch", inputs, config, kwargs)
        if not calls:
            return await super().abatch(
                inputs, config, return_exceptions=return_exceptions, **kwargs
            )
        return await arun_batch(calls, inputs, return_exceptions)

    # One request per input ---------------------------------------------------------------------

    def _own_call(
        self, config: Any, kwargs: dict[str, Any], is_sync: bool
    ) -> TranslatedCall | None:
        """Return a call that is a request of its own, ``None`` if it is to be intercepted."""
        translation = self.translation
        if translation is None or not self._begins_request():
            return None
        merged = self._merged(config, None)
        if is_sync and _is_limited(translation, merged):
            return None
        return self._call(translation, merged, kwargs)

    def _batch_calls(
        self, method: str, inputs: Sequence[Any], config: Any, kwargs: dict[str, Any]
    ) -> list[TranslatedCall]:
        """Return one call per input, none if the batch is to be intercepted."""
        translation = self.translation
        if translation is None or not inputs or not self._begins_request():
            return []
        if translation.own_batch[method]:
            return []
        merged = self._merged(config, len(inputs))
        if translation.root.bindings and not isinstance(merged, Sequence):
            merged = [merged] * len(inputs)
        configs = get_config_list(merged, len(inputs))
        if method == "batch" and _is_limited(translation, configs[0]):
            return []
        calls = [self._call(translation, config, kwargs) for config in configs]
        return [] if None in calls else [call for call in calls if call is not None]

    def _begins_request(self) -> bool:
        """Tell whether a call is neither plain nor part of a run under way."""
        return current_run(self._accelerator) is None and is_enabled()

    def _call(
        self, translation: Translation, config: Any, kwargs: dict[str, Any]
    ) -> TranslatedCall | None:
        accelerator = self.accelerator
        try:
            identity = accelerator.anonymous(self.program.name)
        except Exception as error:
            fail_open(accelerator, error, self.program.name)
            return None
        return TranslatedCall(
            identity,
            translation,
            self.program.name,
            config,
            {**self.kwargs, **kwargs},
        )

    def _kept(self, made: Any) -> Any:
        kept = super()._kept(made)
        if isinstance(kept, TranslatedRunnable):
            kept._translation = self._translation
        return kept


def _is_limited(translation: Translation, config: RunnableConfig | None) -> bool:
    """Tell whether the caller lets fewer branches run at once than there are side by side."""
    configs = [ensure_config(config), *(binding.config for binding in translation.root.bindings)]
    limit = next(filter(None, (config.get("max_concurrency") for config in configs)), None)
    return limit is not None and limit < translation.num_branches
