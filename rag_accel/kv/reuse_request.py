"""A request's texts as it names them to a model server that reuses their attention states.

An OpenAI-compatible server takes the request in its field ``kv_transfer_params`` and keeps prompts
apart by ``cache_salt``. A client needs no tokenizer: it names texts, and the server finds their
tokens. One that has the server's tokenizer may name ranges of tokens instead.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rag_accel.kv.keys import KvRecipe

#: The entry of ``kv_transfer_params``.
ENTRY = "rag_accel"
VERSION = 1
#: ``exact`` reuses what stands behind the very same tokens; ``full`` moves texts to where they
#: stand; ``fused`` computes a part of their tokens again there.
ServedReuse = Literal["exact", "full", "fused"]
AskedRows = Literal["last", "question"]
#: The most texts, and their most characters together.
MOST_TEXTS = 1024
MOST_CHARACTERS = 1 << 24
_SALT = "rag-accel"
_DIGEST = "[0-9a-f]{64}"


class ReuseRequestError(ValueError):
    """The texts that a request names cannot be read; the request is computed as without them."""


@dataclass(frozen=True, slots=True)
class ReuseRequest:
    """The texts of one prompt, and how their states are reused.

    Args:
        reuse: the way of reuse.
        texts: as they stand in the prompt, in its order.
        before: of ``texts``, the first message that is not the system's, up to its first text. The
            tokens in front of it are the head, behind which texts are encoded. None for all that
            stands before the first text.
        spans: instead of texts, ranges of the prompt's tokens, ``[start, stop)``, ascending and
            apart.
        head: of ``spans``, the number of tokens of the head.
        namespace: tenant; no other one's states are found.
        ratio: of ``fused``, the share of the texts' tokens that are computed again, 0 to 1.
        asked: of ``fused``, the rows whose attention chooses them, see ``kv.selection``.
        question: of ``fused``, a digest of the prompt: rows are chosen by its question, so that
            their states fit no other one.
        save: whether what the request computes of its texts is kept.
        recipe: of ``full`` and ``fused``, which state a text gets: ``neighbours``, that behind
            other texts where any of these is in the prompt, ``alone``, that behind the head alone.
    """

    reuse: ServedReuse = "exact"
    texts: tuple[str, ...] = ()
    before: str | None = None
    spans: tuple[tuple[int, int], ...] = ()
    head: int = 0
    namespace: str = ""
    ratio: float = 0.15
    asked: AskedRows = "last"
    question: str = ""
    save: bool = True
    recipe: KvRecipe = "neighbours"

    @property
    def is_approximate(self) -> bool:
        """Tell whether states may differ from those of the prompt computed as a whole."""
        return self.reuse != "exact"

    def params(self) -> dict[str, Any]:
        """Return the value of ``kv_transfer_params``."""
        values: dict[str, Any] = {"version": VERSION, "reuse": self.reuse}
        if self.spans:
            values |= {"spans": [list(span) for span in self.spans], "head": self.head}
        else:
            values["texts"] = list(self.texts)
            if self.before is not None:
                values["before"] = self.before
        if self.namespace:
            values["namespace"] = self.namespace
        if self.reuse == "fused":
            values |= {"ratio": self.ratio, "asked": self.asked, "question": self.question}
        if not self.save:
            values["save"] = False
        # Servers that know one recipe only refuse requests that name any.
        if self.is_approximate and self.recipe != "neighbours":
            values["recipe"] = self.recipe
        return {ENTRY: values}

    def salt(self) -> str | None:
        """Return the ``cache_salt`` of the request; None for one that is exact and no tenant's.

        Blocks with approximate states are found only by requests with the same texts, cut and
        reused in the same way, exact ones of a tenant by its requests.
        """
        if not self.is_approximate:
            return namespace_salt(self.namespace)
        values = {**self.params()[ENTRY], "save": None}
        said = json.dumps(values, sort_keys=True, ensure_ascii=True).encode()
        return f"{_SALT} {hashlib.sha256(said).hexdigest()}"

    def fields(self) -> dict[str, Any]:
        salt = self.salt()
        found: dict[str, Any] = {"kv_transfer_params": self.params()}
        return found if salt is None else {**found, "cache_salt": salt}


def namespace_salt(namespace: str) -> str | None:
    """Return the salt of a tenant's exact prompts, whose beginnings no other one finds."""
    if not namespace:
        return None
    said = namespace.encode("utf-8", "surrogatepass")
    return f"{_SALT} tenant {hashlib.sha256(said).hexdigest()}"


def is_approximate_salt(salt: object) -> bool:
    """Tell whether the blocks under a ``cache_salt`` may hold approximate states."""
    return isinstance(salt, str) and re.fullmatch(f"{_SALT} {_DIGEST}", salt) is not None


