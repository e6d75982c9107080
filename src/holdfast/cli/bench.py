"""`holdfast bench`: measurements and the demonstration, each a thin call into `holdfast.bench`."""

import typer

from holdfast.cli import options as o

bench = typer.Typer(help="Measure speed, prick determinism, show it.", no_args_is_help=True)


@bench.command()
def demo(model: o.ModelArgument = None, num_threads: o.NumThreads = None) -> None:
    """One deterministic prompt: alone, inside two loads, after forced rollbacks. Exits with 1 if a bit differs."""
    from holdfast.bench.demo import run

    raise typer.Exit(0 if run(o.EngineOptions(model, num_threads=num_threads).open()) else 1)
