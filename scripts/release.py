"""The release checklist: `python scripts/release.py VERSION` checks all and tags the commit. It uploads nothing.

Version numbers are semantic: Python names, routes, options, the receipt's format and what the fingerprint means change in
a major version only; while it is 0, in a minor one.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PUBLISHED = (  # what builds and tries what is published
    [sys.executable, "scripts/dist.py", "--twice"],
    [sys.executable, "scripts/try_dist.py"],
    [*(["sudo"] if os.geteuid() else []), sys.executable, "scripts/try_containers.py"],
)


def main() -> None:
    if len(sys.argv) != 2 or not re.fullmatch(r"\d+\.\d+\.\d+", sys.argv[1]):
        sys.exit("usage: python scripts/release.py 1.2.3")
    version = sys.argv[1]
    _require(not _git("status", "--porcelain"), "the working tree has changes; commit them first")
    _require(_git("branch", "--show-current") == "main", "a release is a commit of main")
    _require(not _git("tag", "--list", f"v{version}"), f"there is a tag v{version} already")
    for problem in problems(version, ROOT):
        sys.exit(f"release: {problem}")
    for command in (["bash", ".ci/run"], ["make", "docs"], [sys.executable, "scripts/dist.py", "--twice"]):
        subprocess.run(command, cwd=ROOT, check=True)
    _git("tag", "--annotate", f"v{version}", "--message", f"Holdfast {version}")
    print(
        f"tagged v{version}. To publish: git push origin v{version}, then upload dist/*.whl and dist/*.tar.gz"
    )


def problems(version: str, root: Path) -> list[str]:
    """Return what the files say that does not fit this version."""
    found = []
    if f'__version__ = "{version}"' not in (root / "src/holdfast/version.py").read_text():
        found.append(f"src/holdfast/version.py has another version than {version}")
    heading = re.search(r"^## (\S+)(.*)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if heading is None or heading[1] != version or "unreleased" in heading[2]:
        found.append(f"the first heading of CHANGELOG.md must be: ## {version} (DATE)")
    if f"holdfast:{version}\n" not in (root / "deploy/kubernetes.yaml").read_text():
        found.append(f"deploy/kubernetes.yaml names another image than holdfast:{version}")
    return found


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        sys.exit(f"release: {message}")


if __name__ == "__main__":
    main()
