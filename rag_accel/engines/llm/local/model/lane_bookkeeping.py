"""The bookkeeping of lanes, whatever memory their keys and values are in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain

import torch

from rag_accel.kv.entry import KeyValues, LaneState
from rag_accel.kv.rotation import moved_together


class LaneBookkeeping(ABC):
    """The lanes that are taken, for how many tokens, and their written slots.

    A pool derives from it and says where the content is. By the time that it is asked for content,
    the lanes and slots are checked.

    Args:
        context: the most tokens of a sequence.
        frequencies: of the rotation of keys, by which they are moved; None where they cannot be.
        device: where keys and values are.
    """

    def __init__(
        self,
        context: int,
        frequencies: torch.Tensor | None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.context = context
        self.frequencies = frequencies
        self._device = device
        self._reserved: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._moved: set[int] = set()

    @property
    def on_cpu(self) -> bool:
        return torch.device(self._device).type == "cpu"

    @abstractmethod
    def fits(self, tokens: int) -> bool:
        """Tell whether a sequence of so many tokens could be held if no other was."""

    @abstractmethod
    def _reserve(self, lane: int, tokens: int) -> bool:
        """Give a lane memory for so many tokens; tell whether there was enough."""

    def _share(self, lane: int, tokens: int, source: int, shared: int) -> int | None:
        """Give a lane memory that begins with that of another one; return how many slots do.

        None where there is not enough. The others of the ``shared`` slots are copied to it.
        """
        return 0 if self._reserve(lane, tokens) else None

    @abstractmethod
    def _copy(self, source: int, target: int, slots: range) -> None:
        """Copy the content of a lane's slots to those of another."""

    @abstractmethod
    def _read(self, lane: int, slots: range) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of keys and values ``[layer, kv head, slot, dim]``."""

    @abstractmethod
    def _write(
        self,
        lane: int,
        slots: range,
        positions: Sequence[int],
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """Put keys and values ``[layer, kv head, slot, dim]`` of positions into slots."""

    @abstractmethod
    def _clear(self, lane: int, written: int) -> None:
        """Make a lane's written slots zero, and take its memory back."""

    def take(self, tokens: int) -> int | None:
        lane = self._free_lane(tokens)
        if lane is None or not self._reserve(lane, tokens):
            return None
        self._reserved[lane], self._written[lane] = tokens, 0
        return lane

    def fork(self, source: int, shared: int, tokens: int) -> int | None:
        """Return a lane for at most so many tokens that begins as another one does.

        None while there is no room.

        Raises:
            ValueError: the other lane holds fewer tokens, or they are more than the new one's.
        """
        if shared > min(tokens, self._written.get(source, 0)):
            raise ValueError(f"lane {source} holds fewer than {shared} tokens, or has no room")
        lane = self._free_lane(tokens)
        same = None if lane is None else self._share(lane, tokens, source, shared)
        if lane is None or same is None:
            return None
        self._reserved[lane], self._written[lane] = tokens, 0
        self.mark(lane, shared, is_moved=source in self._moved)
        try:
            self._copy(source, lane, range(same, shared))
        except BaseException:
            self.free(lane)
            raise
        return lane

    def _free_lane(self, tokens: int) -> int | None:
        """Return the number of a lane that is not taken; None where none may have so many."""
        numbers = range(len(self._reserved) + 1)
        free = next(number for number in numbers if number not in self._reserved)
        return free if self.fits(tokens) else None

    def read(self, lane: int, slots: range, position: int | None = None) -> KeyValues:
        """Return a copy of the content of slots that were written for positions from this one on.

        Without a position, of slots of a lane whose tokens are all in their places.

        Raises:
            ValueError: the lane is not taken, or holds fewer tokens, or has moved ones.
        """
        is_moved = position is None and lane in self._moved
        if slots.stop > self._written.get(lane, 0) or is_moved:
            raise ValueError(f"lane {lane} holds fewer than {slots.stop} tokens in their places")
        return KeyValues(*self._read(lane, slots), slots.start if position is None else position)

    def write(self, lane: int, slot: int, state: LaneState) -> None:
        """Put state into slots from this one on, moved to their positions.

        Raises:
            ValueError: the lane was taken for fewer tokens, or keys cannot be moved.
        """
        self.place(lane, slot, [state], [slot])

    def place(
        self, lane: int, slot: int, states: Sequence[LaneState], positions: Sequence[int]
    ) -> None:
        """Put states one behind the other into slots from this one on, each moved to a position.

        Args:
            lane: the lane.
            slot: of the first token of the first state.
            states: at least one.
            positions: where the first token of each is moved to.

        Raises:
            ValueError: the lane was taken for fewer tokens, or keys cannot be moved.
        """
        slots = range(slot, slot + sum(map(len, states)))
        self._need(lane, slots.stop)
        if self.frequencies is None:
            raise ValueError("the keys of this model cannot be moved to other positions")
        # What was read from a file is on the host.
        keys, values = moved_together(states, positions, self.frequencies, self._device)
        places = (range(at, at + len(state)) for at, state in zip(positions, states, strict=True))
        taken = list(chain.from_iterable(places))
        self._write(lane, slots, taken, keys, values)
        self.mark(lane, slots.stop, is_moved=taken != list(slots))

    def free(self, lane: int) -> None:
        """Give a lane back.

        Raises:
            ValueError: the lane is not taken.
        """
        self._need(lane, 0)
        self._clear(lane, self._written.pop(lane))
        self._moved.discard(lane)
        del self._reserved[lane]

    def mark(self, lane: int, slots: int, is_moved: bool) -> None:
        """Say that the slots of a lane are written up to ``slots``, in their places or moved.

        Raises:
            ValueError: the lane is not taken, or was taken for fewer tokens.
        """
        self._need(lane, slots)
        self._written[lane] = max(self._written[lane], slots)
        if is_moved:
            self._moved.add(lane)

    def written(self, lane: int) -> int:
        """Return how many first slots of a lane hold anything."""
        return self._written[lane]

    def reach(self, lane: int, position: int) -> int:
        """Return the number of a lane's first slots that can hold positions up to this one."""
        written = self._written[lane]
        return written if lane in self._moved else min(written, position + 1)

    def _need(self, lane: int, slots: int) -> None:
        if slots > self._reserved.get(lane, -1):
            raise ValueError(f"lane {lane} was not taken for {slots} tokens")
