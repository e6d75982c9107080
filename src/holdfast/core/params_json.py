"""`SamplingParams` as plain JSON and back: what a receipt keeps, and what goes from one process to another."""

from dataclasses import fields
from typing import Any

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import StructuredOutput


def settings_of(params: SamplingParams) -> dict[str, Any]:
    """Every field, as JSON takes it. Seeds are text: many tools round numbers above 2 ** 53."""
    settings = {one.name: _listed(getattr(params, one.name)) for one in fields(params)}
    settings["seed"] = None if params.seed is None else str(params.seed)
    settings["structured"] = None if params.structured is None else _form_of(params.structured)
    return settings


def params_of(settings: dict[str, Any]) -> SamplingParams:
    """The settings again; one that is missing has its default. Raises `InvalidRequest` for wrong values."""
    form, seed = settings.get("structured"), settings.get("seed")
    return SamplingParams(
        **{
            **settings,
            "structured": None if form is None else StructuredOutput(**form),
            "seed": None if seed is None else int(seed),
        }
    )


def _form_of(form: StructuredOutput) -> dict[str, Any]:
    return {form.kind: _listed(getattr(form, form.kind))}


def _listed(value: object) -> object:
    return [_listed(one) for one in value] if isinstance(value, tuple) else value
