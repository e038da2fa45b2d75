"""An index of a long text, to find many texts in it without reading it once for each."""

from __future__ import annotations

_WINDOW = 16
_STRIDE = 8
#: Places kept of one window, as of a line that is repeated; later ones are not found.
_MOST_SAME = 512

#: Shorter texts, in characters, are found by reading.
LEAST_CHARACTERS = _WINDOW + _STRIDE - 1


class TextAnchors:
    """Windows of a text, at every eighth character.

    Wherever a text of ``LEAST_CHARACTERS`` stands in it, one of these windows is among its first
    characters. So eight look-ups find a text or show that it is missing.

    Args:
        text: the text to search.
    """

    __slots__ = ("_places", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._places: dict[str, list[int]] = {}
        for at in range(0, len(text) - _WINDOW + 1, _STRIDE):
            places = self._places.setdefault(text[at : at + _WINDOW], [])
            if len(places) < _MOST_SAME:
                places.append(at)

    def candidates(self, wanted: str) -> list[int]:
        """Return the places where a text may stand, ascending: some 4,000 at most.

        Raises ValueError for a text that is shorter than ``LEAST_CHARACTERS``.
        """
        if len(wanted) < LEAST_CHARACTERS:
            raise ValueError(f"a text of {len(wanted)} characters has no window of its own")
        found: list[int] = []
        for shift in range(_STRIDE):
            places = self._places.get(wanted[shift : shift + _WINDOW])
            if places:
                found += [at - shift for at in places if at >= shift]
        return sorted(set(found)) if len(found) > 1 else found
