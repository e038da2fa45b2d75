"""``rag-accel``: the command line. Further commands join by entry point ``rag_accel.commands``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from rag_accel.cli.batch import add_batch_command
from rag_accel.cli.cache import add_cache_command
from rag_accel.cli.check import add_check_command
from rag_accel.cli.corpus_searches import add_corpus_command
from rag_accel.cli.doctor import add_doctor_command
from rag_accel.cli.profile import add_profile_command
from rag_accel.cli.run import run_program
from rag_accel.cli.serve import add_serve_command
from rag_accel.cli.tune import add_tune_command
from rag_accel.errors import RagAccelError
from rag_accel.profile.profile import profile_events
from rag_accel.registry import command_registry
from rag_accel.system.doctor import installed_version
from rag_accel.telemetry.reading import read_json_lines

RUN = "run"
DESCRIPTION = "Run a RAG program accelerated, see what is installed here and where its time goes."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; our own errors are printed without a trace."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == [RUN] and given[1:] not in ([], ["-h"], ["--help"]):
        return run_program(given[1:])  # whatever follows is for the program
    installed = installed_version("rag-accel") or "(a checkout that is not installed)"
    parser = argparse.ArgumentParser(prog="rag-accel", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"rag-accel {installed}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_doctor_command(commands)
    trace = commands.add_parser("trace", help="show where the time of a recorded run went")
    trace.add_argument("events", metavar="FILE", help="what a JsonLinesSink wrote")
    trace.add_argument("--chrome", metavar="OUT", help="also write a trace for ui.perfetto.dev")
    trace.add_argument("--html", metavar="OUT", help="also write a page that draws the run")
    trace.add_argument("--json", action="store_true", help="print one JSON object")
    trace.set_defaults(run=_trace)
    add_profile_command(commands)
    add_check_command(commands)
    add_cache_command(commands)
    add_corpus_command(commands)
    add_tune_command(commands)
    add_serve_command(commands)
    add_batch_command(commands)
    run = commands.add_parser(
        RUN, help="run a Python program with what it uses accelerated: run SCRIPT|-m MODULE ..."
    )
    run.add_argument("line", nargs="*", metavar="SCRIPT|-m MODULE ...")
    for name in command_registry().names():
        _add_plugin(commands, name)
    arguments = parser.parse_args(given)
    if arguments.command == RUN:
        run.error("say which program to run")
    try:
        return arguments.run(arguments)
    except (RagAccelError, ImportError) as error:
        print(f"rag-accel: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _add_plugin(commands: Any, name: str) -> None:
    """Add a command of a plugin; one that cannot be imported says so when it is called."""
    try:
        run = command_registry().get(name)
        module = sys.modules.get(run.__module__)
    except (RagAccelError, ImportError) as error:
        reason = error
        parser = commands.add_parser(name, help="unavailable", add_help=False)
        parser.add_argument("rest", nargs="*")

        def fail(_: argparse.Namespace) -> int:
            raise reason

        parser.set_defaults(run=fail)
        return
    parser = commands.add_parser(name, help=getattr(module, "HELP", None))
    getattr(module, "add_arguments", lambda _: None)(parser)
    parser.set_defaults(run=run)


def _trace(arguments: argparse.Namespace) -> int:
    profile = profile_events(read_json_lines(arguments.events))
    if arguments.chrome:
        profile.save_chrome_trace(arguments.chrome)
    if arguments.html:
        profile.save_page(arguments.html)
    print(json.dumps(profile.to_dict(), indent=2) if arguments.json else profile)
    return 0
