"""Deterministic requests with JSON schemas among ordinary ones: answers conform, and are the same each time."""

import json
import random
from typing import Any

import jsonschema
import pytest

from holdfast.bench.stress import submit
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.scheduler.policy import DeterminismMode
from support.grammar_walks import needs_llguidance
from support.tiny import tiny_engine

WORDS = ("name", "city", "age", "active", "tags", "score", "kind", "notes", "parts", "owner", "size", "when")


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
    names = rng.sample(WORDS, rng.randint(1, 3))
    properties = {name: draw_schema(rng, depth + 1) for name in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def run_among_others(engine: Engine, schemas: list[dict[str, Any]], rng: random.Random) -> dict[int, Result]:
    """The answers by the number of their schema. Ordinary requests arrive and end beside them."""
    waiting = rng.sample(range(len(schemas)), len(schemas))
    numbers: dict[int, int] = {}
    results: dict[int, Result] = {}
    while waiting or engine.has_work:
        for _ in range(min(len(waiting), rng.randint(0, 4))):
            number = waiting.pop()
            params = SamplingParams(
                max_tokens=400,
                temperature=0.8 * (number % 2),
                seed=number,
                deterministic=True,
                structured=StructuredOutput(json_schema=schemas[number]),
            )
            numbers[submit(engine, f"Number {number} as JSON:\n", params)] = number
        if waiting and rng.random() < 0.3:
            ids = [rng.randrange(3, 300) for _ in range(rng.randint(1, 60))]
            submit(engine, ids, SamplingParams(max_tokens=rng.randint(1, 40), ignore_eos=True))
        for update in engine.step():
            if update.result is not None and update.request_id in numbers:
                results[numbers[update.request_id]] = update.result
    return results


@needs_llguidance
@pytest.mark.parametrize(
    ("mode", "count"), [("auto", 30), ("verify", 15), pytest.param("auto", 200, marks=pytest.mark.long)]
)
def test_answers_conform_to_their_schemas_and_repeat(mode: DeterminismMode, count: int) -> None:
    rng = random.Random(0)
    schemas = [draw_schema(rng) for _ in range(count)]
    engine = tiny_engine(
        EngineConfig(dtype="fp32", determinism=mode, max_num_seqs=16, max_pass_tokens=64, kv_memory="4MiB")
    )
    answers: list[dict[int, str]] = []
    for _ in range(2):
        engine = engine.restarted(engine.scheduler.config)
        results = run_among_others(engine, schemas, rng)
        engine.check()
        for number, result in results.items():
            assert result.choices[0].finish_reason == "stop"
            jsonschema.validate(json.loads(result.text), schemas[number])
        answers.append({number: result.text for number, result in results.items()})
    assert answers[0] == answers[1] and len(answers[0]) == count
