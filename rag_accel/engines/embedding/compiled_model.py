"""The compiled form of a sentence-transformers model, used only while it is the same model.

torch runs a small transformer as some hundred and fifty operators, each called from Python;
compiled by OpenVINO, it is one call that releases the interpreter lock, on kernels chosen for the
processor. Compiled is everything after the look-up of the word embeddings, with pooling and
normalisation, from the model's own weights: in the background, once for all users of a model.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args
from weakref import WeakSet, WeakValueDictionary, ref

import numpy as np
from numpy.typing import NDArray

from rag_accel.config import EmbeddingRuntime
from rag_accel.engines.compiled.child_program import GRAPH
from rag_accel.engines.compiled.compile_process import (
    CompileError,
    convert,
    private_folder,
    require_time,
    turn_of,
)
from rag_accel.engines.compiled.compiled_forms import (
    FORKED,
    BackgroundTask,
    CompiledForms,
    never_free,
    note_start,
    openvino,
    to_eight_bits,
)
from rag_accel.engines.embedding import traced_network
from rag_accel.engines.embedding.models import is_library_code
from rag_accel.engines.embedding.same_model import ModelWatch, model_digest, tensors
from rag_accel.engines.embedding.traced_network import NETWORK
from rag_accel.errors import ApproximateVectorsWarning
from rag_accel.kv.verdicts import EMBEDDING_INT8, result_folders
from rag_accel.system.forks import at_fork

logger = logging.getLogger("rag_accel.embedding")

State = Literal["new", "building", "ready", "refused"]
Output = Literal["sentence_embedding", "token_embeddings"]
Tables = dict[str, NDArray[np.int64]]
"""What a tokenizer gives, ``[texts, tokens]`` each, by name."""

#: Most bytes that the weights of all forms of a model may take besides its own.
COMPILED_LIMIT = 2**30
_SETTINGS = {
    "f32": {"INFERENCE_PRECISION_HINT": "f32"},
    "bf16": {"INFERENCE_PRECISION_HINT": "bf16"},
    "int8": {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "128"},
}
_INPUTS = ("attention_mask", "token_type_ids")
_KNOWN = frozenset({"Pooling", "Normalize", "Dense", "LayerNorm", "Dropout"})
#: Packages whose classes are the same in another process.
_SOURCES = ("torch.nn.", "transformers.", "sentence_transformers.")
_ADAPTERS = ("peft.", "adapters.")
OUTPUTS: tuple[Output, ...] = get_args(Output)


class NotCompilableError(Exception):
    """The refusal of a model that cannot be compiled; the message says why."""


class CompiledTransformer:
    """The compiled form of a ``SentenceTransformer``, valid as long as that does not change.

    Args:
        model: the model, on the CPU in float32.
        threads: most threads of one micro-batch; see ``CompiledForms`` for fewer.
        precision: ``f32``; ``bf16`` computes products in bfloat16 where the processor can; ``int8``
            holds weights and multiplies in eight bits. Only ``f32`` gives the model's own vectors.
        parallel: micro-batches of one thread each that compute at the same time.

    Raises:
        NotCompilableError: if something about the model is not known here.
        ImportError: without OpenVINO.
    """

    def __init__(self, model: Any, threads: int, precision: str = "f32", parallel: int = 1) -> None:
        transformer = _transformer_of(model)
        embedding = transformer.get_input_embeddings()
        weights = {id(w): w for w in model.parameters() if w is not embedding.weight}
        size = sum(weight.nbytes for weight in weights.values())
        if (least := 2 * size) > COMPILED_LIMIT:  # forms for all threads and for one
            raise NotCompilableError(
                f"its weights would take {least >> 20} MiB more, of at most {COMPILED_LIMIT >> 20}"
            )
        self._model = model
        self._embedding = embedding
        # Before the conversion: what changes while it runs must show.
        self._watch = ModelWatch(model, own_settings=False)
        if not self._watch.is_same():
            raise NotCompilableError("one of its modules has a hook or another forward")
        #: all modules of the model
        self.modules = self._watch.modules
        rest = _rest_of(model)
        self._excludes_prompts = not all(getattr(module, "include_prompt", True) for module in rest)
        self._inputs = _inputs_of(model)
        graph = _converted(transformer, rest, embedding, self._inputs)
        require_time()
        if precision == "int8":
            to_eight_bits(graph)
        most = COMPILED_LIMIT // max(1, size)
        self._forms = CompiledForms(graph, threads, most, _SETTINGS[precision], parallel)

    def is_current(self) -> bool:
        return self._watch.is_same()

    def prepare(self, texts: Sequence[str], prompt: str | None) -> Tables | None:
        """Tokenise texts for ``start``; None where the model itself has to run them."""
        if prompt and self._excludes_prompts:
            return None
        features = self._model.preprocess(list(texts), prompt=prompt)
        found = {
            name: value.numpy() for name, value in features.items() if getattr(value, "ndim", 0) > 0
        }
        is_known = found.keys() == {"input_ids", *self._inputs}
        return found if is_known and len({table.shape for table in found.values()}) == 1 else None

    def usual_width(self, tokens: int) -> int:
        """Return the tokens to which texts of so many are padded, so that shapes come again."""
        step = 4 if tokens <= 64 else 8 if tokens <= 128 else 16
        most = self._model.max_seq_length or tokens
        return max(tokens, min(-(-tokens // step) * step, most))

    def start(self, tables: Tables, threads: int, output: Output) -> Callable[[], Any] | None:
        """Start the model on ``[texts, tokens]`` tables; return what waits for one of its results.

        That is float32, ``[texts, dim]`` or ``[texts, tokens, dim]``. None if there is no form for
        so few threads yet.
        """
        form = self._forms.find(threads)
        if form is None:
            return None
        others = (tables[name] for name in self._inputs)
        return form.start([self._rows(tables["input_ids"]), *others], OUTPUTS.index(output))

    def _rows(self, ids: Any) -> Any:
        """Look word embeddings up; not by torch, whose threads spin for a while afterwards."""
        import torch

        words = self._embedding
        if type(words).forward is torch.nn.Embedding.forward and words.max_norm is None:
            return words.weight.detach().numpy().take(ids, axis=0)
        with torch.inference_mode():
            return words(torch.from_numpy(ids)).numpy()


def _transformer_of(model: Any) -> Any:
    """Return the module that is compiled, if all around it is as it is known here."""
    first, *_ = model.children()
    text = getattr(first, "modality_config", {}).get("text", {})
    output = text.get("method_output_name")
    if type(first).__name__ != "Transformer" or not hasattr(first, "model"):
        raise NotCompilableError(f"its first module is {type(first).__name__}")
    known = ("last_hidden_state", ("last_hidden_state",))
    if text.get("method") != "forward" or output not in known:
        raise NotCompilableError("its first module does not give the last hidden state")
    if first.module_output_name != "token_embeddings" or any((model.module_kwargs or {}).values()):
        raise NotCompilableError("its modules are wired in a way of its own")
    if str(first.model.dtype) != "torch.float32":
        raise NotCompilableError(f"its weights are {first.model.dtype}")
    return first.model


def _rest_of(model: Any) -> list[Any]:
    """Return the modules after the first, if their code is known to depend on shapes alone."""
    rest = list(model.children())[1:]
    for module in rest:
        kind = type(module)
        if kind.__name__ not in _KNOWN or not kind.__module__.startswith("sentence_transformers."):
            raise NotCompilableError(f"it has a module {kind.__name__}")
    return rest


def _inputs_of(model: Any) -> tuple[str, ...]:
    features = model.preprocess(["a"])
    tables = {name for name, value in features.items() if getattr(value, "ndim", 0) == 2}
    if not {"input_ids", "attention_mask"} <= tables or not tables <= {"input_ids", *_INPUTS}:
        raise NotCompilableError(f"its tokenizer gives {', '.join(sorted(tables))}")
    return tuple(name for name in _INPUTS if name in tables)


def _converted(
    transformer: Any, rest: Sequence[Any], embedding: Any, inputs: tuple[str, ...]
) -> Any:
    """Return the graph of a model, made by a process of its own from a copy of its modules."""
    import torch

    parts = torch.nn.ModuleList([transformer, *rest])
    _require_known(parts, embedding)
    with torch.inference_mode():
        dim = embedding(torch.ones((1, 1), dtype=torch.int64)).shape[-1]
    # A copy that shares the weights. Rows of word embeddings come in from outside.
    shared: dict[int, Any] = {id(tensor): tensor for tensor in tensors(parts)}
    shared[id(embedding)] = torch.nn.Embedding.from_pretrained(torch.zeros(1, dim))
    network = copy.deepcopy(parts, shared).eval()
    size = sum(tensor.nbytes for tensor in tensors(network))
    spec = {"inputs": inputs, "outputs": OUTPUTS, "dim": dim}
    with private_folder() as folder:
        write = partial(_write, network, folder / NETWORK)
        convert(traced_network.__file__, folder, spec, size, write)
        # Mapped into memory, or read: valid when the folder has gone.
        return openvino().Core().read_model(folder / GRAPH)


def _write(network: Any, path: Path) -> None:
    """Write modules with their weights to a file that nobody else can read."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    importlib.import_module("torch").save(network, path)


