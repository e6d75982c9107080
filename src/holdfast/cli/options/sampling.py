"""How answers are sampled, as a group of options, and the `SamplingParams` they ask for.

The fields have the names of `SamplingParams`, which checks them. None stands for its default.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest

_SAMPLING = "Sampling"
_REPORT = "Report"


def _option(*names: str, help: str, panel: str = _SAMPLING, default_shown: bool = True) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=default_shown)


@dataclass(frozen=True)
class SamplingOptions:
    """A group of options (`groups`)."""

    max_tokens: Annotated[int, _option("--max-tokens", "-n", help="Longest answer.")] = 128
    min_tokens: Annotated[int, _option(help="Shortest answer.")] = 0
    temperature: Annotated[float, _option("--temperature", "-t", help="0 is greedy.")] = 0.7
    top_k: Annotated[int, _option(help="Sample from the k best; 0 is off.")] = 0
    top_p: Annotated[float, _option(help="Sample from the best that make up this mass.")] = 1.0
    min_p: Annotated[float, _option(help="Leave out what is less likely than this times the best.")] = 0.0
    seed: Annotated[int | None, _option(help="Seed of the noise; without one, one is made and told.")] = None
    n: Annotated[
        int, _option("--n", help="Answers to each prompt; the first is the one that --n 1 gives.")
    ] = 1
    deterministic: Annotated[
        bool,
        _option(
            "--deterministic", "-d", help="The same tokens and logprob bits every time, whatever else runs."
        ),
    ] = False
    stop: Annotated[list[str] | None, _option(help="End at this text; may be repeated.")] = None
    stop_token_ids: Annotated[
        list[int] | None, _option("--stop-token-id", help="End at this token; may be repeated.")
    ] = None
    ignore_eos: Annotated[bool, _option("--ignore-eos", help="Go on behind the model's own end.")] = False
    repetition_penalty: Annotated[
        float,
        _option(help="Above 1: tokens of the prompt and the answer so far are less likely to come again."),
    ] = 1.0
    frequency_penalty: Annotated[
        float, _option(help="From -2 to 2: taken off a token's logit for each time the answer holds it.")
    ] = 0.0
    presence_penalty: Annotated[
        float, _option(help="From -2 to 2: taken off a token's logit once the answer holds it.")
    ] = 0.0
    logit_bias: Annotated[
        list[str] | None,
        _option(
            "--logit-bias",
            help="ID=VALUE: add VALUE, from -100 to 100, to this token's logit; may be repeated.",
        ),
    ] = None
    allowed_token_ids: Annotated[
        list[int] | None,
        _option("--allowed-token-id", help="Choose only this token and others named so; may be repeated."),
    ] = None
    bad_token_ids: Annotated[
        list[int] | None, _option("--bad-token-id", help="Never choose this token; may be repeated.")
    ] = None
    bad_words: Annotated[
        list[str] | None, _option("--bad-word", help="Never write this text; may be repeated.")
    ] = None
    think: Annotated[
        bool, _option("--think/--no-think", help="Let a model that thinks do so, or do without.")
    ] = True
    logprobs: Annotated[
        int | None,
        _option(
            help="Report the chosen token's logprob and this many best.", panel=_REPORT, default_shown=False
        ),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        _option(help="The same for the prompt's own tokens.", panel=_REPORT, default_shown=False),
    ] = None
    echo: Annotated[
        bool, _option("--echo", help="Begin the answer's text with the prompt.", panel=_REPORT)
    ] = False

    def params(self, form: StructuredOutput | None = None) -> SamplingParams:
        """What is asked for; raises `InvalidRequest` for what cannot be."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        biases = [_parse_bias(text) for text in self.logit_bias or ()]
        return SamplingParams(**{**given, "logit_bias": biases, "structured": form})


def _parse_bias(text: str) -> tuple[int, float]:
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError:
        raise InvalidRequest(
            f"--logit-bias must be a token id and a number, such as 42=-5, not {text[:80]!r}"
        ) from None
