"""``rag-accel check``: measurements of what an approximate option changes on a model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rag_accel.cli.corpus import read_text
from rag_accel.cli.progress import show_progress

#: Options of the command that ``fidelity.check`` has by the same names.
_OPTIONS = ("folder", "target", "count", "limit_s", "dtype")
_DESCRIPTION = (
    'Of kv_reuse="fused" a recompute_ratio is proposed. The exit status is 0 with a ratio to '
    "propose, or where int8 weights or trees of paths agree, and 1 otherwise."
)


def add_check_command(commands: Any) -> None:
    """Add the command to a parser's commands."""
    _add(commands).add_argument(
        "--variant",
        choices=["fused", "dependency", "int8", "embedding-int8"],
        help='what is checked: kv_reuse="fused" (default), kv_reuse="dependency", whose documents'
        ' are paths, weights="int8", or embedding_runtime="int8" of an embedding model',
    )


def add_check_verb(verbs: Any) -> None:
    """Add ``rag-accel cache check``, its earlier name, which has an option for each variant."""
    way = _add(verbs).add_mutually_exclusive_group()
    way.add_argument("--weights", dest="variant", choices=["int8"], help="check these weights")
    said = 'check kv_reuse="dependency": documents are paths'
    way.add_argument("--paths", dest="variant", action="store_const", const="dependency", help=said)


def _add(commands: Any) -> Any:
    check = commands.add_parser(
        "check", help="measure what approximate options change on a model", description=_DESCRIPTION
    )
    check.add_argument("model", metavar="MODEL", help="a folder, or a name on the hub")
    check.add_argument(
        "--prompts",
        metavar="FILE",
        type=Path,
        help='your own: a line each of {"question": "...", "documents": ["..."]}',
    )
    check.add_argument("--folder", metavar="FOLDER", help="the kv_folder to keep the verdict in")
    check.add_argument(
        "--target", type=float, help="wanted share of equal tokens, 0.95; cosine, 0.98"
    )
    check.add_argument("--count", type=int, help="how many prompts are made without FILE; 30")
    check.add_argument("--limit-s", type=float, help="seconds, about; 1800")
    check.add_argument("--dtype", help="float32 or bfloat16; that of the checkpoint")
    check.add_argument("--template", metavar="FILE", type=Path, help="another chat template")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.set_defaults(run=_check, variant="fused")
    return check


def _check(arguments: argparse.Namespace) -> int:
    # It needs torch, which other commands do without.
    from rag_accel.fidelity import check, load_prompts

    given: dict[str, Any] = {name: getattr(arguments, name) for name in _OPTIONS}
    options = {name: value for name, value in given.items() if value is not None}
    if arguments.prompts is not None:
        options["prompts"] = load_prompts(arguments.prompts)
    if arguments.template is not None:
        options["template"] = read_text(arguments.template)
    show = show_progress("prompt")
    found = check(arguments.model, variant=arguments.variant, progress=show, **options)
    print(json.dumps(found.to_dict(), indent=2) if arguments.json else found)
    return 0 if found.passed else 1
