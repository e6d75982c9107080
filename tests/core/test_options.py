"""Settings declared as dataclass fields: choices, and the signature that shows them."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from holdfast.core.options import check_choices, option, option_fields
from holdfast.errors import ConfigError


@dataclass(frozen=True)
class Weather:
    place: str = "here"
    wind: int = option(3, "In knots.", panel="Sea")
    sky: Literal["clear", "grey"] | None = option(None, "Its colour.", panel="Sky", name="colour")
    clouds: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_choices(self)


def test_only_declared_fields_are_options() -> None:
    wind, sky = option_fields(Weather)
    assert (wind.name, wind.default, wind.option.help, wind.choices) == ("wind", 3, "In knots.", ())
    assert (sky.name, sky.field_name, sky.choices) == ("colour", "sky", ("clear", "grey"))


def test_a_value_that_is_no_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="sky must be clear or grey, not 'pink'"):
        Weather(sky="pink")  # type: ignore[arg-type]
