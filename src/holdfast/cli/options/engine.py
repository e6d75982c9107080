"""The model, the engine's options, and the engine they open.

An option's help text is its documentation. Values are checked where they belong, in `EngineConfig`, so that the command
line and Python say the same of a wrong one.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from holdfast.cli.progress import StageBars
    from holdfast.engine.config import EngineConfig
    from holdfast.engine.llm import LLM

_ENGINE = "Engine"

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="Folder, .gguf file, hub id or built-in name; without one, the default model.",
        show_default=False,
    ),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(
        help="Folder, .gguf file, hub id or built-in name; without one, the default model.",
        show_default=False,
    ),
]

Device = Annotated[
    str,
    typer.Option(
        help="cpu, cuda, cuda:N, or auto: a GPU where there is one and triton is installed.",
        rich_help_panel=_ENGINE,
    ),
]
Dtype = Annotated[
    str, typer.Option(help="bf16, fp16, fp32, or auto: the checkpoint's.", rich_help_panel=_ENGINE)
]
DeterminismOption = Annotated[
    Literal["auto", "verify", "off"],
    typer.Option(
        help="auto: commit what is certified, verify the rest; verify: verify everything; off: refuse "
        "deterministic requests.",
        rich_help_panel=_ENGINE,
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        help="Longest prompt and answer; the model's own limit without it.",
        show_default=False,
        rich_help_panel=_ENGINE,
    ),
]
MaxNumSeqs = Annotated[
    int | None,
    typer.Option(
        help="Requests running at once; without it 64 on a CPU, 256 on a GPU.",
        show_default=False,
        rich_help_panel=_ENGINE,
    ),
]
KVMemory = Annotated[
    str | None,
    typer.Option(
        help="Memory for keys and values, such as 512MiB; without it a quarter of a CPU's memory and at most 2GiB, or "
        "nine tenths of what a GPU has left behind the weights, less 4GiB.",
        show_default=False,
        rich_help_panel=_ENGINE,
    ),
]
MaxPassTokens = Annotated[
    int | None,
    typer.Option(
        help="Rows of the largest pass; without it 512 on a CPU, 8192 on a GPU.",
        show_default=False,
        rich_help_panel=_ENGINE,
    ),
]
NumThreads = Annotated[
    int | None, typer.Option(help="CPU threads.", show_default=False, rich_help_panel=_ENGINE)
]
KernelsOption = Annotated[
    Literal["auto", "compiled", "library", "triton"],
    typer.Option(
        help="On a CPU our own C kernels (compiled), or torch operations alone (library); on a GPU triton.",
        rich_help_panel=_ENGINE,
    ),
]
LoadFormatOption = Annotated[
    Literal["auto", "dummy"],
    typer.Option(
        help="dummy: random weights of the model's shape, for measurements; MODEL is then a folder with a config.json, or "
        "a name such as llama-3.1-8b.",
        rich_help_panel=_ENGINE,
    ),
]
PrefixCache = Annotated[
    bool,
    typer.Option(help="Keep what prompts begin with, or compute every prompt anew.", rich_help_panel=_ENGINE),
]
SpeculationOption = Annotated[
    Literal["off", "ngram"],
    typer.Option(
        help="ngram: look up candidates in the request's own text. It changes the speed, never a "
        "deterministic answer.",
        rich_help_panel=_ENGINE,
    ),
]
SpotCheckRate = Annotated[
    float | None,
    typer.Option(
        help="Share of certified rows that are computed again and compared, from 0 to 1; without it 0.01, on a GPU 0.001.",
        show_default=False,
        rich_help_panel=_ENGINE,
    ),
]


@dataclass(frozen=True)
class EngineOptions:
    """What `LLM` is opened with; the names are its own. A group of options (`groups`), but for the model."""

    model: str | None = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    determinism: DeterminismOption = "auto"
    max_model_len: MaxModelLen = None
    max_num_seqs: MaxNumSeqs = None
    kv_memory: KVMemory = None
    max_pass_tokens: MaxPassTokens = None
    num_threads: NumThreads = None
    kernels: KernelsOption = "auto"
    prefix_cache: PrefixCache = True
    speculation: SpeculationOption = "ngram"
    spot_check_rate: SpotCheckRate = None
    load_format: LoadFormatOption = "auto"

    def config(self) -> "EngineConfig":
        """The same, as the engine takes them."""
        from holdfast.engine.config import EngineConfig

        return EngineConfig(**asdict(self))

    def open(self, bars: "StageBars | None" = None) -> "LLM":
        """The engine, with a progress bar while it loads."""
        from holdfast.cli.progress import StageBars
        from holdfast.engine.llm import LLM

        with bars or StageBars() as progress:
            return LLM(**asdict(self), progress=progress)


ENGINE = EngineOptions()
