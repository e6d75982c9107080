"""All attacks on this machine, in turn, and the report."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from holdfast.bench.determinism.adversary.certificates import (
    FIVE_LAYERS,
    attack_nan_rows,
    attack_shared_certificate,
    attack_unseen_layers,
    attack_weights,
)
from holdfast.bench.determinism.adversary.environments import attack_environments
from holdfast.bench.determinism.adversary.evidence import AttackResult, Evidence
from holdfast.bench.determinism.adversary.live import attack_live_engine
from holdfast.bench.determinism.adversary.models import HOSTILE_SHAPES, HOSTILE_WEIGHTS, Target
from holdfast.bench.determinism.adversary.schedules import attack_edges, attack_long_life, attack_preemption
from holdfast.bench.determinism.adversary.settings import SETTINGS, attack_setting
from holdfast.bench.determinism.adversary.threads import (
    attack_built_elsewhere,
    attack_side_by_side,
    attack_submitters,
    attack_toggled,
    attack_turns,
    thread_settings,
)
from holdfast.bench.machine import machine_name
from holdfast.engine.engine import Engine
from holdfast.errors import ConfigError
from holdfast.numerics.backends.c.kernels import load_kernels
from holdfast.numerics.recipe import KernelBackend

Attack = Callable[[], Evidence]

TARGETS: tuple[tuple[KernelBackend, str], ...] = (
    ("c", "fp32"),
    ("c", "bf16"),
    ("torch", "fp32"),
    ("torch", "bf16"),
)
_HALF_PRECISION: tuple[tuple[KernelBackend, str], ...] = (("c", "fp16"), ("torch", "fp16"))


@dataclass(frozen=True)
class CampaignScale:
    """How much of everything: random loads for each question, tokens of a long life, and so on."""

    num_loads: int = 8
    num_rounds: int = 12
    num_requests: int = 200
    num_tokens: int = 20_000
    num_jobs: int = 1
    num_threads: int | None = None


@dataclass
class AdversaryReport:
    """What `--save` writes."""

    machine: str
    model: str
    seconds: float = 0.0
    attacks: list[AttackResult] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not any(one.verdict == "broken" for one in self.attacks)


def run_campaign(
    engine: Engine, model: str, scale: CampaignScale, log: Callable[[str], None]
) -> AdversaryReport:
    """Attack the given model, then tiny models on every backend and dtype of this CPU."""
    report, started = AdversaryReport(machine_name(), model), time.monotonic()
    for name, attack in _attacks(engine, model, scale):
        log(name)
        try:
            report.attacks.append(attack().result())
        except Exception as error:  # the other attacks go on
            remark = f"{type(error).__name__}: {error}"
            report.attacks.append(AttackResult(name, "", 0, 0, 0, 0, "broken", remark))
    report.seconds = round(time.monotonic() - started, 1)
    return report


def _attacks(engine: Engine, model: str, scale: CampaignScale) -> Iterator[tuple[str, Attack]]:
    yield from _named(model, attack_live_engine(engine, model, scale.num_rounds))
    for kernels, dtype in (*TARGETS, *_HALF_PRECISION):
        target = Target(kernels, dtype, scale.num_threads)
        reason = _missing(kernels)
        if reason is not None:
            yield target.name, partial(Evidence, "all", target.name, skipped=reason)
        elif (kernels, dtype) in _HALF_PRECISION:
            yield from _named(target.name, [partial(attack_edges, target, scale.num_loads)])
        else:
            yield from _named(target.name, _attacks_on(target, scale))


def _missing(kernels: KernelBackend) -> str | None:
    """Why this machine does not have these kernels."""
    try:
        if kernels == "c":
            load_kernels()
    except ConfigError as error:
        return str(error)
    return None


def _named(target: str, attacks: Sequence[Attack]) -> Iterator[tuple[str, Attack]]:
    for number, attack in enumerate(attacks, 1):
        yield f"{target}: attack {number} of {len(attacks)}", attack


def _attacks_on(target: Target, scale: CampaignScale) -> list[Attack]:
    loads, rounds = scale.num_loads, scale.num_rounds
    return [
        partial(attack_shared_certificate, target, loads),
        partial(attack_unseen_layers, replace(target, shape=FIVE_LAYERS), loads),
        *(partial(attack_weights, target, name, edit, loads) for name, edit in HOSTILE_WEIGHTS.items()),
        partial(attack_nan_rows, target, rounds),
        *(partial(attack_setting, target, setting) for setting in SETTINGS),
        *(partial(attack_built_elsewhere, target, setting) for setting in thread_settings()),
        partial(attack_turns, target, rounds),
        partial(attack_side_by_side, target, rounds),
        partial(attack_toggled, target, rounds),
        partial(attack_submitters, target, scale.num_requests),
        *(_shape_attack(target, name, loads) for name in HOSTILE_SHAPES),
        partial(attack_preemption, target, rounds),
        partial(attack_long_life, target, scale.num_tokens),
        partial(attack_environments, target, num_jobs=scale.num_jobs),
    ]


def _shape_attack(target: Target, name: str, num_loads: int) -> Attack:
    """Page and window edges on a model of another shape."""
    shape = HOSTILE_SHAPES[name]
    window = shape.get("sliding_window")

    def attack() -> Evidence:
        evidence = attack_edges(replace(target, shape=shape), num_loads, window)
        evidence.attack = f"edges: {name}"
        return evidence

    return attack
