"""Functions that tell how long their text is, about: passes plan with it (Teola 4.2, Pass 3)."""

from __future__ import annotations

from abc import abstractmethod


class TextFunction:
    """A function that returns a text of a length known before it is called."""

    __slots__ = ()

    @property
    @abstractmethod
    def about_tokens(self) -> int:
        """Return how many tokens the text has, about."""
