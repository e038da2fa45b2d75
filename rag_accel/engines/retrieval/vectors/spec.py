"""Settings of an index (dimension, metric, kind) and the type of its vectors. No FAISS here."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rag_accel.errors import ConfigError

Vectors = npt.NDArray[np.float32]

MAX_DIMENSION = 1 << 20

_Choice = TypeVar("_Choice", bound=enum.StrEnum)


class Metric(enum.StrEnum):
    """The measure by which two vectors are compared.

    A score is always *higher is nearer*: the inner product itself, or the **negated squared** L2
    distance. ``raw_score`` gives back the number FAISS would report.
    """

    INNER_PRODUCT = "inner_product"
    L2 = "l2"

    def raw_score(self, score: float) -> float:
        """Return the inner product, or the squared L2 distance (lower is nearer), of a score."""
        return score if self is Metric.INNER_PRODUCT else 0.0 - score


class IndexKind(enum.StrEnum):
    """The method by which an index finds neighbours.

    ``FLAT`` compares with every vector. ``IVF`` groups vectors into clusters and compares with
    the clusters nearest to the query; below ``IndexSpec.train_size`` documents it searches flat.
    """

    FLAT = "flat"
    IVF = "ivf"


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """The settings of one index.

    Args:
        dimension: length of every vector.
        metric: how vectors are compared.
        kind: flat or IVF.
        num_clusters: clusters of an IVF index; default ``4 * sqrt(documents)`` when it trains.
        nprobe: clusters a search visits; default an eighth of the clusters.
        train_size: documents at which an IVF index trains its clusters.
        codes: ``"sq8"`` lets an IVF index scan 8-bit codes of its vectors, as
            ``faiss.IndexIVFScalarQuantizer`` does, and score the best candidates again from the
            vectors. It reads a quarter of the memory and is **approximate**:
            ``DocumentIndex.recall`` measures by how much, and falls where vectors added later lie
            outside the ranges of the first ``train_size``. None scans the vectors.
        refine: candidates that a search by codes scores again for each result. Of 500 queries for
            10 of 20,000 random vectors of 128 numbers, 1 found 98.2 to 99.3 %, 2 and more all.
        stop: share of searches, above 0.5 and below 1, that are to find the same documents as one
            that reads all of its ``nprobe`` clusters. An IVF index then learns from its own
            searches when the clusters that are left can stay unread, see
            ``DocumentIndex.calibrate``. It is **approximate**; None reads them all.
        hot: ``"ram"`` leaves the clusters of an IVF index in the file that it was loaded from, and
            copies those that searches read most into memory (HedraRAG 4.4). Until it is saved and
            loaded it lies in memory as a whole. A device of torch, such as ``"cuda:0"``, has the
            copies there, of an index in memory; they are scanned there where that is faster. A flat
            index has all its vectors there, or none. None makes no copies.
        hot_bytes: bytes of the copies. Clusters of a file that changed since the index was loaded
            lie in memory too, and are not counted.

    Raises:
        ConfigError: on a value outside its range.
    """

    dimension: int
    metric: Metric = Metric.INNER_PRODUCT
    kind: IndexKind = IndexKind.FLAT
    num_clusters: int | None = None
    nprobe: int | None = None
    train_size: int = 20_000
    codes: str | None = None
    refine: int = 4
    stop: float | None = None
    hot: str | None = None
    hot_bytes: int = 1 << 28

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", _choice("metric", Metric, self.metric))
        object.__setattr__(self, "kind", _choice("kind", IndexKind, self.kind))
        check_positive("dimension", self.dimension)
        check_positive("train_size", self.train_size)
        check_positive("refine", self.refine)
        if self.codes not in (None, "sq8"):
            raise ConfigError(
                "bad index option", where="codes", found=repr(self.codes), valid="'sq8' or None"
            )
        if self.codes is not None and self.kind is not IndexKind.IVF:
            raise ConfigError(
                "codes of an index without clusters",
                where="codes",
                found=f"{self.codes!r} with kind {self.kind.value!r}",
                valid="kind='ivf', or codes=None",
            )
        if self.stop is not None:
            self._check_stop(self.stop)
        check_positive("hot_bytes", self.hot_bytes)
        if self.hot is not None:
            self._check_hot(self.hot)
        if self.dimension > MAX_DIMENSION:
            raise ConfigError(
                "bad index option",
                where="dimension",
                found=self.dimension,
                valid=f"1 to {MAX_DIMENSION}",
            )
        for name in ("num_clusters", "nprobe"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.num_clusters is not None and self.num_clusters > self.train_size:
            raise ConfigError(
                "an index cannot train more clusters than it has documents",
                where="num_clusters",
                found=self.num_clusters,
                valid=f"1 to train_size = {self.train_size}",
            )

    def _check_hot(self, hot: object) -> None:
        if not isinstance(hot, str):
            raise ConfigError(
                "bad index option",
                where="hot",
                found=repr(hot),
                valid="'ram', a device of torch such as 'cuda:0', or None",
            )
        if self.codes is not None or (hot == "ram" and self.kind is not IndexKind.IVF):
            raise ConfigError(
                "hot clusters of an index that has none of vectors",
                where="hot",
                found=f"{hot!r} with kind {self.kind.value!r} and codes {self.codes!r}",
                valid="codes=None, and kind='ivf' or a device such as 'cuda:0'; or hot=None",
            )

    def _check_stop(self, stop: object) -> None:
        if isinstance(stop, bool) or not isinstance(stop, int | float) or not 0.5 < stop < 1:
            raise ConfigError(
                "bad index option",
                where="stop",
                found=repr(stop),
                valid="a number above 0.5 and below 1, or None",
            )
        if self.kind is not IndexKind.IVF or self.codes is not None:
            raise ConfigError(
                "an early stop of searches that read no clusters of vectors",
                where="stop",
                found=f"{stop!r} with kind {self.kind.value!r} and codes {self.codes!r}",
                valid="kind='ivf' and codes=None, or stop=None",
            )


def check_positive(name: str, value: object) -> None:
    """Raise ConfigError unless ``value`` is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            "bad index option", where=name, found=repr(value), valid="an integer >= 1"
        )


def _choice(name: str, kind: type[_Choice], value: object) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(
            "bad index option", where=name, found=repr(value), valid=" | ".join(kind)
        ) from None


def norms(vectors: Vectors) -> npt.NDArray[np.float64]:
    """Return the lengths of the rows of ``[n, dim], float32``, summed in float64."""
    return np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
