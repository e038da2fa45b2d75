"""Nothing of ours grows with the objects that were accelerated, used and dropped."""

from __future__ import annotations

import gc
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lc_fakes import SyncChat, SyncRetriever
from lc_programs import model_chain

from langchain_rag_accel import accelerate
from rag_accel import Accelerator, shutdown
from rag_accel.engine_api import PrimitiveKind

MAX_RSS_BYTES = 8 * 2**20

MANY = pytest.mark.parametrize(
    "number", [40, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
STORES = pytest.mark.parametrize(
    "number", [40, pytest.param(2_000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)


def containers(*roots: Any) -> dict[str, int]:
    """Return the sizes of all containers that are reached from objects and modules of ours."""
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.split(".")[0] in ("rag_accel", "rag_accel_adapters", "langchain_rag_accel")
    ]
    found: dict[str, int] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [(module.__name__, vars(module)) for module in modules]
    waiting += [(f"root{place}", root) for place, root in enumerate(roots)]
    while waiting:
        path, obj = waiting.pop()
        if id(obj) in seen or path.count(".") > 12:
            continue
        seen.add(id(obj))
        if isinstance(obj, dict | list | set | frozenset | tuple | deque):
            found[path] = len(obj)
        waiting += ((f"{path}.{name}", child) for name, child in _inside(obj))
    return found


def _inside(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, dict):
        yield from ((str(key)[:40], value) for key, value in list(obj.items())[:200])
    elif isinstance(obj, list | tuple | deque):
        yield from ((str(place), value) for place, value in enumerate(list(obj)[:50]))
    elif type(obj).__module__.split(".")[0] in (
        "rag_accel",
        "rag_accel_adapters",
        "langchain_rag_accel",
        "weakref",
        "_thread",
    ) and not isinstance(obj, type | types.ModuleType | types.FunctionType):
        names = [*getattr(obj, "__dict__", {})]
        for cls in type(obj).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            names += [slots] if isinstance(slots, str) else list(slots)
        for name in dict.fromkeys(names):
            value = getattr(obj, name, None)
            if value is not None:
                yield name, value


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def check_growth(number: int, accelerator: Accelerator, use: Callable[[int], None]) -> None:
    """Use things one after the other; between the first tenth and the end nothing may grow."""

    def settled() -> tuple[dict[str, int], int, int]:
        for thread in threading.enumerate():
            if thread.name == "rag-accel-compile":  # of an earlier test's model
                thread.join()
        accelerator.metrics.snapshot()  # asks the driver: what was posted has been dealt with
        gc.collect()
        accelerator.metrics.snapshot()
        return containers(accelerator), rss_bytes(), threading.active_count()

    for each in range(number // 10):
        use(each)
    before, rss_before, threads = settled()
    for each in range(number // 10, number):
        use(each)
    after, rss_after, threads_after = settled()
    grown = {path: (before.get(path, 0), size) for path, size in after.items()}
    assert {path: sizes for path, sizes in grown.items() if sizes[1] > sizes[0] + 2} == {}
    assert rss_after - rss_before < MAX_RSS_BYTES
    assert threads_after <= threads


@pytest.fixture
def bounded() -> Iterator[Accelerator]:
    """An accelerator whose bounded memories are full after a few calls, and no other."""
    shutdown()  # earlier tests may have left work to the default one
    with Accelerator(strict=True, trace_events=2) as made:
        made._driver._handler.state.log = deque(maxlen=2)
        yield made


@MANY
def test_accelerated_programs(number: int, bounded: Accelerator) -> None:
    def use(each: int) -> None:
        assert accelerate(model_chain(), accelerator=bounded).invoke({"input": "x"})

    check_growth(number, bounded, use)


@MANY
def test_twins(number: int, bounded: Accelerator) -> None:
    def use(each: int) -> None:
        assert accelerate(SyncChat(), accelerator=bounded).invoke("x").content
        if each % 10 == 0:
            assert accelerate(SyncRetriever(), accelerator=bounded).invoke("x")

    check_growth(number, bounded, use)


@STORES
def test_classes_made_for_one_request_each(number: int, bounded: Accelerator) -> None:
    def use(each: int) -> None:
        made = type(f"Own{each}", (SyncChat,), {"__module__": __name__})
        assert accelerate(made(), accelerator=bounded).invoke("x").content

    for each in range(1100):  # beyond the bound of names
        bounded.borrow(f"name {each}", PrimitiveKind.DECODING)
    check_growth(number, bounded, use)
