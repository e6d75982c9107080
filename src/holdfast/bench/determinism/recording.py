"""Recordings of one prompt's answers, alone and under load: their JSON format and the ones that come
with the package.

A recording says where it was made. It is shown where this machine's kernels agree by construction,
and never as a live result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.errors import ConfigError
from holdfast.recordings import recording_files


@dataclass(frozen=True)
class RecordedMachine:
    """Where a recording was made. device is the name of what computed."""

    device: str
    kind: str
    threads: int
    torch: str
    triton: str | None
    python: str
    holdfast: str


@dataclass(frozen=True)
class RecordedModel:
    """weights are "real" or "random"."""

    name: str
    weights: str
    dtype: str
    kernels: str


@dataclass(frozen=True)
class RecordedAnswer:
    """A distinct answer: its tokens, and how many runs gave it.

    neighbours are the numbers of other requests in these runs. first_difference is the position at
    which its tokens leave those of the first answer; logprob and logprob_bits are of the token there,
    the first_ ones of the first answer's token. logprob_sets counts the distinct bits of all its
    logprobs.
    """

    runs: int
    neighbours: list[int]
    token_ids: list[int]
    text: str | None
    logprob_sets: int
    first_difference: int | None = None
    logprob: float | None = None
    logprob_bits: str | None = None
    first_logprob: float | None = None
    first_logprob_bits: str | None = None


@dataclass(frozen=True)
class RecordedSide:
    """All answers of the runs in one mode. The first is the one given alone."""

    deterministic: bool
    mode: str
    products: str
    runs: int
    distinct: int  # in tokens or in a bit of a logprob
    rolled_back: int
    answers: list[RecordedAnswer]


@dataclass(frozen=True)
class Recording:
    """A file. Its field names are those of the JSON."""

    date: str
    machine: RecordedMachine
    model: RecordedModel
    prompt: str
    prompt_ids: list[int]
    settings: dict[str, float | int | None]
    num_alone: int
    seconds: float
    ordinary: RecordedSide
    controls: list[RecordedSide]

    @property
    def is_good(self) -> bool:
        """Whether ordinary answers differ, and the deterministic ones are one and the same."""
        return (
            self.ordinary.distinct > 1
            and all(one.distinct == 1 for one in self.controls)
            and len({tuple(one.answers[0].token_ids) for one in self.controls}) == 1
        )


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """The first position at which two different answers have different tokens, or one has ended."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def read_recording(path: Path) -> Recording:
    """Read a file that `holdfast bench divergence --save` wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Recording)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} is not a recording: {error}") from None


def builtin_recordings() -> list[Recording]:
    """The recordings that come with the package, by file name."""
    return [msgspec.json.decode(one, type=Recording) for one in recording_files()]
