"""Speed on a GPU: many requests at once over random weights, all variants in turn, round after round.

deterministic, auto     every request with the guarantee, committed by certificate
ordinary, auto          the same engine, nobody asks for the guarantee
ordinary, off           the guarantee off, the library's plain products
deterministic, verify   plain candidates, every one of them verified
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.bench.gpu.engines import Twins
from holdfast.bench.gpu.report import Desk, Speed, SpeedRow
from holdfast.bench.gpu.settings import GpuSettings
from holdfast.bench.gpu.timing import Timing, draw_prompts, run_once
from holdfast.scheduler.policy import DeterminismMode


@dataclass(frozen=True)
class Variant:
    """One way to run the same work."""

    name: str
    mode: DeterminismMode
    deterministic: bool
    plain: bool = False  # fast passes by the library's own products


AUTO = Variant("deterministic, auto", "auto", True)
ORDINARY = Variant("ordinary, auto", "auto", False)
OFF = Variant("ordinary, off", "off", False, plain=True)
VERIFY = Variant("deterministic, verify", "verify", True)
VERIFY_PLAIN = Variant("deterministic, verify, plain candidates", "verify", True, plain=True)
VARIANTS = (AUTO, ORDINARY, OFF)


class SpeedBench:
    """The cells of one shape."""

    def __init__(self, twins: Twins, speed: Speed, settings: GpuSettings, desk: Desk) -> None:
        self._twins = twins
        self._speed = speed
        self._settings = settings
        self._desk = desk
        self._rng = random.Random(0)

    def run(self, streams: Sequence[int], variants: Sequence[Variant]) -> None:
        """Every variant at every number of streams, so many rounds in turn; the clock may end it."""
        for number in range(self._settings.rounds):
            for count in streams:
                for variant in variants:
                    if self._desk.is_late:
                        self._speed.cut_off = True
                        return
                    self._run_cell(number, count, variant)
                    self._desk.save()

    def run_prefill(self, variants: Sequence[Variant]) -> None:
        """Several prompts at once to their first tokens; the best round counts."""
        speed, streams = self._speed, self._settings.prefill_streams
        speed.prefill_tokens = streams * speed.prompt_len
        for number in range(self._settings.rounds + 1):  # the first is to warm up
            for variant in variants:
                timing = self._time(variant, streams, 1)
                if number:
                    best = max(speed.prefill.get(variant.name, 0.0), timing.prefill_speed)
                    speed.prefill[variant.name] = best
        self._desk.tell(f"{speed.model}: prefill {_figures(speed.prefill)} tok/s")
        self._desk.save()

    def _run_cell(self, number: int, streams: int, variant: Variant) -> None:
        speed = self._speed
        if number == 0:
            self._time(variant, streams, self._settings.warm_tokens)
        timing = self._time(variant, streams, speed.num_tokens)
        row = speed.row(variant.name, streams)
        if row is None:
            row = SpeedRow(variant.name, streams, 0.0, None)
            speed.rows.append(row)
        row.rounds.append(timing.speed)
        row.speed = max(row.rounds)
        if timing.step_ms is not None:
            row.step_ms = timing.step_ms if row.step_ms is None else min(row.step_ms, timing.step_ms)
        row.candidates += timing.candidates
        row.rolled_back += timing.rolled_back
        row.revocations += timing.revocations
        step = f", {timing.step_ms:.2f} ms a step" if timing.step_ms is not None else ""
        self._desk.tell(
            f"{speed.model}, round {number + 1}, N = {streams}, {variant.name}: {timing.speed:,.0f} tok/s{step}"
        )

    def _time(self, variant: Variant, streams: int, num_tokens: int) -> Timing:
        engine = self._twins.engine(variant.mode, plain=variant.plain)
        vocab = engine.limits.vocab_size
        prompts = draw_prompts(self._rng, streams, self._speed.prompt_len, vocab)
        return run_once(engine, prompts, num_tokens, deterministic=variant.deterministic)


def _figures(by_variant: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.0f}" for name, value in by_variant.items())


def run_speed(twins: Twins, model: str, settings: GpuSettings, desk: Desk, name: str) -> Speed:
    """The main table: all streams, the three variants, and prefill."""
    speed = Speed(model, settings.dtype, settings.prompt_len, settings.num_tokens)
    desk.report.sections[name] = speed
    bench = SpeedBench(twins, speed, settings, desk)
    bench.run_prefill(VARIANTS)
    bench.run(settings.streams if name == "speed" else settings.small_streams, VARIANTS)
    return speed


def run_verify(twins: Twins, model: str, settings: GpuSettings, desk: Desk) -> Speed:
    """Long prompts, long answers, all verified, beside the engines that verify nothing."""
    speed = Speed(model, settings.dtype, settings.verify_prompt_len, settings.verify_tokens)
    desk.report.sections["verify"] = speed
    SpeedBench(twins, speed, settings, desk).run(
        (settings.verify_streams,), (VERIFY, VERIFY_PLAIN, OFF, AUTO)
    )
    return speed
