"""Checks that every result must pass: its counters, logprobs and structured output, and that
features have an effect.
"""

import json
import re
import struct
from dataclasses import replace

import jsonschema

from holdfast.bench.features import Feature
from holdfast.bench.load import ProbeRequest
from holdfast.bench.stress import result_bits
from holdfast.core.results import Result
from holdfast.core.sampling_params import score_params
from holdfast.core.step_plan import TokenLogprob
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.engine import Engine
from support import stepping

REPORTS = ("logprobs", "named logprobs", "prompt logprobs", "echo")
GRAMMAR = r"[a-z]{2,4}( [a-z]{2,4}){2,5}\."  # equivalent to the grammar of the features


def with_logprobs(probe: ProbeRequest) -> ProbeRequest:
    """The same request with the logprobs of the sampled tokens."""
    return replace(probe, params=replace(probe.params, logprobs=probe.params.logprobs or 0))


def assert_counts(result: Result) -> None:
    stats = result.stats
    assert stats.candidates == stats.accepted + stats.rolled_back
    assert num_tokens(result) == stats.accepted + stats.canonical_tokens
    assert stats.rollbacks <= stats.windows


def assert_has_effect(feature: Feature, given: Result, without: Result) -> None:
    """The result with the feature differs from the result without it."""
    assert given.error is None
    assert result_bits(given) != result_bits(without), feature.name
    if feature.name in REPORTS:  # reports do not change the tokens
        assert given.token_ids == without.token_ids
    if feature.name in ("n", "scores only"):
        assert [choice.token_ids for choice in given.choices] != [
            choice.token_ids for choice in without.choices
        ]
    elif feature.name not in REPORTS:
        assert given.token_ids != without.token_ids, feature.name


def num_tokens(result: Result) -> int:
    return sum(len(choice.token_ids) for choice in result.choices)


def assert_scores_match(engine: Engine, probe: ProbeRequest, result: Result) -> None:
    """Every logprob has the bits it gets when the answer is scored in one request."""
    for choice in result.choices:
        if choice.token_ids:
            assert choice.logprobs is not None
            assert _bits(choice.logprobs) == _bits(_score(engine, probe.prompt, choice.token_ids))


def count_conforming(engine: Engine, probe: ProbeRequest, result: Result) -> int:
    """The number of choices that ended by themselves. Each must conform to its structured output."""
    structured, ends = probe.params.structured, engine.limits.eos_ids
    if structured is None:
        return 0
    echoed = engine.tokenizer.decode(probe.prompt) if probe.params.echo else ""
    complete = [choice for choice in result.choices if ends.intersection(choice.token_ids[-1:])]
    for choice in complete:
        assert choice.finish_reason == "stop"
        assert _conforms(choice.text.removeprefix(echoed), structured), choice.text
    return len(complete)


def _conforms(text: str, structured: StructuredOutput) -> bool:
    if structured.json_schema is not None:
        jsonschema.validate(json.loads(text), json.loads(str(structured.json_schema)))
        return True
    if structured.json_object:
        return isinstance(json.loads(text), dict)
    if structured.choice is not None:
        return text in structured.texts
    return re.fullmatch(structured.regex or GRAMMAR, text) is not None


def _score(engine: Engine, prompt: tuple[int, ...], answer: tuple[int, ...]) -> list[TokenLogprob]:
    engine = engine.restarted(engine.scheduler.config)
    request = engine.prepare(prompt, score_params(deterministic=True), completion=answer)
    (result,) = stepping.answer(engine, [request])
    return [one for one in result.prompt_logprobs or () if one is not None]


def _bits(logprobs: tuple[TokenLogprob, ...] | list[TokenLogprob]) -> list[tuple[int, bytes]]:
    return [(one.token_id, struct.pack("<f", one.logprob)) for one in logprobs]
