"""A program that answers over a folder of texts until it is killed: FOLDER MOMENT.

It prints ``now`` when the third state is about to be written (``begun``), is written and has no
name yet (``written``), or has its name (``kept``).
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from kept_engines import answer, engine_over

from rag_accel.kv import disk

#: the texts of a prompt each
NUMBERED = [f"This is text number {at} of those that are kept here." for at in range(4)]


def _stop_here() -> None:
    print("now", flush=True)
    threading.Event().wait()


def _watch(moment: str) -> None:
    write, put = disk.write_chunk, disk.DiskStore.put
    calls = iter(range(1000))

    def watched_write(file: Any, *given: Any) -> None:
        is_third = next(calls) == 2
        if is_third and moment == "begun":
            file.write(b"half of a header")
            file.flush()
            _stop_here()
        write(file, *given)
        if is_third and moment == "written":
            file.flush()
            _stop_here()

    def watched_put(self: Any, *given: Any) -> bool:
        is_kept = put(self, *given)
        if moment == "kept" and next(calls) == 5:  # three writes and three puts have begun
            _stop_here()
        return is_kept

    disk.write_chunk = watched_write
    disk.DiskStore.put = watched_put


if __name__ == "__main__":
    _watch(sys.argv[2])
    engine = engine_over(Path(sys.argv[1]))
    for text in NUMBERED:
        answer(engine, text)
    threading.Event().wait()
