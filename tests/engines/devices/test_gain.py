"""A processor next to an accelerator of the same process joins only where it adds something."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from fake_members import FakeMember, plain_vectors

from rag_accel.engines import CallableEmbeddingEngine, EngineMember
from rag_accel.engines.devices.group import DeviceGroup


class Interpreter:
    """What both devices of a process need while they embed, if they share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def hold(self, seconds: float) -> None:
        with self._lock:
            threading.Event().wait(seconds)


def accelerator(interpreter: Interpreter) -> EngineMember:
    def embed(texts: list[str]) -> Any:
        interpreter.hold(0.01)
        return plain_vectors(texts, "query")

    engine: Any = CallableEmbeddingEngine(embed)
    engine.model = SimpleNamespace(device="cuda:0")
    member = EngineMember(engine, "cuda:0")
    member.max_threads = 0
    return member


def processor(interpreter: Interpreter, seconds: float = 0.01) -> FakeMember:
    def embed(texts: Any, role: str) -> Any:
        interpreter.hold(seconds)
        return plain_vectors(texts, role)

    return FakeMember("cpu", vectors=embed, max_threads=1)


@contextmanager
def group(*members: Any) -> Iterator[DeviceGroup]:
    made = DeviceGroup(members)
    try:
        yield made
    finally:
        made.close()


def test_a_processor_that_slows_an_accelerator_stays_out_and_health_says_why() -> None:
    shared = Interpreter()
    cpu = processor(shared, 0.1)
    with group(accelerator(shared), cpu) as made:
        states = {part.name: part for part in made.health().parts}
    assert states["cpu"].state == "lost"
    assert "stays out: it slows the others" in states["cpu"].why
    assert cpu.is_closed


@pytest.mark.parametrize("first", [accelerator, processor])
def test_a_processor_that_takes_nothing_from_the_others_joins(first: Any) -> None:
    others = processor(Interpreter())
    others.name = "cpu-2"
    with group(first(Interpreter()), others) as made:
        assert all(part.is_ready for part in made.health().parts)


def test_a_processor_that_fails_while_it_is_measured_stays_out_with_its_error() -> None:
    cpu = processor(Interpreter())
    first = accelerator(Interpreter())

    def failing(texts: Any, role: str) -> Any:
        if "0" in texts[0]:  # those that are measured are numbered
            raise ValueError("no memory left")
        return plain_vectors(texts, role)

    cpu._vectors = failing
    with group(first, cpu) as made:
        assert "no memory left" in made.health().parts[1].why
