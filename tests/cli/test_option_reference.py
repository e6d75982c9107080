"""The option tables in docs/operations.md are those of the configuration dataclasses."""

from pathlib import Path

import pytest

from holdfast.core.options import option_fields
from holdfast.engine.config import EngineConfig
from holdfast.ray.config import ReplicasConfig
from holdfast.server.config import ServerConfig
from scripts.option_reference import BEGIN, options_reference, update

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_operations_page_has_the_current_options():
    text = OPERATIONS.read_text(encoding="utf-8")
    assert text == update(text), f"run: python scripts/option_reference.py {OPERATIONS}"


def test_reference_has_every_option():
    reference = options_reference()
    for one in (*option_fields(EngineConfig), *option_fields(ServerConfig), *option_fields(ReplicasConfig)):
        assert f"{one.name.replace('_', '-')}`" in reference
        assert one.option.help in reference


def test_page_without_marks_is_refused():
    with pytest.raises(ValueError, match="marks"):
        update(f"a page {BEGIN}")
