"""The demonstration: one deterministic prompt, answered again and again under changing circumstances, compared bit by bit.

    alone                     nothing else runs
    two loads                 ordinary requests come and go around it, and share its passes
    after forced rollbacks    in verify mode, with a proposer that lies: the canonical pass must catch every lie

The lies are told by a runner around the engine's runner (`lies.py`). The engine itself knows nothing of them.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from holdfast.bench.determinism.fault_injection import FaultyProposer
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.engine.llm import LLM

QUESTION = "In two sentences: what does a holdfast do for seaweed?"
PARAMS = SamplingParams(max_tokens=40, temperature=0.8, top_p=0.95, seed=7, logprobs=3, deterministic=True)
LIE_CHANCE, LIE_SEED = 0.25, 1  # the first candidate is a lie already: a short answer has its rollback, too

_SHORT = ("Name three rivers.", "Write one line about the sea.", "Count from one to ten.", "What is a knot?")
_LONG = "The tide went out and left the rocks bare, and on every rock the weed held fast. "


@dataclass(frozen=True)
class Neighbour:
    """An ordinary request that arrives at a step of the engine."""

    arrives: int
    prompt: str
    params: SamplingParams


@dataclass(frozen=True)
class Run:
    """One answer to the question, and under which circumstances it was given."""

    name: str
    result: Result

    @property
    def tokens(self) -> str:
        """A digest of the token ids."""
        return _digest(struct.pack(f"<{len(self.result.token_ids)}q", *self.result.token_ids))

    @property
    def logprob_bits(self) -> str:
        """A digest of the fp32 bits of every logprob reported: the chosen token's and the best ones'."""
        values = [
            value
            for one in self.result.logprobs or ()
            for value in (one.logprob, *(logprob for _, logprob in one.top))
        ]
        return _digest(struct.pack(f"<{len(values)}f", *values))


def run(llm: LLM, console: Console | None = None) -> bool:
    """Answer, compare, show. True if every bit is the same and the rollbacks did happen."""
    console = console or Console(highlight=False)
    prompt_ids = llm.chat_tokens([{"role": "user", "content": QUESTION}])
    runs = _answer_everywhere(llm, prompt_ids, console)
    reference = runs[0]
    _show(runs, console)
    same = all((one.tokens, one.logprob_bits) == (reference.tokens, reference.logprob_bits) for one in runs)
    forced = all(one.result.stats.rolled_back > 0 for one in runs if "rollback" in one.name)
    if not same:
        console.print("[red]The answers differ: this is a bug in Holdfast, please report it.[/]")
    elif not forced:
        console.print("[red]No rollback happened, so the last rows show nothing.[/]")
    else:
        console.print("[green]Every token and every logprob bit is the same.[/]")
    console.print("Next: .venv/bin/holdfast chat --deterministic")
    return same and forced


def _answer_everywhere(llm: LLM, prompt_ids: list[int], console: Console) -> list[Run]:
    runs = []
    engine = llm.engine
    with console.status("answering"):
        for name, load in (
            ("alone", []),
            ("among 6 short", _short_load()),
            ("among 12 mixed", _mixed_load()),
        ):
            runs.append(Run(name, _ask(engine, prompt_ids, load)))
        verifying = engine.restarted(replace(engine.scheduler.config, determinism="verify"))
        for name, load in (("rollbacks, alone", []), ("rollbacks, among 6", _short_load())):
            verifying.runner = FaultyProposer(
                engine.runner, engine.limits.vocab_size, LIE_CHANCE, seed=LIE_SEED
            )
            runs.append(Run(name, _ask(verifying, prompt_ids, load)))
        llm.engine = verifying.restarted(engine.scheduler.config)
        llm.engine.runner = engine.runner
    return runs


def _ask(engine: Engine, prompt_ids: Sequence[int], load: Sequence[Neighbour]) -> Result:
    """The question inside a load. Neighbours still running when it is answered are sent away."""
    waiting = sorted(load, key=lambda neighbour: neighbour.arrives)
    others: list[int] = []
    wanted: int | None = None
    step = 0
    while True:
        while waiting and waiting[0].arrives <= step:
            neighbour = waiting.pop(0)
            others.append(_submit(engine, neighbour.prompt, neighbour.params))
        if wanted is None and step >= 2 * bool(load):  # into a load that is running already
            wanted = _submit(engine, prompt_ids, PARAMS)
        for update in engine.step():
            if update.request_id == wanted and update.result is not None:
                for request_id in others:
                    engine.abort(request_id)
                engine.check()
                return update.result
        step += 1


def _submit(engine: Engine, prompt: str | Sequence[int], params: SamplingParams) -> int:
    request = engine.prepare(prompt, params)
    engine.submit(request)
    return request.request_id


def _short_load() -> list[Neighbour]:
    """Six that chat along."""
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=1)
    return [Neighbour(3 * number, _SHORT[number % len(_SHORT)], params) for number in range(6)]


def _mixed_load() -> list[Neighbour]:
    """Twelve of all lengths, greedy and sampled, the long ones arriving in the middle of the answer."""
    return [
        Neighbour(
            arrives=2 * number,
            prompt=_LONG * (1 + 2 * (number % 4)) + _SHORT[number % len(_SHORT)],
            params=SamplingParams(max_tokens=8 + 3 * number, temperature=0.5 * (number % 3), seed=number),
        )
        for number in range(12)
    ]


def _show(runs: Sequence[Run], console: Console) -> None:
    first = runs[0]
    title = f"{QUESTION!r}, sampled with seed {first.result.seed}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("asked", "tokens", "logprobs", "all bits", "mode"):
        table.add_column(heading, no_wrap=True)
    table.add_column("candidates\n= accepted\n+ rolled back", no_wrap=True)
    for one in runs:
        same = (one.tokens, one.logprob_bits) == (first.tokens, first.logprob_bits)
        verdict = "[green]same[/]" if same else "[red]DIFFERENT[/]"
        stats = one.result.stats
        counts = f"{stats.candidates} = {stats.accepted} + {stats.rolled_back}"
        table.add_row(one.name, one.tokens, one.logprob_bits, verdict, one.result.determinism, counts)
    console.print(table)
    console.print("tokens, logprobs: digests of token ids and of the fp32 bits of every logprob", style="dim")
    console.print(f"{len(first.result.token_ids)} tokens: {first.result.text.strip()}\n", markup=False)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]
