"""Restrictions of members to texts of some roles and namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.errors import ConfigError

ROLES: tuple[Role, ...] = ("query", "document")


class NamedMember(Protocol):
    """A member by its name; ``roles`` and ``namespaces`` are optional."""

    name: str


def checked_roles(roles: Iterable[str] | None, where: str) -> frozenset[str] | None:
    """Return the roles whose texts a member may be given; None for all.

    Raises:
        ConfigError: a name that is no role, none, or one string.
    """
    return _checked(roles, f"{where}(roles=)", ROLES)


def checked_namespaces(namespaces: Iterable[str] | None, where: str) -> frozenset[str] | None:
    """Return the namespaces whose texts a member may be given; None for all.

    Raises:
        ConfigError: something that is no text, none, or one string.
    """
    return _checked(namespaces, f"{where}(namespaces=)", None)


def admitted_members(
    members: Iterable[NamedMember], role: Role, namespace: str
) -> frozenset[str] | None:
    """Return the names of the members that may be given texts; None if all may."""
    members = list(members)
    names = [member.name for member in members if _admits(member, role, namespace)]
    return None if len(names) == len(members) else frozenset(names)


def no_member_admits(role: Role, namespace: str) -> ConfigError:
    """Return the error of texts that no member may be given."""
    return ConfigError(
        "no member of the device group may be given these texts",
        found=f"role {role!r}, namespace {namespace!r}",
        valid="a member whose roles and namespaces have both",
        hint="list a member without roles= and namespaces=, such as one of this machine",
    )


def _admits(member: NamedMember, role: Role, namespace: str) -> bool:
    roles: frozenset[str] | None = getattr(member, "roles", None)
    namespaces: frozenset[str] | None = getattr(member, "namespaces", None)
    return (roles is None or role in roles) and (namespaces is None or namespace in namespaces)


def _checked(
    given: Iterable[str] | None, where: str, known: Sequence[str] | None
) -> frozenset[str] | None:
    if given is None:
        return None
    valid = "a list of namespaces" if known is None else f"a list of {' and '.join(known)}"
    names: list[object] = [] if isinstance(given, str) else list(given)
    if not names or any(not isinstance(n, str) or (known and n not in known) for n in names):
        raise ConfigError(
            "a member is restricted to what cannot be", where=where, found=repr(given), valid=valid
        )
    return frozenset(str(name) for name in names)
