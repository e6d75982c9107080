"""The CPU speed benchmark: decode speed is the difference of best times."""

import pytest

from holdfast.bench.speed.cpu import DECODE_PROMPT, OWN_VARIANTS, PREFILL, STREAMS, CpuBench, CpuSpeedReport
from holdfast.errors import ConfigError


class ScriptedBench(CpuBench):
    """Times from a list instead of engines: (first token, all tokens) of every round."""

    def __init__(self, rounds: list[tuple[float, float]]) -> None:
        self.report = CpuSpeedReport("a machine", 2, "2.13", "tiny", "bfloat16", "bfloat16", 0, 11)
        self._num_tokens = 11
        self._best = {}
        self._rounds = rounds
        self._asked: dict[tuple[object, ...], int] = {}

    def _seconds(self, variant, streams, prompt_len, num_tokens) -> float:
        if prompt_len == PREFILL:
            return 2.0
        assert prompt_len == DECODE_PROMPT
        key = (variant, streams, num_tokens)
        number = self._asked.setdefault(key, 0)
        self._asked[key] += 1
        return self._rounds[number][num_tokens > 1]


def test_slow_prefill_does_not_raise_decode_speed() -> None:
    bench = ScriptedBench([(1.9, 2.0), (1.0, 2.0), (1.0, 5.0)])  # in the first round the difference is 0.1 s
    report = bench.run(3, lambda text: None)
    names = [report.peer, *(variant.name for variant in OWN_VARIANTS)]
    assert list(report.speed) == names
    for name in names:
        assert report.speed[name]["prefill"] == PREFILL / 2
        for streams in STREAMS:
            assert report.speed[name][str(streams)] == streams * 10 / 1.0


def test_zero_decode_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="num-tokens"):
        ScriptedBench([(1.0, 1.0)]).run(1, lambda text: None)
