"""What `bench gpu` measures of an `LLM`: a cell is a batch of requests, run in several variants.

Every cell runs in its variants right after each other, because GPUs of one kind differ: compare
ratios, not tok/s.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.bench.gpu.engines import Job
from holdfast.bench.workloads import draw_lengths
from holdfast.scheduler.policy import DeterminismMode


@dataclass(frozen=True)
class Variant:
    """One way to run the same requests: in a process with this `determinism`, deterministic or not."""

    name: str
    mode: DeterminismMode
    deterministic: bool


DETERMINISTIC = Variant("deterministic", "auto", True)
ORDINARY = Variant("ordinary", "auto", False)
OFF = Variant("off", "off", False)  # the guarantee off, and the library's plain products
VERIFY = Variant("verify", "verify", True)
VARIANTS = (DETERMINISTIC, ORDINARY, OFF, VERIFY)


@dataclass(frozen=True)
class Cell:
    """streams requests of prompt_len tokens in and num_tokens out. The other fields are those of `Job`;
    kind may be "mixed", too: the two lengths are then the largest ones of log-normal distributions."""

    name: str
    title: str
    streams: int
    prompt_len: int = 512
    num_tokens: int = 256
    variants: tuple[Variant, ...] = (DETERMINISTIC, OFF)
    kind: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    seeded: bool = False
    shared_len: int = 0
    times_prefill: bool = False

    def lengths(self) -> tuple[list[int], list[int]]:
        """Of all prompts and of all answers: the same every time."""
        if self.kind != "mixed":
            return [self.prompt_len] * self.streams, [self.num_tokens] * self.streams
        prompts = draw_lengths(random.Random(1), self.streams, self.prompt_len / 8, 1.0, 4, self.prompt_len)
        answers = draw_lengths(random.Random(2), self.streams, self.num_tokens / 4.8, 0.9, 4, self.num_tokens)
        return prompts, answers

    @property
    def num_positions(self) -> int:
        """The tokens that the KV cache holds when all requests run at once."""
        prompts, answers = self.lengths()
        return sum(prompts) + sum(answers) - (self.streams - 1) * self.shared_len

    def scaled(self, divisor: int, max_streams: int) -> "Cell":
        """The same with shorter lengths and fewer requests, for CPUs."""
        prompt_len = max(4, self.prompt_len // divisor)
        return replace(
            self,
            streams=min(self.streams, max_streams),
            prompt_len=prompt_len,
            num_tokens=min(self.num_tokens, max(4, self.num_tokens // divisor)),
            shared_len=self.shared_len // divisor,
        )

    def job(self, variant: Variant, number: int, vocab_size: int) -> Job:
        prompts, answers = self.lengths()
        return Job(
            number,
            vocab_size,
            prompts,
            answers,
            variant.deterministic,
            self.shared_len,
            self.params,
            self.seeded,
            self.kind,
            self.times_prefill,
        )


_SAMPLED = {"temperature": 0.8, "top_p": 0.95}
_THREE, _VERIFIED = (DETERMINISTIC, ORDINARY, OFF), (VERIFY, OFF)

CELLS: Mapping[str, Cell] = {
    cell.name: cell
    for cell in (
        *(
            Cell(f"uniform-{count}", f"{count} x 512/256", count, variants=_THREE, times_prefill=True)
            for count in (1, 8, 32, 33, 128, 256, 257)
        ),
        *(
            Cell(f"prefill-{count}", f"{count} x 512/1, prompt tok/s", count, num_tokens=1, variants=_THREE)
            for count in (8, 64)
        ),
        Cell("receipts", "256, every receipt read", 256, variants=(DETERMINISTIC,), kind="receipts"),
        Cell("mixed", "400 of mixed lengths", 400, 2048, 768, kind="mixed"),
        Cell("shared", "200 x (2,000 shared + 60)/120", 200, 2060, 120, shared_len=2000),
        Cell("sampled", "128, sampled", 128, params=_SAMPLED),
        Cell("seeded", "128, sampled, a seed each", 128, params=_SAMPLED, seeded=True),
        Cell(
            "penalty",
            "128, sampled, repetition penalty 1.1, a seed each",
            128,
            params={**_SAMPLED, "repetition_penalty": 1.1},
            seeded=True,
        ),
        Cell("logprobs", "128, 5 top logprobs", 128, params={"logprobs": 5}),
        Cell("json", "56 beside 8 with a JSON schema", 64, kind="json"),
        Cell("long-8k", "16 x 8192/256", 16, 8192, 256, times_prefill=True),
        Cell("long-30k", "4 x 30000/64", 4, 30_000, 64, times_prefill=True),
        Cell("long-100k", "1 x 100000/64", 1, 100_000, 64, times_prefill=True),
        *(
            Cell(f"verify-{count}", f"{count} x 512/256", count, variants=_VERIFIED)
            for count in (32, 128, 256)
        ),
        Cell("verify-long", "64 x 1024/1024", 64, 1024, 1024, variants=_VERIFIED),
    )
}
