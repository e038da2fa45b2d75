"""The check of an embedding model with int8 weights: its vectors against the model's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rag_accel.engines.embedding.compiled_model import both_vectors, is_installed
from rag_accel.engines.embedding.models import load_named_model
from rag_accel.engines.embedding.same_model import model_digest
from rag_accel.errors import ConfigError
from rag_accel.fidelity.divergence import mean_and_error
from rag_accel.fidelity.prompts import TextPrompt, searched_prompts, word_search
from rag_accel.fidelity.result import CheckResult
from rag_accel.kv.verdicts import EMBEDDING_INT8, CheckVerdict, installed_versions, result_folders
from rag_accel.sample import read_corpus
from rag_accel.system.processor import usable_cores

#: Documents that prompts are made of, and those of a prompt.
_CHUNKS, _PASSAGES = 500, 8
_LIBRARIES = ("rag-accel", "sentence-transformers", "torch", "openvino")


def embedding_prompts(count: int) -> list[TextPrompt]:
    """Return questions of Python's documentation, with the texts that share most words."""
    documents = read_corpus(_CHUNKS).documents
    search = word_search([document.text for document in documents], _PASSAGES)
    return searched_prompts(documents, search, count)


def check_embedding(
    model: Any,
    prompts: Sequence[TextPrompt],
    *,
    said: str,
    target: float,
    least: int,
    folder: str | Path | None,
    goes_on: Callable[[int], bool],
) -> CheckResult:
    """Compare the vectors of texts and questions, and keep the verdict.

    Args:
        model: a folder, a name on the hub, or a ``SentenceTransformer`` on the CPU in float32.
        prompts: whose texts and questions are embedded.
        said: stands for ``prompts`` in the result.
        target: the smallest cosine of a vector to the model's own.
        least: prompts that must be compared.
        folder: where the verdict is kept; None for one of the user's cache.
        goes_on: tells whether there is time for a further prompt, once so many are done.

    Raises:
        ConfigError: the model cannot be loaded or compiled, or the time is over too early.
        OSError: the verdict cannot be written.
    """
    named = isinstance(model, str | Path)
    loaded = load_named_model(str(model), "model") if named else model
    embed = _compiled(loaded)
    texts: dict[str, tuple[Any, Any]] = {}
    questions: list[tuple[Any, Any]] = []
    for prompt in prompts:
        new = [text for text in dict.fromkeys(prompt.texts) if text not in texts]
        *found, asked = zip(*embed([*new, prompt.question]), strict=True)
        texts |= dict(zip(new, found, strict=True))
        questions.append(asked)
        if not goes_on(len(questions)):
            break
    done = len(questions)
    if done < least:
        raise ConfigError(
            "the time was over",
            where="check",
            found=f"{done} prompts",
            valid=f"{least} or more, of which an error can be told",
            hint="give a larger limit_s",
        )
    cosine = min(float(own @ other) for own, other in (*texts.values(), *questions))
    top1, error = mean_and_error(_same_nearest(list(texts.values()), questions))
    card = getattr(getattr(loaded, "model_card_data", None), "base_model", None)
    name = str(model) if named else str(card or type(loaded).__name__)
    verdict = CheckVerdict(
        model=model_digest(loaded),
        name=name,
        target=target,
        ratio=0.0 if cosine >= target else None,
        top1=top1,
        top1_error=error,
        prompts=done,
        tokens=0,
        written=time.time(),
        versions=installed_versions(_LIBRARIES),
        cosine=cosine,
    )
    return CheckResult(
        *(name, EMBEDDING_INT8.option, target, verdict.ratio, top1, error),
        cosine=cosine,
        prompts=done,
        compared=f"{len(texts)} texts and {done} questions of {said}",
        complete=done == len(prompts),
        file=EMBEDDING_INT8.write(result_folders(folder)[0], verdict),
    )


def _compiled(model: Any) -> Callable[[list[str]], tuple[Any, Any]]:
    """Return what gives vectors of length 1 by the model and with int8 weights."""
    if not is_installed():
        raise _refused("OpenVINO is not installed", "pip install 'rag-accel[fast]'")
    from rag_accel.engines.embedding.compiled_model import CompiledTransformer

    threads = usable_cores()
    try:
        compiled: Any = CompiledTransformer(model, threads, "int8")
    except Exception as error:  # of models of any kind, and of the process that compiles
        raise _refused(str(error), "embedding_runtime='auto' runs it on torch") from error

    def embed(texts: list[str]) -> tuple[Any, Any]:
        other, own = both_vectors(model, threads, compiled, texts)
        found = (own.double().numpy(), other.double().numpy())
        first, second = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in found)
        return first, second

    return embed


def _refused(found: str, hint: str) -> ConfigError:
    return ConfigError(
        "the embedding model is not compiled with int8 weights",
        where="model",
        found=found,
        valid="a transformer of sentence-transformers on the CPU in float32",
        hint=hint,
    )


def _same_nearest(texts: Sequence[tuple[Any, Any]], questions: Any) -> list[float]:
    """Return 1 for each question whose nearest text is the same both ways, else 0."""
    nearest = (
        (np.stack([asked[way] for asked in questions]) @ np.stack([text[way] for text in texts]).T)
        for way in (0, 1)
    )
    own, other = (scores.argmax(axis=1) for scores in nearest)
    return (own == other).astype(float).tolist()
