"""Which options stand on the command line. One that has its default may have been given, too."""

from collections.abc import Iterable

import typer


def given_options(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Those of these parameters that were given, as they are written: --max-num-seqs, or MODEL for an argument."""
    wanted = set(names)
    given = []
    for one in context.command.params:
        source = context.get_parameter_source(one.name) if one.name in wanted and one.name else None
        if source is not None and source.name == "COMMANDLINE":
            name = one.opts[0]
            given.append(name if one.param_type_name == "option" else name.upper())
    return given
