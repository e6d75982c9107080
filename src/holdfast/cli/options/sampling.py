"""Sampling as a group of options: the fields of `SamplingParams`, which checks their values.

None means the default of `SamplingParams`.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest

_SAMPLING = "Sampling"
_REPORT = "Report"


def _option(
    *names: str, help: str, panel: str = _SAMPLING, default_shown: bool = True, metavar: str | None = None
) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=default_shown, metavar=metavar)


@dataclass(frozen=True)
class SamplingOptions:
    """A group of options (`groups`)."""

    max_tokens: Annotated[
        int, _option("--max-tokens", "-n", help="Maximum number of tokens of the answer.")
    ] = 128
    min_tokens: Annotated[int, _option(help="Minimum number of tokens of the answer.")] = 0
    temperature: Annotated[
        float, _option("--temperature", "-t", help="Sampling temperature; 0 is greedy.")
    ] = 0.7
    top_k: Annotated[int, _option(help="Sample from the k most likely tokens; 0 is off.")] = 0
    top_p: Annotated[
        float, _option(help="Nucleus sampling: keep the smallest set of tokens with this total probability.")
    ] = 1.0
    min_p: Annotated[
        float, _option(help="Drop tokens that are less likely than this times the most likely one.")
    ] = 0.0
    seed: Annotated[
        int | None,
        _option(
            help="Seed of the sampling noise. Default: 0 with --deterministic, else a random one, which is reported."
        ),
    ] = None
    n: Annotated[
        int, _option("--n", help="Number of answers to each prompt; the first is the same as with --n 1.")
    ] = 1
    deterministic: Annotated[
        bool | None,
        _option(
            "--deterministic/--no-deterministic",
            "-d",
            help="Give the same tokens and logprob bits every time, whatever else runs.",
            default_shown=False,
        ),
    ] = None
    stop: Annotated[list[str] | None, _option(help="Stop at this text; may be repeated.", metavar="TEXT")] = (
        None
    )
    stop_token_ids: Annotated[
        list[int] | None,
        _option("--stop-token-id", help="Stop at this token; may be repeated.", metavar="ID"),
    ] = None
    ignore_eos: Annotated[
        bool, _option("--ignore-eos", help="Keep generating after the end-of-text token.")
    ] = False
    repetition_penalty: Annotated[
        float,
        _option(help="Above 1: tokens of the prompt and of the answer so far become less likely."),
    ] = 1.0
    frequency_penalty: Annotated[
        float,
        _option(help="From -2 to 2: subtracted from a token's logit for each time it is in the answer."),
    ] = 0.0
    presence_penalty: Annotated[
        float, _option(help="From -2 to 2: subtracted once from the logit of a token that is in the answer.")
    ] = 0.0
    logit_bias: Annotated[
        list[str] | None,
        _option(
            "--logit-bias",
            help="Add VALUE, from -100 to 100, to this token's logit; may be repeated.",
            metavar="ID=VALUE",
        ),
    ] = None
    allowed_token_ids: Annotated[
        list[int] | None,
        _option(
            "--allowed-token-id",
            help="Sample only from the tokens given with this option; may be repeated.",
            metavar="ID",
        ),
    ] = None
    bad_token_ids: Annotated[
        list[int] | None,
        _option("--bad-token-id", help="Never sample this token; may be repeated.", metavar="ID"),
    ] = None
    bad_words: Annotated[
        list[str] | None,
        _option("--bad-word", help="Never generate this text; may be repeated.", metavar="TEXT"),
    ] = None
    skip_special_tokens: Annotated[
        bool,
        _option(
            "--skip-special-tokens/--no-skip-special-tokens",
            help="Leave special tokens out of the answer's text, or not.",
        ),
    ] = True
    include_stop_str_in_output: Annotated[
        bool,
        _option("--include-stop-str-in-output", help="Keep the text or token that stopped the answer."),
    ] = False
    think: Annotated[bool, _option("--think/--no-think", help="Let a thinking model think, or not.")] = True
    logprobs: Annotated[
        int | None,
        _option(
            help="Report the logprob of each token of the answer, and this many of the most likely ones.",
            panel=_REPORT,
            default_shown=False,
        ),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        _option(help="The same for the tokens of the prompt.", panel=_REPORT, default_shown=False),
    ] = None
    echo: Annotated[bool, _option("--echo", help="Repeat the prompt before the answer.", panel=_REPORT)] = (
        False
    )

    def params(self, structured: StructuredOutput | None = None) -> SamplingParams:
        """Return the settings of a request. Raise `InvalidRequest` for wrong ones."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        if self.deterministic:  # the same command gives the same answer
            given.setdefault("seed", 0)
        biases = [_parse_bias(text) for text in self.logit_bias or ()]
        return SamplingParams(**{**given, "logit_bias": biases, "structured": structured})


def _parse_bias(text: str) -> tuple[int, float]:
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError:
        raise InvalidRequest(
            f"--logit-bias must be a token id and a number, such as 42=-5, not {text[:80]!r}"
        ) from None
