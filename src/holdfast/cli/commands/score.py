"""`holdfast score`: the logprobs of given completions after given prompts, in one batch."""

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    ids = [_tokenize(llm, pair, chat, not ordinary) for pair in pairs]
    logprobs = llm.score_batch(ids, deterministic=not ordinary, think=think)
    for (prompt_tokens, completed), values in zip(ids, logprobs, strict=True):
        total = math.fsum(values)  # the exact sum, rounded once, in whatever order
        rows = [
            {"token_id": id_, "text": _text(llm, id_), "logprob": value, "bits": bits(value)}
            for id_, value in zip(completed, values, strict=True)
        ]
        if json_output:
            about = {"deterministic": not ordinary, "fingerprint": llm.engine.fingerprint.digest}
            scored = {"sum": total, "prompt_tokens": len(prompt_tokens), "tokens": rows, **about}
            typer.echo(json_line(scored))
            continue
        typer.echo(repr(total))
        for id_, value in zip(completed, values, strict=True) if tokens else ():
            typer.echo(f"{id_:>8}  {value:>12.6f}  {bits(value)}  {_text(llm, id_)!r}")


def _text(llm: "LLM", token_id: int) -> str:
    return llm.engine.tokenizer.token_bytes(token_id).decode("utf-8", "replace")


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
