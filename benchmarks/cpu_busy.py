"""Speed beside other work on the same cores: through `LLM` and HTTP, with no, one and two busy processes.

    python benchmarks/cpu_busy.py --out docs/data
    python benchmarks/cpu_busy.py --threads 1        # as if no thread were too many

A busy process is a loop of Python that never waits. Rounds take the numbers of busy processes in turns; a
figure is the median of the rounds, in tok/s.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from holdfast import LLM, SamplingParams
from measure import Bench, new_parser

BUSY, STREAMS = (0, 1, 2), (1, 4, 16)
_PORT, _NUM_TOKENS = 8437, 48
Speed = Callable[[int], float]


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    o = parser.parse_args()
    bench = Bench("cpu-busy", o.out)
    for through, opened in (("LLM", with_llm), ("HTTP", with_server)):
        with opened(o.model, o.threads) as speed:
            measure(bench, through, speed, o.rounds)
    bench.finish()


def measure(bench: Bench, through: str, speed: Speed, rounds: int) -> None:
    speed(max(STREAMS))
    found: dict[tuple[int, int], list[float]] = {}
    for _ in range(rounds):
        for num_busy in BUSY:
            with busy(num_busy):
                for streams in STREAMS:
                    found.setdefault((num_busy, streams), []).append(speed(streams))
    for num_busy in BUSY:
        medians = {_title(one): statistics.median(found[num_busy, one]) for one in STREAMS}
        quiet = {_title(one): statistics.median(found[0, one]) for one in STREAMS}
        least = min(medians[one] / quiet[one] for one in medians)
        bench.row(part="speed", through=through, busy=num_busy, **medians, **{"least / quiet": least})


def _title(streams: int) -> str:
    return "1 stream" if streams == 1 else f"{streams} streams"


@contextmanager
def busy(number: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        time.sleep(1)
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


def prompts(number: int) -> list[str]:
    return [f"{time.monotonic_ns() % 9973} {index} Tell me a story about a ship." for index in range(number)]


@contextmanager
def with_llm(model: str, threads: int | None) -> Iterator[Speed]:
    params = SamplingParams(max_tokens=_NUM_TOKENS, temperature=0, deterministic=True, ignore_eos=True)
    with LLM(model, num_threads=threads, max_model_len=1024) as llm:

        def speed(streams: int) -> float:
            started = time.perf_counter()
            llm.generate(prompts(streams), params, use_tqdm=False)
            return streams * _NUM_TOKENS / (time.perf_counter() - started)

        yield speed


@contextmanager
def with_server(model: str, threads: int | None) -> Iterator[Speed]:
    options = ["--port", str(_PORT), "--max-model-len", "1024", "--log-level", "warning"]
    options += [] if threads is None else ["--num-threads", str(threads)]
    server = subprocess.Popen([sys.executable, "-m", "holdfast", "serve", model, *options])
    body = {"model": model, "max_tokens": _NUM_TOKENS, "temperature": 0, "deterministic": True}
    try:
        with (
            httpx.Client(base_url=f"http://127.0.0.1:{_PORT}", timeout=600) as client,
            ThreadPoolExecutor(max(STREAMS)) as pool,
        ):
            while not _is_ready(client):
                time.sleep(0.2)

            def ask(prompt: str) -> None:
                asked = {**body, "prompt": prompt, "stream": True, "ignore_eos": True}
                client.post("/v1/completions", json=asked).raise_for_status()

            def speed(streams: int) -> float:
                started = time.perf_counter()
                list(pool.map(ask, prompts(streams)))
                return streams * _NUM_TOKENS / (time.perf_counter() - started)

            yield speed
    finally:
        server.terminate()
        server.wait()


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


if __name__ == "__main__":
    main()
