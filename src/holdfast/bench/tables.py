"""Tables on the screen, in one style."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def open_console(file_width: int | None = None) -> Console:
    """The console of this process.

    Where the output is a file, lines may be file_width columns long.
    """
    console = Console(highlight=False)
    if file_width is not None and not console.is_terminal:
        console.width = file_width
    return console


def make_table(title: str, *headings: str, num_left: int = 1, no_wrap: bool = False) -> Table:
    """An empty table.

    The first num_left columns are text, aligned left; the others are numbers, aligned right.
    """
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < num_left else "right", no_wrap=no_wrap)
    return table
