"""The structured output benchmark: deterministic JSON-schema requests among ordinary ones."""

import json
import random

import pytest

from holdfast.bench.speed.structured import conforms, draw_schema, run
from holdfast.bench.tiny import tiny_engine
from holdfast.engine.config import EngineConfig
from holdfast.scheduler.policy import DeterminismMode
from support.grammar_walks import needs_llguidance


@needs_llguidance
@pytest.mark.parametrize(
    ("mode", "count"),
    [
        ("auto", 60),
        ("verify", 25),
        pytest.param("auto", 200, marks=pytest.mark.long),
    ],
)
def test_answers_conform_to_their_schemas_and_repeat(mode: DeterminismMode, count: int) -> None:
    config = EngineConfig(
        dtype="fp32", determinism=mode, max_num_seqs=16, max_pass_tokens=64, kv_memory="4MiB"
    )
    engine = tiny_engine(config)
    report = run(engine, count, 2, lambda _: None)
    assert report.num_invalid == 0
    assert report.most_distinct == 1
    assert len(report.mask_us) > 2 * count and report.num_tokens > 20 * count
    engine.check()


def test_conforms_rejects_every_kind_of_mismatch() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "maxLength": 3},
            "b": {
                "type": "array",
                "items": {"type": "integer", "minimum": 0, "maximum": 9},
                "minItems": 1,
                "maxItems": 2,
            },
            "c": {"enum": ["x", "y"]},
            "d": {"type": "boolean"},
        },
    }
    good = {"a": "abc", "b": [1, 9], "c": "x", "d": True}
    assert conforms(good, schema)
    faults = [
        {"a": "abcd"},
        {"b": []},
        {"b": [10]},
        {"b": [True]},
        {"c": "z"},
        {"d": 1},
        {"e": 0},
        {"a": None},
    ]
    assert not any(conforms({**good, **fault}, schema) for fault in faults)
    assert not conforms({"a": "abc"}, schema)


def test_drawn_schemas_differ() -> None:
    rng = random.Random(1)
    assert len({json.dumps(draw_schema(rng)) for _ in range(50)}) > 40
