"""Structured output under load: many JSON-schema requests among ordinary ones, several times.

Every answer must conform to its schema and be the same each time. The cost of structured output is
measured, too: the CPU time of a token mask, and tok/s with a schema against tok/s of as many tokens
without one.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from holdfast.bench.determinism.stress import submit
from holdfast.bench.tables import open_console
from holdfast.core.cancel_token import CancelToken
from holdfast.core.grammar import Grammar
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.engine import Engine
from holdfast.engine.input_processor import GrammarFactory

_WORDS = ("name", "city", "age", "active", "tags", "score", "kind", "notes", "parts", "owner", "size", "when")
_TOPICS = (
    "a lighthouse",
    "a fishing boat",
    "a library",
    "a violin",
    "a mountain hut",
    "a bakery",
    "a telescope",
)


@dataclass(frozen=True)
class SchemaRequest:
    """One request, and the schema its answer must conform to."""

    prompt: tuple[int, ...]
    params: SamplingParams
    schema: dict[str, Any]


@dataclass
class StructuredReport:
    """All requests and repeats. mask_us holds the CPU time of each mask in microseconds; speeds are
    tok/s.
    """

    num_requests: int
    repeats: int
    num_invalid: int
    most_distinct: int
    num_tokens: int
    mask_us: list[float]
    speed: float
    speed_without: float

    @property
    def is_good(self) -> bool:
        return self.num_invalid == 0 and self.most_distinct == 1


def draw_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A random schema whose answers are short, whatever the model."""
    kinds = ["string", "integer", "boolean", "enum", "array"] + (["object"] * 2 if depth < 2 else [])
    kind = "object" if depth == 0 else rng.choice(kinds)
    if kind == "string":
        return {"type": "string", "maxLength": rng.randint(3, 12)}
    if kind == "integer":
        return {"type": "integer", "minimum": 0, "maximum": rng.choice([9, 150, 5000])}
    if kind == "boolean":
        return {"type": "boolean"}
    if kind == "enum":
        return {"enum": rng.sample(["red", "green", "blue", "small", "large", "none"], 3)}
    if kind == "array":
        return {"type": "array", "items": draw_schema(rng, depth + 2), "minItems": 1, "maxItems": 3}
    names = rng.sample(_WORDS, rng.randint(1, 3))
    properties = {name: draw_schema(rng, depth + 1) for name in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value conforms to a schema drawn by `draw_schema`."""
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema["type"]
    if kind == "object":
        properties = schema["properties"]
        return (
            isinstance(value, dict)
            and value.keys() == properties.keys()
            and all(conforms(value[name], properties[name]) for name in properties)
        )
    if kind == "array":
        return (
            isinstance(value, list)
            and schema["minItems"] <= len(value) <= schema["maxItems"]
            and all(conforms(one, schema["items"]) for one in value)
        )
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema["maxLength"]
    if kind == "boolean":
        return isinstance(value, bool)
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer and schema["minimum"] <= value <= schema["maximum"]


def draw_requests(engine: Engine, count: int, seed: int) -> list[SchemaRequest]:
    rng = random.Random(seed)
    requests = []
    for number in range(count):
        schema = draw_schema(rng)
        prompt = f"Describe {rng.choice(_TOPICS)} as JSON, number {number}:\n"
        params = SamplingParams(
            max_tokens=400,
            temperature=rng.choice([0.0, 0.8]),
            top_p=rng.choice([1.0, 0.95]),
            seed=number,
            deterministic=True,
            structured=StructuredOutput(json_schema=schema),
        )
        requests.append(SchemaRequest(tuple(engine.tokenizer.encode(prompt)), params, schema))
    return requests


class TimedGrammars:
    """A grammar compiler whose grammars measure the CPU time of their masks."""

    def __init__(self, grammars: GrammarFactory) -> None:
        self._grammars = grammars
        self.mask_us: list[float] = []

    def compile(self, structured: StructuredOutput, token: CancelToken | None = None) -> Grammar:
        return _TimedGrammar(self._grammars.compile(structured, token), self.mask_us)

    def is_compiled(self, structured: StructuredOutput) -> bool:
        return self._grammars.is_compiled(structured)


class _TimedGrammar:
    def __init__(self, grammar: Grammar, mask_us: list[float]) -> None:
        self._grammar = grammar
        self._mask_us = mask_us

    def masks(self, candidates: Sequence[int], num_masks: int) -> list[bytes | None]:
        started = time.thread_time_ns()
        masks = self._grammar.masks(candidates, num_masks)
        self._mask_us.append((time.thread_time_ns() - started) / 1e3 / num_masks)
        return masks

    def commit(self, token_id: int) -> None:
        self._grammar.commit(token_id)

    def restart(self) -> None:
        self._grammar.restart()

    def count_valid(self, token_ids: Sequence[int]) -> int:
        return self._grammar.count_valid(token_ids)

    @property
    def problem(self) -> str | None:
        return self._grammar.problem


def run(
    engine: Engine, num_requests: int, repeats: int, log: Callable[[str], None], seed: int = 0
) -> StructuredReport:
    """Run all requests among ordinary ones, each time in another order and load."""
    requests = draw_requests(engine, num_requests, seed)
    timed = TimedGrammars(engine.grammars)
    answers: list[set[tuple[tuple[int, ...], str]]] = [set() for _ in requests]
    num_invalid = num_tokens = 0
    for repeat in range(repeats):
        log(f"repeat {repeat + 1} of {repeats}")
        engine = engine.restarted(engine.scheduler.config, grammars=timed)
        rng = random.Random(f"{seed} {repeat}")
        for number, result in enumerate(_run_among_others(engine, requests, rng)):
            choice = result.choices[0]
            answers[number].add((choice.token_ids, choice.text))
            num_tokens += len(choice.token_ids)
            num_invalid += choice.finish_reason != "stop" or not _is_valid(
                choice.text, requests[number].schema
            )
    log("the same number of tokens with a schema and without")
    engine = engine.restarted(replace(engine.scheduler.config, speculation="off"))
    speed, without = _speeds(engine, requests[:8])
    return StructuredReport(
        num_requests, repeats, num_invalid, max(map(len, answers)), num_tokens, timed.mask_us, speed, without
    )


def _is_valid(text: str, schema: dict[str, Any]) -> bool:
    try:
        return conforms(json.loads(text), schema)
    except ValueError:
        return False


def _run_among_others(engine: Engine, requests: Sequence[SchemaRequest], rng: random.Random) -> list[Result]:
    """The results of the requests. Ordinary requests arrive and end beside them."""
    waiting = list(range(len(requests)))
    rng.shuffle(waiting)
    numbers: dict[int, int] = {}
    results: dict[int, Result] = {}
    while waiting or engine.has_work:
        for _ in range(min(len(waiting), rng.randint(0, 4))):
            one = requests[number := waiting.pop()]
            numbers[submit(engine, one.prompt, one.params)] = number
        if waiting and rng.random() < 0.3:
            ids = [rng.randrange(3, 300) for _ in range(rng.randint(1, 60))]
            submit(engine, ids, SamplingParams(max_tokens=rng.randint(1, 40), ignore_eos=True))
        for update in engine.step():
            if update.result is not None and update.request_id in numbers:
                results[numbers[update.request_id]] = update.result
    return [results[number] for number in range(len(requests))]


def _speeds(engine: Engine, requests: Sequence[SchemaRequest]) -> tuple[float, float]:
    """tok/s of a few concurrent structured answers, and of as many tokens without a schema."""
    structured = [(one.prompt, one.params) for one in requests]
    _timed(engine, structured)  # compiles the grammars and warms the prefix cache
    lengths, seconds = _timed(engine, structured)
    plain = [
        (one.prompt, replace(one.params, structured=None, ignore_eos=True, max_tokens=length))
        for one, length in zip(requests, lengths, strict=True)
    ]
    _, without = _timed(engine, plain)
    return sum(lengths) / seconds, sum(lengths) / without


def _timed(
    engine: Engine, requests: Sequence[tuple[tuple[int, ...], SamplingParams]]
) -> tuple[list[int], float]:
    lengths: dict[int, int] = {}
    prepared = [engine.prepare(*one) for one in requests]
    started = time.perf_counter()
    for request in prepared:
        engine.submit(request)
    while engine.has_work:
        for update in engine.step():
            if update.result is not None:
                lengths[update.request_id] = len(update.result.token_ids)
    return [lengths[request.request_id] for request in prepared], time.perf_counter() - started


def show(report: StructuredReport, console: Console | None = None) -> None:
    console = console or open_console()
    masks = sorted(report.mask_us)
    ratio = report.speed / report.speed_without
    console.print(
        f"{report.num_requests} schemas, {report.repeats} times, {report.num_tokens} tokens: {report.num_invalid} invalid, "
        f"at most {report.most_distinct} distinct answer{'s' * (report.most_distinct != 1)} per request"
    )
    console.print(
        f"mask: median {statistics.median(masks):.0f} µs, 99 % under {masks[len(masks) * 99 // 100]:.0f} µs; 8 streams: "
        f"{report.speed:.1f} tok/s with a schema, {report.speed_without:.1f} without ({ratio:.2f})"
    )
