"""Settings declared as dataclass fields: aliases, old values, choices, and the signature that shows them."""

import inspect
import warnings
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from holdfast.core.options import accept_aliases, check_choices, option, option_fields, takes_fields_of
from holdfast.errors import ConfigError


@accept_aliases
@dataclass(frozen=True)
class Weather:
    place: str = "here"
    wind: int = option(3, "In knots.", panel="Sea", aliases=("breeze",), deprecated=("gust",))
    sky: Literal["clear", "grey"] | None = option(
        None, "Its colour.", panel="Sky", name="colour", old_values={"blue": "clear"}
    )
    clouds: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_choices(self)


def test_only_declared_fields_are_options() -> None:
    wind, sky = option_fields(Weather)
    assert (wind.name, wind.default, wind.option.help, wind.choices) == ("wind", 3, "In knots.", ())
    assert (sky.name, sky.field_name, sky.choices) == ("colour", "sky", ("clear", "grey"))


def test_an_alias_sets_the_field_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Weather(breeze=5) == Weather(wind=5)  # type: ignore[call-arg]


def test_a_deprecated_alias_warns_at_the_caller() -> None:
    with pytest.warns(DeprecationWarning, match="gust is now called wind") as caught:
        assert Weather(gust=5).wind == 5  # type: ignore[call-arg]
    assert caught[0].filename == __file__


@pytest.mark.parametrize("given", [{"wind": 1, "gust": 2}, {"breeze": 1, "gust": 1}])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_two_names_of_one_setting_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the same setting"):
        Weather(**given)


def test_an_unknown_name_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="waves"):
        Weather(waves=1)  # type: ignore[call-arg]


def test_an_old_value_is_replaced_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="sky 'blue' is now called 'clear'"):
        assert Weather(sky="blue").sky == "clear"  # type: ignore[arg-type]


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
