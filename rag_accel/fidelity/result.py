"""The measurements of another way to compute a model, and the verdict on it."""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any

from rag_accel.fidelity.proposal import PROPOSED_BELOW, RatioFidelity
from rag_accel.kv.dependency.report import LayoutReport


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The measurements of a check of another way to compute a model.

    Args:
        model: the name of the model.
        option: the way, as programs choose it.
        target: the requested agreement.
        ratio: of fused prompts, the smallest ``recompute_ratio`` below 0.5 that meets the target;
            0 of another way that meets it; None if the way does not.
        top1: share of an answer's tokens that are the most probable ones that way, too; of fused
            prompts at that ratio, or at the largest one below 0.5 if none meets the target. Of an
            embedding model the share of questions whose nearest text is the same.
        top1_error: its standard error.
        kl: Kullback-Leibler divergence from the plain computation a token, in nats; 0 of an
            embedding model.
        kl_error: its standard error.
        measured: the fidelity of each ratio; () of a way without a ratio.
        prompts: how many were compared.
        compared: their description.
        tokens: most tokens of an answer.
        complete: whether all prompts were compared before the time was over.
        heads: sentences about dates and times that stand in the heads of prompts whose texts are
            reused.
        file: of the verdict.
        layouts: the tokens and attended pairs of the compared prompts as text (``flat``) and with
            trees of their paths; None of a check of anything else.
        cosine: the smallest of a vector to the model's own; None of a language model.
    """

    model: str
    option: str
    target: float
    ratio: float | None
    top1: float
    top1_error: float
    kl: float = 0.0
    kl_error: float = 0.0
    measured: tuple[RatioFidelity, ...] = ()
    tokens: int = 0
    heads: tuple[str, ...] = ()
    layouts: LayoutReport | None = None
    cosine: float | None = None
    _: KW_ONLY
    prompts: int
    compared: str
    complete: bool
    file: Path

    @property
    def passed(self) -> bool:
        """Tell whether the agreement, less two standard errors, or the cosine is the target's."""
        return self.ratio is not None

    def to_dict(self) -> dict[str, Any]:
        """Return all that applies to this way as values of JSON."""
        found = {**asdict(self), "file": str(self.file), "passed": self.passed}
        layouts = found.pop("layouts")
        single = ("option", "top1", "top1_error", "kl", "kl_error", "passed")
        unused = single if self.measured else ("ratio", "measured", "heads")
        unused += ("cosine",) if self.cosine is None else ("kl", "kl_error", "tokens")
        shown = {name: value for name, value in found.items() if name not in unused}
        return shown if layouts is None else {**shown, "layouts": layouts["costs"]}

    def __str__(self) -> str:
        limited = "" if self.complete else ", as many as the time allowed"
        answers = f", answers of up to {self.tokens}" if self.cosine is None else ""
        lines = self._by_ratio() if self.measured else self._agreement()
        if self.cosine is not None:
            lines = self._nearness(self.cosine)
        return "\n".join(
            [
                f"{self.model}: {self.compared}{answers}{limited}",
                *lines,
                f"kept in {self.file}",
            ]
        )

    def _by_ratio(self) -> list[str]:
        if self.ratio is None:
            proposal = (
                f"fused does not pay on this model: no ratio below {PROPOSED_BELOW} agrees in "
                f"{self.target:.0%} of the tokens, less two standard errors"
            )
        else:
            proposal = f"proposed: {self.option}, recompute_ratio={self.ratio:g}"
        return [
            "recomputed  same most probable token  divergence (nats a token)",
            *map(str, self.measured),
            proposal,
            *(f"{said}: texts are computed again when it changes" for said in self.heads),
        ]

    def _agreement(self) -> list[str]:
        verdict = "agrees" if self.passed else "does not agree"
        return [
            f"same most probable token {self.top1:.3f} +- {self.top1_error:.3f}",
            f"divergence (nats a token) {self.kl:.4f} +- {self.kl_error:.4f}",
            *self._savings(),
            f"{self.option} {verdict} in {self.target:.0%} of the tokens, less two standard errors",
        ]

    def _nearness(self, cosine: float) -> list[str]:
        return [
            f"smallest cosine of a vector to the model's own {cosine:.4f}",
            f"questions with the same nearest text {self.top1:.3f} +- {self.top1_error:.3f}",
            f"{self.option} {'agrees' if self.passed else 'does not agree'}: a cosine of "
            f"{self.target:g} or more was asked for",
        ]

    def _savings(self) -> list[str]:
        """Return the line that says what trees save, if trees were compared."""
        if self.layouts is None:
            return []
        tree, flat = (self.layouts.costs[layout].tokens for layout in ("tree", "flat"))
        change, share = -self.layouts.redundant_share(), self.layouts.attended_share()
        return [
            f"as trees the paths have {tree} tokens instead of {flat} ({change:+.0%}), "
            f"and prompts {share:.0%} of the attended pairs"
        ]
