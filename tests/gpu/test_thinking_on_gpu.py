"""A thinking model on a GPU: the same answer and thoughts alone and under load, certified and verified."""

from dataclasses import replace
from pathlib import Path

import pytest

from engines import HAS_GPU, answers, default_device, outcome, prompt, scheduled
from holdfast import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.builder import build
from support.thinking_engines import with_guesses
from support.thinking_models import thinker_folder
from thinking.reference import open_reference

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
PARAMS = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, logprobs=2, deterministic=True)


def _open(folder: Path, dtype: str) -> Engine:
    config = EngineConfig(
        str(folder), device=default_device().type, dtype=dtype, max_num_seqs=16, kv_memory="64MiB"
    )
    return build(config)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinker_folder(tmp_path_factory.mktemp("thinker"), sizes=SIZES)


def test_answer_and_thoughts_are_the_same_alone_and_under_load(folder: Path) -> None:
    engine = _open(folder, "bf16" if HAS_GPU else "fp32")
    asked = prompt(75)
    (alone,) = answers(engine, [(asked, PARAMS)])
    assert any(thought.token_ids for thought in alone.thoughts)
    expected = (outcome(alone), alone.thoughts)
    company = [
        (prompt(20 + 9 * seed, seed), replace(PARAMS, deterministic=seed % 2 == 0)) for seed in range(2, 9)
    ]
    no_guesses = {"new_extension": with_guesses(engine.scheduler.config, 0).new_extension}
    for changes in ({}, {"determinism": "verify"}, no_guesses, {"prefix_cache": False}):
        other = scheduled(engine, **changes)
        found = answers(other, [*company[:3], (asked, PARAMS), *company[3:]])[3]
        assert (outcome(found), found.thoughts) == expected, changes


def test_thoughts_equal_the_reference_definition(folder: Path) -> None:
    engine = _open(folder, "fp32")
    reference = open_reference(folder)
    for seed in range(4):
        asked = prompt(30 + 7 * seed, seed)
        (found,) = answers(engine, [(asked, PARAMS)])
        reading = reference.read(reference.start(), [*asked, *found.token_ids[:-1]])
        thoughts = [thought.token_ids for thought in found.thoughts]
        assert thoughts == reading.thoughts[: len(thoughts)]
        assert len(thoughts) == (len(asked) + len(found.token_ids) - 1) // 4
