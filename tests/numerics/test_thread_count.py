"""As many threads as get a core: fewer beside other work, more again after it, and the same bits."""

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from holdfast import LLM, SamplingParams
from holdfast.numerics.backends.c.threads import ThreadCount
from support.tiny import tiny_model


class Machine:
    """A clock, cores that nobody else uses, and threads of which so many wait for one of them."""

    def __init__(self, cores: int) -> None:
        self.cores, self.time, self.waited, self.usable = cores, 0.0, 0.0, 0.0

    def count_waiting(self, number: int) -> float | None:
        return self.waited

    def run(self, threads: ThreadCount, seconds: float) -> list[int]:
        numbers = []
        for _ in range(round(seconds / 0.01)):
            numbers.append(threads.update())
            self.time += 0.01
            self.waited += 0.01 * max(0, numbers[-1] - self.cores)
            self.usable += 0.01 * self.cores
        return numbers


def test_fewer_threads_beside_other_work_and_all_again_after_it() -> None:
    machine = Machine(cores=8)
    threads = ThreadCount(8, machine.count_waiting, lambda: None, lambda: machine.time)
    assert set(machine.run(threads, 1)) == {8}
    machine.cores = 6
    numbers = machine.run(threads, 60)
    assert numbers[-1] == 6 and numbers.count(8) < 0.03 * len(numbers)
    machine.cores = 8
    numbers = machine.run(threads, 10)
    assert set(numbers[-100:]) == {8}


def test_more_threads_are_tried_where_cores_are_free_and_seldom_elsewhere() -> None:
    machine = Machine(cores=2)
    threads = ThreadCount(2, machine.count_waiting, lambda: machine.usable, lambda: machine.time)
    assert set(machine.run(threads, 1)) == {2}
    machine.cores = 1
    numbers = machine.run(threads, 60)
    assert numbers[-1] == 1 and 60 / 8 - 1 < numbers.count(2) * 0.01 / 0.06 < 60 / 8 + 2
    machine.cores = 2
    assert set(machine.run(threads, 10)[100:]) == {2}


def test_all_threads_where_the_system_does_not_count() -> None:
    machine = Machine(cores=1)
    threads = ThreadCount(4, lambda number: None, lambda: None, lambda: machine.time)
    assert set(machine.run(threads, 1)) == {4}


@pytest.mark.parametrize("family", ["llama", "qwen3_next", "gpt_oss"])
def test_bits_do_not_depend_on_the_number(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tiny_model(tmp_path, family))
    llm = LLM(folder, device="cpu", kernels="c", max_num_seqs=8, max_pass_tokens=64, prefix_cache=False)
    params = SamplingParams(
        max_tokens=12, seed=3, deterministic=True, logprobs=2, prompt_logprobs=1, ignore_eos=True
    )
    prompts = [[1 + (7 * n + index) % 90 for index in range(n)] for n in (5, 40, 90)]

    def answers(numbers: Iterator[int]) -> list[object]:
        monkeypatch.setattr(ThreadCount, "update", lambda self: next(numbers))
        found = llm.generate(prompts, params, use_tqdm=False)
        return [(each.token_ids, each.prompt_logprobs, each.choices[0].logprobs) for each in found]

    assert answers(cycle((1,))) == answers(cycle((3, 1, 2, 4)))
