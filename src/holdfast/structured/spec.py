"""A structured output as llguidance's grammar spec: JSON text that contains a JSON schema or a Lark
grammar.

- The grammar covers the whole answer: no text comes before or after it.
- Tokens are never forced. All tokens that keep the text a prefix of the grammar are allowed, and
  the model chooses how to spell it.
- White space in JSON is bounded: where JSON allows some, one or two spaces, or a line break and up
  to 32 spaces and tabs. Otherwise a weak model could fill an answer with white space up to
  max_tokens.
- A client cannot set llguidance's options: `x-guidance` in a schema is overwritten, and
  llguidance's list of grammars cannot be reached from a schema or a Lark text.
"""

import json
import re
from typing import Any

from holdfast.core.sampling_params import is_unicode
from holdfast.core.structured_output import StructuredOutput, StructuredOutputKind
from holdfast.errors import InvalidRequest

KIND_NAMES: dict[StructuredOutputKind, str] = {
    "json_schema": "JSON schema",
    "json_object": "JSON object",
    "regex": "regular expression",
    "choice": "choice",
    "lark": "Lark grammar",
}

_WHITE_SPACE = r"[ ]{1,2}|\n[ \t]{0,32}"
JSON_OPTIONS = {"whitespace_pattern": _WHITE_SPACE, "lenient": False, "coerce_one_of": False}
# Options belong to a Lark grammar and hold for all grammars in the list; nothing refers to this
# one.
_OPTIONS = {"name": "options", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: "x"'}
_SLASH = re.compile(r"\\.|/", re.DOTALL)


def write_grammar(structured: StructuredOutput) -> str:
    """The grammar spec. Whether it compiles is not known yet."""
    if not all(map(is_unicode, structured.texts)):
        raise InvalidRequest(
            f"the {KIND_NAMES[structured.kind]} is not valid Unicode: it contains a lone surrogate"
        )
    if structured.kind == "json_schema":
        grammar = _json(json.loads(structured.texts[0]))
    elif structured.kind == "json_object":
        grammar = _json({"type": "object"})
    elif structured.kind == "regex":
        grammar = _lark(f"start: /{_quote_regex(structured.regex or '')}/")
    elif structured.kind == "choice":
        # JSON's escapes are Lark's. One terminal with many texts is far cheaper than as many rules.
        grammar = _lark(f"start: TEXT\nTEXT: {' | '.join(map(json.dumps, structured.texts))}")
    else:
        grammar = _lark(structured.lark or "")
    return json.dumps({"grammars": [grammar, _OPTIONS]})


def _json(schema: Any) -> dict[str, Any]:
    if schema is False:
        raise InvalidRequest("the JSON schema false allows no answer")
    members = {} if schema is True else schema
    return {"json_schema": {**members, "x-guidance": JSON_OPTIONS}}


def _lark(grammar: str) -> dict[str, Any]:
    return {"lark_grammar": grammar}


def _quote_regex(regex: str) -> str:
    """The expression between Lark's slashes: escape slashes. A lone backslash at the end would
    escape the last one."""
    if not regex:
        raise InvalidRequest("the regular expression is empty, so the answer would be, too")
    if len(regex) - len(regex.rstrip("\\")) & 1:
        raise InvalidRequest("the regular expression ends in a lone backslash")
    return _SLASH.sub(lambda match: r"\/" if match[0] == "/" else match[0], regex)
