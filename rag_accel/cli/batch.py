"""``rag-accel batch``: a program over the rows of a file, accelerated, each row once.

Results are lines of a file of their own, written whole as their rows end. A line has the digest of
its input, by which a later run knows which rows it need not run again.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import inspect
import json
import math
import operator
import os
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rag_accel.accelerator import Accelerator
from rag_accel.cli.automatic import imported_integrations
from rag_accel.cli.corpus import read_text
from rag_accel.cli.progress import show_progress
from rag_accel.config import Options
from rag_accel.errors import ConfigError
from rag_accel.leaves.request_threads import request_threads
from rag_accel.serving.plain_values import as_json
from rag_accel.serving.served import MESSAGES, TEXT, Served, ServedEmbedder, ServedProgram
from rag_accel.serving.sync_steps import RequestSteps, SyncSteps
from rag_accel.serving.target import ServingTarget, find_target
from rag_accel.serving.tenants import ServedTenants
from rag_accel.system.files import held_lock, replaced_file

_CONCURRENCY, _MOST_CONCURRENCY = 32, 1024
#: of an error's message, in characters
_MESSAGE, _SHOWN = 2000, 200
_HEAD = b'{"row": '

_BAD_FILE, _FILE = "this is no file of results", "one that this command wrote, or a new one"
_BAD_ROW, _ROWS = "a row cannot be read", "a JSON value a line"
_BAD_INPUT = "the program does not take such a row"

_AGAIN = "run the same command again: finished rows are not repeated"

_Ask = Callable[[Any], Awaitable[Any]]
_Count = Callable[[], tuple[int, int]]


def add_batch_command(commands: Any) -> None:
    batch = commands.add_parser("batch", help="run a program over the rows of a file, accelerated")
    batch.add_argument(
        "object", metavar="MODULE:NAME", help="a chain, graph, engine, embedder or function of rows"
    )
    batch.add_argument("rows", metavar="ROWS", type=Path, help="a JSON value a line")
    batch.add_argument("--out", metavar="RESULTS", type=Path, required=True, help="goes on there")
    batch.add_argument("--input", metavar="FIELD", help="of each row that is given, not all of it")
    batch.add_argument(
        "--concurrency", metavar="N", type=int, default=_CONCURRENCY, help="rows at once; 32"
    )
    batch.add_argument("--price", metavar="IN,OUT", help="of a million tokens, to sum up")
    batch.add_argument("--accelerator", metavar="MODULE:NAME", help="what a RAGraph runs on")
    batch.add_argument("--namespace", metavar="NAME", help="tenant of the rows")
    batch.set_defaults(run=_batch)


def _batch(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.concurrency <= _MOST_CONCURRENCY:
        valid = f"from 1 to {_MOST_CONCURRENCY}"
        _refuse("option out of range", "--concurrency", arguments.concurrency, valid)
    prices = None if arguments.price is None else _prices(arguments.price)
    rows, counts = read_rows(arguments.rows, arguments.input), list[_Count]()
    began = time.monotonic()
    with ExitStack() as stack:
        results = stack.enter_context(open_results(arguments.out, rows))
        before = results.num_done
        if results.pending:
            target = find_target(arguments.object, arguments.accelerator, takes_functions=True)
            ask = stack.enter_context(_asking(target, rows, arguments.namespace))
            counts = [stack.enter_context(it.counted_tokens()) for it in imported_integrations()]
            try:
                asyncio.run(_run(ask, rows, results, arguments.concurrency))
            except KeyboardInterrupt:
                print(f"stopped; {results.num_done} rows have results: {_AGAIN}", file=sys.stderr)
                raise
        tokens = [sum(each) for each in zip((0, 0), *(count() for count in counts), strict=True)]
    told = f"{len(rows.values)} rows: {results.num_done} done, {before} of them before"
    print(f"{told}, {results.num_failed} failed, in {time.monotonic() - began:.1f} s")
    if any(tokens):
        print(f"{tokens[0]} tokens in, {tokens[1]} out, as the models report them")
    if prices is not None:
        money = sum(map(operator.mul, tokens, prices)) / 1e6
        print(f"{money:.4f} for them, at {arguments.price} a million")
    if results.num_failed:
        print(f"first, {results.first_error}; {_AGAIN}, failed ones are")
    return 1 if results.num_failed else 0


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of a file.

    Args:
        path: of the file.
        values: the input of each row, by its line number.
        digests: of these inputs, by line number; equal inputs have equal ones.
    """

    path: Path
    values: Mapping[int, Any]
    digests: Mapping[int, str]


