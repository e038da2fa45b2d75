"""Run a command as a tree of processes of its own, of which nothing outlives the call."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

#: Seconds in which a process may end its servers and files after it was told to stop.
GRACE_S = 15.0
_PROC = Path("/proc")

_Process = tuple[int, str]
"""A process: its number, and when it started, so that a number used again is not mistaken."""


def run_tree(
    line: Sequence[str], cwd: Path, limit_s: float, grace_s: float = GRACE_S
) -> int | None:
    """Run a command to its end and return its exit code; None if it took more than ``limit_s``.

    Where it takes too long, or the caller is interrupted, the command is interrupted, and what is
    left of it and of all processes that it started is killed after ``grace_s`` seconds.
    """
    process = subprocess.Popen(line, cwd=cwd, start_new_session=True)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        _end(process, grace_s)
        return None
    except BaseException:
        _end(process, grace_s)
        raise


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    tree = _descendants(process.pid)
    try:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    finally:  # a second interruption ends the waiting, and nothing else
        tree |= _descendants(process.pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for number, started in tree:
            if _started(number) == started:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        process.wait()


def _descendants(root: int) -> set[_Process]:
    """Return what a process started, in other sessions as well; nothing where there is no /proc."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.glob("[0-9]*"):
        if fields := _stat(int(folder.name)):
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found: set[_Process] = set()
    waiting = [root]
    while waiting:
        for number in children.get(waiting.pop(), []):
            if started := _started(number):
                found.add((number, started))
            waiting.append(number)
    return found


def _started(number: int) -> str:
    fields = _stat(number)
    return fields[19] if fields else ""


def _stat(number: int) -> list[str]:
    """Return the fields of ``/proc/N/stat`` from the third, the state; none of a process gone."""
    try:
        text = (_PROC / str(number) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
