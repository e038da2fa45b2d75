"""``rag-accel tune``: fine-tuning of models to the attention that they are run with."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from rag_accel.cli.progress import Progress, show_progress

#: Options of the command that ``TuningOptions`` has by the same names.
_OPTIONS = ("steps", "batch", "rate", "scheme", "precision", "checkpoint_every", "seed")


def add_tune_command(commands: Any) -> None:
    """Add the command with its own to a parser's commands."""
    tune = commands.add_parser("tune", help="fine-tune a local language model")
    verbs = tune.add_subparsers(dest="verb", required=True, metavar="dependency")
    verb = verbs.add_parser(
        "dependency",
        help="to answer behind trees of relation paths",
        description="Called again with the same settings it continues where it stopped.",
    )
    verb.add_argument("model", metavar="MODEL", help="a folder, or a name on the hub")
    verb.add_argument("--out", metavar="FOLDER", type=Path, required=True, help="of the new model")
    verb.add_argument(
        "--prompts",
        metavar="FILE",
        type=Path,
        help='your own: a line each of {"paths": ["a -> r -> b"], "question": "", "answer": ""}',
    )
    verb.add_argument("--scheme", help="positions: shared (default) | stacked | preorder")
    verb.add_argument("--steps", metavar="N", type=int, help="of the optimizer; 60")
    verb.add_argument("--batch", metavar="N", type=int, help="prompts of a step; 8")
    verb.add_argument("--rate", metavar="RATE", type=float, help="learning rate; 1e-5")
    verb.add_argument("--precision", help="of products: float32 (default) | bfloat16")
    verb.add_argument("--checkpoint-every", metavar="N", type=int, help="steps; 10")
    verb.add_argument("--seed", metavar="N", type=int, help="of prompts and their order; 0")
    verb.add_argument("--json", action="store_true", help="print one JSON object")
    verb.set_defaults(run=_tune)


def _tune(arguments: argparse.Namespace) -> int:
    # It needs torch, which other commands do without.
    from rag_accel.fidelity.tuning import TuningOptions, load_graph_questions, tune_dependency

    given = {name: getattr(arguments, name) for name in _OPTIONS}
    options = TuningOptions(**{name: value for name, value in given.items() if value is not None})
    prompts = None if arguments.prompts is None else load_graph_questions(arguments.prompts)
    show = partial(_show, show_progress("step"))
    try:
        report = tune_dependency(
            arguments.model, arguments.out, prompts=prompts, options=options, progress=show
        )
    except KeyboardInterrupt:
        print("stopped; the same command continues at the last checkpoint", file=sys.stderr)
        raise
    print(json.dumps(report.to_dict(), indent=2) if arguments.json else report)
    return 0


def _show(show: Progress, done: int, steps: int, loss: float) -> None:
    if sys.stderr.isatty():
        show(done, steps)
    else:
        print(f"{done} of {steps} steps, loss {loss:.3f}", file=sys.stderr, flush=True)
