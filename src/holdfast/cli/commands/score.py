"""`holdfast score`: the logprobs of given completions after given prompts, in one batch."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.inputs import ScorePair, read_pairs
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import grouped
from holdfast.cli.results import bits, json_line
from holdfast.core.sampling_params import score_params
from holdfast.engine.config import EngineConfig
from holdfast.errors import InvalidRequest, PromptTooLong

if TYPE_CHECKING:
    from holdfast.engine.llm.llm import LLM


@grouped(without=("receipt_key",))
def score(
    prompt: Annotated[str | None, typer.Argument(help="The prompt as raw text; or use --prompt-ids.")] = None,
    completion: Annotated[
        str | None, typer.Argument(help="The completion as raw text; or use --completion-ids.")
    ] = None,
    prompt_ids: Annotated[
        str | None, typer.Option(help="The prompt as token ids, separated by commas.")
    ] = None,
    completion_ids: Annotated[str | None, typer.Option(help="The completion as token ids.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help='More pairs, one JSON object a line: {"prompt": ..., "completion": ...}, texts or lists of token '
            'ids; "-" is stdin.',
        ),
    ] = None,
    model: o.ModelOption = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Apply the model's chat template to text prompts.")
    ] = False,
    think: Annotated[
        bool, typer.Option("--think/--no-think", help="Let a thinking model think, or not.")
    ] = True,
    ordinary: Annotated[
        bool,
        typer.Option("--ordinary", help="Score without the guarantee that the bits are always the same."),
    ] = False,
    tokens: Annotated[
        bool,
        typer.Option("--tokens", help="After each sum, list id, logprob, fp32 bits and text of every token."),
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON object for each pair, on one line, with every token.")
    ] = False,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """Show the logprob of a completion after a prompt: the sum over its tokens, one line a pair.

    The bits are those that generate reports for the same tokens with --deterministic.
    """
    texts = [text for text in (prompt, completion) if text is not None]
    pairs = read_pairs(texts, prompt_ids, completion_ids, file)
    config = replace(engine, model=model)
    opened = o.open_model(config)
    opened.check_params(score_params(deterministic=not ordinary, think=think))
    llm = o.open_llm(config, opened=opened)
    for scored in _score(llm, pairs, chat, not ordinary, think):
        if json_output:
            typer.echo(json_line(scored.as_dict()))
        else:
            scored.show(tokens)


@dataclass(frozen=True)
class Scored:
    token_ids: list[int]
    texts: list[str]
    logprobs: list[float]
    num_prompt_tokens: int
    deterministic: bool
    fingerprint: str

    @property
    def total(self) -> float:
        """The exact sum, rounded once. It does not depend on the order of addition."""
        return math.fsum(self.logprobs)

    def as_dict(self) -> dict[str, Any]:
        each = zip(self.token_ids, self.texts, self.logprobs, strict=True)
        return {
            "sum": self.total,
            "prompt_tokens": self.num_prompt_tokens,
            "tokens": [
                {"token_id": id_, "text": text, "logprob": value, "bits": bits(value)}
                for id_, text, value in each
            ],
            "deterministic": self.deterministic,
            "fingerprint": self.fingerprint,
        }

    def show(self, tokens: bool) -> None:
        typer.echo(repr(self.total))
        for id_, text, value in zip(self.token_ids, self.texts, self.logprobs, strict=True) if tokens else ():
            typer.echo(f"{id_:>8}  {value:>12.6f}  {bits(value)}  {text!r}")


def _score(llm: "LLM", pairs: list[ScorePair], chat: bool, deterministic: bool, think: bool) -> list[Scored]:

    ids = [_tokenize(llm, pair, chat, deterministic) for pair in pairs]
    logprobs = llm.score_batch(ids, deterministic=deterministic, think=think)
    fingerprint = llm.engine.fingerprint.digest
    token_bytes = llm.engine.tokenizer.token_bytes
    return [
        Scored(
            token_ids=completion,
            texts=[token_bytes(id_).decode("utf-8", "replace") for id_ in completion],
            logprobs=each,
            num_prompt_tokens=len(prompt),
            deterministic=deterministic,
            fingerprint=fingerprint,
        )
        for (prompt, completion), each in zip(ids, logprobs, strict=True)
    ]


def _tokenize(llm: "LLM", pair: ScorePair, chat: bool, deterministic: bool) -> tuple[list[int], list[int]]:
    try:
        prompt = pair.prompt
        if chat and isinstance(prompt, str):
            prompt = llm.chat_tokens([{"role": "user", "content": prompt}])
        params = score_params(deterministic=deterministic)
        request = llm.engine.prepare(prompt, params, completion=pair.completion).request
    except (InvalidRequest, PromptTooLong) as error:
        raise InvalidRequest(f"{pair.where}: {error}" if pair.where else str(error)) from error
    ids = list(request.prompt_ids)
    return ids[: request.score_from], ids[request.score_from :]