def salt_refusal(wanted: ReuseRequest | None, salt: object) -> str | None:
    """Return why a request may not be computed under a ``cache_salt``; None where it may.

    Salts of the form that ``ReuseRequest.salt`` gives are those of its requests alone; what names
    no texts may have a tenant's.

    Args:
        wanted: None of a request that names no texts.
        salt: None for none.
    """
    own = None if wanted is None else wanted.salt()
    if salt == own:
        return None
    if is_approximate_salt(salt):
        return "its cache_salt is that of other texts, whose states may be approximate"
    if wanted is None:
        return None
    if wanted.is_approximate:
        return f"reuse {wanted.reuse!r} needs the cache_salt of its texts"
    if wanted.namespace:
        return "a namespace needs its cache_salt"
    is_tenants = isinstance(salt, str) and re.fullmatch(f"{_SALT} tenant {_DIGEST}", salt)
    return "its cache_salt is that of a namespace, which it does not name" if is_tenants else None


def question_digest(messages: Iterable[tuple[str, str]]) -> str:
    """Return a digest of a prompt's messages: roles and contents."""
    said = json.dumps([list(message) for message in messages], ensure_ascii=True).encode()
    return hashlib.sha256(said).hexdigest()


def read_reuse_request(params: object) -> ReuseRequest | None:
    """Return the request in ``kv_transfer_params``; None where there is none.

    Raises:
        ReuseRequestError: it cannot be read.
    """
    if not isinstance(params, Mapping) or ENTRY not in params:
        return None
    values = params[ENTRY]
    if not isinstance(values, Mapping):
        raise ReuseRequestError(f"{ENTRY} is a {type(values).__name__}, not an object")
    if unknown := sorted(map(repr, set(values) - _KNOWN)):
        raise ReuseRequestError(f"unknown names: {', '.join(unknown)[:200]}")
    if values.get("version") != VERSION:
        raise ReuseRequestError(f"version {values.get('version')!r:.40}, not {VERSION}")
    if "texts" in values and "spans" in values:
        raise ReuseRequestError("both texts and spans")
    spans = _spans(values.get("spans", ()))
    head = _count("head", values.get("head", 0))
    if spans and head > spans[0][0]:
        raise ReuseRequestError(f"a head of {head} tokens, but a span from {spans[0][0]}")
    return ReuseRequest(
        reuse=_one_of("reuse", values.get("reuse", "exact"), get_args(ServedReuse)),
        texts=_texts(values.get("texts", ())),
        before=None if values.get("before") is None else _text("before", values["before"]),
        spans=spans,
        head=head,
        namespace=_text("namespace", values.get("namespace", "")),
        ratio=_share(values.get("ratio", 0.15)),
        asked=_one_of("asked", values.get("asked", "last"), get_args(AskedRows)),
        question=_text("question", values.get("question", "")),
        save=_flag("save", values.get("save", True)),
        recipe=_one_of("recipe", values.get("recipe", "neighbours"), get_args(KvRecipe)),
    )


_KNOWN = {
    "version",
    "reuse",
    "texts",
    "before",
    "spans",
    "head",
    "namespace",
    "ratio",
    "asked",
    "question",
    "save",
    "recipe",
}


def _texts(given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or len(given) > MOST_TEXTS:
        raise ReuseRequestError(f"texts are a list of at most {MOST_TEXTS}")
    texts = tuple(_text("texts", text) for text in given)
    if sum(map(len, texts)) > MOST_CHARACTERS:
        raise ReuseRequestError(f"texts of more than {MOST_CHARACTERS} characters")
    return texts


def _spans(given: object) -> tuple[tuple[int, int], ...]:
    if not isinstance(given, list | tuple) or len(given) > MOST_TEXTS:
        raise ReuseRequestError(f"spans are a list of at most {MOST_TEXTS}")
    spans: list[tuple[int, int]] = []
    at = 0
    for span in given:
        if not isinstance(span, list | tuple) or len(span) != 2:
            raise ReuseRequestError("a span is two numbers")
        start, stop = (_count("spans", place) for place in span)
        if not at <= start < stop:
            raise ReuseRequestError("spans are ascending, not empty, and do not overlap")
        spans.append((start, stop))
        at = stop
    return tuple(spans)


def _count(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ReuseRequestError(f"{name}: {value!r:.40} is no number of tokens")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
        raise ReuseRequestError(f"{name} is text")
    return value


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ReuseRequestError("ratio is a number")
    if not 0 <= value <= 1:  # NaN is not, either
        raise ReuseRequestError("ratio is not between 0 and 1")
    return float(value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ReuseRequestError(f"{name} is true or false")
    return value


def _one_of(name: str, value: object, known: tuple[Any, ...]) -> Any:
    if not isinstance(value, str) or value not in known:
        raise ReuseRequestError(f"{name} {value!r:.40} is none of {', '.join(known)}")
    return value
