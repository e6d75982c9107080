"""Grammars that are wrong, unsupported, too large or too slow: refused with a reason, in bounded
time, without harm."""

import random
import resource
import time
from typing import Any

import pytest

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.sandbox.grammar_sandbox import GrammarLimits
from holdfast.structured.compiler import GrammarCompiler
from holdfast.structured.spec import check_grammar
from support.grammar_walks import HARNESSES, HarnessFactory, byte_harness, needs_llguidance

pytestmark = needs_llguidance


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(count)}}


def all_of_any_of(depth: int) -> dict[str, Any]:
    if depth == 0:
        return {"properties": {"x": {"type": "integer"}}}
    below = all_of_any_of(depth - 1)
    return {"allOf": [{"anyOf": [below, {"properties": {f"{side}{depth}": {}}}]} for side in "yz"]}


def chain(count: int) -> str:
    rules = [f'r{index}: "a" r{index + 1} | "b"' for index in range(count)]
    return "\n".join(["start: r0", *rules, f'r{count}: "c"'])


LETTERS = "abcdefghijkl"
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unclosed": ({"regex": "(a"}, "unclosed group"),
    "look-drafts": ({"regex": "(?=a)a"}, "look-around"),
    "word boundary": ({"regex": r"\bfoo"}, "lookarounds"),
    "back-reference": ({"regex": r"(a)\1"}, "backreferences"),
    "repetition of 10**10": ({"regex": "a{9999999999}"}, ""),
    "backslash": ({"regex": "a\\"}, "lone backslash"),
    "empty": ({"regex": ""}, "empty"),
    "surrogate": ({"regex": "\ud800"}, "surrogate"),
    "deep regex": ({"regex": "(" * 60_000 + "a" + ")" * 60_000}, "nest"),
    "not": ({"json_schema": {"not": {"type": "string"}}}, "not"),
    "if": ({"json_schema": {"if": True, "then": False}}, "if"),
    "uniqueItems": ({"json_schema": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
    "oneOf": (
        {"json_schema": {"oneOf": [{"type": "object"}, {"type": "object", "minProperties": 1}]}},
        "oneOf",
    ),
    "format": ({"json_schema": {"type": "string", "format": "nope"}}, "nope"),
    "remote": ({"json_schema": {"$ref": "http://127.0.0.1:9/a.json"}}, "does not fetch"),
    "missing": ({"json_schema": {"$ref": "#/$defs/none"}}, "none"),
    "false": ({"json_schema": False}, "no answer"),
    "impossible": ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 4}}, "minimum"),
    "circle": ({"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}, "nowhere"),
    "no type": ({"json_schema": {"type": "strnig"}}, "strnig"),
    "type of a number": ({"json_schema": {"type": 7}}, ""),
    "bad pattern": ({"json_schema": {"type": "string", "pattern": "("}}, ""),
    "reference to itself": ({"json_schema": {"$ref": "#"}}, ""),
    "lark": ({"lark": "start: nowhere"}, "nowhere"),
    "lark without start": ({"lark": 'a: "a"'}, "start"),
    "lark of itself": ({"lark": "start: start"}, ""),
    "lark terminal circle": ({"lark": 'start: A\nA: "x" A'}, "circular"),
    "lark import": ({"lark": "%import .etc.passwd\nstart: passwd"}, ""),
    "lark as JSON": ({"lark": '{"grammars": [{"json_schema": {}}]}'}, ""),
    "token": ({"lark": 'start: "a" <|im_end|>'}, "names tokens"),
    "any token": ({"lark": "start: <[*]>"}, "names tokens"),
    "max_tokens": ({"lark": 'start: a "b"\na[max_tokens=3]: /a*/'}, "max_tokens"),
    "stop": ({"lark": 'start: a "b"\na[stop="z"]: /a*/'}, "stop"),
}
# Refused when the grammar is tried: a check without a model does not find them.
FOR_THE_SANDBOX = ("circle", "reference to itself", "lark of itself", "max_tokens", "stop")
TOO_MUCH: dict[str, dict[str, Any]] = {
    "counts of counts": {"regex": "(a{1,1000}){1,1000}"},
    "never finishes": {"regex": "[a-z]?" * 40_000},
    "many optional properties": {"json_schema": optional(900)},
    "depth": {"json_schema": nested(300)},
    "allOf of anyOf": {"json_schema": all_of_any_of(8)},
    "multipleOf": {"json_schema": {"type": "integer", "multipleOf": 999_999_937}},
    "patterns at once": {
        "json_schema": {"allOf": [{"type": "string", "pattern": f".*{c}.{{9}}{c}"} for c in "abcdefghijkl"]}
    },
    "stack": {"lark": chain(8_000)},
    "deep lark": {"lark": "start: " + "(" * 50_000 + '"a"' + ")" * 50_000},
    "nullable": {"lark": "start: " + '("a" | "b" | ) ' * 3_000},
    "doubling terminals": {
        "lark": "\n".join(["start: R0", *[f"R{i}: R{i + 1} R{i + 1}" for i in range(40)], 'R40: "c"'])
    },
    "ambiguous": {"lark": 'start: s\ns: s s s | s s | "a"'},
    "complements": {"lark": "start: A\nA: " + " & ".join(f"~/(?s:.*){c}.{{10}}(?s:.*)/" for c in LETTERS)},
}
OUT_OF_TIME = ("doubling terminals", "counts of counts")  # as "never finishes", after seconds
FOR_WORDS = ("counts of counts", "complements", "ambiguous")
# Legitimate, or at least harmless: they must compile, and every step must be quick.
HEAVY: dict[str, dict[str, Any]] = {
    "minimum length": {"json_schema": {"type": "string", "minLength": 10**9}},
    "thrice repeated group": {"regex": "((a{1000}){1000}){1000}"},
    "long string": {"json_schema": {"type": "string", "maxLength": 10**9}},
    "big enum": {"json_schema": {"enum": [f"v{index:05}" for index in range(15_000)]}},
    "big choice": {"choice": [f"{index:04}" + "x" * 240 for index in range(1024)]},
    "required properties": {
        "json_schema": {**optional(2_000), "required": [f"p{index}" for index in range(2_000)]}
    },
    "depth": {"json_schema": nested(30)},
    "window": {"regex": ".*a.{50}"},
    "nested stars": {"regex": "(((a*)*)*)*b"},
    "left recursion": {"lark": 'start: e\ne: e "+" e | e "*" e | "(" e ")" | /[0-9]+/'},
    "doubling rules": {
        "lark": "\n".join(["start: r0", *[f"r{i}: r{i + 1} r{i + 1}" for i in range(60)], 'r60: "c"'])
    },
}


def cpu_seconds() -> float:
    """CPU time of this process and of the children it reaped."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


@pytest.mark.parametrize("name", WRONG)
def test_invalid_grammar_is_refused_with_reason(name: str) -> None:
    spec, reason = WRONG[name]
    with pytest.raises(InvalidRequest) as raised:
        byte_harness().compile(**spec)
    message = str(raised.value)
    assert reason in message
    assert "\n" not in message and len(message) < 500
    if name not in FOR_THE_SANDBOX:
        with pytest.raises(InvalidRequest):
            check_grammar(StructuredOutput(**spec))


@pytest.mark.parametrize(
    "make", [pytest.param(byte_harness, id="bytes", marks=pytest.mark.long), HARNESSES[-1]]
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) if name in OUT_OF_TIME else name for name in TOO_MUCH],
)
def test_too_large_grammar_is_refused_in_bounded_time(make: HarnessFactory, name: str) -> None:
    harness = make()
    if harness is byte_harness() and name in FOR_WORDS:
        pytest.skip("easy with so few tokens")
    harness.compile(json_object=True)
    before, started = cpu_seconds(), time.monotonic()
    with pytest.raises(InvalidRequest):
        harness.compile(**TOO_MUCH[name])
    assert cpu_seconds() - before < 1.0  # in this process: the worker is not reaped
    assert time.monotonic() - started < 15.0
    harness.compile(choice=[name])  # the next grammar is not affected


@pytest.mark.parametrize("make", HARNESSES)
@pytest.mark.parametrize("name", HEAVY)
def test_heavy_grammars_step_quickly(make: HarnessFactory, name: str) -> None:
    """Or stop with a `problem`."""
    harness = make()
    grammar = harness.compile(**HEAVY[name])
    rng = random.Random(1)
    slowest = 0.0
    for _ in range(120):
        started = time.thread_time()
        (mask,) = grammar.masks((), 1)
        assert mask is not None
        slowest = max(slowest, time.thread_time() - started)
        if not any(mask):
            assert grammar.problem is not None
            break
        token_id = harness.choose(int.from_bytes(mask, "little"), rng)
        grammar.commit(token_id)
        if token_id in harness.eos_ids:
            break
    assert slowest < 1.0


def language() -> str:
    """A programming language: thirty kinds of statements, eighteen levels of expressions."""
    kinds = " | ".join(f'"k{index}" " " e0 ";" | "k{index}" "{{" statement* "}}"' for index in range(30))
    levels = [
        f'e{level}: e{level} "o{level}" e{level + 1} | e{level} "p{level}" e{level + 1} | e{level + 1}'
        for level in range(18)
    ]
    atoms = 'e18: "-" e18 | "(" e0 ")" | /[a-z_]+/ | /[0-9]+/ | e18 "(" (e0 ("," e0)*)? ")" | e18 "[" e0 "]"'
    return "\n".join(["start: statement+", f'statement: {kinds} | e0 ";"', *levels, atoms])


@pytest.mark.parametrize(
    ("lark", "text"),
    [
        ('start: list\nlist: "a" list | "a"', "a" * 240),
        ('start: list\nlist: list "a" | "a"', "a" * 2_000),
        (HEAVY["left recursion"]["lark"], "1+2*(3+4)*5+" * 25 + "6"),
        ('start: "(" start ")" | "x"', "(" * 100 + "x" + ")" * 100),
        (language(), "k1 (1o3x)p2f(y[1],-2);k2{k3 x;z;}" * 30),
    ],
    ids=["right recursion", "left recursion", "arithmetic", "brackets", "language"],
)
@pytest.mark.parametrize("make", HARNESSES)
def test_recursive_grammars_accept_long_texts(make: HarnessFactory, lark: str, text: str) -> None:
    harness = make()
    grammar = harness.compile(lark=lark)
    for id_ in harness.encode(text):
        (mask,) = grammar.masks((), 1)
        assert mask is not None and mask[id_ // 8] >> id_ % 8 & 1, grammar.problem
        grammar.commit(id_)


@pytest.mark.parametrize(
    ("limits", "spec"),
    [
        (GrammarLimits(cpu_seconds=0.2), {"regex": "[a-z]?" * 40_000}),
        (
            GrammarLimits(memory_bytes=8 << 20),
            {"json_schema": {"enum": [f"v{index:05}" for index in range(15_000)]}},
        ),
    ],
)
def test_worker_limits_are_enforced(limits: GrammarLimits, spec: dict[str, Any]) -> None:
    harness = byte_harness()
    compiler = GrammarCompiler(harness.tokenizer, harness.vocab_size, harness.eos_ids, limits=limits)
    compiler.compile(StructuredOutput(choice=["fine"]))
    with pytest.raises(InvalidRequest, match=r"more than 0\.2 seconds|more memory"):
        compiler.compile(StructuredOutput(**spec))
    compiler.compile(StructuredOutput(choice=["fine as well"]))
    compiler.close()
