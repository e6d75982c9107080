"""A structured output as llguidance's grammar spec: JSON text that contains a JSON schema or a Lark
grammar.

- The grammar covers the whole answer: no text comes before or after it.
- Tokens are never forced. All tokens that keep the text a prefix of the grammar are allowed, and
  the model chooses how to spell it.
- White space in JSON is compact: where JSON allows some, at most one space. Models write `{"a": 1}`
  and `{"a":1}`, and both stay possible; with line breaks and indentation a weak model fills an
  answer with white space up to max_tokens.
- Objects that list their properties are closed (`structured.closing`).
- A client cannot set llguidance's options: `x-guidance` in a schema is overwritten, and
  llguidance's list of grammars cannot be reached from a schema or a Lark text.
"""

import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from holdfast.core.sampling_params import is_unicode
from holdfast.core.structured_output import JSON_RULES, StructuredOutput, StructuredOutputKind
from holdfast.errors import InvalidRequest
from holdfast.sandbox.grammar_sandbox import GrammarSandbox
from holdfast.structured.closing import close_objects

KIND_NAMES: dict[StructuredOutputKind, str] = {
    "json_schema": "JSON schema",
    "json_object": "JSON object",
    "regex": "regular expression",
    "choice": "choice",
    "lark": "Lark grammar",
}

_WHITE_SPACE = {1: r"[ ]{1,2}|\n[ \t]{0,32}", 2: "[ ]"}  # by json_rules
# Options belong to a Lark grammar and hold for all grammars in the list; nothing refers to this
# one.
_OPTIONS = {"name": "options", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: "x"'}
_SLASH = re.compile(r"\\.|/", re.DOTALL)
_BYTES = [bytes([byte]) for byte in range(256)]
_EOS_ID = len(_BYTES)


def write_grammar(structured: StructuredOutput) -> str:
    """Return the grammar spec. Whether it compiles is not known yet."""
    if not all(map(is_unicode, structured.texts)):
        raise InvalidRequest(
            f"the {KIND_NAMES[structured.kind]} is not valid Unicode: it contains a lone surrogate"
        )
    if structured.kind == "json_schema":
        grammar = {"json_schema": json_grammar(json.loads(structured.texts[0]), structured.json_rules)}
    elif structured.kind == "json_object":
        grammar = {"json_schema": json_grammar({"type": "object"}, structured.json_rules)}
    elif structured.kind == "regex":
        grammar = _lark(f"start: {regex_in_lark(structured.regex or '')}")
    elif structured.kind == "choice":
        grammar = _lark(f"start: TEXT\nTEXT: {choice_in_lark(structured.texts)}")
    else:
        grammar = _lark(structured.lark or "")
    return json.dumps({"grammars": [grammar, _OPTIONS]})


def json_grammar(schema: Any, json_rules: int = JSON_RULES) -> dict[str, Any]:
    """Return a JSON schema as llguidance takes it, with its options, by these rules."""
    if schema is False:
        raise InvalidRequest("the JSON schema false allows no answer")
    members = {} if schema is True else schema if json_rules == 1 else close_objects(schema)
    options = {"whitespace_pattern": _WHITE_SPACE[json_rules], "lenient": False, "coerce_one_of": False}
    return {**members, "x-guidance": options}


def _lark(grammar: str) -> dict[str, Any]:
    return {"lark_grammar": grammar}


def choice_in_lark(texts: Sequence[str]) -> str:
    """Return one of these texts, as a terminal: one with many texts is far cheaper than as many rules."""
    return " | ".join(map(json.dumps, texts))  # JSON's escapes are Lark's


def regex_in_lark(regex: str) -> str:
    """Return the expression between Lark's slashes: escape slashes. A lone backslash at the end would
    escape the last one."""
    if not regex:
        raise InvalidRequest("the regular expression is empty, so the answer would be, too")
    if len(regex) - len(regex.rstrip("\\")) & 1:
        raise InvalidRequest("the regular expression ends in a lone backslash")
    escaped = _SLASH.sub(lambda match: r"\/" if match[0] == "/" else match[0], regex)
    return f"/{escaped}/"


def require_llguidance() -> None:
    """Raise `InvalidRequest` if llguidance is not installed."""
    if find_spec("llguidance") is None:
        raise InvalidRequest(
            "structured output needs llguidance, which is not installed; "
            "install it with: pip install llguidance"
        )


def check_grammar(structured: StructuredOutput) -> None:
    """Raise `InvalidRequest` if no model could follow this.

    The grammar is compiled for a vocabulary of the 256 bytes, in the process that tries grammars. What
    depends on a model's own vocabulary is found by `compiler`, later.
    """
    grammar = write_grammar(structured)
    require_llguidance()
    sandbox = GrammarSandbox([*_BYTES, b""], [_EOS_ID])
    try:
        trial = sandbox.try_grammar(grammar, is_lark=structured.kind == "lark", follow=False)
    finally:
        sandbox.close()
    if trial.fault is not None:
        raise InvalidRequest(f"the {KIND_NAMES[structured.kind]} cannot be used: {trial.fault}")
