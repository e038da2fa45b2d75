"""The bounds of a language model that vLLM runs, each named once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rag_accel.engine_api import GenerationOutput
from rag_accel.engines.llm.local.options import (
    CHUNK_BYTES,
    DISK_BYTES,
    RECOMPUTE_RATIO,
)
from rag_accel.engines.option_checks import check_least, check_share, check_whole
from rag_accel.errors import ConfigError
from rag_accel.kv.keys import KvRecipe
from rag_accel.kv.reuse_request import AskedRows

VllmReuse = Literal["exact", "full", "fused"]
#: Arguments of vLLM's engine that other options stand for.
SET_HERE: Mapping[str, str] = {
    "model": "the model",
    "dtype": "dtype",
    "max_num_seqs": "max_requests",
    "kv_cache_memory_bytes": "pool_bytes",
    "kv_transfer_config": "kv_reuse and kv_folder",
    "worker_cls": "kv_reuse",
    "scheduling_policy": "nothing: it is always by priority",
}


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """Options of a language model that vLLM runs; each set of them has an engine of its own.

    Args:
        max_tokens_default: most tokens of a completion whose request does not say.
        pool_bytes: bytes of keys and values; None for what vLLM takes by itself.
        max_requests: most requests that vLLM computes at a time; others wait, by deadline, arrival
            and depth.
        max_threads: most threads of a forward on processors; None for what vLLM takes by itself.
        kv_reuse: ``exact``, every prompt is computed as a whole, but for beginnings that were seen;
            ``full`` and ``fused`` as of ``LocalOptions``, approximate, by the connector
            ``vllm_rag_accel``.
        recompute_ratio: of ``fused``, the share of the texts' tokens that are computed again.
        asked: of ``fused``, the rows whose attention chooses them, ``last`` or ``question``.
        kv_recipe: of ``full`` and ``fused``, as of ``LocalOptions``.
        kv_folder: of ``full`` and ``fused``, keeps the states of texts, in files that hold no text.
            It may be that of local models of the same weights and dtype, which find each other's.
        kv_disk_bytes: most bytes of its files; 4 GiB by default.
        kv_max_age_s: older files are not used and removed, in seconds; None for any age.
        chunk_bytes: most bytes of states in the memory of vLLM's process; 1 GiB by default.
        least_chunk_tokens: shorter texts are always computed.
        work_timeout_s: seconds after which work that has not ended ends in ``EngineError``.
        engine_args: further arguments of vLLM's ``AsyncEngineArgs`` by name.

    Raises ConfigError on a value out of range.
    """

    max_tokens_default: int = 512
    pool_bytes: int | None = None
    max_requests: int = 64
    max_threads: int | None = None
    kv_reuse: VllmReuse = "exact"
    recompute_ratio: float = RECOMPUTE_RATIO
    asked: AskedRows = "last"
    kv_recipe: KvRecipe = "neighbours"
    kv_folder: str | None = None
    kv_disk_bytes: int = DISK_BYTES
    kv_max_age_s: float | None = None
    chunk_bytes: int = CHUNK_BYTES
    least_chunk_tokens: int = 8
    work_timeout_s: float = 1800.0
    engine_args: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def __post_init__(self) -> None:
        for name in ("max_tokens_default", "max_requests", "least_chunk_tokens"):
            check_whole(f"VllmOptions.{name}", getattr(self, name), 1)
        for name in ("pool_bytes", "max_threads"):
            check_whole(f"VllmOptions.{name}", getattr(self, name), 1)
        for name in ("chunk_bytes", "kv_disk_bytes"):
            check_whole(f"VllmOptions.{name}", getattr(self, name), 0)
        check_least("VllmOptions.kv_max_age_s", self.kv_max_age_s, 0)
        check_least("VllmOptions.work_timeout_s", self.work_timeout_s, 0.001)
        check_share("VllmOptions.recompute_ratio", self.recompute_ratio)
        self._check_known("kv_reuse", self.kv_reuse, get_args(VllmReuse), _OTHER_REUSE)
        self._check_known("asked", self.asked, get_args(AskedRows))
        self._check_known("kv_recipe", self.kv_recipe, get_args(KvRecipe))
        if self.reuses_texts and self.kv_folder is None:
            raise ConfigError(
                "vLLM's processes find the states of texts in a folder, and none is named",
                where="VllmOptions.kv_folder",
                found=f"kv_reuse={self.kv_reuse!r} with kv_folder=None",
                valid="a folder",
                hint='name it: VllmLLM(..., kv_folder="/var/lib/texts")',
            )
        self._check_engine_args()

    @classmethod
    def of(cls, **given: Any) -> VllmOptions:
        """Return options by name; None stands for the default."""
        return cls(**{name: value for name, value in given.items() if value is not None})

    @property
    def reuses_texts(self) -> bool:
        """Tell whether the retrieved texts of prompts are reused."""
        return self.kv_reuse != "exact"

    @property
    def is_approximate(self) -> bool:
        """Tell whether answers may differ from the model's own, as by reuse."""
        return self.reuses_texts

    def notes(self, output: GenerationOutput) -> dict[str, Any]:
        """Return what an answer says of its own making, by name; {} for one that is exact.

        ``kv_reuse`` is a report as of ``LocalOptions.report``.
        """
        use = output.use
        if not self.reuses_texts or use is None:
            return {}
        report = {
            "mode": self.kv_reuse,
            "ratio": self.recompute_ratio if self.kv_reuse == "fused" else 0.0,
            "reused_tokens": use.from_chunks,
            "recomputed_tokens": use.recomputed,
            "approximate_tokens": use.approximate,
            "exact": use.is_exact,
        }
        return {"kv_reuse": report}

    def _check_known(
        self, name: str, value: object, known: tuple[str, ...], hint: str = ""
    ) -> None:
        if value not in known:
            raise ConfigError(
                "vLLM is given a way that it does not have",
                where=f"VllmOptions.{name}",
                found=repr(value),
                valid=" | ".join(known),
                hint=hint or None,
            )

    def _check_engine_args(self) -> None:
        if not isinstance(self.engine_args, Mapping):
            raise ConfigError(
                "arguments of vLLM's engine are given by name",
                where="VllmOptions.engine_args",
                found=type(self.engine_args).__name__,
                valid='a mapping, such as {"max_model_len": 8192}',
            )
        taken = sorted(self.engine_args.keys() & SET_HERE.keys())
        if taken:
            raise ConfigError(
                "an argument of vLLM's engine has an option of its own",
                where=f"VllmOptions.engine_args[{taken[0]!r}]",
                found=repr(self.engine_args[taken[0]]),
                valid="other names",
                hint=f"it is set by {SET_HERE[taken[0]]}",
            )


_OTHER_REUSE = "relation paths are computed as a tree by LocalLLM alone"
