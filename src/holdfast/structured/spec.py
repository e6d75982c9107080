"""A form as llguidance reads it: a JSON text that holds a JSON schema or a Lark grammar.

Three things are decided here. The form is the whole answer: no text comes before or behind it. Tokens are never
forced: what is allowed are all tokens that keep the text a beginning of the form, and the model chooses how to spell it.
And white space in JSON is bounded: at any place where JSON allows some, a blank or two, or a line break and up to 32
blanks and tabs, so a weak model cannot babble in it until max_tokens.

Nothing else of a client can steer llguidance: `x-guidance` in a schema is overwritten, and its nested form of JSON
grammars is not reachable.
"""

import json
import re
from typing import Any

from holdfast.core.sampling_params import is_unicode
from holdfast.core.structured_output import StructuredOutput, StructuredOutputKind
from holdfast.errors import InvalidRequest

NOUNS: dict[StructuredOutputKind, str] = {
    "json_schema": "JSON schema",
    "json_object": "JSON object",
    "regex": "regular expression",
    "choice": "choice",
    "lark": "Lark grammar",
}

_WHITE_SPACE = r"[ ]{1,2}|\n[ \t]{0,32}"
JSON_OPTIONS = {"whitespace_pattern": _WHITE_SPACE, "lenient": False, "coerce_one_of": False}
# Options belong to a Lark grammar and hold for all grammars beside it; nothing refers to this one.
_OPTIONS = {"name": "options", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: "x"'}
_SLASH = re.compile(r"\\.|/", re.DOTALL)


def write_grammar(form: StructuredOutput) -> str:
    """The form in llguidance's notation. Whether it can be compiled is not known yet."""
    if not all(map(is_unicode, form.texts)):
        raise InvalidRequest(f"the {NOUNS[form.kind]} is no valid Unicode: it holds a lone surrogate")
    if form.kind == "json_schema":
        grammar = _json(json.loads(form.texts[0]))
    elif form.kind == "json_object":
        grammar = _json({"type": "object"})
    elif form.kind == "regex":
        grammar = _lark(f"start: /{_between_slashes(form.regex or '')}/")
    elif form.kind == "choice":
        # JSON's escapes are Lark's, and one terminal of many texts is far cheaper than as many rules.
        grammar = _lark(f"start: TEXT\nTEXT: {' | '.join(map(json.dumps, form.texts))}")
    else:
        grammar = _lark(form.lark or "")
    return json.dumps({"grammars": [grammar, _OPTIONS]})


def _json(schema: Any) -> dict[str, Any]:
    if schema is False:
        raise InvalidRequest("the JSON schema false allows no answer at all")
    members = {} if schema is True else schema
    return {"json_schema": {**members, "x-guidance": JSON_OPTIONS}}


def _lark(grammar: str) -> dict[str, Any]:
    return {"lark_grammar": grammar}


def _between_slashes(regex: str) -> str:
    """The expression as Lark quotes it. Only a slash needs care; a lone backslash at the end would quote the last one."""
    if not regex:
        raise InvalidRequest("the regular expression is empty, so the answer would be, too")
    if len(regex) - len(regex.rstrip("\\")) & 1:
        raise InvalidRequest("the regular expression ends in a lone backslash")
    return _SLASH.sub(lambda match: r"\/" if match[0] == "/" else match[0], regex)
