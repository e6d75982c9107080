"""Close the objects of a JSON schema: an object that lists its properties gets no others.

JSON Schema leaves objects open, so an answer could add properties up to max_tokens. OpenAI's strict
schemas, xgrammar and llama.cpp close them, and clients expect it. `additionalProperties: false` is
added to every schema with `properties` that has none of `additionalProperties`,
`patternProperties`, `propertyNames` and `unevaluatedProperties`. `{"type": "object"}` stays free.

A schema may be combined with others that apply to the same value (`allOf`, `anyOf` or `$ref` beside
`properties`). Then only the outermost one is closed, and its list has the names of all of them.
Without `properties` of its own it stays open, so members of an `allOf` are never closed; an `allOf`
with nothing but one reference is that reference. A definition that is combined in one place and
stands alone in another is copied for the second.
"""

import copy
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any
from urllib.parse import unquote

from holdfast.errors import InvalidRequest

Pointer = tuple[str | int, ...]

_OPEN = frozenset(("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties"))
_OBJECT = _OPEN | {"properties", "required", "minProperties", "maxProperties"}
_ARRAY = frozenset(("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems"))
_FIXED = frozenset(("const", "enum"))
_UNIONS = ("allOf", "anyOf", "oneOf")
_CONDITIONS = ("if", "then", "else", "not")
_DEFINITIONS = ("$defs", "definitions")
_UNRESOLVED = ("$dynamicRef", "$recursiveRef")
_MAX_STEPS = 3_000_000  # keys followed, about a second; ordinary schemas of 256 kB needed 0.6 to 1.8 million
_MEMBER_STEPS = 48  # what a combined schema costs beside them


def close_objects(schema: Any) -> Any:
    """Return the schema with its objects closed. Do not change the given one."""
    if not isinstance(schema, dict):
        return schema
    closer = _Closer(schema)
    closer.walk()
    try:
        return closer.write()
    except RecursionError:
        raise InvalidRequest("the JSON schema is nested too deeply") from None


