"""``rag-accel cache fill``: the states of a corpus, computed ahead of requests."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_accel.cli.corpus import read_corpus, read_messages, read_text
from rag_accel.cli.fill_endpoint import fill_endpoint, refuse_unfit
from rag_accel.cli.progress import show_progress
from rag_accel.errors import ConfigError

if TYPE_CHECKING:
    from rag_accel.engine_api import Message
    from rag_accel.engines.llm.local.prefill.filling import FillReport

#: Options of the command that ``FillOptions`` has by the same names.
_BOUNDS = (
    "neighbours",
    "neighbour_order",
    "neighbour_tokens",
    "namespace",
    "batch",
    "pool_bytes",
    "disk_bytes",
)
_SHOWN = 60


def add_fill_verb(verbs: Any) -> None:
    """Add the verb to those of ``cache``."""
    fill = verbs.add_parser(
        "fill", help="keep the states of texts in a kv_folder before they are asked for"
    )
    fill.add_argument(
        "folder", metavar="FOLDER", type=Path, nargs="?", help="the programs' kv_folder"
    )
    fill.add_argument("--model", help="a folder, or a name on the hub; the server's name of it")
    fill.add_argument(
        "--endpoint",
        metavar="URL",
        help="instead of FOLDER, a server of python -m vllm_rag_accel.serve",
    )
    fill.add_argument("--api-key-env", metavar="NAME", help="the variable with the server's key")
    fill.add_argument("--concurrency", metavar="N", type=int, help="requests to it at once; 8")
    fill.add_argument("--dtype", help="float32 | bfloat16; by default that of the checkpoint")
    fill.add_argument(
        "--texts",
        required=True,
        type=Path,
        help="a .jsonl file, a .txt file with a text a line, or a folder with *.txt",
    )
    fill.add_argument("--metadata", action="store_true", help="put metadata before texts")
    fill.add_argument("--strip", action="store_true", help="leave out white space around texts")
    fill.add_argument("--system", metavar="FILE", type=Path, help="the system's message")
    fill.add_argument(
        "--prompt",
        metavar="FILE",
        type=Path,
        help="the user's message up to the texts; .json: messages with {context} for the texts",
    )
    fill.add_argument(
        "--chat-template", metavar="FILE", type=Path, help="in place of the tokenizer's"
    )
    fill.add_argument(
        "--neighbours", metavar="N", type=int, help="encode each behind the N most similar texts"
    )
    fill.add_argument("--neighbour-order", help="nearest_last (default) | nearest_first")
    fill.add_argument("--neighbour-tokens", metavar="N", type=int, help="most tokens of them")
    fill.add_argument("--embedder", help="chooses neighbours; by default MiniLM of rag-accel[demo]")
    fill.add_argument("--namespace", help="tenant of the programs")
    fill.add_argument("--batch", metavar="N", type=int, help="texts that are encoded together")
    fill.add_argument("--pool-bytes", metavar="N", type=int, help="most bytes while computing")
    fill.add_argument("--disk-bytes", metavar="N", type=int, help="most bytes of the folder")
    fill.set_defaults(run=_fill)


def _fill(arguments: argparse.Namespace) -> int:
    if arguments.endpoint is not None:
        return fill_endpoint(arguments, _prompt(arguments), show_progress("state"))
    refuse_unfit(arguments, "without --endpoint", ("api_key_env", "concurrency"))
    if arguments.folder is None or arguments.model is None:
        raise ConfigError(
            "nothing says where states are kept, or of which model",
            where="rag-accel cache fill",
            valid="FOLDER and --model, or --endpoint",
        )
    # They need torch, which other commands do without.
    from rag_accel.engines.llm.local.prefill.filling import FillOptions, fill_folder

    given = {name: getattr(arguments, name) for name in _BOUNDS}
    options = FillOptions(**{name: value for name, value in given.items() if value is not None})
    texts = read_corpus(arguments.texts, metadata=arguments.metadata, strip=arguments.strip)
    template = arguments.chat_template and read_text(arguments.chat_template)
    report = fill_folder(
        arguments.folder,
        arguments.model,
        texts,
        prompt=_prompt(arguments),
        options=options,
        dtype=arguments.dtype,
        template=template,
        embed=load_embedder(arguments.embedder) if options.neighbours else None,
        progress=show_progress("state"),
    )
    print("\n".join(_lines(report)))
    return 0


def _prompt(arguments: argparse.Namespace) -> Sequence[Message]:
    from rag_accel.engines.llm.local.prefill.fill_prompt import prompt_of

    system = None if arguments.system is None else _unended(arguments.system)
    if arguments.prompt is None:
        return prompt_of(system)
    if arguments.prompt.suffix != ".json":
        return prompt_of(system, _unended(arguments.prompt))
    if system is not None:
        raise ConfigError(
            "the system's message is given twice",
            where="--system",
            found="--prompt FILE.json",
            valid="one of them",
        )
    return read_messages(arguments.prompt)


def _unended(path: Path) -> str:
    """Return the text of a file without the newline that editors put at its end."""
    return read_text(path).removesuffix("\n")


def load_embedder(name: str | None) -> Callable[[Sequence[str]], Any]:
    """Return a function that embeds texts by the model that ``--embedder`` names."""
    from rag_accel.engines.embedding.models import load_named_model

    def embed(texts: Sequence[str]) -> Any:
        model = load_named_model(name, "--embedder")
        return model.encode(list(texts), show_progress_bar=False, convert_to_numpy=True)

    return embed


def _lines(report: FillReport) -> list[str]:
    head = report.head if len(report.head) <= _SHOWN else f"...{report.head[-_SHOWN:]}"
    computed = report.encoded + report.preprocessed
    lines = [
        f"behind {head!r}",
        f"{report.texts} texts, {report.left_out} left out (empty, short or there twice)",
        f"{report.encoded} states encoded alone, {report.preprocessed} behind neighbours, "
        f"{report.found} there already",
    ]
    if computed:
        each = report.seconds / computed * 1000
        size = report.nbytes / computed / 1024
        lines.append(
            f"{each:.1f} ms and {size:.1f} KiB a state, {report.tokens} tokens, "
            f"{report.nbytes / 2**20:.1f} MiB in {report.seconds:.1f} s"
        )
    return lines
