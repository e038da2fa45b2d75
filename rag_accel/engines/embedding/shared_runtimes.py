"""The compiled form of a model that all its users share, with its proof and description."""

from __future__ import annotations

import importlib
import importlib.util
import time
import warnings
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from rag_accel.config import EmbeddingRuntime
from rag_accel.engines.compiled.compile_process import require_time
from rag_accel.engines.embedding.runtime import BackgroundRuntime, Compiled
from rag_accel.engines.embedding.same_model import model_digest
from rag_accel.errors import ApproximateVectorsWarning
from rag_accel.kv.verdicts import EMBEDDING_INT8, result_folders

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

    def build() -> Compiled:
        compiling = importlib.import_module("rag_accel.engines.embedding.compiled_transformer")
        return compiling.CompiledTransformer(model, threads, precision, parallel)

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


def prove(model: Any, threads: int, precision: str, compiled: Compiled) -> str:
    """Compare a compiled model with the model on ``PROBES``; return the finding in words.

    Raises:
        RuntimeError: unless its vectors are the same, or as near as its precision allows.
    """
    cosines: list[float] = []
    for texts, number in ((PROBES[:1], threads), (PROBES, threads), (PROBES, 1)):
        require_time()
        found, wanted = both_vectors(model, number, compiled, list(texts))
        if precision == "f32":
            error = (found - wanted).abs().max().item()
            if not error <= TOLERANCE * max(1.0, wanted.abs().max().item()):
                raise RuntimeError(f"compiled, its vectors differ by {error:.1e}")
        cosines.append(_smallest_cosine(found, wanted))
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


def both_vectors(model: Any, threads: int, compiled: Compiled, texts: list[str]) -> tuple[Any, Any]:
    """Return the vectors ``[texts, dim]`` of a compiled model and those of the model itself.

    Raises RuntimeError if it does not run on so many threads.
    """
    torch = importlib.import_module("torch")
    with torch.inference_mode():
        wanted = model(model.preprocess(texts))["sentence_embedding"]
    tables = compiled.prepare(texts, None)
    end = compiled.start(tables, threads, "sentence_embedding") if tables is not None else None
    if end is None:
        raise RuntimeError(f"compiled, it does not run on {threads} threads")
    return torch.from_numpy(end()), wanted


def _smallest_cosine(found: Any, wanted: Any) -> float:
    torch = importlib.import_module("torch")
    return torch.nn.functional.cosine_similarity(found, wanted).min().item()
