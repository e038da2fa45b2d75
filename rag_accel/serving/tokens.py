"""Bearer tokens of tenants, in a file that only its owner reads."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from pathlib import Path

from rag_accel.errors import ConfigError

LEAST_LEN = 16
"""The shortest token, in characters."""

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class TokenFile:
    """A file with a token a line, each with the tenant that it stands for.

    A line is a token, or a token and its tenant with a space between; empty lines and those that
    begin with ``#`` say nothing. Only digests are kept, and a look-up compares with all of them
    in constant time.

    Args:
        path: the file; it may be readable by its owner alone.
        default: the tenant of a line that names none.

    Raises:
        ConfigError: the file cannot be read, others may read it, or a line is wrong.
    """

    def __init__(self, path: Path, default: str = "") -> None:
        self._path, self._default = path, default
        self._tenants = self.read()

    def read(self) -> dict[bytes, str]:
        """Return the tenants of the tokens in the file now, for ``use``. Raises as the class."""
        found: dict[bytes, str] = {}
        for number, line in enumerate(self._text().splitlines(), start=1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) > 2 or len(words[0]) < LEAST_LEN or not words[0].isascii():
                raise self._error(
                    f"line {number}",  # never the line itself
                    valid=f"TOKEN or TOKEN TENANT, a token of at least {LEAST_LEN} characters",
                )
            digest = _digest(words[0])
            tenant = words[1] if len(words) == 2 else self._default
            if found.setdefault(digest, tenant) != tenant:
                raise self._error(f"line {number}", valid="one tenant for a token")
        if not found:
            raise self._error("no token", valid="at least one line")
        return found

    def use(self, found: dict[bytes, str]) -> None:
        """Take the tokens that ``read`` has found from now on."""
        self._tenants = found

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(sorted(set(self._tenants.values())))

    def tenant_of(self, token: str) -> str | None:
        """Return the tenant of a token; None if it is unknown."""
        digest, found = _digest(token), None
        for known, tenant in self._tenants.items():
            if hmac.compare_digest(digest, known):
                found = tenant
        return found

    def _text(self) -> str:
        try:
            with self._path.open(encoding="utf-8") as file:
                mode = os.fstat(file.fileno()).st_mode
                if mode & _OTHERS:
                    raise self._error(
                        f"mode {stat.S_IMODE(mode):o}", valid="600: nobody else may read it"
                    )
                return file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise self._error(type(error).__name__, valid="a text file") from None

    def _error(self, found: str, valid: str) -> ConfigError:
        return ConfigError(
            "the tokens cannot be read", where=str(self._path), found=found, valid=valid
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
