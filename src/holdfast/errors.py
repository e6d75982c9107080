"""Every error Holdfast raises on purpose, in one tree.

    HoldfastError               internal_error
    ├── RequestError            invalid_value            this request cannot be served; all others go on
    │   ├── InvalidRequest      invalid_value            a setting or a prompt is wrong
    │   │   └── AnswerEnded     answer_ended             the answer to continue has ended: nothing follows it
    │   ├── PromptTooLong       context_length_exceeded  prompt and answer do not fit the model or the KV budget
    │   ├── TemplateError       chat_template_failed     the chat template failed, or did something it must not do
    │   ├── TokenizerError      tokenizer_failed         the model's tokenizer failed at this text
    │   └── DeterminismRefused  determinism_refused      the request is deterministic and the engine cannot be
    ├── AnswerFailed            answer_failed            an accepted request ended in an error
    │   ├── PassFailed          pass_failed              a pass raised while the request was in it
    │   ├── NotFinite           not_finite               the model's numbers for the request are NaN or infinite
    │   ├── GuaranteeLost       guarantee_lost           tokens already sent are not those of a verified pass
    │   ├── EngineCrashed       engine_crashed           the engine process died whenever it computed the request
    │   └── NoTokenAllowed      answer_impossible        the request's own constraints leave no token to sample
    ├── ModelError              model_error              the model cannot be loaded
    │   ├── ModelNotFound       model_not_found          there is no such model
    │   ├── UnsupportedModel    unsupported_model        the model needs something Holdfast does not support
    │   └── BadWeights          bad_weights              a weight file is missing, truncated or malformed
    ├── ConfigError             invalid_config           the engine cannot be started with these settings
    ├── EngineStopped           engine_stopped           the engine is shut down, or failed while the request ran
    ├── NotReady                engine_not_ready         no engine is ready, or the server shuts down; ask again
    │   └── ModelGivenUp        model_given_up           its engine failed too often; restart the server
    ├── TooBusy                 too_many_requests        more is asked for than a share allows; ask again
    └── ServerError             server_error             an HTTP server cannot be reached, or refused the request

Each class has a `code`. An error crosses a process boundary as its code and its message;
`make_error` rebuilds it.

A message says what was wrong, what was expected and what to do. A broken invariant is none of
these: it is an `AssertionError`, because it is a bug.
"""


class HoldfastError(Exception):
    """Any error Holdfast raises on purpose."""

    code = "internal_error"


class RequestError(HoldfastError):
    """One request cannot be served."""

    code = "invalid_value"


class InvalidRequest(RequestError):
    """A setting or a prompt is wrong."""


class AnswerEnded(InvalidRequest):
    """The answer that is to be continued has ended."""

    code = "answer_ended"


class PromptTooLong(RequestError):
    """Prompt and answer do not fit the model's context or the KV budget."""

    code = "context_length_exceeded"


class TemplateError(RequestError):
    """The chat template failed, or did something it must not do."""

    code = "chat_template_failed"


class TokenizerError(RequestError):
    """The model's tokenizer failed at this text."""

    code = "tokenizer_failed"


class DeterminismRefused(RequestError):
    """A deterministic answer was requested and the engine cannot guarantee one."""

    code = "determinism_refused"


class AnswerFailed(HoldfastError):
    """An accepted request ended in an error.

    `Result.error_code` is the code of a subclass. Streams of the Python API raise it.
    """

    code = "answer_failed"


class PassFailed(AnswerFailed):
    """A pass raised while the request was in it."""

    code = "pass_failed"


class NotFinite(AnswerFailed):
    """The model's numbers for this request are NaN or infinite. Others are not affected."""

    code = "not_finite"


class GuaranteeLost(AnswerFailed):
    """Tokens or logprobs that were already sent are not those of a verified pass."""

    code = "guarantee_lost"


class EngineCrashed(AnswerFailed):
    """The engine process died whenever it computed this request, also without any other."""

    code = "engine_crashed"


class NoTokenAllowed(AnswerFailed):
    """The request's own constraints (grammar, allowed and forbidden tokens) leave no token to
    sample.
    """

    code = "answer_impossible"


class ModelError(HoldfastError):
    """The model cannot be loaded."""

    code = "model_error"


class ModelNotFound(ModelError):
    """There is no such model."""

    code = "model_not_found"


class UnsupportedModel(ModelError):
    """The model needs something Holdfast does not support."""

    code = "unsupported_model"


class BadWeights(ModelError):
    """A weight file is missing, truncated or malformed."""

    code = "bad_weights"


class ConfigError(HoldfastError):
    """The engine cannot be started with these settings."""

    code = "invalid_config"


class EngineStopped(HoldfastError):
    """The engine is shut down, or failed while the request ran."""

    code = "engine_stopped"


class _AskAgain(HoldfastError):
    """A request that is refused now. `retry_after` is in seconds; `code` may say more than the class."""

    def __init__(self, message: str, *, code: str | None = None, retry_after: int = 5) -> None:
        super().__init__(message)
        self.code = code or type(self).code
        self.retry_after = retry_after


class NotReady(_AskAgain):
    """No engine is ready, or the server shuts down."""

    code = "engine_not_ready"


class ModelGivenUp(NotReady):
    """The model's engine failed too often; only a restart of the server brings it back."""

    code = "model_given_up"


class TooBusy(_AskAgain):
    """More is asked for than the client's share allows."""

    code = "too_many_requests"


class ServerError(HoldfastError):
    """An HTTP server cannot be reached, or refused the request."""

    code = "server_error"


def make_error(code: str, message: str) -> HoldfastError:
    """The error with this code; a plain `HoldfastError` for an unknown one."""
    return _BY_CODE.get(code, HoldfastError)(message)


def _subclasses(kind: type[HoldfastError]) -> list[type[HoldfastError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in _subclasses(child))]


_BY_CODE = {kind.code: kind for kind in _subclasses(HoldfastError) if not kind.__name__.startswith("_")}
