"""A recording as a table: each distinct answer, how often it came, and where it leaves the first."""

from rich.console import Console

from holdfast.bench.determinism.recording import RecordedAnswer, RecordedSide, Recording
from holdfast.bench.tables import make_table, open_console

_MAX_SHOWN = 8
_AROUND = 2  # token ids shown before and after a difference


def show_recording(recording: Recording, console: Console | None = None) -> None:
    """Print all sides, and one sentence about each."""
    console = console or open_console()
    console.print(where_made(recording), style="dim")
    _show_ordinary(recording.ordinary, console)
    console.print(side_sentence(recording.ordinary))
    for one in recording.controls:
        console.print(side_sentence(one))


def where_made(recording: Recording) -> str:
    """One line: the machine, the model and the day."""
    machine, model = recording.machine, recording.model
    versions = f"torch {machine.torch}" + (f", triton {machine.triton}" if machine.triton else "")
    weights = ", random weights" if model.weights == "random" else ""
    return (
        f"Recorded on {recording.date} on {machine.device}: {model.name}{weights}, {model.dtype}, "
        f"{model.kernels} kernels, {versions}"
    )


def side_sentence(side: RecordedSide) -> str:
    what = f"deterministic ({side.mode})" if side.deterministic else "ordinary"
    texts = len(side.answers)
    several = "" if side.distinct == texts else f", {side.distinct} with the bits of logprobs"
    answers = "1 answer" if texts == 1 else f"{texts} different answers"
    return f"{what}: {side.runs} runs, {answers}{several}"


def _show_ordinary(side: RecordedSide, console: Console) -> None:
    table = make_table("ordinary", "runs", "beside", "leaves the first at", "answer", num_left=4)
    first = side.answers[0]
    for one in side.answers[:_MAX_SHOWN]:
        at = "" if one.first_difference is None else f"token {one.first_difference}"
        table.add_row(str(one.runs), _neighbours(one), at, _excerpt(one, first))
    if len(side.answers) > _MAX_SHOWN:
        table.add_row("", "", "", f"and {len(side.answers) - _MAX_SHOWN} more")
    console.print(table)


def _neighbours(answer: RecordedAnswer) -> str:
    least, most = min(answer.neighbours), max(answer.neighbours)
    return str(least) if least == most else f"{least} to {most}"


def _excerpt(answer: RecordedAnswer, first: RecordedAnswer) -> str:
    """The text from shortly before the difference; without text, the token ids."""
    at = answer.first_difference
    if answer.text is None or first.text is None:
        start = 0 if at is None else max(at - _AROUND, 0)
        ids = answer.token_ids[start : start + 2 * _AROUND + 1]
        return ("... " if start else "") + " ".join(map(str, ids)) + " ..."
    if at is None:
        return answer.text.strip()
    same = _num_common(answer.text, first.text)
    start = answer.text.rfind(" ", 0, max(same - 20, 0)) + 1
    return ("... " if start else "") + answer.text[start:].strip()


def _num_common(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
