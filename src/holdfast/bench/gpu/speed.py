"""Speed on a GPU: concurrent requests over random weights.

All variants run in turn, round after round.

deterministic, auto     all requests deterministic, committed by certificate
ordinary, auto          the same engine, no request deterministic
ordinary, off           determinism off, the library's plain products
deterministic, verify   every candidate is verified
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.bench.gpu.engines import EnginePair
from holdfast.bench.gpu.report import SectionContext, SpeedRow, SpeedSection
from holdfast.bench.gpu.settings import GpuSettings
from holdfast.bench.gpu.timing import Timing, draw_prompts, run_once
from holdfast.scheduler.policy import DeterminismMode


@dataclass(frozen=True)
class GpuVariant:
    """One way to run the same work."""

    name: str
    mode: DeterminismMode
    deterministic: bool
    plain: bool = False  # fast passes use the library's own products


AUTO = GpuVariant("deterministic, auto", "auto", True)
ORDINARY = GpuVariant("ordinary, auto", "auto", False)
OFF = GpuVariant("ordinary, off", "off", False, plain=True)
VERIFY = GpuVariant("deterministic, verify", "verify", True)
VERIFY_PLAIN = GpuVariant("deterministic, verify, plain candidates", "verify", True, plain=True)
VARIANTS = (AUTO, ORDINARY, OFF)


class SpeedBench:
    """Measures one section of one model."""

    def __init__(
        self, pair: EnginePair, speed: SpeedSection, settings: GpuSettings, context: SectionContext
    ) -> None:
        self._pair = pair
        self._speed = speed
        self._settings = settings
        self._context = context
        self._rng = random.Random(0)

    def run(self, streams: Sequence[int], variants: Sequence[GpuVariant]) -> None:
        """Every variant at every number of streams, round after round, until the time is over."""
        for number in range(self._settings.rounds):
            for count in streams:
                for variant in variants:
                    if self._context.is_over_time:
                        self._speed.cut_off = True
                        return
                    self._run_cell(number, count, variant)
                    self._context.save()

    def run_prefill(self, variants: Sequence[GpuVariant]) -> None:
        """Several prompts at once, until each has its first token. The best round counts."""
        speed, streams = self._speed, self._settings.prefill_streams
        speed.prefill_tokens = streams * speed.prompt_len
        for number in range(self._settings.rounds + 1):  # the first one warms up
            for variant in variants:
                timing = self._time(variant, streams, 1)
                if number:
                    best = max(speed.prefill.get(variant.name, 0.0), timing.prefill_speed)
                    speed.prefill[variant.name] = best
        self._context.log(f"{speed.model}: prefill {_figures(speed.prefill)} tok/s")
        self._context.save()

    def _run_cell(self, number: int, streams: int, variant: GpuVariant) -> None:
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
        step = f", {timing.step_ms:.2f} ms per step" if timing.step_ms is not None else ""
        self._context.log(
            f"{speed.model}, round {number + 1}, N = {streams}, {variant.name}: {timing.speed:,.0f} tok/s{step}"
        )

    def _time(self, variant: GpuVariant, streams: int, num_tokens: int) -> Timing:
        engine = self._pair.engine(variant.mode, plain=variant.plain)
        vocab = engine.limits.vocab_size
        prompts = draw_prompts(self._rng, streams, self._speed.prompt_len, vocab)
        return run_once(engine, prompts, num_tokens, deterministic=variant.deterministic)


def _figures(by_variant: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.0f}" for name, value in by_variant.items())


def run_speed(
    pair: EnginePair, model: str, settings: GpuSettings, context: SectionContext, name: str
) -> SpeedSection:
    """The sections `speed` and `small`: three variants at all numbers of streams, and prefill."""
    speed = SpeedSection(model, settings.dtype, settings.prompt_len, settings.num_tokens)
    context.report.sections[name] = speed
    bench = SpeedBench(pair, speed, settings, context)
    bench.run_prefill(VARIANTS)
    bench.run(settings.streams if name == "speed" else settings.small_streams, VARIANTS)
    return speed


def run_verify(pair: EnginePair, model: str, settings: GpuSettings, context: SectionContext) -> SpeedSection:
    """The section `verify`: long prompts and answers, verified, against variants that verify
    nothing.
    """
    speed = SpeedSection(model, settings.dtype, settings.verify_prompt_len, settings.verify_tokens)
    context.report.sections["verify"] = speed
    SpeedBench(pair, speed, settings, context).run(
        (settings.verify_streams,), (VERIFY, VERIFY_PLAIN, OFF, AUTO)
    )
    return speed
