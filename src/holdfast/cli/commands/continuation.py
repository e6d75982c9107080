"""`holdfast continue`: go on with the deterministic answer of a receipt, with every bit checked.

Exit codes: 0 continued, 1 the receipt's answer did not come out again or the fingerprints differ, 2 an
error.
"""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.commands.receipt import LineOption, PublicKeyOption, ReceiptArgument
from holdfast.cli.commands.replay import (
    NO_PROMPT,
    REPLAY_OPTIONS,
    ReceiptModelOption,
    fingerprint_lines,
    read_checked,
    receipt_config,
)
from holdfast.cli.console import note, show_error
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import grouped
from holdfast.cli.options.request import PromptOptions
from holdfast.cli.results import as_json, mode_line, require_writable, write_receipts
from holdfast.engine.config import EngineConfig


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
    from holdfast.engine.continuation import continued_params

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
