"""The options commands share, as types; and the engine they open.

An option's help text is its documentation. Values are checked where they belong, in `SamplingParams` and
`EngineConfig`, so that the command line and Python say the same of a wrong one.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from holdfast.cli.progress import StageBars
    from holdfast.engine.llm import LLM

_ENGINE = "Engine"
_SAMPLING = "Sampling"

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

MaxTokens = Annotated[
    int, typer.Option("--max-tokens", "-n", help="Longest answer.", rich_help_panel=_SAMPLING)
]
MinTokens = Annotated[int, typer.Option(help="Shortest answer.", rich_help_panel=_SAMPLING)]
Temperature = Annotated[
    float, typer.Option("--temperature", "-t", help="0 is greedy.", rich_help_panel=_SAMPLING)
]
TopK = Annotated[int, typer.Option(help="Sample from the k best; 0 is off.", rich_help_panel=_SAMPLING)]
TopP = Annotated[
    float, typer.Option(help="Sample from the best that make up this mass.", rich_help_panel=_SAMPLING)
]
MinP = Annotated[
    float,
    typer.Option(help="Leave out what is less likely than this times the best.", rich_help_panel=_SAMPLING),
]
Seed = Annotated[
    int | None,
    typer.Option(help="Seed of the noise; without one, one is made and told.", rich_help_panel=_SAMPLING),
]
Stop = Annotated[
    list[str] | None, typer.Option(help="End at this text; may be repeated.", rich_help_panel=_SAMPLING)
]
StopTokenId = Annotated[
    list[int] | None, typer.Option(help="End at this token; may be repeated.", rich_help_panel=_SAMPLING)
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on behind the model's own end.", rich_help_panel=_SAMPLING)
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        help="Report the chosen token's logprob and this many best.",
        show_default=False,
        rich_help_panel=_SAMPLING,
    ),
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        "-d",
        help="The same tokens and logprob bits every time, whatever else runs.",
        rich_help_panel=_SAMPLING,
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
MaxNumSeqs = Annotated[int, typer.Option(help="Requests running at once.", rich_help_panel=_ENGINE)]
KVMemory = Annotated[
    str | None,
    typer.Option(
        help="Memory for keys and values, such as 512MiB.", show_default=False, rich_help_panel=_ENGINE
    ),
]
MaxPassRows = Annotated[int, typer.Option(help="Rows of the largest pass.", rich_help_panel=_ENGINE)]
NumThreads = Annotated[
    int | None, typer.Option(help="CPU threads.", show_default=False, rich_help_panel=_ENGINE)
]
KernelsOption = Annotated[
    Literal["auto", "compiled", "library"],
    typer.Option(help="Our own C kernels, or torch operations alone.", rich_help_panel=_ENGINE),
]
NoPrefixCache = Annotated[
    bool, typer.Option("--no-prefix-cache", help="Compute every prompt anew.", rich_help_panel=_ENGINE)
]


@dataclass(frozen=True)
class EngineOptions:
    """What `LLM` is opened with; the names are its own."""

    model: str | None = None
    dtype: str = "auto"
    determinism: Literal["auto", "verify", "off"] = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    kv_memory: str | None = None
    max_pass_rows: int = 512
    num_threads: int | None = None
    kernels: Literal["auto", "compiled", "library"] = "auto"
    prefix_cache: bool = True

    def open(self, bars: "StageBars | None" = None) -> "LLM":
        """The engine, with a progress bar while it loads."""
        from holdfast.cli.progress import StageBars
        from holdfast.engine.llm import LLM

        with bars or StageBars() as progress:
            return LLM(**asdict(self), progress=progress)
