"""The Cypher that reads a graph. Data is passed as parameters; a statement names a schema only."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rag_accel.errors import ConfigError

# A Lucene query of more clauses is refused.
MAX_WORDS = 512


@dataclass(frozen=True, slots=True)
class GraphSchema:
    """The label of entities, and the properties with their names and texts.

    Args:
        label: the label of entities; other nodes and their edges are not seen.
        name: the property with an entity's name; a node without it, or whose value is no text, is
            no entity, and nodes of one name are one entity.
        text: the property with the text of an entity, if there is one.
    """

    label: str
    name: str
    text: str | None = None

    def __post_init__(self) -> None:
        for option in ("label", "name", "text"):
            value = getattr(self, option)
            if value is not None:
                quoted(value, option)


def quoted(name: str, option: str) -> str:
    """Return the name of a label or property as Cypher writes it.

    A backslash is refused: servers read unicode escapes before they look for quotes.

    Raises:
        ConfigError: if it is no text, empty, or has a backslash or a control character.
    """
    if not isinstance(name, str) or not name or re.search(r"[\\\x00-\x1f\x7f]", name):
        raise ConfigError(
            "bad name in a graph's schema",
            where=option,
            found=repr(name),
            valid="a text without backslashes and control characters",
        )
    return "`" + name.replace("`", "``") + "`"


def expansion(schema: GraphSchema, *, leaving: bool, coming: bool) -> str:
    """Return a statement for the edges of many entities.

    A row of it is ``[i, [[relation, other], ...], degree]``: the first ``$limit`` edges, and how
    many relationships the entity's nodes have in this direction, of whatever types. Entities of
    more than ``most`` are counted only, which the server does without reading their edges.

    Rows of the parameter ``leaving`` ask for edges that leave an entity, those of ``coming`` for
    edges that come in; each has ``i``, ``name``, ``types`` (a list, or null for all), ``limit``
    and ``most``. It needs a Neo4j from 5.6 on, or an ArcadeDB.
    """
    return _both_ways(_counted, schema, leaving, coming)


def expansion_for_old_servers(schema: GraphSchema, *, leaving: bool, coming: bool) -> str:
    """Return a statement as ``expansion`` does, for servers without subqueries that collect.

    It reads all edges of each entity, whatever ``most`` is; ``degree`` counts those found.
    """
    return _both_ways(_collected, schema, leaving, coming)


def _both_ways(
    one_way: Callable[[GraphSchema, str, str, str], str],
    schema: GraphSchema,
    leaving: bool,
    coming: bool,
) -> str:
    ways = [("leaving", "-", "->")] * leaving + [("coming", "<-", "-")] * coming
    return "\nUNION ALL\n".join(one_way(schema, *way) for way in ways)


def _counted(schema: GraphSchema, parameter: str, before: str, after: str) -> str:
    label, name = quoted(schema.label, "label"), quoted(schema.name, "name")
    # A pattern without label or type is counted from the node alone. Only texts compare with a
    # text; of other values the comparison is null.
    return f"""UNWIND ${parameter} AS row
MATCH (a:{label} {{{name}: row.name}})
WITH row, collect(a) AS nodes, sum(COUNT {{ (a){before}{after}() }}) AS degree
WITH row, degree, CASE WHEN degree <= row.most THEN nodes ELSE [] END AS nodes
RETURN row.i AS i, COLLECT {{
  UNWIND nodes AS a
  MATCH (a){before}[r]{after}(b:{label})
  WHERE row.types IS NULL OR type(r) IN row.types
  WITH DISTINCT type(r) AS relation, b.{name} AS other
  WHERE other >= '' AND other <> row.name
  RETURN [relation, other] ORDER BY relation, other LIMIT $limit
}}[..row.limit] AS edges, degree"""


def _collected(schema: GraphSchema, parameter: str, before: str, after: str) -> str:
    label, name = quoted(schema.label, "label"), quoted(schema.name, "name")
    # The first WITH keeps the server from starting at the other ends, and the condition on them
    # stands behind the second so that no index is read for it: with statistics of a graph that was
    # smaller, it read all entities and their edges once a row.
    return f"""UNWIND ${parameter} AS row
MATCH (a:{label} {{{name}: row.name}})
WITH row, a
MATCH (a){before}[r]{after}(b:{label})
WHERE row.types IS NULL OR type(r) IN row.types
WITH DISTINCT
  row.i AS i, row.limit AS limit, row.name AS own, type(r) AS relation, b.{name} AS other
WHERE other >= '' AND other <> own
WITH i, limit, relation, other
ORDER BY relation, other
WITH i, limit, collect([relation, other]) AS edges
RETURN i, edges[..limit] AS edges, size(edges) AS degree"""


def link(schema: GraphSchema, kinds: Sequence[str]) -> str:
    """Return a statement that looks for entities: ``[kind, i, name, score]`` a row.

    Args:
        kinds: which of the parameters ``names`` (a list of texts), ``texts`` and ``vectors`` (rows
            of ``i``, ``query``, ``k``) are given; the latter need ``text_index``, ``vector_index``.
    """
    label, name = quoted(schema.label, "label"), quoted(schema.name, "name")
    by_index = f"""WITH row, node, score WHERE node:{label} AND node.{name} >= ''"""
    parts = {
        "names": f"""UNWIND $names AS name
MATCH (a:{label} {{{name}: name}})
RETURN DISTINCT 'names' AS kind, 0 AS i, name, 0.0 AS score""",
        "texts": f"""UNWIND $texts AS row
CALL db.index.fulltext.queryNodes($text_index, row.query, {{limit: row.k}}) YIELD node, score
{by_index}
RETURN 'texts' AS kind, row.i AS i, node.{name} AS name, score""",
        "vectors": f"""UNWIND $vectors AS row
CALL db.index.vector.queryNodes($vector_index, row.k, row.query) YIELD node, score
{by_index}
RETURN 'vectors' AS kind, row.i AS i, node.{name} AS name, score""",
    }
    return "\nUNION ALL\n".join(parts[kind] for kind in kinds)


def texts(schema: GraphSchema) -> str:
    """Return a statement for the texts of the entities ``names``: ``[name, text]`` a row."""
    label, name = quoted(schema.label, "label"), quoted(schema.name, "name")
    text = quoted(schema.text or "", "text")
    # The least of several, so that every call gives the same one.
    return f"""UNWIND $names AS name
MATCH (a:{label} {{{name}: name}}) WHERE a.{text} >= ''
RETURN name, min(a.{text}) AS text"""


def lucene_words(text: str) -> str:
    """Return a full-text query for any of a text's words; empty if it has none.

    Small letters and digits only, so that nothing in a text is an operator.
    """
    words = dict.fromkeys(re.findall(r"\w+", text.lower()))
    return " ".join(list(words)[:MAX_WORDS])
