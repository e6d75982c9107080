"""Words of other engines, answered with ours: commands, options, arguments in Python, HTTP routes, fields of bodies.

Users of ollama, vLLM, SGLang and llama.cpp type what they are used to. The answer is one line that says
what to use instead. Nothing is run, because the other word does not mean exactly that. The words are in
`other_engines.toml`.
"""

import shlex
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path


@cache
def answers(kind: str) -> dict[str, str]:
    """Return our answer to each word. kind: commands, options, unsupported, routes or fields."""
    import tomllib

    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {word: answer for answer, words in tomllib.loads(text)[kind].items() for word in words}


def command_hint(command: str, rest: Sequence[str]) -> str | None:
    """Return what to type instead of another engine's command, or None if it is not known."""
    hint = answers("commands").get(command)
    if hint is None:
        return None
    model = next((shlex.quote(one) for one in rest if not one.startswith("-")), "MODEL")
    return f"there is no command {command}; {hint.format(model=model)}"


def option_hint(command: str, option: str, names: Collection[str]) -> str | None:
    """Return what to give instead of another engine's option, or None if it is not known.

    names are the options and arguments that the command has.
    """
    reason = answers("unsupported").get(option)
    if reason is not None and "--device" in names:
        return f"{command} has no option {option}: {reason}"
    ours = answers("options").get(option)
    if ours is None or ours.split(",")[0] not in names:
        return None
    wanted = f"its model without an option: holdfast {command} MODEL" if ours == "model" else ours
    return f"{command} has no option {option}; give {wanted}"


def argument_hint(name: str, names: Collection[str]) -> str | None:
    """Return what to give instead of another engine's argument in Python, or None if it is not known.

    names: the arguments there are.
    """
    option = f"--{name.replace('_', '-')}"
    if option in answers("unsupported"):
        return answers("unsupported")[option]
    ours, comma, rest = answers("options").get(option, "").partition(",")
    argument = ours.removeprefix("--").replace("-", "_")
    if argument in names:
        return f"use {argument}{comma}{rest}"
    return f"holdfast serve has {ours}" if ours else None
