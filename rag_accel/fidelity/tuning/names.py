"""English names of generated graphs: invented entities, and relations that are real."""

from __future__ import annotations

from itertools import product

from rag_accel.fidelity.tuning.questions import GraphNames

_BEGIN = ("Bel", "Cor", "Dra", "Fen", "Gal", "Hol", "Jor", "Kes", "Lun", "Mar", "Nor", "Ost")
_END = ("ada", "brook", "dale", "eton", "ford", "ina", "mere", "ora", "stead", "ton", "vik", "wyn")
_FIRST = (
    *("works for", "was founded by", "is located in", "is married to"),
    *("belongs to", "studied at", "was written by", "depends on"),
)
_SECOND = (
    *("was born in", "is owned by", "is the capital of", "was designed by"),
    *("reports to", "is part of", "was taught by", "is next to"),
)


def _ask(head: str, first: str, second: str) -> str:
    return (
        f"Start at {head}, follow '{first}', then follow '{second}'. Where does this lead? "
        "Answer with the name alone."
    )


#: Names that tokenizers of English cut into a few tokens each.
ENGLISH = GraphNames(
    tuple(begin + end for begin, end in product(_BEGIN, _END)), _FIRST, _SECOND, _ask
)
