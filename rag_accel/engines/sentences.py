"""Sentences of a text and stems of words: the language side of the extractive reader.

English only and without state: nothing is cached between calls, so the cost of a call is the cost
of its text.
"""

from __future__ import annotations

import re

try:
    from Stemmer import Stemmer
except ImportError as error:
    raise ImportError(
        "the extractive reader needs PyStemmer: pip install 'rag-accel[local]'", name="Stemmer"
    ) from error

# Without the stemmer's cache: it would keep what users ask.
_STEMMER = Stemmer("english", 0)

WORD = re.compile(r"[^\W_]+")
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


def stem(word: str) -> str:
    """Return the Snowball stem of a lower-case English word, so that relatives compare equal.

    "serialize", "serialized" and "serialization" all become "serial".
    """
    return _STEMMER.stemWord(word)


# Words of the form of a question, not of its subject.
STOPWORDS = frozenset(
    WORD.findall("""
    a about according actually all also am an and another any anything are as at available be
    because been before being between both but by can case cases could did do does doing done else
    every exactly example for from further get gets getting give given gives had happen happens has
    have having help her here his how i if in instead into is it its itself just know let lets like
    looking made make makes many may me mean means might more most much must my need needed needs no
    not of off on one only or other our out over own please possible rather same say says shall she
    should situation so some something such supposed take takes tell than that the their them then
    there these they thing things this those through to too under up upon us use used useful uses
    using very want wants was way we were what whatever when where whether which while who whom
    whose why will with within without would you your
    """)
)

# Words nearly every technical text contains: they rank a little and prove nothing.
WEAK_STEMS = frozenset(
    stem(word)
    for word in WORD.findall("""
    argument behave behaviour behavior best call class code context correct default describe
    description different document documentation easiest expect explain expected find found
    function good guide handle important learn library manual meant method module name obtain
    object offer option package parameter part provide purpose python reading reference result
    retrieve return returned right role set show simplest start type user value work working
    """)
)