def _require_known(parts: Any, embedding: Any) -> None:
    """Raise unless all modules but the word embeddings run code that a child can import."""
    inside = set(map(id, embedding.modules()))
    for part in parts.modules():
        kind = type(part)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if kind.__module__.startswith(_ADAPTERS):
            raise NotCompilableError(f"it has adapters ({name})")
        if id(part) in inside:
            continue
        is_known = kind.__module__.startswith(_SOURCES)
        module = importlib.import_module(kind.__module__) if is_known else None
        if getattr(module, kind.__qualname__, None) is not kind:
            raise NotCompilableError(f"its class {name} is not known")
        if not is_library_code(kind.forward):
            raise NotCompilableError(f"forward of its class {name} has been replaced")


#: Compilations of a changing model before it stays on torch, such as one in training.
MAX_BUILDS = 3

Build = Callable[[], CompiledTransformer]
Prove = Callable[[CompiledTransformer], str]


class BackgroundRuntime:
    """The compiled form of one model, made in the background when first asked for.

    Models are compiled one at a time. What waits for its turn is kept by its users only, and left
    out once they are gone, as is a compilation that is under way.

    Args:
        build: compiles the model; raises if it cannot be.
        prove: says how near its vectors are; raises unless that is near enough.
    """

    def __init__(self, build: Build, prove: Prove) -> None:
        self._build = build
        self._prove = prove
        self._lock = threading.Lock()
        self._ready: CompiledTransformer | None = None
        self._builds = 0
        self._task: BackgroundTask | None = None
        self.state: State = "new"
        #: how near its vectors are, or why there is none, in a few words
        self.reason = ""
        _runtimes.add(self)

    def current(self) -> CompiledTransformer | None:
        """Return the compiled model if it may be used now; from any thread."""
        ready = self._ready
        if ready is not None:
            if ready.is_current():
                return ready
            self._drop(ready)
        if self.state == "new":
            self._start()
        return None

    def give_up(self, error: Exception) -> None:
        """Never use it again, because it failed."""
        with self._lock:
            self._ready = None
            self._refuse(f"compiled, it failed: {error}")

    def wait(self, timeout_s: float) -> None:
        """Wait for a compilation that is under way."""
        task = self._task
        if task is not None:
            task.wait(timeout_s)

    def describe(self) -> str:
        """Say in a few words what runs the model now."""
        if self.state == "ready":
            return f"compiled by OpenVINO, {self.reason}"
        if self.state == "refused":
            return f"runs on torch: {self.reason}"
        return "runs on torch until OpenVINO has compiled it"

    def note_fork(self) -> None:
        """Forget, in a forked child, what does not run there."""
        self._lock = threading.Lock()
        self._task = None
        if self.state in ("building", "ready"):
            never_free(self._ready)  # that would wait for its threads, which do not exist here
            self._ready = None
            self._refuse(FORKED)

    def _drop(self, changed: CompiledTransformer) -> None:
        with self._lock:
            if self._ready is not changed:
                return
            self._ready = None
            self.state = "new"
        logger.info("a model has changed; it runs on torch until it is compiled again")

    def _start(self) -> None:
        with self._lock:
            if self.state != "new":
                return
            if self._builds >= MAX_BUILDS:
                self._refuse("it keeps changing")
                return
            self.state = "building"
            self._builds += 1
            self._task = BackgroundTask(partial(_compile, ref(self)))
            try:
                self._task.start()
            except RuntimeError as error:  # no thread to be had: no request fails for that
                self._refuse(str(error))

    def _settle(self, made: CompiledTransformer, found: str) -> None:
        if made.is_current():
            self._ready = made
            self.state, self.reason = "ready", found
        else:
            self.state = "new"

    def _refuse(self, reason: str) -> None:
        self.state, self.reason = "refused", reason
        logger.info("a model is not compiled: %s", reason)


