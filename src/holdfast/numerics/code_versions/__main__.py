"""Show the code versions, or record new ones.

    python -m holdfast.numerics.code_versions                show what is recorded and what is installed
    python -m holdfast.numerics.code_versions --record       the sources changed, no bit did
    python -m holdfast.numerics.code_versions --bump model   bits changed: raise the version

`python scripts/compare_bits.py main` tells which: it compares the answers of two versions bit for
bit, on every backend of the machine. Raise the version also where it cannot look: kernels of another
CPU or GPU, a feature it does not ask for. Certificates, receipts and fingerprints made before a
raised version no longer match; the changelog says so.
"""

import argparse
import json
from importlib import resources
from pathlib import Path

from holdfast.numerics.code_versions.components import COMPONENTS, component_files
from holdfast.numerics.code_versions.versions import (
    RECORDED,
    Recorded,
    cached_digest,
    modified_version,
    read_recorded,
)


def main(arguments: list[str] | None = None, package: Path | None = None) -> int:
    """Exit status 1: sources differ from what is recorded, and nothing was written."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.numerics.code_versions", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--record", action="store_true", help="record the digests of the installed sources")
    parser.add_argument("--bump", nargs="+", choices=COMPONENTS, default=[], help="raise these versions")
    options = parser.parse_args(arguments)
    package = Path(str(resources.files("holdfast"))) if package is None else package
    before = read_recorded(package) if (package / RECORDED).exists() else {}
    now = installed_versions(package, before)
    for name in options.bump:
        now[name] = Recorded(now[name].version + 1, now[name].digest)
    differ = {name for name in {*before, *now} if before.get(name) != now.get(name)}
    writes = options.record or bool(options.bump)
    if writes:
        bumped = {name: now[name] for name in options.bump}
        write_recorded(package, now if options.record else {**before, **bumped})
    for name, one in now.items():
        shown = modified_version(one.version, one.digest) if name in differ else str(one.version)
        print(f"{name:16} {shown:40} {COMPONENTS[name].covers}")
    return 1 if differ and not writes else 0


def installed_versions(package: Path, recorded: dict[str, Recorded]) -> dict[str, Recorded]:
    """The recorded versions, with the digests of the installed sources."""
    found: dict[str, Recorded] = {}
    for name in COMPONENTS:
        files = component_files(package, name)
        if files is None:
            raise SystemExit(f"{name}: a listed file or folder does not exist in {package}")
        found[name] = Recorded(
            recorded[name].version if name in recorded else 1, cached_digest(package, files)
        )
    return found


def write_recorded(package: Path, recorded: dict[str, Recorded]) -> None:
    entries = {name: vars(recorded[name]) for name in COMPONENTS if name in recorded}
    (package / RECORDED).write_text(json.dumps(entries, indent=2) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
