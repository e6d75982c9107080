"""What `bench gpu` measures and how long it may take.

`tiny` runs all sections at a size for CPUs and tests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.errors import ConfigError

TINY, TINY_MOE = "tiny", "tiny-moe"
# First those on the same model.
SECTIONS = ("cells", "speed", "verify", "breakdown", "small", "moe", "certificate", "stress")
OLD_SECTIONS = {"needle": "stress"}  # accepted for one release


_LONGEST_CELL = 100_064  # tokens of a prompt and its answer
_CELL_POSITIONS = 260_000  # of all requests of a cell that run at once


@dataclass(frozen=True)
class GpuSettings:
    """Lengths are in tokens; streams are concurrent requests.

    Figures are those of the best of `rounds`.

    After `section_seconds` a section starts no new measurement; the section `cells` has
    `cells_seconds`.
    """

    model: str = "llama-3.1-8b"
    small_model: str = "qwen3-0.6b"
    moe_model: str = "qwen3-30b-a3b"
    certified_models: tuple[str, ...] = (
        "llama-3.1-8b",
        "qwen3-0.6b",
        "qwen2.5-1.5b",
        "llama-3.1-70b",
        "smollm2-135m",
    )
    dtype: str = "bf16"
    streams: tuple[int, ...] = (1, 8, 32, 128, 256)
    small_streams: tuple[int, ...] = (1, 32, 256)
    prompt_len: int = 512
    num_tokens: int = 256
    warm_tokens: int = 8
    prefill_streams: int = 8
    moe_prefill_streams: int = 64
    rounds: int = 2
    verify_streams: int = 64
    verify_prompt_len: int = 1024
    verify_tokens: int = 1024
    breakdown_streams: tuple[int, ...] = (1, 32, 256)
    breakdown_steps: int = 24
    breakdown_prompt_len: int = 30_000
    cells: tuple[str, ...] = ()  # by name; the command line fills it in
    length_divisor: int = 1  # of the lengths of all cells
    max_cell_streams: int = 400
    stress_model: str | None = None
    stress_shape: str = "qwen2.5-1.5b"  # several are separated by commas
    stress_runs: int = 300
    stress_tokens: int = 64
    sizes: tuple[int, ...] = (*range(1, 513), 1024, 2048, 4096)
    section_seconds: float = 240.0
    cells_seconds: float = 480.0
    kernels: str = "auto"

    @property
    def stress_shapes(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.stress_shape.split(",") if name.strip())

    @property
    def max_streams(self) -> int:
        counts = (*self.streams, *self.small_streams, *self.breakdown_streams, self.verify_streams)
        return max(*counts, self.max_cell_streams)

    @property
    def max_len(self) -> int:
        decoded = max(self.num_tokens, self.breakdown_tokens)
        return max(
            self.prompt_len + decoded,
            self.verify_prompt_len + self.verify_tokens,
            self.breakdown_prompt_len + 8,
            _LONGEST_CELL // self.length_divisor + 8,
        )

    @property
    def breakdown_tokens(self) -> int:
        """Length of an answer that still decodes when all steps are timed and profiled."""
        return 4 * self.breakdown_steps + 8

    @property
    def num_positions(self) -> int:
        """The positions the KV cache must hold at the same time."""
        streams = max(*self.streams, *self.small_streams, *self.breakdown_streams)
        decoded = max(self.num_tokens, self.breakdown_tokens)
        return max(
            streams * (self.prompt_len + decoded),
            self.verify_streams * (self.verify_prompt_len + self.verify_tokens),
            self.max_len,
            _CELL_POSITIONS // self.length_divisor,
        )


def settings_for(model: str | None) -> GpuSettings:
    """The settings for a named shape, or for the tiny model."""
    if model is None:
        return GpuSettings()
    if model != TINY:
        return replace(GpuSettings(), model=model)
    return GpuSettings(
        model=TINY,
        small_model=TINY,
        moe_model=TINY_MOE,
        certified_models=(TINY,),
        streams=(1, 3),
        small_streams=(2,),
        prompt_len=24,
        num_tokens=6,
        warm_tokens=2,
        prefill_streams=2,
        moe_prefill_streams=2,
        rounds=1,
        verify_streams=3,
        verify_prompt_len=24,
        verify_tokens=12,
        breakdown_streams=(2,),
        breakdown_steps=4,
        breakdown_prompt_len=200,
        length_divisor=128,
        max_cell_streams=8,
        stress_shape=TINY,
        stress_runs=6,
        stress_tokens=8,
        sizes=(1, 2, 3, 8, 32, 64),
        section_seconds=60.0,
    )


def parse_sections(only: str | None, cells: Sequence[str] = ()) -> tuple[str, ...]:
    """Parse a list such as "speed,stress" into section names, in the order of `SECTIONS`. The name
    of a cell stands for the section `cells`."""
    if only is None:
        return SECTIONS
    chosen = _names(only) - set(cells)
    if _names(only) & set(cells):
        chosen.add("cells")
    unknown = chosen - set(SECTIONS)
    if unknown or not chosen:
        raise ConfigError(
            f"no section {', '.join(sorted(unknown)) or 'was named'}; the sections are {', '.join(SECTIONS)}; "
            f"the cells are {', '.join(cells)}"
        )
    return tuple(name for name in SECTIONS if name in chosen)


def parse_cells(only: str | None, cells: Sequence[str]) -> tuple[str, ...]:
    """The cells in the same list, in their own order: all of them if it names none."""
    chosen = set() if only is None else _names(only)
    return tuple(name for name in cells if name in chosen) or tuple(cells)


def _names(only: str) -> set[str]:
    given = {name.strip() for name in only.split(",") if name.strip()}
    return {OLD_SECTIONS.get(name, name) for name in given}


def parse_numbers(text: str) -> tuple[int, ...]:
    """Parse a list such as "1,8,32"."""
    try:
        numbers = tuple(int(one) for one in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"expected positive whole numbers such as 1,8,32, not {text!r}")
    return numbers
