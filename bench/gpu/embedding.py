"""One embedder on the card and the processor against the card alone, in real time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.devices.real_time import ask_at_once, embed_all
from bench.gpu.device import PartRun, need
from bench.gpu.models import (
    MINILM,
    TINY_ENCODER,
    EncoderShape,
    make_encoder,
    make_tokenizer,
    texts_of,
)
from bench.measure import median
from bench.results import Row, median_row
from rag_accel.accelerator import Accelerator
from rag_accel.engines import CallableEmbeddingEngine, EngineMember
from rag_accel.system.processor import usable_cores

ALONE, BOTH = "card alone", "card and processor"
#: Of vectors of length 1 in float32: a card and a processor add in another order.
TOLERANCE = 1e-5
IN_TIME = 0.99


@dataclass(frozen=True, slots=True)
class EmbeddingSizes:
    """How much is measured.

    Args:
        encoder: its shape.
        words: tokens of a text.
        slo_s: the bound of a caller's wait.
        first: callers of the first level; each has twice as many as the one before.
        most: callers of the last one.
        halvings: levels between the last that was kept and the first that was not.
        texts: of one call.
        turns: of it.
        batch: texts that a member computes at a time.
    """

    encoder: EncoderShape = MINILM
    words: int = 75
    slo_s: float = 1.0
    first: int = 256
    most: int = 16_384
    halvings: int = 3
    texts: int = 8192
    turns: int = 9
    batch: int = 256


TINY = EmbeddingSizes(TINY_ENCODER, 8, 0.5, 4, 16, 1, 16, 2, 8)


def measure(run: PartRun) -> None:
    """Compare the vectors of card, processor and both, then measure both ways."""
    sizes = TINY if run.device.is_tiny else EmbeddingSizes()
    encoder = make_encoder(sizes.encoder)
    on_card = copy.deepcopy(encoder).to(run.device.name)
    texts = texts_of(sizes.most, sizes.words, sizes.encoder.vocabulary, 1)
    groups = [texts[at : at + sizes.batch] for at in range(0, len(texts), sizes.batch)]
    right = np.concatenate([embed(on_card, group) for group in groups])
    difference = float(np.abs(embed(encoder, groups[0]) - right[: len(groups[0])]).max())
    workload = f"{len(groups[0])} texts of {sizes.words} tokens"
    is_near = difference <= TOLERANCE
    run.check(is_near, run.device.name, workload, "max_vector_difference", difference)
    by_processor = [0]

    def there(batch: Sequence[str]) -> Any:
        return embed(on_card, batch)

    def here(batch: Sequence[str]) -> Any:
        by_processor[0] += len(batch)
        return embed(encoder, batch)

    def member(compute: Callable[[Sequence[str]], Any], name: str, threads: int) -> EngineMember:
        engine = CallableEmbeddingEngine(compute, max_batch=sizes.batch, max_threads=threads)
        return EngineMember(engine, name=name)

    with ExitStack() as stack:
        arms: dict[str, Accelerator] = {}
        for name in (ALONE, BOTH) if is_near else ():
            members = [member(there, "card", 0)]
            if name == BOTH:
                members.append(member(here, "processor", usable_cores()))
            accelerator = Accelerator(
                embedder=members,
                embedding_slo_s=sizes.slo_s,
                member_tolerance=TOLERANCE,
                single_flight=False,
            )
            arms[name] = stack.enter_context(accelerator)
        if arms:
            _throughput(arms, texts[: sizes.texts], sizes, run.within(0.4))
            _capacity(arms, texts, right, sizes, run)
            # The texts of probes and of the trial that decides about a member are among them.
            run.rows.append(Row(BOTH, "all calls", "texts_on_processor", by_processor[0], None, 1))


def _throughput(
    arms: dict[str, Accelerator], texts: Sequence[str], sizes: EmbeddingSizes, run: PartRun
) -> None:
    """Measure texts a second of one call with all texts."""
    workload = f"one call of {len(texts)} texts of {sizes.words} tokens"
    calls = {
        name: partial(lambda arm, _: len(texts) / embed_all(arm, texts), arm)
        for name, arm in arms.items()
    }
    rates = run.turns(calls, sizes.turns, warm_up=2)
    if not rates[ALONE]:
        run.note(BOTH, workload, "no time")
        return
    run.rows.extend(median_row(name, workload, "texts_per_s", each) for name, each in rates.items())
    pairs = zip(rates[BOTH], rates[ALONE], strict=True)
    run.ratios["embedding_texts_per_s"] = median([both / alone for both, alone in pairs])


def _capacity(
    arms: dict[str, Accelerator],
    texts: Sequence[str],
    right: Any,
    sizes: EmbeddingSizes,
    run: PartRun,
) -> None:
    """Let ever more callers come at once, and find how many are answered within the bound."""
    workload = f"callers at once, answered within {sizes.slo_s:g} s"
    kept: dict[str, int] = {}
    for at, (name, arm) in enumerate(arms.items()):
        far = [0.0]

        def share(callers: int, arm: Accelerator = arm, far: list[float] = far) -> float:
            answers = ask_at_once(arm, texts[:callers])
            far.append(float(np.abs(answers.vectors - right[:callers]).max()))
            return sum(one <= sizes.slo_s for one in answers.seconds) / callers

        own = run.within(1 / (len(arms) - at))
        callers = most_callers(share, sizes, own)
        run.check(max(far) <= TOLERANCE, name, workload, "max_vector_difference", max(far))
        if not _has_time(sizes, own):
            run.note(name, workload, "no time")  # more might have been answered
            continue
        kept[name] = callers
        run.rows.append(Row(name, workload, "callers", callers, None, len(far) - 1))
    if len(kept) == len(arms) and all(kept.values()):
        run.ratios["embedding_capacity"] = kept[BOTH] / kept[ALONE]


def most_callers(share: Callable[[int], float], sizes: EmbeddingSizes, run: PartRun) -> int:
    """Return the most callers of whom ``IN_TIME`` are answered in time; 0 if there are none.

    Args:
        share: those answered in time, of so many callers; the better of two tries counts.
        sizes: say which numbers are tried.
        run: no further number is tried when its time is spent.
    """
    share(sizes.first)  # warms up

    def keeps(callers: int) -> bool:
        return _has_time(sizes, run) and any(share(callers) >= IN_TIME for _ in range(2))

    low, high = 0, sizes.first
    while high <= sizes.most and keeps(high):
        low, high = high, 2 * high
    if high <= sizes.most:
        for _ in range(sizes.halvings):
            middle = (low + high) // 2
            low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def _has_time(sizes: EmbeddingSizes, run: PartRun) -> bool:
    """Tell whether callers may come twice, all of them as late as twice the bound."""
    return run.left_s > 4 * sizes.slo_s


def embed(model: Any, texts: Sequence[str]) -> Any:
    """Return ``[texts, hidden], float32``: the mean over tokens, of length 1."""
    torch = need("torch")
    encoded = make_tokenizer(model.config.vocab_size)(
        list(texts), padding=True, return_tensors="pt", return_token_type_ids=False
    ).to(model.device)
    with torch.inference_mode():
        states = model(**encoded).last_hidden_state
        weights = encoded["attention_mask"].unsqueeze(-1).to(states.dtype)
        mean = (states * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(mean, dim=1).cpu().numpy()
