"""Language models to run here, shared by all that name them alike, and their engines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, ref

from rag_accel.config import Options
from rag_accel.engine_api import Engine
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import ConfigError
from rag_accel.system.files import model_files
from rag_accel.system.locks import RenewedLock

if TYPE_CHECKING:
    from rag_accel.engines.llm.local.model.loading import LoadedModel

DEFAULT_BOUNDS = LocalOptions()


def name_of(model: Any) -> str:
    """Return the name of a model that is a folder, a name on the hub, or an object."""
    if isinstance(model, str | Path):
        return str(model)
    return getattr(getattr(model, "config", None), "name_or_path", "") or "model"


class LocalModel:
    """A language model by folder, hub name or object, with what makes another engine of it.

    Args:
        model: a folder, a name on the hub, or a causal language model of transformers.
        tokenizer: the tokenizer of a model object.
        dtype: ``float32`` or ``bfloat16``; None for that of the checkpoint.
        template: a chat template in place of the tokenizer's.
        bounds: its options.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        dtype: str | None,
        template: str | None,
        bounds: LocalOptions,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.dtype = dtype
        self.template = template
        self.bounds = bounds
        #: says what runs it and why; None before it is loaded
        self._runs: Callable[[], str] | None = None
        #: how near other weights than its own are; without their check before it is loaded
        self._weights = "" if bounds.weights == "own" else f"{bounds.weights} weights, approximate"
        #: of each engine, what tells whether the model is still what it was made of; replaced as a
        #: whole, since any thread reads it
        self._watches: tuple[tuple[ref[Engine], Callable[[], bool]], ...] = ()

    def __reduce__(self) -> Any:
        return _again, (self.model, self.tokenizer, self.dtype, self.template, self.bounds)

    @property
    def name(self) -> str:
        return name_of(self.model)

    @property
    def reuses_texts(self) -> bool:
        return self.bounds.kv_reuse != "exact"

    @property
    def reuses_paths(self) -> bool:
        return self.bounds.reuses_paths

    def describe_parts(self) -> tuple[str, ...]:
        """Return what runs it and why, and how near other weights are; from any thread.

        Before it is loaded there is only the latter.
        """
        runs = "" if self._runs is None else self._runs()
        return tuple(filter(None, (runs, self._weights)))

    def make(self, options: Options) -> Engine:
        """Load the model and return its engine. Takes long.

        Warns once if prompts are fused, or weights are int8, without a check that passed for this
        model.

        Raises:
            ConfigError: the model is not supported, or was not proved equal.
        """
        from rag_accel.engines.llm.local.engine import LocalLLMEngine
        from rag_accel.engines.llm.local.model.loading import load

        loaded = load(self.model, self.tokenizer, dtype=self.dtype, options=self.bounds)
        self._runs = loaded.chosen.description()
        source = None if isinstance(self.model, str | Path) else self.model
        settings = partial(
            loaded.settings.are_same, source, loaded.tokenizer, template=self.template is None
        )
        self._warn_if_unchecked(loaded)
        engine = LocalLLMEngine(
            loaded.runner,
            loaded.tokenizer,
            eos=loaded.ends,
            template=self.template,
            sampling=loaded.sampling,
            options=self.bounds,
            check=self.check,
        )
        self._watch(engine, loaded.is_same, settings)
        return engine

    def load_for_tokens(self, *, waits: bool) -> LoadedModel:
        """Return a model object that was proved to run here, without a tokenizer. Takes long.

        Args:
            waits: as of ``loading.load``.

        Raises:
            ConfigError: the model is not supported, or was not proved equal.
        """
        from rag_accel.engines.llm.local.model.loading import load

        loaded = load(self.model, options=self.bounds, needs_tokenizer=False, waits=waits)
        self._runs = loaded.chosen.description()
        return loaded

    def make_for_tokens(self, loaded: LoadedModel) -> Engine:
        """Return an engine for prompts of token ids. With a folder, all weights are read.

        Warns once as ``make`` does.

        Args:
            loaded: this model, of which there is no other engine.

        Raises:
            ConfigError: the folder cannot be used.
        """
        from rag_accel.engines.llm.local.engine import LocalLLMEngine

        self._warn_if_unchecked(loaded)
        engine = LocalLLMEngine(loaded.runner, None, eos=(), options=self.bounds)
        self._watch(engine, loaded.is_same)
        return engine

    def _watch(self, engine: Engine, *checks: Callable[[], bool]) -> None:
        """Watch the model as long as the engine lives, whose runner and pool are not kept by it."""
        with _lock.lock:
            living = [entry for entry in self._watches if entry[0]() is not None]
            self._watches = (
                *living,
                *((ref(engine), check) for check in checks),
            )

    def _warn_if_unchecked(self, loaded: LoadedModel) -> None:
        from rag_accel.engines.llm.local.reuse.unchecked import warn_if_unchecked

        said = warn_if_unchecked(
            self.model,
            loaded.name,
            loaded.runner.identity,
            dtype=self.dtype,
            template=self.template,
            bounds=self.bounds,
        )
        self._weights = said or self._weights

    @property
    def is_same(self) -> bool:
        """Tell whether a model object is still what all its living engines were made of."""
        return all(watch() for engine, watch in self._watches if engine() is not None)

    def check(self) -> None:
        """Check that a model object has not changed.

        Raises:
            ConfigError: it was changed in a way that its engine does not follow.
        """
        if not self.is_same:
            raise ConfigError(
                "the model was changed after its engine was made",
                where=self.name,
                found="other modules, weights, hooks, dtype, device, end tokens, repetition penalty"
                " or chat template than then",
                valid="the model as it was",
                hint="make a new component or engine of the changed model, or keep adapters merged",
            )


def local_engine(
    model: Any, tokenizer: Any = None, *, dtype: str | None = None, template: str | None = None
) -> Engine:
    """Return an engine of a model by folder, hub name or object. Takes long.

    Once a model object or its tokenizer has changed, each request ends with ConfigError.

    Args:
        model: a folder, a name on the hub, or a causal language model of transformers.
        tokenizer: the tokenizer of a model object.
        dtype: ``float32`` or ``bfloat16``; None for that of the checkpoint.
        template: a chat template in place of the tokenizer's.

    Raises:
        ConfigError: the model is not supported, or was not proved equal.
        ImportError: transformers is missing; names the extra.
    """
    return local_model(model, tokenizer, dtype=dtype, template=template).make(Options())


_lock = RenewedLock()
_known: WeakValueDictionary[tuple[Any, ...], LocalModel] = WeakValueDictionary()


def local_model(
    model: Any,
    tokenizer: Any = None,
    *,
    dtype: str | None = None,
    template: str | None = None,
    bounds: LocalOptions = DEFAULT_BOUNDS,
) -> LocalModel:
    """Return the model; the same object for equal arguments while it is in use.

    A model object that was changed since an engine of it was made is another, as it is where its
    generation settings or its tokenizer's chat template were; so is a folder whose files were.
    What was loaded of a folder before goes on as it was.
    """
    named = isinstance(model, str | Path)
    source = (str(model), *model_files(Path(model))) if named else id(model)
    key = (source, id(tokenizer), dtype, template, bounds)
    with _lock.lock:
        found = _known.get(key)
        if found is None or not found.is_same:
            found = _known[key] = LocalModel(model, tokenizer, dtype, template, bounds)
        return found


def _again(
    model: Any, tokenizer: Any, dtype: str | None, template: str | None, bounds: LocalOptions
) -> LocalModel:
    return local_model(model, tokenizer, dtype=dtype, template=template, bounds=bounds)
