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
from bench.gpu.device import MeasuredDevice, PartFound, PartTime, need
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
        batch: texts that the card computes at a time.
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


def measure(device: MeasuredDevice, time: PartTime, found: PartFound) -> None:
    """Compare the vectors of card, processor and both, then measure both ways."""
    sizes = TINY if device.is_tiny else EmbeddingSizes()
    encoder = make_encoder(sizes.encoder)
    on_card = copy.deepcopy(encoder).to(device.name)
    embed, vocabulary = partial(_embed, sizes=sizes), sizes.encoder.vocabulary
    texts = texts_of(sizes.most, sizes.words, vocabulary, 1)
    probes = texts[: min(sizes.most, 512)]
    expected, there = embed(encoder, probes), embed(on_card, probes)
    workload = f"{len(probes)} texts of {sizes.words} tokens"
    difference = float(np.abs(expected - there).max())
    metric = "max_vector_difference"
    found.check(difference <= TOLERANCE, device.name, workload, metric, difference)
    if found.wrong:
        return
    right = np.concatenate(
        [embed(on_card, texts[at : at + sizes.batch]) for at in range(0, len(texts), sizes.batch)]
    )

    def member(model: Any, name: str, threads: int) -> EngineMember:
        engine = CallableEmbeddingEngine(
            lambda batch: embed(model, batch), max_batch=sizes.batch, max_threads=threads
        )
        return EngineMember(engine, name=name)

    with ExitStack() as stack:
        arms: dict[str, Accelerator] = {}
        for name in (ALONE, BOTH):
            members = [member(on_card, "card", 0)]
            if name == BOTH:
                members.append(member(encoder, "processor", usable_cores()))
            arms[name] = stack.enter_context(
                Accelerator(
                    embedder=members,
                    embedding_slo_s=sizes.slo_s,
                    member_tolerance=TOLERANCE,
                    single_flight=False,
                )
            )
        _throughput(arms, texts[: sizes.texts], right, sizes, time.share(0.4), found)
        _capacity(arms, texts, right, sizes, time, found)


def _throughput(
    arms: dict[str, Accelerator],
    texts: Sequence[str],
    right: Any,
    sizes: EmbeddingSizes,
    time: PartTime,
    found: PartFound,
) -> None:
    """Measure texts a second of one call with all texts."""
    workload = f"one call of {len(texts)} texts of {sizes.words} tokens"
    calls = {
        name: partial(lambda arm, _: len(texts) / embed_all(arm, texts), arm)
        for name, arm in arms.items()
    }
    rates = time.turns(calls, sizes.turns, warm_up=2)
    if not rates[ALONE]:
        found.no_time(BOTH, workload)
        return
    for name, each in rates.items():
        found.rows.append(median_row(name, workload, "texts_per_s", each))
    pairs = zip(rates[BOTH], rates[ALONE], strict=True)
    found.ratios["embedding_texts_per_s"] = median([both / alone for both, alone in pairs])


def _capacity(
    arms: dict[str, Accelerator],
    texts: Sequence[str],
    right: Any,
    sizes: EmbeddingSizes,
    time: PartTime,
    found: PartFound,
) -> None:
    """Let ever more callers come at once, and find how many are answered within the bound."""
    kept: dict[str, int] = {}
    for at, (name, arm) in enumerate(arms.items()):
        own = time.share(1 / (len(arms) - at))
        far = list[float]()

        def share(callers: int, arm: Accelerator = arm, far: list[float] = far) -> float:
            answers = ask_at_once(arm, texts[:callers])
            far.append(float(np.abs(answers.vectors - right[:callers]).max()))
            return sum(one <= sizes.slo_s for one in answers.seconds) / callers

        kept[name] = most_callers(share, sizes, own)
        workload = f"callers at once, answered within {sizes.slo_s:g} s"
        if not far:
            found.no_time(name, workload)
            return
        difference = max(far)
        found.check(
            difference <= TOLERANCE, name, workload, "max_vector_difference", difference
        )
        found.rows.append(Row(name, workload, "callers", kept[name], None, len(far)))
    if all(kept.values()):
        found.ratios["embedding_capacity"] = kept[BOTH] / kept[ALONE]


def most_callers(
    share: Callable[[int], float], sizes: EmbeddingSizes, time: PartTime
) -> int:
    """Return the most callers of whom ``IN_TIME`` are answered in time; 0 if there are none.

    Args:
        share: those answered in time, of so many callers; the better of two tries counts.
        sizes: say which numbers are tried.
        time: no further number is tried when it is spent.
    """
    share(sizes.first)  # warms up

    def keeps(callers: int) -> bool:
        return any(share(callers) >= IN_TIME for _ in range(2))

    low, high = 0, sizes.first
    while high <= sizes.most and time.left_s > 4 * sizes.slo_s and keeps(high):
        low, high = high, 2 * high
    for _ in range(sizes.halvings):
        middle = (low + high) // 2
        if high > sizes.most or middle in (0, low) or time.left_s <= 4 * sizes.slo_s:
            break
        if keeps(middle):
            low = middle
        else:
            high = middle
    return low


def _embed(model: Any, texts: Sequence[str], sizes: EmbeddingSizes) -> Any:
    """Return ``[texts, hidden], float32``: the mean over tokens, of length 1."""
    torch = need("torch")
    encoded = make_tokenizer(sizes.encoder.vocabulary)(
        list(texts), padding=True, return_tensors="pt", return_token_type_ids=False
    ).to(model.device)
    with torch.inference_mode():
        states = model(**encoded).last_hidden_state
        weights = encoded["attention_mask"].unsqueeze(-1).to(states.dtype)
        mean = (states * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(mean, dim=1).cpu().numpy()