def _compile(kept: ref[BackgroundRuntime]) -> None:
    """Compile the model of a runtime, which this thread must not keep from going."""
    try:
        note_start()
        with turn_of(lambda: kept() is not None):
            build, prove = _steps(kept())
            made = build()
        found = prove(made)
        if (runtime := kept()) is not None:
            runtime._settle(made, found)
    except Exception as error:
        if (runtime := kept()) is not None:
            runtime._refuse(str(error))


def _steps(runtime: BackgroundRuntime | None) -> tuple[Build, Prove]:
    if runtime is None:
        raise CompileError("nobody uses it any more")
    return runtime._build, runtime._prove


#: Texts on which a compiled model is compared with the model itself, alone and side by side.
PROBES = (
    "a",
    "The bridge is closed.",
    "Who may cross the river in winter, and what does it cost those who come from far away?",
    "0x7f naive cafe 12,345.67 %",
    "word " * 90,
)
#: Largest difference of a component in float32, in units of the largest one.
TOLERANCE = 1e-6
#: Smallest cosine between the vectors of a model and those of its approximate forms.
LEAST_COSINE = {"bf16": 0.999, "int8": 0.98}
#: Share of 192 questions whose five nearest of MiniLM's vectors stay the same, where it is low: the
#: row ``equal_top_5_share`` of the suite ``embedding_concurrency``.
EQUAL_FIVES = {"int8": 0.62}
_PRECISIONS: dict[EmbeddingRuntime, str] = {"auto": "f32", "bf16": "bf16", "int8": "int8"}