def read_rows(path: Path, name: str | None = None) -> BatchRows:
    """Return the rows of a file.

    Args:
        path: a JSON value on each line that is not empty.
        name: the field of each row that is its input; by default all of it is.

    Raises:
        ConfigError: it cannot be read, or holds no rows; names the file and line.
    """
    values = dict[int, Any]()
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            _refuse(_BAD_ROW, f"{path}, line {number}", f"no JSON: {error}", _ROWS)
        if name is not None and not (isinstance(value, dict) and name in value):
            _refuse(_BAD_ROW, f"{path}, line {number}", "no such field", f'an object with "{name}"')
        values[number] = value if name is None else value[name]
    if not values:
        _refuse("there are no rows", str(path), "nothing", _ROWS)
    return BatchRows(path, values, {number: _digest(value) for number, value in values.items()})


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def _prices(given: str) -> tuple[float, float]:
    try:
        price_in, price_out = map(float, given.split(","))
    except ValueError:
        price_in, price_out = -1.0, -1.0
    if not (0 <= price_in < math.inf and 0 <= price_out < math.inf):
        valid = "two numbers, of a million tokens in and out, such as 0.15,0.6"
        _refuse("prices cannot be read", "--price", repr(given), valid)
    return price_in, price_out


def in_order(values: Sequence[Any]) -> list[int]:
    """Return the places of values, those that share a beginning after each other.

    Fields of objects with fewest different values are taken to stand first in prompts.
    """
    different = defaultdict[str, set[int]](set)
    for value in values:
        for name, given in value.items() if isinstance(value, dict) else ():
            different[name].add(hash(_text(given)))
    names = sorted(different, key=lambda name: len(different[name]))

    def beginning(place: int) -> list[str]:
        value = values[place]
        if isinstance(value, dict):
            return [_text(value.get(name)) for name in names]
        return [_text(value)]

    return sorted(range(len(values)), key=beginning)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(slots=True)
class BatchResults:
    """The results of rows in a file that this process alone writes.

    Args:
        path: of the file.
        descriptor: of the file, which is open.
        num_done: rows that have a result, none of them an error.
        pending: the rows without one, by the digest of their input.
        num_failed: rows that ended with an error, now.
        first_error: the first of these errors.
    """

    path: Path
    descriptor: int
    num_done: int
    pending: dict[str, list[int]]
    num_failed: int = 0
    first_error: str = ""

    def write(self, numbers: Sequence[int], digest: str, outcome: Mapping[str, Any]) -> None:
        """Append a line for each of these rows, all with one outcome.

        Raises:
            ConfigError: they cannot be written, as where the disk is full.
        """
        rest = _rest_of(digest, outcome)
        lines = [_HEAD + f"{number}, ".encode() + rest for number in numbers]
        left = memoryview(b"".join(lines))
        try:
            while left:
                left = left[os.write(self.descriptor, left) :]
        except OSError as error:
            # Others that end meanwhile must not write behind half a line.
            written = sum(map(len, lines)) - len(left)
            os.ftruncate(self.descriptor, os.fstat(self.descriptor).st_size - written)
            raise _unwritable(self.path, error) from error
        error = outcome.get("error")
        if error is None:
            self.num_done += len(numbers)
            return
        self.num_failed += len(numbers)
        said = f"row {numbers[0]}: {error['class']}: {error['message'][:_SHOWN]}"
        self.first_error = self.first_error or said.encode(errors="replace").decode()


