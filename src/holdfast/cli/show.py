"""What goes to stderr: errors, counts, notes. stdout belongs to the answers.

rich is imported when something is shown.
"""

from typing import TYPE_CHECKING

from holdfast.core.results import Result

if TYPE_CHECKING:
    from rich.console import Console


def stderr() -> "Console":
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def show_error(message: str) -> None:
    """One red line."""
    from rich.text import Text

    stderr().print(Text(f"error: {' '.join(message.split())}", style="red"))


def note(message: str) -> None:
    """One dimmed line."""
    from rich.text import Text

    stderr().print(Text(message, style="dim"))


def mode_line(result: Result) -> str:
    """An answer's mode in a few words; of several answers to a prompt, of all of them."""
    mode = "ordinary" if result.determinism == "none" else result.determinism
    choices = result.choices
    several = f"{len(choices)} choices · " if len(choices) > 1 else ""
    num_tokens = sum(len(choice.token_ids) for choice in choices)
    ends = ", ".join(choice.finish_reason for choice in choices)
    return f"{mode} · {several}{num_tokens} tokens · seed {result.seed} · {ends}"


def stats_line(result: Result) -> str:
    """What an answer cost."""
    stats = result.stats
    return (
        f"{mode_line(result)} · candidates {stats.candidates} ({stats.looked_up} looked up) = accepted "
        f"{stats.accepted} + rolled back {stats.rolled_back} · canonical tokens {stats.canonical_tokens} · windows "
        f"{stats.windows} · passes {stats.fast_passes} fast, {stats.canonical_passes} canonical · prompt "
        f"{len(result.prompt_token_ids)} tokens, {stats.cached_tokens} cached · preemptions {stats.preemptions}"
        f"{_thoughts_part(result)}"
    )


def _thoughts_part(result: Result) -> str:
    thoughts = [thought for choice in result.choices for thought in choice.thoughts]
    if not thoughts:
        return ""
    written = sum(bool(thought.token_ids) for thought in thoughts)
    stats = result.stats
    return (
        f" · thoughts {written}, trivial {len(thoughts) - written}, guessed {stats.guessed}, of them right "
        f"{stats.guessed_right}"
    )
