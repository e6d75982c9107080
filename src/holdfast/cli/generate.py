"""`holdfast generate`: prompts in, answers out, streamed as they are committed."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import options as o
from holdfast.cli.answers import as_json, show_logprobs
from holdfast.cli.show import note, show_error, stats_line
from holdfast.core.params import SamplingParams
from holdfast.core.result import Result
from holdfast.errors import InvalidRequest

if TYPE_CHECKING:
    from holdfast.engine.handle import Handle
    from holdfast.engine.llm import LLM


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help='The prompt; "-", or nothing in a pipe, reads it from stdin.')
    ] = None,
    prompts: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="A further prompt; may be repeated.")
    ] = None,
    prompts_file: Annotated[
        Path | None, typer.Option(help="A file with one prompt a line, all answered in one batch.")
    ] = None,
    model: o.ModelOption = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Use the model's chat template, or take the prompt raw; without either, the template if there is one.",
            show_default=False,
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON object an answer, a line each.")
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Show mode, seed and counts on stderr.")] = False,
    max_tokens: o.MaxTokens = 128,
    min_tokens: o.MinTokens = 0,
    temperature: o.Temperature = 0.7,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    seed: o.Seed = None,
    stop: o.Stop = None,
    stop_token_id: o.StopTokenId = None,
    ignore_eos: o.IgnoreEos = False,
    logprobs: o.Logprobs = None,
    deterministic: o.Deterministic = False,
    dtype: o.Dtype = "auto",
    determinism: o.DeterminismOption = "auto",
    max_model_len: o.MaxModelLen = None,
    max_num_seqs: o.MaxNumSeqs = 64,
    kv_memory: o.KVMemory = None,
    max_pass_rows: o.MaxPassRows = 512,
    num_threads: o.NumThreads = None,
    kernels: o.KernelsOption = "auto",
    no_prefix_cache: o.NoPrefixCache = False,
) -> None:
    """Answer a prompt, or several in one batch."""
    params = SamplingParams(
        max_tokens, min_tokens, temperature, top_k, top_p, min_p, seed, stop or (), stop_token_id or (),
        ignore_eos, logprobs, deterministic,
    )  # fmt: skip
    engine = o.EngineOptions(
        model, dtype, determinism, max_model_len, max_num_seqs, kv_memory, max_pass_rows, num_threads, kernels,
        not no_prefix_cache,
    )  # fmt: skip
    asked = _read_prompts(prompt, prompts or [], prompts_file)
    results = _answer(engine.open(), asked, params, chat, json_output)
    for number, result in enumerate(results, 1):
        if result.logprobs is not None and not json_output:
            show_logprobs(number, result)
        if stats:
            note(stats_line(result))
        if result.error is not None:
            show_error(result.error)
    if any(result.error is not None for result in results):
        raise typer.Exit(1)


def _read_prompts(prompt: str | None, further: list[str], file: Path | None) -> list[str]:
    """All prompts in the order they were given: the argument, --prompt, the file's lines; or stdin."""
    prompts = [_read_stdin() if prompt == "-" else prompt] if prompt is not None else []
    prompts += further
    if file is not None:
        try:
            prompts += [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"the prompts file {file} cannot be read: {error}") from error
    if not prompts and file is None and not sys.stdin.isatty():
        prompts = [text] if (text := _read_stdin()) else []
    if not prompts:
        raise InvalidRequest(
            'there is no prompt; write one behind the command, such as: holdfast generate "Hello"'
        )
    return prompts


def _read_stdin() -> str:
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"stdin is no valid UTF-8: {error}") from error


def _answer(
    llm: "LLM", prompts: list[str], params: SamplingParams, chat: bool | None, json_output: bool
) -> list[Result]:
    """Submit everything, then show the answers in prompt order, the first unfinished one as it grows."""
    from holdfast.engine.handle import AsyncEngine

    through_template = llm.engine.tokenizer.chat_template is not None if chat is None else chat
    tokens: list[str | list[int]] = [
        llm.chat_tokens([{"role": "user", "content": prompt}]) if through_template else prompt
        for prompt in prompts
    ]
    with AsyncEngine(llm.engine) as engine:
        handles = [engine.submit(one, params) for one in tokens]
        try:
            return [
                _show(handle, number, len(handles), json_output) for number, handle in enumerate(handles, 1)
            ]
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _show(handle: "Handle", number: int, total: int, json_output: bool) -> Result:
    """Write one answer to stdout and give back its result."""
    if not json_output:
        if total > 1:
            typer.echo(f"{'' if number == 1 else chr(10)}[{number}]")
        for piece in _pieces(handle):
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
    result = handle.wait()
    if json_output:
        typer.echo(as_json(result))
    sys.stdout.flush()
    return result


def _pieces(handle: "Handle") -> Iterator[str]:
    return (delta.text for delta in handle if delta.text)
