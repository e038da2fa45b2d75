"""The times of calls of one server, and how many texts one call should hold.

Pure: no clock, no threads, no I/O.
"""

from __future__ import annotations

import math
from typing import Final

#: How much longer the shortest time of a size counts for each later one: servers change.
_FORGETTING: Final = 1.02
#: How much of the number of callers counts for each later one: they come and go.
_LEAVING: Final = 0.99
#: How much a wait moves the average, and how much asking alone gains with each shared call.
_SHARE: Final = 1 / 16
_HOPING: Final = 0.9995


class CallCosts:
    """The times of the calls of one group.

    A call costs this process the work of sending it, which calls in flight do one after the other;
    each further text costs the server's time. Sharing pays while a text costs less than a call.
    """

    def __init__(self) -> None:
        #: by size, in powers of two: the number of texts of the shortest call, and its seconds
        self._shortest: dict[int, tuple[int, float]] = {}
        self._sending_s: float | None = None
        #: of late, at the same time
        self._callers = 1.0
        #: what callers waited of late in shared calls, and alone while others asked too
        self._shared_s: float | None = None
        self._alone_s: float | None = None

    def note(self, texts: int, seconds: float, sending_s: float | None = None) -> None:
        """Note a call that was answered.

        Args:
            texts: their number.
            seconds: from its start to its answer.
            sending_s: seconds of processor time, if they were measured.
        """
        size = texts.bit_length()
        known = self._shortest.get(size)
        if known is None or seconds <= known[1] * _FORGETTING:
            self._shortest[size] = texts, seconds
        else:
            self._shortest[size] = known[0], known[1] * _FORGETTING
        if sending_s is not None:
            before = self._sending_s
            self._sending_s = sending_s if before is None else min(sending_s, before * _FORGETTING)

    @property
    def text_s(self) -> float:
        """Return the seconds that a further text takes; 0 where that is not known."""
        fewest, most = min(self._shortest, default=0), max(self._shortest, default=0)
        if fewest == most:
            return 0.0
        (few, few_s), (many, many_s) = self._shortest[fewest], self._shortest[most]
        return max(0.0, (many_s - few_s) / (many - few))

    def note_wait(self, seconds: float, *, is_shared: bool) -> None:
        """Note how long a caller waited while others asked, too."""
        if is_shared:
            self._shared_s = _moved(self._shared_s, seconds)
            if self._alone_s is not None:  # it is tried again some time
                self._alone_s *= _HOPING
        else:
            self._alone_s = _moved(self._alone_s, seconds)

    def note_callers(self, count: int) -> None:
        """Note how many callers wait for answers."""
        self._callers = max(float(count), self._callers * _LEAVING)

    @property
    def texts_a_call(self) -> int | None:
        """Return how many texts one call should hold; None for as many as may be.

        With ``n`` texts a call, ``callers / n`` calls are sent one after the other, and the last
        one takes ``n`` times the time of a text: the sum is least at the root below.
        """
        text_s, sending_s = self.text_s, self._sending_s
        if sending_s is None or text_s == 0.0:
            return None
        if text_s > sending_s and not self._is_alone_slower:
            return 1
        return max(1, round(math.sqrt(self._callers * sending_s / text_s)))

    @property
    def _is_alone_slower(self) -> bool:
        """Whether callers who asked alone waited longer: a server may bear few calls at once."""
        shared_s, alone_s = self._shared_s, self._alone_s
        return shared_s is not None and alone_s is not None and alone_s > shared_s

    def wait_s(self, most: float) -> float:
        """Return how long a call may wait for others: no longer than sending theirs would take."""
        if self._sending_s is None:
            return most
        others = min(self.texts_a_call or math.inf, self._callers) - 1
        return min(most, max(0.0, others) * self._sending_s)


def _moved(average: float | None, value: float) -> float:
    return value if average is None else average + _SHARE * (value - average)
