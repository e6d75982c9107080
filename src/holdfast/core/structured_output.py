"""Structured output: what an answer must match. A JSON schema, any JSON object, a regular
expression, one of several texts, or a Lark grammar.

Only what needs no tokenizer is checked here. Compiling finds the rest (`structured.compiler`). It makes
a `Grammar`, which the scheduler and the worker ask which tokens may come next. A grammar's state follows
the committed tokens of one answer and changes only when a token is committed. Candidates are tried within
one call and leave no state, so a rollback of candidates costs nothing.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol, get_args

from holdfast.errors import InvalidRequest

MAX_GRAMMAR_CHARS = 1 << 18
JSON_RULES = 2  # see `StructuredOutput.json_rules`
MAX_CHOICES = 1024

StructuredOutputKind = Literal["json_schema", "json_object", "regex", "choice", "lark"]
_KINDS: tuple[StructuredOutputKind, ...] = get_args(StructuredOutputKind)


@dataclass(frozen=True)
class StructuredOutput:
    """Exactly one of the fields. A schema may be a mapping or JSON text; it is kept as text.

    An object that lists its properties gets no others, unless its schema has additionalProperties
    (`structured.closing`). json_rules says how a schema becomes a grammar. 1: objects stay open as in
    JSON Schema, and white space may be a line break with up to 32 spaces; for receipts made before
    there were rules. 2: objects are closed, and white space is at most one space.

    special_tokens: the Lark grammar may name special tokens, as <|name|>. The server makes such
    grammars for models that write their thinking and tool calls between special tokens.
    """

    json_schema: str | Mapping[str, Any] | bool | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Collection[str] | None = None
    lark: str | None = None
    json_rules: int = JSON_RULES
    special_tokens: bool = False

    def __post_init__(self) -> None:
        given = [kind for kind in _KINDS if getattr(self, kind) not in (None, False)]
        if self.json_schema is False:
            given.append("json_schema")
        if len(given) != 1:
            raise InvalidRequest(
                f"structured output needs exactly one of {', '.join(_KINDS)}; it has {len(given)}"
            )
        if type(self.json_rules) is not int or self.json_rules not in range(1, JSON_RULES + 1):
            raise InvalidRequest(f"json_rules must be from 1 to {JSON_RULES}, not {self.json_rules!r:.80}")
        put = object.__setattr__  # the dataclass is frozen
        kind = given[0]
        if type(self.special_tokens) is not bool or (self.special_tokens and kind != "lark"):
            raise InvalidRequest("special_tokens must be true or false, and true only with a Lark grammar")
        if kind == "json_schema":
            put(self, "json_schema", _schema_text(self.json_schema))
        elif kind == "json_object":
            if self.json_object is not True:
                raise InvalidRequest(f"json_object must be true or false, not {self.json_object!r:.80}")
        elif kind == "choice":
            put(self, "choice", _choices(self.choice))
        elif not isinstance(getattr(self, kind), str) or not getattr(self, kind):
            raise InvalidRequest(f"{kind} must be a non-empty string, not {getattr(self, kind)!r:.80}")
        if kind not in ("json_schema", "json_object"):
            put(self, "json_rules", JSON_RULES)  # they have no meaning here
        if sum(map(len, self.texts)) > MAX_GRAMMAR_CHARS:
            raise InvalidRequest(f"the {kind} is too large: more than {MAX_GRAMMAR_CHARS} characters")

    @property
    def kind(self) -> StructuredOutputKind:
        return next(kind for kind in _KINDS if getattr(self, kind))

    @property
    def texts(self) -> tuple[str, ...]:
        """The schema, expression, grammar or choices as text; empty for a JSON object."""
        if self.choice is not None:
            return tuple(self.choice)
        text = self.json_schema or self.regex or self.lark
        return (text,) if isinstance(text, str) else ()


def _schema_text(schema: object) -> str:
    if isinstance(schema, str):
        text = schema
    else:
        try:
            text = json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"the JSON schema cannot be written as JSON: {error}") from error
    if len(text) > MAX_GRAMMAR_CHARS:
        raise InvalidRequest(f"the JSON schema is too large: more than {MAX_GRAMMAR_CHARS} characters")
    try:
        parsed = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the JSON schema is not valid JSON: {error}") from error
    if not isinstance(parsed, dict | bool):
        raise InvalidRequest("a JSON schema is an object, true or false")
    return text


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _choices(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidRequest("choice must be a list of strings")
    choices = tuple(islice(value, MAX_CHOICES + 1))
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise InvalidRequest(f"choice needs 1 to {MAX_CHOICES} strings")
    for one in choices:
        if not isinstance(one, str) or not one:
            raise InvalidRequest(f"every choice must be a non-empty string, not {one!r:.80}")
    return choices


class Grammar(Protocol):
    """One answer's grammar."""

    def commit(self, token_id: int) -> None:
        """Append one committed token."""

    def restart(self) -> None:
        """Back to the first token of the answer."""

    def count_valid(self, token_ids: Sequence[int]) -> int:
        """Return how many of these tokens are valid, one after another, after the committed tokens."""

    def masks(self, candidates: Sequence[int], num_masks: int) -> list[bytes | None]:
        """Return which tokens may come at the last `num_masks` of len(candidates) + 1 positions: after the
        committed tokens, after the first candidate, and so on.

        A mask is little-endian bits, bit i for token i. All zeros: no token is legal, and `problem`
        says why. None: a candidate before this position is invalid, so whatever is sampled here
        will be dropped with it.
        """

    @property
    def problem(self) -> str | None:
        """Why no token may follow the committed ones, or None."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """The grammar of a span and the candidates up to the span's last token."""

    grammar: Grammar
    candidates: tuple[int, ...]
