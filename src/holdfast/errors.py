"""Every error Holdfast raises on purpose, in one tree.

    HoldfastError
    ├── RequestError            this request cannot be served; every other one goes on
    │   ├── InvalidRequest      a setting or a prompt is wrong
    │   ├── PromptTooLong       prompt and answer do not fit the model or the KV budget
    │   ├── TemplateError       the chat template failed, or did what it must not
    │   └── DeterminismRefused  the guarantee was asked for and cannot be given
    ├── ModelError              the model cannot be loaded
    │   ├── ModelNotFound       there is no such model
    │   ├── UnsupportedModel    the model asks for something Holdfast does not do
    │   └── BadWeights          a weight file is missing, cut off, or not what it says
    ├── ConfigError             the engine cannot be started with these settings
    ├── EngineStopped           the engine is shut down, or a pass failed beneath the request
    └── ServerError             a server that was asked over HTTP cannot be reached, or says no

A message says what was wrong, what was expected and what to do. A broken invariant is none of these: it is an
`AssertionError`, because it is our fault.
"""


class HoldfastError(Exception):
    """Anything Holdfast raises on purpose."""


class RequestError(HoldfastError):
    """One request cannot be served."""


class InvalidRequest(RequestError):
    """A setting or a prompt is wrong."""


class PromptTooLong(RequestError):
    """Prompt and answer do not fit the model's context or the KV budget."""


class TemplateError(RequestError):
    """The chat template failed, or did what it must not."""


class DeterminismRefused(RequestError):
    """The guarantee was asked for and cannot be given."""


class ModelError(HoldfastError):
    """The model cannot be loaded."""


class ModelNotFound(ModelError):
    """There is no such model."""


class UnsupportedModel(ModelError):
    """The model asks for something Holdfast does not do."""


class BadWeights(ModelError):
    """A weight file is missing, cut off, or not what it says it is."""


class ConfigError(HoldfastError):
    """The engine cannot be started with these settings."""


class EngineStopped(HoldfastError):
    """The engine is shut down, or failed beneath the request."""


class ServerError(HoldfastError):
    """A server that was asked over HTTP cannot be reached, or says no."""
