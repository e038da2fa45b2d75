"""A call in a forked child, and what came of it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60


def in_child(call: Callable[[], Any]) -> Any:
    """Return what ``call`` gave in a forked child, or its error's name."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(PATIENCE_S)  # a child that hangs ends without an answer
        try:
            result = call()
        except BaseException as error:
            result = type(error).__name__
        with os.fdopen(writing, "w") as out:
            json.dump(result, out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else "no answer"
