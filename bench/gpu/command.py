"""Measure what the project brings on one card: ``python -m bench gpu --quick``.

Four parts, each with a share of the time, on random weights in the shapes named; numpy, torch and
transformers are all that is needed. Answers are compared before figures: vectors of the card with
the processor's, ids of searches, the logits behind reused texts and trees with those of a forward
over the same tokens under the same mask, and each generated token with the model's own logits.

- ``embedding``: a BERT in MiniLM's shape, float32, through a function of transformers. Members are
  the card, and the card and the processor. Twice as many callers come at once each time.
- ``search``: the scan of vectors that indexes use on a device, against numpy; with FAISS also flat
  and clustered indexes with all their vectors there, against the same ones without.
- ``kv_reuse``: Llama 3.2 1B and Llama 3.1 8B in bfloat16, default rotation. A prompt has texts of
  512 tokens in another order each turn, and a question of its own.
- ``decoding``: the 1B shape, greedily, 8 users with prompts of their own.

What has no time left is a row ``no time``, a size without room a row ``out of memory``, and what
lacks a package a row ``missing``.

Ratios:
    embedding_capacity: against the card alone: most callers at once of whom 99 % are answered
        within 1 s, by card and processor / by the card alone.
    embedding_texts_per_s: against the card alone: texts/s of one call by card and processor / by
        the card alone; median over turns.
    gpu_vs_cpu_1: against numpy's product and selection on the processor: its seconds for a scan
        for 1 query / the device's; median over turns.
    gpu_vs_cpu_16: against numpy on the processor: the same of 16 queries at once.
    gpu_vs_cpu_64: against numpy on the processor: the same of 64 queries at once.
    flat_hot_vs_cpu_1: against the same flat index without copies: its seconds for 1 query / those
        with all vectors on the device; median over turns.
    flat_hot_vs_cpu_16: against the same flat index without copies: the same of 16 queries.
    flat_hot_vs_cpu_64: against the same flat index without copies: the same of 64 queries.
    hot_vs_cpu_1: against the same clustered index without copies: its seconds for 1 query / those
        with all clusters on the device; median over turns.
    hot_vs_cpu_16: against the same clustered index without copies: the same of 16 queries.
    hot_vs_cpu_64: against the same clustered index without copies: the same of 64 queries.
    reuse_1b_4k: against the faster of transformers' prefill and our exact mode: its time to the
        first token / ours where all texts were seen before; 1B, 4k tokens; median over turns.
    reuse_1b_16k: against the faster of transformers' prefill and our exact mode: the same, 16k.
    reuse_1b_27k: against the faster of transformers' prefill and our exact mode: the same, 27k.
    reuse_8b_4k: against the faster of transformers' prefill and our exact mode: 8B, 4k tokens.
    reuse_8b_16k: against the faster of transformers' prefill and our exact mode: 8B, 16k tokens.
    reuse_8b_27k: against the faster of transformers' prefill and our exact mode: 8B, 27k tokens.
    trees_1b: against the faster of transformers' prefill and our exact mode: its time to the first
        token / ours where all relation paths were seen before, as a tree; 1B; median over turns.
    trees_8b: against the faster of transformers' prefill and our exact mode: the same of 8B.
    decoding_vs_continuous: against transformers' continuous batching: our tokens/s / its, 8 users;
        median over turns.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.environment import read_environment
from bench.gpu.device import MeasuredDevice, PartRun
from bench.report import report
from bench.results import SuiteResult, save
from rag_accel.errors import ConfigError, RagAccelError

NAME = "gpu"
QUICK_S, FULL_S = 540.0, 1800.0
#: Parts, in their order, and the share of the time that each has; what one leaves, the others get.
SHARES: Mapping[str, float] = {"embedding": 0.2, "search": 0.15, "kv_reuse": 0.45, "decoding": 0.2}
#: For the start of Python, and the end of a turn that took longer than the one before.
RESERVE = 0.08

_logger = logging.getLogger("bench.gpu")


def main(argv: Sequence[str]) -> int:
    """Measure a device, and keep what each part found as soon as it has ended.

    Returns:
        0; 1 if an answer was wrong or a part failed; 2 on an error.
    """
    started = time.monotonic()
    arguments = _parser().parse_args(argv)
    budget_s = arguments.budget_s or (QUICK_S if arguments.quick else FULL_S)
    try:
        device = MeasuredDevice.of(arguments.device)
        return _run(device, arguments, started + (1 - RESERVE) * budget_s, started)
    except RagAccelError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench gpu", description="Measure what is gained on one card."
    )
    parser.add_argument("--quick", action="store_true", help="at most 9 minutes; else 30")
    parser.add_argument("--budget-s", type=_seconds, metavar="S", help="at most so many seconds")
    parser.add_argument("--device", help="of torch; by default the first of CUDA")
    parser.add_argument(
        "--part", action="append", choices=list(SHARES), help="only this; may be repeated"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write results there, after each part"
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no time")
    return seconds


def _run(
    device: MeasuredDevice, arguments: argparse.Namespace, until: float, started: float
) -> int:
    names = [name for name in SHARES if not arguments.part or name in arguments.part]
    environment = read_environment(arguments.quick)
    environment |= {"cards": [device.card] if device.card else [], "tiny": device.is_tiny}
    kept, wrong, failed = PartRun(device, until), list[str](), list[str]()
    for at, name in enumerate(names):
        run = PartRun(device, until).within(SHARES[name] / sum(SHARES[one] for one in names[at:]))
        try:
            importlib.import_module(f"bench.gpu.{name}").measure(run)
        except ImportError as error:
            run.note(name, error.name or str(error), "missing")
        except Exception as error:
            _logger.exception("%s", name)
            failed.append(f"{name}: {type(error).__name__}: {error}")
            run.note(name, type(error).__name__, "failed")
        device.free()
        environment["duration_s"] = round(time.monotonic() - started, 1)
        print(report(_result(run, environment)), "", sep="\n", flush=True)
        if run.wrong:  # its figures are of no use
            wrong += run.wrong
            continue
        kept.rows.extend(run.rows)
        kept.ratios.update(run.ratios)
        _keep(_result(kept, environment), arguments.json)
    for title, lines in (("wrong answers", wrong), ("failed", failed)):
        if lines:
            print("\n  ".join([f"bench: {title} in gpu:", *lines]), file=sys.stderr)
    return int(bool(wrong or failed))


def _result(run: PartRun, environment: Mapping[str, Any]) -> SuiteResult:
    """Return what was found; ratios of tiny shapes stand for nothing, and are left out."""
    ratios = {} if run.device.is_tiny else dict(run.ratios)
    return SuiteResult(NAME, tuple(run.rows), ratios, environment=dict(environment))


def _keep(result: SuiteResult, path: Path | None) -> None:
    """Put a file in place of the one before it, whole or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    if path is None:
        return
    partial = path.with_name(f"{path.name}.partial")
    try:
        save(partial, [result])
        partial.replace(path)
    except OSError as error:
        raise ConfigError("the results cannot be written", found=error) from error
