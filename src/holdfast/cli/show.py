"""What goes to stderr: errors, counts, notes. stdout belongs to the answers.

rich is imported when something is shown.
"""

from typing import TYPE_CHECKING

from holdfast.core.result import Result

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
    """An answer's mode in a few words."""
    mode = "ordinary" if result.determinism == "none" else result.determinism
    return f"{mode} · {len(result.token_ids)} tokens · seed {result.seed} · {result.finish_reason}"


def stats_line(result: Result) -> str:
    """What an answer cost."""
    stats = result.stats
    return (
        f"{mode_line(result)} · candidates {stats.candidates} = accepted {stats.accepted} + rolled back "
        f"{stats.rolled_back} · canonical tokens {stats.canonical_tokens} · windows {stats.windows} · passes "
        f"{stats.fast_passes} fast, {stats.canonical_passes} canonical · prompt {len(result.prompt_token_ids)} tokens, "
        f"{stats.cached_tokens} cached · preemptions {stats.preemptions}"
    )