class _Closer:
    """Find which schemas stand alone for a value and which are combined with others."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._todo: list[tuple[Pointer, bool]] = [((), True)]  # schemas to visit; whether each stands alone
        self._visited: set[tuple[Pointer, bool]] = set()
        self._combined: set[Pointer] = set()
        self._closed: dict[Pointer, list[str]] = {}  # what stands alone, with the names to add to its list
        self._refs: dict[Pointer, Pointer] = {}  # schemas that only refer to another
        self._num_steps = 0

    def walk(self) -> None:
        while self._todo:
            at, is_alone = self._todo.pop()
            if (at, is_alone) in self._visited:
                continue
            self._visited.add((at, is_alone))
            schema = self._get(at)
            if not isinstance(schema, dict):
                continue
            if is_alone:
                self._visit_alone(at, schema)
            else:
                self._combined.add(at)
                below = [*self._applied(at, schema), *(child for _, child in self._values(at, schema))]
                self._todo += [(child, False) for child in below if child is not None]

    def write(self) -> Any:
        """Return the schema with what was found. Copies of definitions are only made of whole ones."""
        definitions = self._root.get("$defs", {})
        names = (name for n in count() if (name := f"closed-{n}") not in definitions)
        copied: dict[Pointer, str] = {
            target: next(names)
            for target in dict.fromkeys(self._refs.values())
            if len(target) == 2 and target[0] in _DEFINITIONS and target in self._combined
        }
        written = copy.deepcopy(self._root)
        copies: dict[Pointer, Any] = {target: copy.deepcopy(self._get(target)) for target in copied}
        for at, added in self._closed.items():
            if at not in self._combined:
                _close(_find(written, at), added)
            if at[:2] in copies:
                _close(_find(copies[at[:2]], at[2:]), added)
        for at, target in self._refs.items():
            if target in copied:
                ref = f"#/$defs/{copied[target]}"
                if at not in self._combined:
                    _find(written, at)["$ref"] = ref
                if at[:2] in copies:
                    _find(copies[at[:2]], at[2:])["$ref"] = ref
        if copies:
            written["$defs"] = written.get("$defs", {}) | {copied[at]: one for at, one in copies.items()}
        return written

    def _visit_alone(self, at: Pointer, schema: dict[str, Any]) -> None:
        applied = list(self._applied(at, schema))
        if self._passes_on(schema) and None not in applied:
            if "$ref" in schema and applied[0] is not None:
                self._refs[at] = applied[0]
            self._todo += [(one, True) for one in applied if one is not None]
            return
        members, is_known = self._members(at)
        self._combined.update(members[1:])
        schemas = [(one, self._get(one)) for one in members]
        values = [value for one, each in schemas for value in self._values(one, each)]
        counts = Counter(key for key, _ in values)
        has_patterns = any("patternProperties" in each for _, each in schemas)
        for key, value in values:
            self._todo.append((value, counts[key] == 1 and not (has_patterns and key != "items")))
        if is_known and isinstance(schema.get("properties"), dict):
            self._add_closed(at, schema, [each for _, each in schemas])

    def _add_closed(self, at: Pointer, schema: dict[str, Any], members: list[dict[str, Any]]) -> None:
        if _FIXED & schema.keys() or any(_OPEN & one.keys() for one in members):
            return
        names = dict.fromkeys(schema["properties"])
        for one in members:
            for field in ("properties", "required"):
                given = one.get(field)
                if isinstance(given, dict | list):
                    names |= dict.fromkeys(name for name in given if isinstance(name, str))
        fewest = schema.get("minProperties", 0)
        if isinstance(fewest, int) and fewest <= len(names):
            self._closed[at] = [name for name in names if name not in schema["properties"]]

    @staticmethod
    def _passes_on(schema: dict[str, Any]) -> bool:
        """Return whether a schema says nothing itself: it is one of others, or another by reference."""
        if schema.keys() & (_OBJECT | _ARRAY | _FIXED | {*_CONDITIONS, *_UNRESOLVED, "dependentSchemas"}):
            return False
        used = [name for name in ("$ref", *_UNIONS) if name in schema]
        if used == ["allOf"]:
            return isinstance(schema["allOf"], list) and [*map(_is_reference, schema["allOf"])] == [True]
        return len(used) == 1

    def _members(self, at: Pointer) -> tuple[list[Pointer], bool]:
        """Return all schemas that apply to the same value as this one, itself first, and whether every
        reference was found."""
        members, found, is_known = [at], {at}, True
        for one in members:
            self._num_steps += _MEMBER_STEPS
            for applied in self._applied(one, self._get(one)):
                if applied is None:
                    is_known = False
                elif applied not in found and isinstance(self._get(applied), dict):
                    found.add(applied)
                    members.append(applied)
        return members, is_known

    def _applied(self, at: Pointer, schema: dict[str, Any]) -> Iterator[Pointer | None]:
        """Yield the schemas that this one applies to the same value, and None for one that is not found."""
        if isinstance(schema.get("$ref"), str):
            yield self._resolve(schema["$ref"])
        if any(name in schema for name in _UNRESOLVED):
            yield None
        for name in _UNIONS:
            if isinstance(schema.get(name), list):
                yield from ((*at, name, index) for index in range(len(schema[name])))
        yield from ((*at, name) for name in _CONDITIONS if name in schema)
        if isinstance(schema.get("dependentSchemas"), dict):
            yield from ((*at, "dependentSchemas", name) for name in schema["dependentSchemas"])

    def _values(self, at: Pointer, schema: dict[str, Any]) -> Iterator[tuple[str, Pointer]]:
        """Yield the schemas of values inside this one's value, each with a key: the same key in two
        combined schemas may mean the same value."""
        for name in ("properties", "patternProperties"):
            if isinstance(schema.get(name), dict):
                yield from ((f"property {one}", (*at, name, one)) for one in schema[name])
        if isinstance(schema.get("additionalProperties"), dict):
            yield "additional properties", (*at, "additionalProperties")
        for name in _ARRAY & schema.keys():
            if isinstance(schema[name], list):
                yield from ((f"items {name} {one}", (*at, name, one)) for one in range(len(schema[name])))
            else:
                yield f"items {name}", (*at, name)

    def _get(self, at: Pointer) -> Any:
        self._num_steps += 1 + len(at)
        if self._num_steps > _MAX_STEPS:
            raise InvalidRequest("the JSON schema combines too many schemas with each other; simplify it")
        return _find(self._root, at)

    def _resolve(self, ref: str) -> Pointer | None:
        """Return the place a reference names, if it is in this schema."""
        base, _, fragment = ref.partition("#")
        if base not in ("", self._root.get("$id")) or (fragment and not fragment.startswith("/")):
            return None
        at: Pointer = ()
        value: Any = self._root
        for part in unquote(fragment).split("/")[1:]:
            key: Any = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 9:
                key = int(part)
            try:
                at, value = (*at, key), value[key]
            except (KeyError, IndexError, TypeError):
                return None
        return at


def _is_reference(schema: Any) -> bool:
    return isinstance(schema, dict) and "$ref" in schema and _OBJECT.isdisjoint(schema)


def _find(value: Any, at: Pointer) -> Any:
    for key in at:
        value = value[key]
    return value


def _close(schema: dict[str, Any], names: list[str]) -> None:
    schema["additionalProperties"] = False
    if names:
        schema["properties"] = {**schema["properties"], **{name: {} for name in names}}
