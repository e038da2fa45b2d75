"""Scans run on the number of threads with which such scans took least."""

from __future__ import annotations

import faiss
import numpy as np

from rag_accel.engines.retrieval.flat_index_engine import measured_scan
from rag_accel.engines.retrieval.vectors.search_threads import (
    KEPT,
    LEAST_TRIED,
    TRY_MOST,
    TRY_ONE,
    WORTH_WAKING_S,
    SearchThreads,
)

LONG_S = 10 * WORTH_WAKING_S
NUMBERS = 1 << 24
MOST = 4


def learn(threads: SearchThreads, one_s: float, many_s: float) -> None:
    threads.note(NUMBERS, 1, one_s)
    for _ in range(LEAST_TRIED):
        threads.note(NUMBERS, MOST, many_s)


def test_a_short_scan_never_wakes_a_second_core() -> None:
    threads = SearchThreads()
    for _ in range(2 * TRY_MOST):
        assert threads.choose(NUMBERS, MOST) == 1
        threads.note(NUMBERS, 1, WORTH_WAKING_S / 2)


def test_a_long_scan_is_tried_on_all_threads_and_then_goes_where_it_took_less() -> None:
    for one_s, many_s, wanted in ((LONG_S, LONG_S / 3, MOST), (LONG_S, LONG_S * 3, 1)):
        threads = SearchThreads()
        threads.note(NUMBERS, 1, one_s)
        for _ in range(LEAST_TRIED):
            assert threads.choose(NUMBERS, MOST) == MOST
            threads.note(NUMBERS, MOST, many_s)
        assert threads.choose(NUMBERS, MOST) == wanted


def test_the_slower_number_is_measured_again_now_and_then() -> None:
    threads = SearchThreads()
    learn(threads, LONG_S, 3 * LONG_S)
    chosen = [threads.choose(NUMBERS, MOST) for _ in range(TRY_MOST)]
    assert chosen == [*[1] * (TRY_MOST - 1), MOST]
    threads = SearchThreads()
    learn(threads, LONG_S, LONG_S / 3)
    chosen = [threads.choose(NUMBERS, MOST) for _ in range(TRY_ONE)]
    assert chosen == [*[MOST] * (TRY_ONE - 1), 1]


def test_a_second_core_that_brings_little_is_left_to_others() -> None:
    threads = SearchThreads()
    learn(threads, LONG_S, 0.9 * LONG_S)
    assert threads.choose(NUMBERS, MOST) == 1


def test_what_took_less_once_is_forgotten_after_some_searches() -> None:
    threads = SearchThreads()
    learn(threads, LONG_S, LONG_S / 3)
    for _ in range(KEPT):
        threads.note(NUMBERS, MOST, 3 * LONG_S)
    assert threads.choose(NUMBERS, MOST) == 1


def test_sizes_are_learned_apart_and_one_thread_is_never_exceeded() -> None:
    threads = SearchThreads()
    learn(threads, LONG_S, LONG_S / 3)
    assert threads.choose(NUMBERS << 4, MOST) == 1
    assert threads.choose(NUMBERS, 1) == 1


def test_the_threads_of_faiss_are_set_for_the_call_and_its_result_is_that_of_the_index() -> None:
    class Index:
        ntotal, d = 4096, 4096

        def search(self, queries: object, k: int) -> tuple[int, int]:
            return faiss.omp_get_max_threads(), k

    before = faiss.omp_get_max_threads()
    threads = SearchThreads()
    queries = np.zeros((1, 4096), dtype=np.float32)
    faiss.omp_set_num_threads(MOST)
    try:
        assert measured_scan(Index(), queries, 3, threads) == (1, 3)
        for _ in range(KEPT):
            threads.note(NUMBERS, 1, LONG_S)
        assert measured_scan(Index(), queries, 3, threads) == (MOST, 3)
        assert faiss.omp_get_max_threads() == MOST
    finally:
        faiss.omp_set_num_threads(before)
