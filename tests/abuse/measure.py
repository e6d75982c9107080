"""Measures what an attack costs an honest client: quiet, attacked and quiet again, in one run."""

import time
from collections import Counter
from dataclasses import dataclass, replace
from statistics import median

from abuse.attacker import Attacker
from abuse.attacks import ATTACKS
from abuse.honest import Honest, Timings
from abuse.wire import LEFT, LOST, Target


@dataclass(frozen=True)
class Form:
    """How long and how hard. index: which of an attack's `num_clients` counts."""

    index: int
    num_probes: int
    seconds: float  # of the attack
    ramp: float  # seconds of it before the first probe


SHORT = Form(index=0, num_probes=4, seconds=1.2, ramp=0.1)
LONG = Form(index=1, num_probes=25, seconds=8.0, ramp=1.0)


@dataclass(frozen=True)
class Outcome:
    """What one attack did."""

    name: str
    num_hostile: int
    quiet: float  # p50 in seconds
    attacked: float  # p50 during the attack
    worst: float
    after: float  # the first probe after the clients left
    num_probes: int
    num_refused: int
    statuses: Counter[int]  # of the attacker's requests
    step: float

    @property
    def factor(self) -> float:
        return self.attacked / self.quiet

    @property
    def limit(self) -> float:
        """Seconds: 3 times the quiet value against one or two hostile tenants, k + 1 times against k,
        and one step."""
        return max(3, self.num_hostile + 1) * self.quiet + self.step

    def row(self) -> str:
        got = ", ".join(f"{_name(status)} {num}" for status, num in sorted(self.statuses.items()))
        return (
            f"| {self.name} | {self.num_hostile} | {self.quiet * 1e3:.0f} | {self.attacked * 1e3:.0f} "
            f"| {self.factor:.1f} | {self.limit * 1e3:.0f} | {self.worst * 1e3:.0f} | {self.after * 1e3:.0f} "
            f"| {self.num_refused} of {self.num_probes} | {got} |"
        )


HEADER = (
    "| attack | tenants | quiet ms | p50 ms | factor | limit ms | worst ms | first after ms | refused "
    "| attacker got |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def _name(status: int) -> str:
    return {LOST: "lost", LEFT: "left"}.get(status, str(status))


def measure(
    name: str, honest: Honest, hostile: list[Target], attacker: Attacker, form: Form, probe: str | None = None
) -> Outcome:
    """Probe, attack and probe, probe again."""
    attack = ATTACKS[name]
    kind = probe or attack.probe
    targets = [replace(one, key=None) if attack.without_key else one for one in hostile]
    honest.probe(kind)  # what only the first request costs: connections, compiled forms
    before = honest.probes(kind, form.num_probes, form.seconds)
    attacker.begin(name, targets, attack.num_clients[form.index], form.seconds + form.ramp + honest.patience)
    try:
        time.sleep(form.ramp)
        attacked = honest.probes(kind, form.num_probes, form.seconds)
    finally:
        statuses = attacker.end()
    after = honest.probes(kind, form.num_probes + 1, form.seconds)
    quiet = Timings(before.seconds + after.seconds[1:], before.statuses + after.statuses[1:])
    return Outcome(
        name,
        len(hostile),
        quiet.p50 if quiet.seconds else attacked.p50,
        attacked.p50,
        max(attacked.seconds),
        after.seconds[0],
        len(attacked.seconds) + 1,
        attacked.num_refused + (after.statuses[0] != 200),
        statuses,
        one_step(honest),
    )


def one_step(honest: Honest, num: int = 3) -> float:
    """Seconds of a step that is full: a new prompt of 512 tokens and one token of the answer."""
    seconds = []
    for at in range(num):
        ids = [5 + (at * 31 + place * 7 + time.monotonic_ns()) % 250 for place in range(500)]
        began = time.perf_counter()
        honest.send("/v1/completions", {"prompt": ids, "max_tokens": 1})
        seconds.append(time.perf_counter() - began)
    return median(seconds)
