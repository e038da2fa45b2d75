"""Word the message for a name that does not exist: what is valid, and what is nearest to it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def listed(names: Iterable[str]) -> str:
    """Return the names as one line, or the word ``none``."""
    return ", ".join(names) or "none"


def suggestion(name: str, valid: Iterable[str]) -> str | None:
    """Return the question ``did you mean 'x'?`` if some valid name is like ``name``."""
    matches = get_close_matches(name, list(valid), n=1)
    return f"did you mean {matches[0]!r}?" if matches else None


def alternatives(name: str, valid: Iterable[str]) -> str:
    """Return the clause ``valid: a, b; did you mean 'a'?`` for an unknown name."""
    known = list(valid)
    guess = suggestion(name, known)
    return f"valid: {listed(known)}" + (f"; {guess}" if guess else "")
