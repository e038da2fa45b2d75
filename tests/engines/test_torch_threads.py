"""Granted threads hold in one thread for one block, and nowhere else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rag_accel.engines import torch_threads
from rag_accel.engines.torch_threads import on_threads, thread_count

torch = pytest.importorskip("torch")

#: Looks again each time.
DETECT = torch_threads._own_numbers_setter.__wrapped__


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, params=["libraries", "torch"])
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the number in the libraries that this torch uses, and as other builds need it."""
    if request.param == "torch":
        monkeypatch.setattr(torch_threads, "_own_numbers_setter", lambda: None)


class Library:
    """An OpenMP and an MKL beside those that torch computes with."""

    def omp_set_num_threads(self, threads: int) -> None:
        pass

    MKL_Set_Num_Threads_Local = omp_set_num_threads


def numbers() -> tuple[int, ...]:
    """Return what torch, OpenMP and MKL would use in the calling thread."""
    lines = torch.__config__.parallel_info().splitlines()
    found = [int(line.rsplit(":", 1)[1]) for line in lines if "max_threads" in line]
    return (torch.get_num_threads(), *found)


def in_new_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_holds_in_the_block_for_all_of_torchs_libraries(threads: int) -> None:
    before = numbers()
    with thread_count(threads):
        assert set(numbers()) == {threads}
    assert numbers() == before


def test_a_thread_that_starts_during_the_block_gets_the_number_it_always_got() -> None:
    with thread_count(1):
        assert set(in_new_thread(numbers)) == {2}
    assert set(in_new_thread(numbers)) == {2}


def test_a_thread_that_exists_keeps_its_own_number() -> None:
    def in_worker() -> None:
        with thread_count(1):
            inside.set()
            looked.wait(10)

    inside, looked = threading.Event(), threading.Event()
    worker = threading.Thread(target=in_worker)
    worker.start()
    inside.wait(10)
    found = numbers()
    looked.set()
    worker.join()
    assert set(found) == {2}


def test_the_users_change_during_the_block_stays() -> None:
    def change() -> None:
        torch.set_num_threads(3)

    with thread_count(1):
        in_new_thread(lambda: change() or 0)
        assert set(numbers()) == {1}
    assert set(numbers()) == {2}
    assert set(in_new_thread(numbers)) == {3}


def test_the_users_change_at_the_same_moment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    change = torch_threads._own_numbers_setter()
    if change is None:
        pytest.skip("by torch's function the user's number may be put back, as its docstring says")

    def change_beside_the_user(threads: int) -> None:
        change(threads)
        in_new_thread(lambda: torch.set_num_threads(3) or 0)

    monkeypatch.setattr(torch_threads, "_own_numbers_setter", lambda: change_beside_the_user)
    with thread_count(1):
        assert set(numbers()) == {1}
    assert set(in_new_thread(numbers)) == {3}


def test_this_torch_needs_no_change_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch_threads._own_numbers_setter() is None:
        pytest.skip("the other way is forced")
    monkeypatch.setattr(torch, "set_num_threads", None)
    with thread_count(1):
        assert set(numbers()) == {1}
    assert set(numbers()) == {2}


def test_libraries_that_torch_does_not_use_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_threads.ctypes, "CDLL", lambda _: Library())
    assert DETECT() is None


def test_a_library_without_the_symbols_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_threads.ctypes, "CDLL", lambda _: object())
    assert DETECT() is None


def test_the_number_is_put_back_when_the_block_raises() -> None:
    with pytest.raises(RuntimeError, match="inside"), thread_count(1):
        raise RuntimeError("inside")
    assert set(numbers()) == {2}


def test_blocks_in_many_threads_do_not_mix_up_their_numbers() -> None:
    def work(threads: int) -> None:
        for _ in range(20):
            with thread_count(threads):
                found.append(set(numbers()) == {threads})
            found.append(set(numbers()) == {2})

    found: list[bool] = []
    workers = [threading.Thread(target=work, args=(1 + i % 3,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(found)
    assert len(found) == 160
    assert set(in_new_thread(numbers)) == {2}


@pytest.mark.parametrize("threads", [0, 2])
def test_nothing_happens_for_none_or_for_the_number_in_force(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", None)
    with thread_count(threads):
        assert set(numbers()) == {2}


def test_torch_is_not_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    with thread_count(1):
        assert "torch" not in sys.modules
    monkeypatch.undo()
    assert set(numbers()) == {2}


def test_a_call_computes_on_its_threads_wherever_it_is_made() -> None:
    call = on_threads(3, torch.get_num_threads)
    assert (call(), in_new_thread(call), torch.get_num_threads()) == (3, 3, 2)
