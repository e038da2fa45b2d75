"""The measurements of another way to compute a model, and the verdict on it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rag_accel.engines.llm.local.model.loading import LoadedModel
from rag_accel.fidelity.check_plan import (
    CheckPlan,
    ComparedPrompts,
    library_versions,
    verdict_folder,
)
from rag_accel.fidelity.divergence import Divergence, mean_and_error
from rag_accel.fidelity.proposal import ERRORS
from rag_accel.kv.agreement import AgreementResult
from rag_accel.kv.dependency.report import LayoutReport
from rag_accel.kv.verdicts import VerdictKind


@dataclass(frozen=True, slots=True)
class AgreementCheck:
    """The measurements of a check of another way to compute a model.

    Args:
        model: the name of the model.
        option: which way, as it is named.
        target: the requested agreement.
        passed: whether ``top1`` less two standard errors reaches it.
        top1: share of an answer's tokens that are the most probable ones that way, too.
        top1_error: its standard error.
        kl: Kullback-Leibler divergence from the plain computation a token, in nats.
        kl_error: its standard error.
        prompts: how many were compared.
        compared: their description.
        tokens: most tokens of an answer.
        complete: whether all prompts were compared before the time was over.
        file: of the verdict.
        layouts: the tokens and attended pairs of the compared prompts as text (``flat``) and with
            trees of their paths; None of a check of anything else.
    """

    model: str
    option: str
    target: float
    passed: bool
    top1: float
    top1_error: float
    kl: float
    kl_error: float
    prompts: int
    compared: str
    tokens: int
    complete: bool
    file: Path
    layouts: LayoutReport | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as values of JSON."""
        found = {**asdict(self), "file": str(self.file)}
        del found["layouts"]
        return (
            found if self.layouts is None else {**found, "layouts": asdict(self.layouts)["costs"]}
        )

    def __str__(self) -> str:
        limited = "" if self.complete else ", as many as the time allowed"
        least = f"{self.target:.0%} of the tokens, less two standard errors"
        return "\n".join(
            [
                f"{self.model}: {self.compared}, answers of up to {self.tokens}{limited}",
                f"same most probable token {self.top1:.3f} +- {self.top1_error:.3f}",
                f"divergence (nats a token) {self.kl:.4f} +- {self.kl_error:.4f}",
                *_savings(self.layouts),
                f"{self.option} {'agrees' if self.passed else 'does not agree'} in {least}",
                f"kept in {self.file}",
            ]
        )


def _savings(layouts: LayoutReport | None) -> list[str]:
    """Return the line that says what trees save, if trees were compared."""
    if layouts is None:
        return []
    tree, flat = (layouts.costs[layout].tokens for layout in ("tree", "flat"))
    change, share = -layouts.redundant_share(), layouts.attended_share()
    return [
        f"as trees the paths have {tree} tokens instead of {flat} ({change:+.0%}), "
        f"and prompts {share:.0%} of the attended pairs"
    ]


def kept_check(
    kind: VerdictKind[AgreementResult],
    option: str,
    loaded: LoadedModel,
    plan: CheckPlan,
    compared: ComparedPrompts[Divergence],
    folder: str | Path | None,
    layouts: LayoutReport | None = None,
) -> AgreementCheck:
    """Return a check, its verdict written.

    Args:
        kind: of the verdict.
        option: which way was compared, as it is named.
        loaded: the model that was computed this way.
        plan: of the check.
        compared: its prompts.
        folder: where the verdict is kept; None for the user's cache.
        layouts: of the prompts, where their paths were compared.

    Raises:
        OSError: it cannot be written.
    """
    top1, top1_error = mean_and_error([each.top1 for each in compared.found])
    kl, kl_error = mean_and_error([each.kl_mean for each in compared.found])
    verdict = AgreementResult(
        model=loaded.runner.identity(),
        name=loaded.name,
        target=plan.target,
        passed=top1 - ERRORS * top1_error >= plan.target,
        top1=top1,
        top1_error=top1_error,
        kl=kl,
        prompts=len(compared.found),
        tokens=plan.tokens,
        written=time.time(),
        versions=library_versions(),
    )
    return AgreementCheck(
        *(verdict.name, option, verdict.target, verdict.passed, top1, top1_error, kl, kl_error),
        *(verdict.prompts, compared.description, verdict.tokens),
        complete=compared.is_complete,
        file=kind.write(verdict_folder(folder), verdict),
        layouts=layouts,
    )
