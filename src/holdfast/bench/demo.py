"""The demo: one request, answered several times under different conditions, compared bit by bit.

    ordinary                  alone and inside two loads: the answers may differ
    deterministic             alone and inside two loads: ordinary requests arrive and end during the answer
                              and share its passes
    after forced rollbacks    in verify mode, with faulty candidates: the canonical pass must reject every one

Where the ordinary answers agree, as those of the C kernels do by construction, the demo shows a
recording of a machine where they do not. It says so.

Faults are injected by a runner around the engine's runner (`faults.py`). The engine does not know
about them.
"""

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from holdfast.bench.load import BackgroundRequest, ProbeRequest, StressLoad
from holdfast.bench.stress import run_in_load
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.engine.llm.llm import LLM
from holdfast.recordings import recording_files
from holdfast.scheduler.policy import SchedulerConfig
from holdfast.text.tokenizer import Tokenizer

QUESTION = "In two sentences: what does a holdfast do for seaweed?"
PARAMS = SamplingParams(max_tokens=40, temperature=0.8, top_p=0.95, seed=7, logprobs=3)
FAULT_RATE, FAULT_SEED = 0.25, 1  # the first candidate is a fault already: a short answer has a rollback, too

_SHORT = ("Name three rivers.", "Write one line about the sea.", "Count from one to ten.", "What is a knot?")
_LONG = "The tide went out and left the rocks bare, and on every rock the weed held fast. "


@dataclass(frozen=True)
class DemoRun:
    name: str
    result: Result

    @property
    def bits(self) -> tuple[str, str]:
        return self.tokens, self.logprob_bits

    @property
    def tokens(self) -> str:
        return _digest(struct.pack(f"<{len(self.result.token_ids)}q", *self.result.token_ids))

    @property
    def logprob_bits(self) -> str:
        """A digest of the fp32 bits of every reported logprob: of sampled and of top tokens."""
        values = [
            value
            for one in self.result.logprobs or ()
            for value in (one.logprob, *(logprob for _, logprob in one.top))
        ]
        return _digest(struct.pack(f"<{len(values)}f", *values))


def run(llm: LLM, console: Console | None = None) -> bool:
    """Run and show the demo. True if every deterministic bit is the same and rollbacks did happen."""
    console = console or Console(highlight=False)
    prompt_ids = llm.chat_tokens([{"role": "user", "content": QUESTION}])
    with console.status("answering"):
        ordinary = _run_ordinary(llm.engine, prompt_ids)
        runs = _run_deterministic(llm.engine, prompt_ids)
    _show(ordinary, runs, console)
    _judge_ordinary(ordinary, console)
    same = all(one.bits == runs[0].bits for one in runs)
    forced = all(one.result.stats.rolled_back > 0 for one in runs if "rollback" in one.name)
    if not same:
        console.print("[red]The answers differ: this is a bug in Holdfast, please report it.[/]")
    elif not forced:
        console.print("[red]No rollback happened, so the last rows show nothing.[/]")
    else:
        console.print("[green]Deterministic: every token and every logprob bit is the same.[/]")
    console.print("Next: .venv/bin/holdfast chat --deterministic")
    return same and forced


def _judge_ordinary(runs: Sequence[DemoRun], console: Console) -> None:
    """Say whether the ordinary answers differ; if not, show recordings of machines where they do."""
    alone = runs[0]
    if len({one.tokens for one in runs}) > 1:
        console.print("[yellow]Ordinary: under load the same prompt and seed gave other tokens.[/]")
    elif any(one.bits != alone.bits for one in runs):
        console.print("[yellow]Ordinary: under load the same tokens got other logprob bits.[/]")
    else:
        console.print(
            "Ordinary: this machine's kernels gave the same bits under these loads, without a promise."
        )
        for recording in map(json.loads, recording_files()):
            console.print("\nElsewhere they differ. Not live:", style="bold")
            _show_recording(recording, console)
        console.print()


def _show_recording(recording: dict[str, Any], console: Console) -> None:
    """Show where it was made, and how many answers each mode gave."""
    machine, model = recording["machine"], recording["model"]
    weights = ", random weights" if model["weights"] == "random" else ""
    where = (
        f"Recorded on {recording['date']} on {machine['device']}: {model['name']}{weights}, {model['dtype']}"
    )
    console.print(f"{where}, {model['kernels']} kernels, torch {machine['torch']}", style="dim")
    for side in (recording["ordinary"], *recording["controls"]):
        what = f"deterministic ({side['mode']})" if side["deterministic"] else "ordinary"
        count = len(side["answers"])
        answers = "1 answer" if count == 1 else f"{count} different answers"
        console.print(f"{what}: {side['runs']} runs among other requests, {answers}")


