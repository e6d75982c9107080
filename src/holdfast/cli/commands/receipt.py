"""`holdfast receipt`: check and redact receipts, make keys to sign them. No model is loaded.

Exit codes of `check`: 0 everything that was checked is right, 1 something is wrong, 2 nothing could
be checked.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.console import note
from holdfast.cli.help_format import App

if TYPE_CHECKING:
    from holdfast.receipts.check import ReceiptCheck

receipt = App(help="Check and redact receipts, make keys to sign them.", no_args_is_help=True)

ReceiptArgument = Annotated[
    str, typer.Argument(help='A receipt file, or the JSON of an answer with a receipt; "-" reads stdin.')
]
LineOption = Annotated[
    int | None, typer.Option(help="Number of the line, in a file with one receipt a line.", min=1)
]
PublicKeyOption = Annotated[
    Path | None,
    typer.Option(help="Check the signature with the public key in this PEM file.", metavar="FILE"),
]


@receipt.command()
def check(
    source: ReceiptArgument,
    public_key: PublicKeyOption = None,
    line: LineOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
) -> None:
    """Check a receipt without its model: format, seal and, with --public-key, signature.

    Whether the answer is right is not checked: holdfast replay does that.
    Exits with 0 if all that was checked is right, with 1 if not, with 2 if nothing could be checked.
    """
    from holdfast.receipts.check import check_content
    from holdfast.receipts.signing import PublicKey

    key = None if public_key is None else PublicKey.read(public_key)
    checked = check_content(_read(source, line), key)
    if json_output:
        typer.echo(json.dumps({"ok": checked.problem is None, **asdict(checked)}))
    else:
        _show(checked)
    if checked.problem is not None:
        raise typer.Exit(1)


@receipt.command()
def redact(
    source: ReceiptArgument,
    keep_salt: Annotated[
        bool,
        typer.Option(
            "--keep-salt",
            help="Keep the prompt's salt: a replay then needs the prompt only, but guesses of the prompt can be tried.",
        ),
    ] = False,
    line: LineOption = None,
) -> None:
    """Print a receipt without its prompt. The seal and the signature stay valid.

    To replay it, its reader needs the prompt and the salt, both of which are in the whole receipt.
    """
    from holdfast.receipts import receipt as receipts
    from holdfast.receipts.reader import parse_receipt

    content = _read(source, line)
    whole = parse_receipt(content)
    assert isinstance(content, dict)
    if whole.prompt_logprobs is not None:
        note("the logprobs of the prompt's tokens stay: guesses of the prompt can be tried against them")
    typer.echo(json.dumps(receipts.redact(content, keep_salt=keep_salt)))


@receipt.command()
def keygen(
    file: Annotated[Path, typer.Argument(help="Where to write the private key. It must not exist.")],
) -> None:
    """Make a key that signs receipts (holdfast serve --receipt-key FILE), and print its public key."""
    from holdfast.receipts.signing import SigningKey

    key = SigningKey.generate()
    key.write(file)
    typer.echo(key.public_key.pem, nl=False)
    note(f"the private key is in {file}; the key's id is {key.key_id}")


@receipt.command()
def public_key(
    file: Annotated[Path, typer.Argument(help="A PEM file with a private or a public key.")],
) -> None:
    """Print the public key of a private key, to be given to those who check receipts."""
    from holdfast.receipts.signing import PublicKey

    key = PublicKey.read(file)
    typer.echo(key.pem, nl=False)
    note(f"the key's id is {key.key_id}")


def _read(source: str, line: int | None) -> object:
    from holdfast.receipts.reader import read_content, read_stdin

    return read_content(read_stdin() if source == "-" else Path(source), line)


def _show(checked: "ReceiptCheck") -> None:
    typer.echo(f"format     {checked.format}")
    typer.echo(f"seal       {checked.seal}")
    hint = "; give --public-key" if checked.signature == "not checked" else ""
    typer.echo(f"signature  {checked.signature}{hint}")
    if checked.key_id is not None:
        typer.echo(f"key id     {checked.key_id}")
    if checked.problem is not None:
        typer.echo(f"Wrong: {checked.problem}.")