_runtimes: WeakSet[BackgroundRuntime] = WeakSet()


def _note_fork() -> None:
    for runtime in _runtimes:
        runtime.note_fork()


at_fork(after_in_child=_note_fork)

#: A runtime holds its model, so the model's id is its own as long as the runtime lives.
_shared: WeakValueDictionary[tuple[int, int, int, str], BackgroundRuntime] = WeakValueDictionary()


def runtime_for(
    model: Any, runtime: EmbeddingRuntime, threads: int, parallel: int = 1
) -> BackgroundRuntime | None:
    """Return the runtime that compiles a ``SentenceTransformer`` on the CPU; None without one.

    Args:
        model: the model.
        runtime: as of ``SentenceTransformerEngine``.
        threads: most threads of one micro-batch.
        parallel: micro-batches of one thread each that compute at the same time.
    """
    precision = _PRECISIONS.get(runtime)
    if precision is None or not is_installed():
        return None
    key = (id(model), threads, parallel, precision)
    if precision in EQUAL_FIVES and key not in _shared:
        warnings.warn(
            ApproximateVectorsWarning(
                f"embedding_runtime={runtime!r} finds other texts: with MiniLM only"
                f" {EQUAL_FIVES[precision]:.0%} of 192 questions kept their five nearest ones."
                " Check yours (rag-accel check MODEL --variant embedding-int8), or name 'bf16' or"
                " 'auto'"
            ),
            stacklevel=2,
        )
    build = partial(CompiledTransformer, model, threads, precision, parallel)
    made = BackgroundRuntime(build, partial(prove, model, threads, precision))
    return _shared.setdefault(key, made)


