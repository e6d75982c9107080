"""`holdfast replay`: repeat the request of a receipt and compare the result bit for bit, or compare
two receipts without a model. `holdfast continue`: go on with a deterministic answer, with every bit checked.

Exit codes: 0 the same or continued, 1 different, 2 an error.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.commands.receipt import LineOption, PublicKeyOption, ReceiptArgument
from holdfast.cli.console import note, show_error
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import given_options, grouped
from holdfast.cli.options.request import PromptOptions
from holdfast.cli.results import as_json, json_line, mode_line, require_writable, write_receipts
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from holdfast.engine.replay import ReplayResult
    from holdfast.receipts.check import ReceiptCheck
    from holdfast.receipts.compare import Difference
    from holdfast.receipts.receipt import Receipt

_MAX_LOAD = 1024
_ENGINE = ("dtype", "determinism", "num_threads", "kernels", "portable")
_PROMPT = ("prompt", "prompt_ids", "prompt_salt")
REPLAY_OPTIONS = (*_ENGINE, *_PROMPT)
NO_PROMPT = PromptOptions()
FORCE_HINT = "Nothing was run. Use the engine options of the receipt, or compare anyway with --force."

ReceiptModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="The model. Default: that of the receipt.")
]


@grouped(only=REPLAY_OPTIONS)
def replay(
    context: typer.Context,
    receipt: ReceiptArgument,
    model: ReceiptModelOption = None,
    line: LineOption = None,
    force: Annotated[bool, typer.Option("--force", help="Compare even if the fingerprints differ.")] = False,
    against: Annotated[
        str | None,
        typer.Option(
            help="Compare with this receipt instead of running anything: no model is loaded.",
            metavar="FILE",
        ),
    ] = None,
    load: Annotated[
        int,
        typer.Option(help="Run this many random ordinary requests at the same time.", min=0, max=_MAX_LOAD),
    ] = 0,
    prompt: PromptOptions = NO_PROMPT,
    public_key: PublicKeyOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """Replay a receipt: compare fingerprints, repeat the request, compare tokens and logprob bits.

    With --against, compare two receipts: settings, fingerprints, tokens and logprob bits.
    The seal is checked first, and with --public-key the signature: if one is wrong, nothing runs.
    dtype, kernels and recipe are those of the receipt unless they are given, and so is the number of
    threads where it decides bits.
    Exits with 0 if everything is the same, with 1 if not, with 2 if nothing could be compared.
    """
    if against is not None:
        given = given_options(context, ("model", "force", "load", *REPLAY_OPTIONS))
        if given:
            raise ConfigError(f"{', '.join(given)}: nothing is run with --against; leave it out")
        raise typer.Exit(_compare(receipt, against, line, public_key, json_output))
    read, checked = read_checked(receipt, line, public_key)
    llm = o.open_llm(receipt_config(context, engine, model, read))
    differences = read.differences(llm.engine.fingerprint)
    replayed = None
    if force or not differences:
        from holdfast.engine.replay import replay as replay_receipt

        ids, salt = prompt.token_ids(llm, read), prompt.prompt_salt
        replayed = replay_receipt(llm, read, ids, prompt_salt=salt, num_neighbours=load)
    if json_output:
        result = {
            "same": replayed is not None and replayed.same,
            "fingerprint_differences": differences,
            "compared": replayed is not None,
            "difference": replayed and replayed.difference and asdict(replayed.difference),
            "promised": read.mode != "none",
            "mode": None if replayed is None else replayed.mode,
            "seal": checked.seal,
            "signature": checked.signature,
        }
        typer.echo(json_line(result))
    else:
        typer.echo(f"The receipt: {checked.describe()}.")
        _show(read, differences, replayed, load)
    if replayed is None or not replayed.same:
        raise typer.Exit(1)


def receipt_config(
    context: typer.Context, engine: EngineConfig, model: str | None, receipt: "Receipt"
) -> EngineConfig:
    """Return the engine of a receipt. Options that were given override it."""
    recorded: dict[str, Any] = {"dtype": receipt.engine.dtype, "kernels": receipt.engine.kernels}
    if receipt.keeps_blocks:  # a dtype of its own would dequantise them
        recorded["dtype"] = "auto"
    recorded["portable"] = receipt.engine.kernels == "c" and receipt.is_portable
    if receipt.names_threads:
        recorded["num_threads"] = receipt.engine.num_threads
    recorded = {name: value for name, value in recorded.items() if not given_options(context, (name,))}
    return replace(engine, model=receipt.engine.model if model is None else model, **recorded)


def read_checked(source: str, line: int | None, public_key: Path | None) -> tuple["Receipt", "ReceiptCheck"]:
    from holdfast.receipts.check import check_signature
    from holdfast.receipts.reader import read_receipt, read_stdin
    from holdfast.receipts.signing import PublicKey

    key = None if public_key is None else PublicKey.read(public_key)
    receipt = read_receipt(read_stdin() if source == "-" else Path(source), line)
    return receipt, check_signature(receipt, key)


def _compare(source: str, against: str, line: int | None, public_key: Path | None, json_output: bool) -> int:
    """Compare two receipts and return the exit code. line holds for both files."""
    from holdfast.receipts.compare import compare, compare_engines, compare_requests

    if source == against == "-":
        raise InvalidRequest("stdin can be read once: give a file for one of the two receipts")
    (one, checked), (other, other_checked) = (
        read_checked(each, line, public_key) for each in (source, against)
    )
    fingerprints = compare_engines(one, other)
    request = compare_requests(one, other)
    first = compare(one, other)
    is_same = not fingerprints and not request and first is None
    if json_output:
        content = {
            "same": is_same,
            "fingerprint_differences": fingerprints,
            "request_differences": request,
            "compared": True,
            "difference": first and asdict(first),
            "promised": "none" not in (one.mode, other.mode),
            "modes": [one.mode, other.mode],
            "seals": [checked.seal, other_checked.seal],
            "signatures": [checked.signature, other_checked.signature],
        }
        typer.echo(json_line(content))
        return 0 if is_same else 1
    for name, each in ((source, checked), (against, other_checked)):
        typer.echo(f"{name}: {each.describe()}.")
    for title, lines in (("The requests differ:", request), ("The fingerprints differ:", fingerprints)):
        if lines:
            typer.echo("\n".join((title, *(f"  {each}" for each in lines))))
    if None in (one.prompt.token_ids, other.prompt.token_ids) and one.prompt.digest != other.prompt.digest:
        note("a receipt without its prompt: the prompts were not compared")
    if first is not None:
        _show_difference(first)
    else:
        num_tokens = sum(len(choice.token_ids) for choice in one.choices)
        also = ", though not under the same conditions" if request or fingerprints else ""
        typer.echo(f"The answers are the same, bit for bit: {num_tokens} tokens{also}.")
    return 0 if is_same else 1


def _show(receipt: "Receipt", differences: list[str], replayed: "ReplayResult | None", load: int) -> None:
    if receipt.mode == "none":
        note("this was an ordinary request: it may differ, no guarantee applies")
    if differences:
        typer.echo("\n".join(fingerprint_lines(differences)))
    if replayed is None:
        typer.echo(FORCE_HINT)
        return
    beside = f", with {load} other requests" if load else ""
    if replayed.difference is None:
        choices = "" if replayed.num_choices == 1 else f" in {replayed.num_choices} choices"
        typer.echo(
            f"The same, bit for bit: {replayed.num_tokens} tokens{choices} and the bits of {replayed.num_logprobs} logprobs "
            f"({replayed.mode}{beside})."
        )
        return
    _show_difference(replayed.difference)


def fingerprint_lines(differences: list[str]) -> list[str]:
    return ["The fingerprints differ, so the bits may differ:", *(f"  {line}" for line in differences)]


def _show_difference(first: "Difference") -> None:
    at = "" if first.position is None else f", position {first.position}"
    typer.echo(f"Different: choice {first.choice}{at}: {first.what}.")


@grouped(only=REPLAY_OPTIONS)
def continue_answer(
    context: typer.Context,
    receipt: ReceiptArgument,
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens",
            "-n",
            min=1,
            help="Maximum length of the whole answer, the receipt's tokens included.",
        ),
    ],
    model: ReceiptModelOption = None,
    line: LineOption = None,
    force: Annotated[bool, typer.Option("--force", help="Go on even if the fingerprints differ.")] = False,
    prompt: PromptOptions = NO_PROMPT,
    public_key: PublicKeyOption = None,
    new_receipt: Annotated[
        Path | None,
        typer.Option("--receipt", help="Write the receipt of the whole answer to this file."),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="The whole answer as one JSON object, with its receipt.")
    ] = False,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """Continue the answer of a receipt: confirm its tokens and logprob bits, then generate the rest.

    The answer is printed as a whole, the same to the bit as if it had never been interrupted.
    Only a deterministic answer that ended at its token limit, or was cut short, can be continued.
    Exits with 1 if the receipt's answer does not come out again, with 2 if nothing could be run.
    """
    from holdfast.engine.replay import continued_params

    if new_receipt is not None:
        require_writable(new_receipt)
    read, checked = read_checked(receipt, line, public_key)
    continued_params(read, max_tokens)  # refuse it before the model is loaded
    llm = o.open_llm(receipt_config(context, engine, model, read))
    note(f"the receipt: {checked.describe()}")
    differences = read.differences(llm.engine.fingerprint)
    if differences:
        note("\n".join(fingerprint_lines(differences)))
        if not force:
            note("nothing was run; use the engine options of the receipt, or go on anyway with --force")
            raise typer.Exit(1)
    ids, salt = prompt.token_ids(llm, read), prompt.prompt_salt
    result = llm.continue_answer(
        read, max_tokens=max_tokens, prompt_token_ids=ids, prompt_salt=salt, force=force
    )
    if result.error is not None:
        show_error(result.error)
        raise typer.Exit(1)
    if json_output:
        typer.echo(as_json(result, with_receipt=True))
    else:
        for choice in result.choices:
            typer.echo(choice.text)
        note(mode_line(result))
    if new_receipt is not None:
        write_receipts(new_receipt, [result])
