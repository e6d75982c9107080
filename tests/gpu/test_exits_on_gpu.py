"""Scripts that use a GPU end with Python's status, however they leave their engine: none crashes, none hangs.

HOLDFAST_TEST_SCALE=5.4 runs 300 of them, eight at a time.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engines import default_device
from support.endings import ENDINGS, Ended, model_folder, run_scripts
from support.examples import examples

NUM_SCRIPTS = examples(56)
AT_ONCE = 8
SECONDS = 300.0  # for one: eight may make a certificate at once


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("exits") / "model"
    model_folder(
        folder,
        hidden_size=256,
        intermediate_size=512,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=4096,
        torch_dtype="bfloat16",
    )
    return {
        "model": str(folder),
        "device": default_device().type,
        "kv_memory": "64MiB",
        "max_num_seqs": 16,
        "max_pass_tokens": 512,
        "max_model_len": 512,
    }


def require_right(found: Sequence[Ended]) -> None:
    wrong = [one for one in found if not one.is_right]
    assert not wrong, "\n\n".join(f"{one.ending}: status {one.status}\n{one.errors[-2000:]}" for one in wrong)


@pytest.mark.parametrize("certification", ["startup", "background"])
def test_scripts_that_make_a_certificate_end_with_the_status_of_python(
    options: dict[str, Any], certification: str, tmp_path: Path
) -> None:
    """In the background most end before it is made."""
    for wave in range(examples(1)):
        found = run_scripts(
            list(ENDINGS),
            {**options, "certification": certification},
            at_once=AT_ONCE,
            seconds=SECONDS,
            environment={"HOLDFAST_CACHE_DIR": str(tmp_path / str(wave))},  # empty when they begin
        )
        require_right(found)


def test_scripts_with_a_certificate_end_with_the_status_of_python(options: dict[str, Any]) -> None:
    """The first makes it for all."""
    endings = [*ENDINGS] * (NUM_SCRIPTS // len(ENDINGS) + 1)
    require_right(run_scripts(endings[:1], options, at_once=1, seconds=SECONDS))
    require_right(run_scripts(endings[:NUM_SCRIPTS], options, at_once=AT_ONCE, seconds=SECONDS))