def is_installed() -> bool:
    """Tell whether there is OpenVINO."""
    return importlib.util.find_spec("openvino") is not None


def describe(model: Any, runtime: EmbeddingRuntime) -> str:
    """Say in a few words what runs a model, and why nothing faster does."""
    if runtime == "torch":
        return "runs on torch, as asked for"
    if not is_installed():
        return "runs on torch; pip install 'rag-accel[fast]' compiles it"
    precision = _PRECISIONS[runtime]
    found = [
        shared
        for (key, _, _, held), shared in list(_shared.items())
        if key == id(model) and held == precision
    ]
    return found[0].describe() if found else "compiled by OpenVINO once it is used"


def wait_until_compiled(timeout_s: float) -> None:
    """Wait for running compilations of this process, for measurements and readiness checks."""
    end = time.monotonic() + timeout_s
    for shared in list(_shared.values()):
        shared.wait(max(0.0, end - time.monotonic()))


def prove(model: Any, threads: int, precision: str, compiled: CompiledTransformer) -> str:
    """Compare a compiled model with the model on ``PROBES``; return the finding in words.

    Raises:
        RuntimeError: unless its vectors are the same, or as near as its precision allows.
    """
    import torch

    cosines: list[float] = []
    for texts, number in ((PROBES[:1], threads), (PROBES, threads), (PROBES, 1)):
        require_time()
        found, wanted = both_vectors(model, number, compiled, list(texts))
        if precision == "f32":
            error = (found - wanted).abs().max().item()
            if not error <= TOLERANCE * max(1.0, wanted.abs().max().item()):
                raise RuntimeError(f"compiled, its vectors differ by {error:.1e}")
        cosines.append(torch.nn.functional.cosine_similarity(found, wanted).min().item())
    if precision == "f32":
        return f"same vectors within {TOLERANCE:.0e}"
    if not min(cosines) >= LEAST_COSINE[precision]:
        raise RuntimeError(
            f"in {precision}, a vector has a cosine of {min(cosines):.4f} to its own"
        )
    said = f"approximate in {precision}, smallest cosine {min(cosines):.6f} on {len(PROBES)} texts"
    return f"{said}; {_checked(model)}" if precision == "int8" else said


def _checked(model: Any) -> str:
    """Return the finding of a check of this model in int8, or the command that makes one."""
    verdict = EMBEDDING_INT8.find(partial(model_digest, model), result_folders(None))
    if verdict is None:
        return "not checked: rag-accel check MODEL --variant embedding-int8"
    found = f"by its check {verdict.cosine:.4f} on {verdict.prompts} prompts"
    return found if verdict.passes() else f"{found}, below the {verdict.target:g} asked for"


def both_vectors(
    model: Any, threads: int, compiled: CompiledTransformer, texts: list[str]
) -> tuple[Any, Any]:
    """Return the vectors ``[texts, dim]`` of a compiled model and those of the model itself.

    Raises RuntimeError if it does not run on so many threads.
    """
    import torch

    with torch.inference_mode():
        wanted = model(model.preprocess(texts))["sentence_embedding"]
    tables = compiled.prepare(texts, None)
    end = compiled.start(tables, threads, "sentence_embedding") if tables is not None else None
    if end is None:
        raise RuntimeError(f"compiled, it does not run on {threads} threads")
    return torch.from_numpy(end()), wanted
