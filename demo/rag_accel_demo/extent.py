"""The sizes of a run of the demo: quick, or all of it."""

from __future__ import annotations

from dataclasses import dataclass

from rag_accel.system.processor import usable_cores
from rag_accel_demo.load import SHAPES, Shape
from rag_accel_demo.material import NUM_CHUNKS


@dataclass(frozen=True, slots=True)
class LocalExtent:
    """Sizes of the run of a local model, of both its arms.

    Args:
        max_tokens: of an answer, at most.
        turns: of each arm at a number of users.
        alone: questions of one user, a turn.
        tries_threads: whether plain's torch threads are chosen by a run of each number.
    """

    max_tokens: int
    turns: int
    alone: int
    tries_threads: bool
    users: tuple[int, ...] = (1, 8)

    def plain_threads(self) -> tuple[int, ...]:
        """Return the numbers of torch threads to try."""
        return tuple(sorted({1, usable_cores()})) if self.tries_threads else (usable_cores(),)

    def answers(self) -> int:
        """Return how many answers both arms give in all, those to warm up included."""
        runs = 1 + len(self.plain_threads())
        warm = sum(runs * (users if self.tries_threads else 1) for users in self.users)
        return warm + 2 * self.turns * sum(max(users, self.alone) for users in self.users)


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes of a run: chunks, questions, tries.

    Args:
        name: of the run, in every line that states a figure.
        max_chunks: of the shipped corpus, at most.
        shapes: how users call; of several, the level shows the shape with the smaller gain.
        per_user: questions of each user.
        fewest: questions of a level, at least.
        tuning_questions: questions to warm up with, and for each try of plain's torch threads.
        tries_threads: whether plain's torch threads are chosen by a run of each number, else 1.
        shows_details: whether each step and engine is printed, too.
    """

    name: str
    max_chunks: int
    shapes: tuple[Shape, ...]
    per_user: int
    fewest: int
    tuning_questions: int
    tries_threads: bool
    shows_details: bool
    local: LocalExtent
    users: tuple[int, ...] = (1, 16, 64)

    def plain_threads(self) -> tuple[int, ...]:
        """Return the numbers of torch threads to try."""
        return tuple(sorted({1, usable_cores()})) if self.tries_threads else (1,)

    def count(self, users: int) -> int:
        """Return how many questions a level asks, of each arm."""
        return max(self.fewest, self.per_user * users)

    def answers(self, available: int) -> int:
        """Return how many answers both arms give in all, those to warm up included.

        Args:
            available: distinct questions that there are.
        """
        tuning = min(self.tuning_questions, available)
        tries = len(self.plain_threads()) if len(self.plain_threads()) > 1 else 0
        levels = sum(
            len(self.shapes) * (tries * tuning + 2 * min(self.count(users), available))
            for users in self.users
        )
        return 2 * tuning + levels


FULL = Extent(
    name="full",
    max_chunks=NUM_CHUNKS,
    shapes=SHAPES,
    per_user=8,
    fewest=128,
    tuning_questions=64,
    tries_threads=True,
    shows_details=True,
    local=LocalExtent(max_tokens=32, turns=2, alone=3, tries_threads=True),
)

# Plain has one torch thread: a call embeds one question, too little to divide. On two cores, six
# runs in turn with 64 questions gave at best 46, 52 and 54 answers/s at 1, 16 and 64 users, and
# with two threads 49, 49 and 47, for up to 1.5 times the processor time. The local model's plain
# arm has a thread per core: the prompt of one user is computed sooner, and eight users' answers
# take as long with either number.
QUICK = Extent(
    name="quick",
    max_chunks=800,
    shapes=("threads",),
    per_user=2,
    fewest=96,
    tuning_questions=64,
    tries_threads=False,
    shows_details=False,
    local=LocalExtent(max_tokens=12, turns=1, alone=3, tries_threads=False),
)