def _loads(tokenizer: Tokenizer) -> list[tuple[str, list[BackgroundRequest]]]:
    return [
        ("alone", []),
        ("among 6 short", _short_load(tokenizer)),
        ("among 12 mixed", _mixed_load(tokenizer)),
    ]


def _run_ordinary(engine: Engine, prompt_ids: list[int]) -> list[DemoRun]:
    """Run without prefix cache and speculation, so that only the load differs."""
    schedule = replace(engine.scheduler.config, prefix_cache=False, speculation="off")
    return [
        DemoRun(name, _run_in(engine, schedule, prompt_ids, load, deterministic=False))
        for name, load in _loads(engine.tokenizer)
    ]


def _run_deterministic(engine: Engine, prompt_ids: list[int]) -> list[DemoRun]:
    loads, usual = _loads(engine.tokenizer), engine.scheduler.config
    runs = [DemoRun(name, _run_in(engine, usual, prompt_ids, load)) for name, load in loads]
    verifying = replace(usual, determinism="verify")
    for name, load in (("rollbacks, alone", []), ("rollbacks, among 6", loads[1][1])):
        runs.append(DemoRun(name, _run_in(engine, verifying, prompt_ids, load, fault_rate=FAULT_RATE)))
    return runs


def _run_in(
    engine: Engine,
    schedule: SchedulerConfig,
    prompt_ids: Sequence[int],
    load: Sequence[BackgroundRequest],
    *,
    deterministic: bool = True,
    fault_rate: float = 0.0,
) -> Result:
    """Answer the question inside a load, which runs already when the question arrives."""
    arrival, num_pages = 2 * bool(load), engine.scheduler.pool.num_pages
    conditions = StressLoad(tuple(load), arrival, 0, schedule, num_pages, fault_rate, FAULT_SEED)
    probe = ProbeRequest(tuple(prompt_ids), replace(PARAMS, deterministic=deterministic))
    return run_in_load(engine, conditions, probe).result


def _short_load(tokenizer: Tokenizer) -> list[BackgroundRequest]:
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=1)
    return [
        BackgroundRequest(tuple(tokenizer.encode(_SHORT[number % len(_SHORT)])), params, 3 * number)
        for number in range(6)
    ]


def _mixed_load(tokenizer: Tokenizer) -> list[BackgroundRequest]:
    """Return twelve requests of all lengths. The long ones arrive in the middle of the answer."""
    return [
        BackgroundRequest(
            tuple(tokenizer.encode(_LONG * (1 + 2 * (number % 4)) + _SHORT[number % len(_SHORT)])),
            SamplingParams(max_tokens=8 + 3 * number, temperature=0.5 * (number % 3), seed=number),
            arrival_step=2 * number,
        )
        for number in range(12)
    ]


def _show(ordinary: Sequence[DemoRun], deterministic: Sequence[DemoRun], console: Console) -> None:
    first = deterministic[0]
    title = f"{QUESTION!r}, sampled with seed {first.result.seed}"
    headings = (
        "condition",
        "tokens",
        "logprobs",
        "all bits",
        "mode",
        "candidates\n= accepted\n+ rolled back",
    )
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    for one in ordinary:
        verdict = "[green]same[/]" if one.bits == ordinary[0].bits else "[yellow]different[/]"
        table.add_row(one.name, one.tokens, one.logprob_bits, verdict, "ordinary", "")
    table.add_section()
    for one in deterministic:
        verdict = "[green]same[/]" if one.bits == first.bits else "[red]DIFFERENT[/]"
        stats = one.result.stats
        counts = f"{stats.candidates} = {stats.accepted} + {stats.rolled_back}"
        table.add_row(one.name, one.tokens, one.logprob_bits, verdict, one.result.determinism, counts)
    console.print(table)
    console.print("tokens, logprobs: digests of token ids and of the fp32 bits of every logprob", style="dim")
    console.print(f"{len(first.result.token_ids)} tokens: {first.result.text.strip()}\n", markup=False)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]