def _rest_of(digest: str, outcome: Mapping[str, Any]) -> bytes:
    line = {"input": digest, **outcome}
    try:
        return json.dumps(line, ensure_ascii=False).encode()[1:] + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can escape
        return json.dumps(line).encode()[1:] + b"\n"


@contextmanager
def open_results(path: Path, rows: BatchRows) -> Iterator[BatchResults]:
    """Give the results of rows, of which the file keeps those that are finished.

    Lines of errors, a line that a killed process has torn, and earlier lines of a row go.

    Raises:
        ConfigError: another process writes the file, it cannot be written, or it holds anything
            but results of these rows.
    """
    path = path.expanduser().resolve()
    with ExitStack() as stack:
        try:
            if path.exists() and not path.is_file():
                _refuse(_BAD_FILE, str(path), "no file", _FILE)
            stack.enter_context(held_lock(path.with_name(f".{path.name}.lock"), 0.0))
            lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
            kept = _finished(path, lines, rows)
            _copy_equal(kept, rows)
            if len(kept) != len(lines) - 1 or lines[-1]:
                with replaced_file(path) as file:
                    file.writelines(kept.values())
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except TimeoutError:
            raise ConfigError(
                "another process writes these results", where=str(path), hint="let it end"
            ) from None
        except OSError as error:
            raise _unwritable(path, error) from error
        stack.callback(os.close, descriptor)
        pending = defaultdict[str, list[int]](list)
        for number, digest in rows.digests.items():
            if number not in kept:
                pending[digest].append(number)
        yield BatchResults(path, descriptor, len(kept), pending)


def _finished(path: Path, lines: Sequence[bytes], rows: BatchRows) -> dict[int, bytes]:
    """Return the lines of rows that are finished, each with its newline, by row."""
    kept = dict[int, bytes]()
    *whole, torn = lines
    for place, line in enumerate(whole, 1):
        try:
            found = json.loads(line)
            number, digest, has_error = found["row"], found["input"], "error" in found
        except (ValueError, TypeError, KeyError, RecursionError):
            _refuse_file(path, place)
        if not isinstance(number, int):
            _refuse_file(path, place)
        if rows.digests.get(number) != digest:
            raise ConfigError(
                "these are results of other rows",
                where=f"{path}, line {place}",
                found=f"row {number}, whose input is another one in {rows.path}, or not there",
                valid="the file of rows and the --input with which it began; rows may be added",
                hint="name another file by --out",
            )
        if not has_error:
            kept[number] = line + b"\n"
    if not (torn.startswith(_HEAD) or _HEAD.startswith(torn)):
        _refuse_file(path, len(lines))
    return kept


def _copy_equal(kept: dict[int, bytes], rows: BatchRows) -> None:
    """Give rows that came later the results of equal rows."""
    known = {rows.digests[number]: line for number, line in kept.items()}
    for number, digest in rows.digests.items():
        if number not in kept and digest in known:
            kept[number] = _HEAD + f"{number}, ".encode() + known[digest].partition(b", ")[2]


def _refuse_file(path: Path, line: int) -> NoReturn:
    _refuse(_BAD_FILE, f"{path}, line {line}", "another text", _FILE)


def _refuse(what: str, where: str, found: object, valid: str) -> NoReturn:
    raise ConfigError(what, where=where, found=found, valid=valid)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        "results cannot be written",
        where=str(path),
        found=error.strerror or error,
        valid="a file on a disk with room",
        hint=_AGAIN,
    )


