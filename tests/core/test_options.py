"""Settings declared as dataclass fields: choices, and the signature that shows them."""

import inspect
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from holdfast.core.options import check_choices, option, option_fields, takes_fields_of
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


def test_an_unknown_name_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="waves"):
        Weather(waves=1)  # type: ignore[call-arg]


def test_a_value_that_is_no_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="sky must be clear or grey, not 'pink'"):
        Weather(sky="pink")  # type: ignore[arg-type]


def test_a_constructor_can_show_the_fields() -> None:
    class Forecast:
        @takes_fields_of(Weather)
        def __init__(self, *args: Any, **options: Any) -> None:
            """Predict."""
            self.weather = Weather(*args, **options)

    assert Forecast("there", wind=7).weather == Weather("there", wind=7)
    assert inspect.signature(Forecast) == inspect.signature(Weather).replace(
        return_annotation=inspect.Signature.empty
    )
    assert "wind: In knots." in (Forecast.__init__.__doc__ or "")
