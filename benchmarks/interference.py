"""What deterministic requests cost ordinary ones: latencies of ordinary streams with and without them.

    python benchmarks/interference.py --rounds 4 --seconds 20 --out docs/data

The number of streams is always the same. In every second round a quarter of them is deterministic. Rounds
alternate on one server and swap their order, so that a machine that gets slower or faster favours neither. Exits
with 1 if the median of a latency grows by more than its limit.
"""

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path

from holdfast.bench.serve import ServeLoad, connect, percentiles, run_load
from holdfast.errors import EngineStopped
from measure import Bench

LIMITS = {"auto": 1.10, "verify": 1.25}  # of the ratio of medians
_WARM_UP_SECONDS = 5.0
_MIN_REQUESTS = 20  # of each kind of round


async def measure(bench: Bench, model: list[str], mode: str, load: ServeLoad, rounds: int) -> None:
    """Add a row for each latency. A deterministic request costs as much as the ordinary one it replaces: all
    prompts are new."""
    arguments = [*model, "--determinism", mode]
    found: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}
    async with connect(None, arguments) as client:

        async def run_round(number: int, mixed: bool, seconds: float) -> None:
            kinds = [mixed and stream < load.deterministic for stream in range(load.clients)]
            run = await run_load(client, replace(load, seconds=seconds, seed=number), kinds)
            if run.problems:
                raise EngineStopped(f"a request failed, so nothing was measured: {run.problems[0]}")
            if number >= 0:
                for name, values in run.latencies(deterministic=False).items():
                    found[mixed].setdefault(name, []).extend(values)

        await run_round(-1, True, min(_WARM_UP_SECONDS, load.seconds))
        order = [
            mixed for pair in range(rounds) for mixed in ((False, True) if pair % 2 == 0 else (True, False))
        ]
        for number, mixed in enumerate(order):
            bench.log(
                f"{mode}: round {number + 1} of {len(order)}, {'among deterministic' if mixed else 'ordinary'}"
            )
            await run_round(number, mixed, load.seconds)
    for name, values in found[False].items():
        without, among = percentiles(values), percentiles(found[True][name])
        count = min(len(values), len(found[True][name]))
        ratio = among["p50"] / without["p50"] if count > 1 else None
        error = None
        if count < _MIN_REQUESTS:
            error = "too few requests were measured; give more --rounds or --seconds"
        elif name != "whole answer" and ratio is not None and ratio > LIMITS[mode]:
            error = f"more than {LIMITS[mode]} times"
        row = {
            f"{kind} {p} ms": 1e3 * at
            for kind, all_ in (("without", without), ("among", among))
            for p, at in all_.items()
        }
        bench.row(part=mode, latency=name, count=count, **row, ratio=ratio, error=error)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="*", help="MODEL and options of holdfast serve after --")
    parser.add_argument("--modes", default="auto,verify")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4, help="rounds without and with deterministic streams")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each round")
    parser.add_argument("--prompt-words", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, help="folder for bench-interference.json")
    given = parser.parse_args()
    load = ServeLoad(
        given.streams,
        given.seconds,
        given.prompt_words,
        given.output_tokens,
        max(1, given.streams // 4),
        prompts=0,
    )
    bench = Bench("bench-interference", given.out)
    for mode in given.modes.split(","):
        with bench.part(part=mode):
            asyncio.run(measure(bench, given.model, mode, load, given.rounds))
    bench.finish()


if __name__ == "__main__":
    main()
