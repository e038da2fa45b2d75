"""Texts that are ready to run, on torch, on the compiled model or through ``encode``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.embedding.compiled_model import CompiledTransformer, Output, Tables
from rag_accel.engines.torch_threads import on_threads

Use = Callable[[Any], Any]
Again = Callable[[], Any]
_is_training = attrgetter("training")


class PreparedTexts(Protocol):
    """Texts that are ready to run."""

    #: tokens of each text, exact or estimated
    lengths: Sequence[int]
    #: whether a started encoding computes without the thread that started it
    overlaps: bool

    def start(self, rows: Sequence[int], threads: int) -> Callable[[], Any]:
        """Start encoding some of the texts on so many threads; calling the result returns vectors.

        Those are ``[len(rows), dim]``. Where nothing overlaps, the thread that asks computes; else
        what is returned may have a method ``wait(timeout_s)`` that tells whether they are there.
        """
        ...


class PreparedSentences(PreparedTexts, Protocol):
    """Prepared texts whose tokens have vectors, too."""

    def start_tokens(self, rows: Sequence[int], threads: int) -> Callable[[], Sequence[Any]]:
        """Do the same for a tensor ``[tokens, dim]`` for each of the texts, without padding."""
        ...


class EncodedTexts:
    """Texts that run through ``model.encode``.

    Args:
        model: anything with ``encode``.
        texts: what to encode.
        kwargs: arguments of ``encode``.
        lengths: about how many tokens each has.
    """

    overlaps = False

    def __init__(
        self, model: Any, texts: Sequence[str], kwargs: Mapping[str, Any], lengths: Sequence[int]
    ) -> None:
        self._model = model
        self._texts = texts
        self._kwargs = kwargs
        self.lengths = lengths

    def start(self, rows: Sequence[int], threads: int) -> Callable[[], Any]:
        return on_threads(threads, partial(self._encode, rows, **self._kwargs))

    def start_tokens(self, rows: Sequence[int], threads: int) -> Callable[[], Sequence[Any]]:
        kwargs = {**self._kwargs, "output_value": "token_embeddings"}
        return on_threads(threads, partial(self._encode, rows, **kwargs))

    def _encode(self, rows: Sequence[int], **kwargs: Any) -> Any:
        return self._model.encode(
            [self._texts[row] for row in rows],
            batch_size=len(rows),
            show_progress_bar=False,
            **kwargs,
        )


class CompiledTexts:
    """Texts tokenised together that run slice by slice on a compiled model.

    Args:
        compiled: the model.
        tables: the result of its ``prepare``.
        finish: turns its vectors into those of ``encode``.
        again: prepares some of the texts for torch, where the compiled model cannot run or fails.
        give_up: called with an error of the compiled model.
    """

    overlaps = True

    def __init__(
        self,
        compiled: CompiledTransformer,
        tables: Tables,
        finish: Use,
        again: Callable[[Sequence[int]], PreparedSentences],
        give_up: Callable[[Exception], None],
    ) -> None:
        self._compiled = compiled
        self._tables = tables
        self._finish = finish
        self._again = again
        self._give_up = give_up
        self.lengths: Sequence[int] = tables["attention_mask"].sum(axis=1).tolist()

    def start(self, rows: Sequence[int], threads: int) -> Callable[[], Any]:
        def again() -> Any:
            return self._again(rows).start(range(len(rows)), threads)()

        tables = self._slice(rows)
        return self._start(tables, threads, "sentence_embedding", self._finish, again)

    def start_tokens(self, rows: Sequence[int], threads: int) -> Callable[[], Sequence[Any]]:
        def again() -> Sequence[Any]:
            return self._again(rows).start_tokens(range(len(rows)), threads)()

        tables = self._slice(rows)
        use = partial(_own_tokens, tables["attention_mask"])
        return self._start(tables, threads, "token_embeddings", use, again)

    def _start(self, tables: Tables, threads: int, output: Output, use: Use, again: Again) -> Again:
        try:
            run = self._compiled.start(tables, threads, output)
        except Exception as error:
            run = partial(_raise, error)
        return again if run is None else _Run(run, use, again, self._give_up)

    def _slice(self, rows: Sequence[int]) -> Tables:
        """Return the columns that some of the texts use, and a few more.

        OpenVINO compiles for each new shape: a tenth to a third of what that run takes. A text by
        itself has few lengths, which come again soon: three more tokens would cost it 7 % for ever.
        """
        mask = self._tables["attention_mask"][rows]
        used = _used_columns(mask)
        width = used.stop - used.start
        if len(rows) > 1 and mask[:, 0].all():  # else what is padded is on the left
            width = self._compiled.usual_width(width)
        return {name: _to_width(table[rows, used], width) for name, table in self._tables.items()}


@dataclass(slots=True)
class _Run:
    """One run of a compiled model; if it fails, torch computes and the model is given up."""

    run: Callable[[], Any]
    use: Use
    again: Again
    give_up: Callable[[Exception], None]

    def wait(self, timeout_s: float) -> bool:
        """Tell whether it has ended, at the latest after so many seconds."""
        wait = getattr(self.run, "wait", None)
        return wait is None or wait(timeout_s)

    def __call__(self) -> Any:
        try:
            found = self.run()
        except Exception as error:
            result = self.again()
            self.give_up(error)
            return result
        return self.use(found)


def _own_tokens(mask: NDArray[np.int64], vectors: NDArray[np.float32]) -> Sequence[Any]:
    import torch

    found = zip(torch.from_numpy(vectors), torch.from_numpy(mask).bool(), strict=True)
    return [vector[own] for vector, own in found]


def _to_width(table: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    found = np.zeros((len(table), width), dtype=table.dtype)
    found[:, : table.shape[1]] = table
    return found


def _used_columns(mask: Any) -> slice:
    """Return the columns that hold a token of at least one row.

    The rest pads longer rows of other micro-batches, on the right or on the left.
    """
    used = np.flatnonzero(mask.any(axis=0))
    return slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(0, 1)


class TorchTexts:
    """Texts tokenised together that run slice by slice on torch.

    Args:
        model: a ``SentenceTransformer``.
        features: the result of its ``preprocess``; see ``is_sliceable``.
        finish: turns its vectors into those of ``encode``.
    """

    overlaps = False

    def __init__(self, model: Any, features: dict[str, Any], finish: Callable[[Any], Any]) -> None:
        self._model = model
        self._features = features
        self._finish = finish
        self._mask = features["attention_mask"].cpu().numpy()
        self.lengths: Sequence[int] = self._mask.sum(axis=1).tolist()

    def start(self, rows: Sequence[int], threads: int) -> Callable[[], Any]:
        return partial(self._vectors, self._start(rows, threads))

    def start_tokens(self, rows: Sequence[int], threads: int) -> Callable[[], Sequence[Any]]:
        return partial(self._tokens, self._start(rows, threads))

    def _start(self, rows: Sequence[int], threads: int) -> Callable[[], dict[str, Any]]:
        evaluate(self._model, self._model.modules())
        return on_threads(threads, partial(self._model, self._slice(rows)))

    def _vectors(self, end: Callable[[], dict[str, Any]]) -> Any:
        import torch

        with torch.inference_mode():
            found = end()["sentence_embedding"]
            return self._finish(found.to(device="cpu", dtype=torch.float32).numpy())

    def _tokens(self, end: Callable[[], dict[str, Any]]) -> Sequence[Any]:
        import torch

        with torch.inference_mode():
            found = end()
        pairs = zip(found["token_embeddings"], found["attention_mask"].bool(), strict=True)
        return [vectors[mask] for vectors, mask in pairs]

    def _slice(self, rows: Sequence[int]) -> dict[str, Any]:
        index, used = list(rows), _used_columns(self._mask[rows])
        return {
            name: value[index, used].to(self._model.device) if _is_table(value) else value
            for name, value in self._features.items()
        }


def _raise(error: Exception) -> Any:
    raise error


def _is_table(value: Any) -> bool:
    return getattr(value, "ndim", 0) > 0


def is_sliceable(features: Mapping[str, Any], count: int) -> bool:
    """Tell whether each tensor is ``[texts, tokens]``, so that rows and columns can be taken."""
    mask = features.get("attention_mask")
    if mask is None or getattr(mask, "ndim", 0) != 2 or mask.shape[0] != count:
        return False
    return all(value.shape == mask.shape for value in features.values() if _is_table(value))


def evaluate(model: Any, modules: Iterable[Any]) -> None:
    """Set a model to evaluation as each ``encode`` does; the check is a tenth of the cost."""
    if any(map(_is_training, modules)):
        model.eval()
