"""Tools and the choice of one, as chat completions have them. They stay plain dicts."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from holdfast.server.http.validation_errors import refuse_unless

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
_STRICT = ConfigDict(extra="forbid", strict=True)


class ChatFunction(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]  # not a field
    name: FunctionName
    description: NotRequired[str | None]
    parameters: NotRequired[
        Annotated[dict[str, Any] | None, Field(description="A JSON schema of the arguments.")]
    ]
    strict: NotRequired[bool | None]


class ChatTool(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    type: Literal["function"]
    function: ChatFunction


class ChosenFunction(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    name: str


class ChosenTool(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | ChosenTool,
    refuse_unless(
        lambda value: not isinstance(value, dict) or value.get("type") != "allowed_tools",
        'the type "allowed_tools" is not supported; send only the tools that may be called',
    ),
]