@contextmanager
def _asking(target: ServingTarget, rows: BatchRows, namespace: str | None) -> Iterator[_Ask]:
    """Give what answers a row, accelerated until the block ends."""
    if inspect.isroutine(target.obj) or isinstance(target.obj, partial):
        with target.accelerator or Accelerator() as accelerator, ExitStack() as stack:
            for integration in imported_integrations():
                stack.enter_context(integration.activate(accelerator))
            yield partial(_call, target.obj)
        return
    if namespace is None:
        namespace = (target.accelerator.options if target.accelerator else Options.load()).namespace
    tenants = _tenants(target, rows, namespace)
    try:
        yield _asker(tenants.of(namespace), rows)
    finally:
        tenants.close()


def _tenants(target: ServingTarget, rows: BatchRows, namespace: str) -> ServedTenants:
    tenants = ServedTenants(target, on_full="wait")
    try:
        tenants.add((namespace,))
        return tenants
    except ConfigError as error:
        if error.where != "--input":
            raise
        names = dict[str, None]()
        for number, value in rows.values.items():  # of a graph or a workflow, which names none
            if not isinstance(value, dict):
                where = f"{rows.path}, line {number}"
                _refuse(_BAD_INPUT, where, "no object", f"an object with {error.valid}")
            names |= dict.fromkeys(value)
    tenants = ServedTenants(target, inputs=tuple(names), on_full="wait")
    tenants.add((namespace,))
    return tenants


def _asker(served: Served, rows: BatchRows) -> _Ask:
    if isinstance(served, ServedEmbedder):
        return partial(_embed, served)
    for number, value in rows.values.items():
        if _values(served, value) is None:
            where, fields = f"{rows.path}, line {number}", ", ".join(served.inputs)
            valid = f"an object with {fields}" + "; a text" * (len(served.inputs) == 1)
            _refuse(_BAD_INPUT, where, type(value).__name__, valid)

    async def ask(value: Any) -> Any:
        return (await served.answer(_values(served, value) or {}, None)).output

    return ask


def _values(program: ServedProgram, value: Any) -> dict[str, Any] | None:
    """Return a row as the inputs of a program; None for one that it cannot take."""
    if program.inputs == (TEXT,):
        return {TEXT: value}
    if isinstance(value, dict):
        return value if program.inputs != (MESSAGES,) or MESSAGES in value else None
    if program.inputs == (MESSAGES,):
        if isinstance(value, str):
            return {MESSAGES: [{"role": "user", "content": value}]}
        return {MESSAGES: value} if isinstance(value, list) and value else None
    return {program.inputs[0]: value} if len(program.inputs) == 1 else None


async def _embed(embedder: ServedEmbedder, value: Any) -> Any:
    return (await embedder.embed([value], "document"))[0]


async def _call(function: Callable[[Any], Any], value: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(value)
    answer = await asyncio.to_thread(function, value)
    return await answer if inspect.isawaitable(answer) else answer


async def _run(ask: _Ask, rows: BatchRows, results: BatchResults, concurrency: int) -> None:
    asyncio.get_running_loop().set_default_executor(SyncSteps(concurrency))
    groups, progress = list(results.pending.items()), show_progress("row")
    places = in_order([rows.values[numbers[0]] for _, numbers in groups])
    todo = iter([groups[place] for place in places])
    progress(results.num_done, len(rows.values))

    async def work() -> None:
        for digest, numbers in todo:
            request_threads.set(RequestSteps())
            results.write(numbers, digest, await _outcome(ask, rows.values[numbers[0]]))
            progress(results.num_done + results.num_failed, len(rows.values))

    await asyncio.gather(*(work() for _ in range(min(concurrency, len(groups)))))


async def _outcome(ask: _Ask, value: Any) -> dict[str, Any]:
    """Return a program's output as JSON, or what it raised, which ends only its row."""
    try:
        return {"output": as_json(await ask(value))}
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raised: BaseException = error
    except (Exception, SystemExit) as error:
        raised = error
    name = f"{type(raised).__module__}.{type(raised).__qualname__}".removeprefix("builtins.")
    return {"error": {"class": name, "message": str(raised)[:_MESSAGE]}}
