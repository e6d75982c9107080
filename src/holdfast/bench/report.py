"""Reports as JSON files. A report is a dataclass; its field names are those of the file."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def write_report(report: "DataclassInstance", path: Path) -> None:
    """Write the file, or replace it atomically.

    A run that writes after every section keeps what it has measured.
    """
    draft = path.with_name(f"{path.name}.tmp")
    draft.write_text(json.dumps(asdict(report), indent=1) + "\n")
    draft.replace(path)
