"""The bounds of a local language model, each named once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, get_args

from rag_accel.config import KvReuse
from rag_accel.engine_api import GenerationOutput
from rag_accel.engines.option_checks import check_least, check_share, check_whole, is_number_of
from rag_accel.errors import ConfigError
from rag_accel.kv.eviction import EvictionPolicy, check_policy
from rag_accel.kv.keys import KvRecipe
from rag_accel.kv.selection import Asked, QuestionGuided, TokenSelector, scored_layer

RunnerName = Literal["auto", "torch", "paged"]
WeightsName = Literal["own", "int8"]
#: Rows of a forward, if no number is given, on processors and on other devices. On a device a small
#: forward takes the time of its calls: for one of 512 rows as long as for one of 2,048.
STEP_TOKENS, DEVICE_STEP_TOKENS = 512, 2048
#: The bytes of keys and values, if none are given.
POOL_BYTES = 1 << 30
#: The bytes kept of retrieved texts, if none are given.
CHUNK_BYTES = 1 << 30
#: The share of retrieved texts' tokens that are computed again, if none is given.
RECOMPUTE_RATIO = 0.15
#: The bytes of files of retrieved texts, if none are given.
DISK_BYTES = 4 << 30
#: The lanes kept of ended sequences, if no number is given.
PREFIX_LANES = 16


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Options of a local language model; models of other options have engines of their own.

    Args:
        max_tokens_default: most tokens of a completion whose request does not say.
        pool_bytes: most bytes of keys and values, of prompts under way and kept; 1 GiB by default.
        step_tokens: rows of a forward, about: every sequence that decodes has one, and prompts are
            computed in pieces of what is left; None for 512, and for 2,048 where the model is on a
            CUDA device. An interrupt is obeyed between forwards. A prompt that is alone may have
            four times as many in a forward, if they keep to ``stall_s``.
        stall_s: seconds that decoding may be held up by a forward, about, by those before it.
            Pieces of prompts are cut smaller to keep to it; where nothing decodes, a forward may
            take four times as long.
        max_requests: requests worth handing over at once; the pool bounds how many of them run.
        prefix_lanes: most lanes kept of ended sequences for prompts that begin alike; 16 by
            default.
        max_threads: most threads a forward can use; None for all cores this process may use, and
            for none of them where the model is on a CUDA device.
        runner: what computes the model: ``torch``; ``paged``, OpenVINO's paged attention, with the
            extra ``fast``, on processors; ``auto`` takes ``paged`` where it can run the model and
            the model has 17 million weights or more. Either is proved equal to the model's own
            forward, once for the files that it is loaded from.
        weights: ``own``, the model's; ``int8``, those of products rounded to 8 bits with a scale a
            row, which is approximate and computed by the runner ``paged`` only.
        kv_reuse: ``exact``, every prompt is computed; ``full``, retrieved texts take the state they
            have behind the prompt's head (FusionRAG section 3.1), which is approximate; ``fused``,
            a part of their tokens is computed again in the prompt (section 4.2), approximate, too;
            ``dependency``, relation paths that begin alike are computed as a tree behind what
            stands before them, each token seeing its own path (DepCache section 3.1): a node that
            was seen is not computed again, and texts are; ``fused+dependency`` and
            ``full+dependency``, texts and paths of one prompt, each in its way: both see the
            prompt's head, and not each other.
        recompute_ratio: of ``fused``, the share of the texts' tokens that are computed again.
        recompute_layer: of ``fused``, the layer in which it is looked at which tokens matter; None
            for that at two thirds of the model's layers.
        selector: of ``fused``, chooses the tokens.
        reuse_always: whether texts are reused also where computing the prompt takes less time.
        chunk_bytes: most bytes kept of retrieved texts; 1 GiB by default.
        max_tree_prompts: of ``dependency``, prompts whose nodes are looked for, computed and held
            at a time; others wait, and ``eviction`` may know what they will read.
        eviction: which of them go first where there is no room: ``lru``,
            ``lookahead``, which goes by the requests that wait, then by a frequency whose half-life
            it learns, or an ``EvictionPolicy`` of one engine, which gives way to ``lru`` once it
            has failed.
        kv_folder: keeps the state of texts between processes, for programs of one user that
            trust each other, in files that hold no text; made with mode 0700. None for memory only.
            All weights are read once for it. See ``rag-accel cache``.
        kv_disk_bytes: most bytes of its files; 4 GiB by default, the least lately used go first.
        kv_max_age_s: older files are not used and removed, in seconds; None for any age.
        kv_recipe: of ``full`` and ``fused``, which state a text gets: ``neighbours``, that behind
            other texts (FusionRAG section 3.1) where the prompt has any of these: texts that were
            retrieved with it before, or those that ``cache fill`` has chosen; it keeps more of the
            answer, and depends on which prompt came first. ``alone``, always that behind the
            prompt's head.
        least_chunk_tokens: of ``full`` and ``fused``; shorter texts are always computed.

    Raises ConfigError on a value out of range.
    """

    max_tokens_default: int = 512
    pool_bytes: int = POOL_BYTES
    step_tokens: int | None = None
    stall_s: float = 0.25
    max_requests: int = 64
    prefix_lanes: int = PREFIX_LANES
    max_threads: int | None = None
    runner: RunnerName = "auto"
    weights: WeightsName = "own"
    kv_reuse: KvReuse = "exact"
    recompute_ratio: float = RECOMPUTE_RATIO
    recompute_layer: int | None = None
    selector: TokenSelector = field(default=QuestionGuided(), hash=False)
    reuse_always: bool = False
    chunk_bytes: int = CHUNK_BYTES
    max_tree_prompts: int = 16
    eviction: str | EvictionPolicy = field(default="lru", hash=False)
    kv_folder: str | None = None
    kv_disk_bytes: int = DISK_BYTES
    kv_max_age_s: float | None = None
    kv_recipe: KvRecipe = "neighbours"
    least_chunk_tokens: int = 8

    def rows(self, *, on_cpu: bool) -> int:
        """Return the rows of a forward of a model on the CPU, or on a device."""
        if self.step_tokens is not None:
            return self.step_tokens
        return STEP_TOKENS if on_cpu else DEVICE_STEP_TOKENS

    def __post_init__(self) -> None:
        whole = (
            "max_tokens_default",
            "pool_bytes",
            "step_tokens",
            "max_requests",
            "max_threads",
            "max_tree_prompts",
        )
        for name in whole:
            check_whole(f"LocalOptions.{name}", getattr(self, name), 1)
        check_least("LocalOptions.stall_s", self.stall_s, 0.001)
        for name in ("prefix_lanes", "chunk_bytes", "kv_disk_bytes", "recompute_layer"):
            check_whole(f"LocalOptions.{name}", getattr(self, name), 0)
        check_whole("LocalOptions.least_chunk_tokens", self.least_chunk_tokens, 1)
        check_least("LocalOptions.kv_max_age_s", self.kv_max_age_s, 0)
        _check_known(
            "unknown way of reuse",
            "kv_reuse",
            self.kv_reuse,
            get_args(KvReuse),
        )
        _check_known("unknown runner", "runner", self.runner, get_args(RunnerName))
        _check_known("unknown weights", "weights", self.weights, get_args(WeightsName))
        if self.weights == "int8" and self.runner == "torch":
            raise ConfigError(
                "int8 weights are not computed by torch here",
                where="LocalOptions.weights",
                found="weights='int8' with runner='torch'",
                valid="weights='int8' with runner='paged' or 'auto'",
                hint="leave runner out, or take the model's own weights",
            )
        check_policy(self.eviction)
        _check_known("unknown recipe", "kv_recipe", self.kv_recipe, get_args(KvRecipe))
        asked = getattr(self.selector, "asked", None)
        _check_known(
            "unknown rows to measure attention of", "selector.asked", asked, get_args(Asked)
        )
        check_share("LocalOptions.recompute_ratio", self.recompute_ratio)

    @property
    def reads_ahead(self) -> bool:
        """Tell whether states of texts may be where reading them takes long."""
        return self.reuses_texts and self.kv_folder is not None

    @property
    def reuses_texts(self) -> bool:
        """Tell whether retrieved texts take a state that they had before."""
        return self.kv_reuse.startswith(("full", "fused"))

    @property
    def recomputes(self) -> bool:
        """Tell whether a part of such texts is computed again."""
        return self.kv_reuse.startswith("fused")

    @property
    def reuses_paths(self) -> bool:
        """Tell whether relation paths are computed as a tree."""
        return self.kv_reuse.endswith("dependency")

    def scored_layer(self, layers: int) -> int:
        """Return the layer whose attention is scored, of so many."""
        layer = self.recompute_layer
        return scored_layer(layers) if layer is None else min(layer, layers - 1)

    @classmethod
    def of(cls, **given: Any) -> LocalOptions:
        """Return options by name; None stands for the default."""
        return cls(**{name: value for name, value in given.items() if value is not None})

    @property
    def is_approximate(self) -> bool:
        """Tell whether answers may differ from the model's own, as reuse or int8 weights do."""
        return self.kv_reuse != "exact" or self.weights != "own"

    def notes(self, output: GenerationOutput | None) -> dict[str, Any]:
        """Return what an answer says of its own making, by name; {} for one that is exact.

        ``kv_reuse`` is the report on its texts, see ``report``; with int8 weights there are also
        ``weights`` and ``exact``, which is False.

        Args:
            output: the answer; None where the engine failed after it had given a part of it.
        """
        report = self.report(output)
        found: dict[str, Any] = {} if report is None else {"kv_reuse": report}
        if self.weights != "own":
            found |= {"weights": self.weights, "exact": False}
        return found

    def report(self, output: GenerationOutput | None) -> dict[str, Any] | None:
        """Return how the texts of an answer's prompt were computed; None without reuse.

        ``mode`` and ``recipe`` are the options ``kv_reuse`` and ``kv_recipe``, ``ratio`` the share
        of the texts' tokens that the way computes again, the rest are counts of tokens of this
        prompt (``PromptUse``): a prompt too short for reuse to pay has none reused. Of relation
        paths, ``attention`` says whether a tree of them was computed, of ``tree_tokens``, of which
        ``reused_tree_tokens`` were there, and ``document_tokens`` how many tokens of retrieved
        texts next to it were not reused: they are computed, or part of an equal beginning.
        ``exact`` says that this prompt was computed as a whole by the model's weights, as without
        ``kv_reuse``. Without an output nothing is known of its prompt, and ``exact`` is False.
        """
        if output is None and self.kv_reuse != "exact":
            return {"mode": self.kv_reuse, "exact": False}
        use = None if output is None else output.use
        if self.kv_reuse == "exact" or use is None:
            return None
        report: dict[str, Any] = {"mode": self.kv_reuse, "reused_tokens": use.from_chunks}
        if self.reuses_texts:
            report |= {
                "recipe": self.kv_recipe,
                "ratio": self.recompute_ratio if self.recomputes else 0.0,
                "recomputed_tokens": use.recomputed,
                "preprocessed_tokens": use.preprocessed,
                "approximate_tokens": use.approximate,
            }
        if self.reuses_paths:
            report |= {
                "attention": "dependency" if use.tree else "causal",
                "tree_tokens": use.tree,
                "reused_tree_tokens": use.from_tree,
                "document_tokens": use.documents,
            }
        return report | {"exact": use.is_exact and self.weights == "own"}


def whole_number(value: Any) -> Any:
    """Return a whole number or None as given; ConfigError on text, truth values and fractions."""
    if value is not None and not is_number_of(Integral, value):
        raise ConfigError("this is no whole number", found=repr(value), valid="a whole number")
    return value


def number(value: Any) -> Any:
    """Return a number or None as given; ConfigError on text and truth values."""
    if value is not None and not is_number_of(Real, value):
        raise ConfigError("this is no number", found=repr(value), valid="a number")
    return value


def _check_known(
    what: str, option: str, value: Any, known: Sequence[str], hint: str | None = None
) -> None:
    if value not in known:
        where, valid = f"LocalOptions.{option}", " | ".join(known)
        raise ConfigError(what, where=where, found=value, valid=valid, hint=hint)
