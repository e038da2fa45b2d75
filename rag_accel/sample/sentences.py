"""Sentences of an English text."""

from __future__ import annotations

import re

_BULLET = re.compile(r"^\s*(?:[-*+\u2022]|#{1,6}|>>>|\d{1,2}[.)])\s+")
# Every boundary starts with white space: the search for it is what makes this pattern fast.
_BOUNDARY = re.compile(
    r"""
    \s (?:
        (?<=\n) [ \t]*\n\s*                                            # a blank line
      | (?<=\n) (?=[ \t]*(?:[-*+\u2022]|\#{1,6}|>>>|\d{1,2}[.)])\s)    # a list item or heading
      | (?: (?<=[.!?]\s) | (?<=[.!?]["')\]`\u201d\u2019]\s) )            # the end of a sentence
        (?<!\be\.g\.\s) (?<!\bi\.e\.\s) (?<!\beg\.\s) (?<!\bie\.\s) (?<!\bvs\.\s) (?<!\bcf\.\s)
        (?<!\bDr\.\s) (?<!\bMr\.\s) (?<!\bMs\.\s) (?<!\bMrs\.\s) (?<!\bNo\.\s) (?<!\bFig\.\s)
        (?<!\bEq\.\s) (?<!\b[A-Za-z]\.\s) (?<!^\d\.\s) (?<!^\d\d\.\s)
        \s*
        (?= ["'(\[`*\u201c\u2018]* (?:                                # before another
            [^\W\d_a-z] | \d | \w+[._(]\w | \w+:\s                    # that looks like one,
          | (?<!\betc\.\s) (?<!\bal\.\s) (?<!\bapprox\.\s) (?<!\bincl\.\s)
            (?<!\bresp\.\s) (?<!\.\.\.\s) [a-z]                       # or not after these
        ))
    )
    """,
    re.VERBOSE | re.MULTILINE,
)


def split_sentences(text: str) -> list[str]:
    """Cut ``text`` into sentences in reading order; list items and headings stand alone.

    A single line break inside a sentence is wrapping, not a boundary. Bullets are removed and
    white space is collapsed.
    """
    pieces = (" ".join(_BULLET.sub("", piece).split()) for piece in _BOUNDARY.split(text))
    return [piece for piece in pieces if piece]
