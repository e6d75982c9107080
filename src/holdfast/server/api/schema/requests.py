"""Request models. Unknown fields are refused, as OpenAI does; `null` is an omitted field.

The models define fields and types; `SamplingParams` and the server's limits validate the values.
OpenAI's fields that have no effect here are accepted and ignored. Fields for features that are not
supported must be null.
"""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    RootModel,
    Tag,
    WithJsonSchema,
    model_validator,
)
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from holdfast.core.pooling import PoolingType
from holdfast.server.http.body import Many
from holdfast.server.http.validation_errors import ByType, null_only, refuse_unless

TokenId = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]
TokenIds = Many[TokenId]
Prompts = str | TokenIds | Many[str | TokenIds]
TruncatePromptTokens = Literal[-1] | Annotated[int, Field(ge=1, le=1 << 24)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
MAX_MESSAGES = 2048  # OpenAI's limit
_MAX_ALLOWED_TOKEN_IDS = 1 << 16
_OnlySchema = Annotated[None, null_only('it requires the type "json_schema"')]
_OnlyObject = Annotated[None, null_only('it requires the type "json_object"')]
# JSON schemas for the document alone; `api.sampling` and `api.model_fields` check the keys, which are numbers.
_LOGIT_BIAS = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    "maxProperties": 1024,
}
_FORCED_THOUGHTS = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,8}$"},
    "additionalProperties": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 1024},
}
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


class RequestModel(BaseModel):
    """A request body: strict types, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ReturnedModel(RequestModel):
    """A part of an earlier response that clients send back, with all its fields: any may be null."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: one for name, one in value.items() if one is not None}


class StreamOptions(RequestModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(
        None, description="With include_usage: the usage so far in every chunk."
    )
    include_obfuscation: bool | None = Field(None, description="Accepted and ignored.")


class NamedSchema(RequestModel):
    name: str | None = Field(None, pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(None, description="Schemas are always enforced.")


class TextFormat(RequestModel):
    type: Literal["text"]
    json_schema: _OnlySchema = None
    schema_: _OnlyObject = Field(None, alias="schema")


class ObjectFormat(RequestModel):
    """schema: llama.cpp's way to ask for one."""

    type: Literal["json_object"]
    json_schema: _OnlySchema = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class SchemaFormat(RequestModel):
    type: Literal["json_schema"]
    json_schema: NamedSchema
    schema_: _OnlyObject = Field(None, alias="schema")


class StructuredOutputs(RequestModel):
    """vLLM's field: exactly one of these."""

    json_: str | dict[str, Any] | bool | None = Field(None, alias="json")
    regex: str | None = None
    choice: Many[str] | None = None
    grammar: str | None = Field(None, description="Lark.")
    json_object: bool | None = None

    @model_validator(mode="after")
    def _check_one(self) -> "StructuredOutputs":
        given = (self.json_, self.regex, self.choice, self.grammar, self.json_object)
        count = sum(one not in (None, False) for one in given)
        if count != 1:
            names = "json, regex, choice, grammar, json_object"
            raise ValueError(f"it must have exactly one of {names}; it has {count}.")
        return self


ResponseFormat = Annotated[
    TextFormat | ObjectFormat | SchemaFormat,
    ByType('its type must be "text", "json_object" or "json_schema"'),
]


class ThinkingFields(RequestModel):
    """Fields for thinking models."""

    think: bool | None = Field(
        None, description="False: a thinking model does not think. True: refused by other models."
    )
    forced_thoughts: Annotated[dict[str, Many[int]], WithJsonSchema(_FORCED_THOUGHTS)] | None = Field(
        None,
        description="Chunk indices, as strings, and the token ids of the thought after each chunk, instead of the "
        "model's own; [] is no thought.",
    )


class SamplingFields(ThinkingFields):
    """Fields that all routes that generate text share."""

    model: str | None = Field(
        None, max_length=1024, description="One of /v1/models; the served model if omitted."
    )
    deterministic: bool | None = Field(
        None,
        description="Guarantee the same tokens and logprob bits, whatever else runs. Default: the server's, which is "
        "false without --deterministic.",
    )
    return_receipt: bool | None = Field(None, description="Return the receipt in the `holdfast` object.")
    return_token_ids: bool | None = Field(
        None, description="Return the token ids of the prompt and the choices."
    )
    min_tokens: int | None = Field(None, ge=0, le=1 << 24)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=(1 << 31) - 1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=0, le=(1 << 64) - 1)
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    logit_bias: Annotated[dict[str, float], WithJsonSchema(_LOGIT_BIAS)] | None = Field(
        None, description="Token ids, as strings, and the bias that is added to their logits."
    )
    allowed_token_ids: TokenIds | None = Field(None, max_length=_MAX_ALLOWED_TOKEN_IDS)
    bad_words: Many[str] | None = None
    stream: bool | None = None
    structured_outputs: StructuredOutputs | None = Field(
        None, description="One of json, regex, choice, grammar, json_object."
    )
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Many[str] | None = None
    guided_grammar: str | None = None
    json_schema: str | dict[str, Any] | bool | None = Field(None, description="llama.cpp's `guided_json`.")
    regex: str | None = Field(None, description="SGLang's `guided_regex`.")
    skip_special_tokens: bool | None = Field(
        None, description="Default: true. False: the text has special tokens, too."
    )
    include_stop_str_in_output: bool | None = Field(
        None, description="Keep the stop string or stop token at the end of the text."
    )
    user: str | None = Field(None, description="Accepted and ignored.")


class ServingFields(RequestModel):
    """vLLM's fields about how a request is served."""

    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Share cached prefixes only with requests that have the same salt.",
    )
    request_id: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        description="The end of the response's id, and its X-Request-Id. The request's header takes precedence.",
    )
    priority: int | None = Field(
        None, ge=0, le=0, description="Only 0: requests are served in order of arrival."
    )


class GenerationRequest(SamplingFields, ServingFields):
    """Fields that chat completions and completions share."""

    max_tokens: int | None = Field(None, ge=-1, le=1 << 24, description="-1: as many as fit the context.")
    n: int | None = Field(None, ge=1, le=128)
    stop: str | Many[str] | None = None
    stream_options: StreamOptions | None = Field(None, description="Only with `stream`.")
    response_format: ResponseFormat | None = None
    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        le=20,
        description="Return the logprobs of the prompt's tokens and of that many most likely ones. Not in a stream.",
    )
    logprob_token_ids: TokenIds | None = Field(
        None,
        max_length=128,
        description="With logprobs: report the logprobs of these tokens in place of the most likely ones.",
    )
    return_tokens_as_token_ids: bool | None = Field(
        None, description="Write tokens in logprobs as token_id:123."
    )
    truncate_prompt_tokens: TruncatePromptTokens | None = Field(
        None, description="Keep only the last tokens of the prompt: this many, or with -1 as many as fit."
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="Which end of a truncated prompt is cut off. Default: left."
    )


class CompletionRequest(GenerationRequest):
    """/v1/completions"""

    prompt: Prompts = Field(description="Text or token ids, one prompt or a batch.")
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    best_of: int | None = Field(None, ge=1, le=128, description="Must equal n.")
    suffix: str | None = Field(None, description="Not supported.")
    add_special_tokens: bool | None = Field(
        None, description="Whether the tokenizer adds its special tokens to a text prompt."
    )


class TextPart(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    type: str
    text: str | None = None


class ChatMessage(BaseModel):
    """A chat template may use other fields, so unknown ones are passed on."""

    model_config = ConfigDict(extra="allow", strict=True)
    role: str = Field(min_length=1, max_length=64)
    content: str | Many[TextPart] | None = None
    name: str | None = None
    tool_calls: Many[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class ChatCompletionRequest(GenerationRequest):
    """/v1/chat/completions"""

    messages: Many[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, le=1 << 24)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: Many[ChatTool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = Field(
        None, description="Continue the last message instead of starting another."
    )
    modalities: Many[str] | None = Field(None, description='Only ["text"].')
    metadata: dict[str, str] | None = Field(None, description="Accepted and ignored.")
    store: bool | None = Field(None, description="Accepted and ignored: nothing is stored.")
    service_tier: str | None = Field(None, description="Accepted and ignored.")
    safety_identifier: str | None = Field(None, description="Accepted and ignored.")
    prompt_cache_key: str | None = Field(
        None, description="Accepted and ignored: prefixes are always cached."
    )
    prompt_cache_retention: str | None = Field(None, description="Accepted and ignored.")
    reasoning_effort: ReasoningEffort | None = Field(
        None, description='Passed to the chat template. "none" also turns thinking off where a template can.'
    )
    include_reasoning: bool | None = Field(
        None, description="Default: true. False: the thinking is not returned; it is generated all the same."
    )
    verbosity: str | None = Field(None, description="Accepted and ignored.")
    prediction: None = Field(None, description="Not supported: null only.")
    moderation: None = Field(None, description="Not supported: null only.")
    prompt_cache_options: None = Field(None, description="Not supported: null only.")
    audio: None = Field(None, description="Not supported: null only.")
    web_search_options: None = Field(None, description="Not supported: null only.")
    functions: None = Field(None, description="Not supported: null only; use tools.")
    function_call: None = Field(None, description="Not supported: null only; use tool_choice.")


class TokenizeRequest(RequestModel):
    """/tokenize: a text, or a conversation rendered by the chat template."""

    model: str | None = Field(None, max_length=1024)
    prompt: str | Many[ChatMessage] | None = Field(
        None, description="A text. A list of messages is read as `messages`."
    )
    messages: Many[ChatMessage] | None = Field(None, max_length=MAX_MESSAGES)
    tools: Many[ChatTool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    """/detokenize"""

    model: str | None = Field(None, max_length=1024)
    tokens: TokenIds
    skip_special_tokens: bool | None = None


class EmbeddingRequest(ThinkingFields, ServingFields):
    """/v1/embeddings"""

    input: Prompts = Field(description="Text or token ids, one input or a batch.")
    model: str | None = Field(None, max_length=1024)
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Default: float. base64: fp32 in little-endian order."
    )
    dimensions: int | None = Field(
        None, ge=1, le=1 << 17, description="Keep only the first ones. Default: the model's hidden size."
    )
    pooling: PoolingType | None = Field(
        None, description="Default: last, the last token's hidden state. mean: the mean over all tokens."
    )
    normalize: bool | None = Field(None, description="Default: true. Divide by the Euclidean norm.")
    deterministic: bool | None = Field(
        None, description="The same bits alone and in any batch. Default: the server's."
    )
    add_special_tokens: bool | None = Field(
        None, description="Whether the tokenizer adds its special tokens to a text."
    )
    truncate_prompt_tokens: TruncatePromptTokens | None = Field(
        None, description="Keep only the first tokens of an input: this many, or with -1 as many as fit."
    )
    user: str | None = Field(None, description="Accepted and ignored.")


class ScoreRequest(ThinkingFields):
    """/v1/score: the logprobs of a given completion."""

    model: str | None = Field(None, max_length=1024)
    prompt: str | TokenIds
    completion: str | TokenIds
    deterministic: bool | None = Field(None, description="Default: true.")
    return_receipt: bool | None = None


class ReceiptFields(RequestModel):
    """A receipt, and what was left out of it."""

    receipt: dict[str, Any]
    prompt_token_ids: TokenIds | None = Field(None, description="Required if the receipt omits its prompt.")
    prompt_salt: str | None = Field(
        None, max_length=64, description="Required if the receipt omits the salt."
    )


class ReplayRequest(ReceiptFields):
    """/v1/replay: run a receipt's request again and compare every bit."""

    model: str | None = Field(None, max_length=1024)
    force: bool | None = Field(None, description="Compare even if the fingerprints differ.")


class ContinueRequest(ReceiptFields, ServingFields):
    """/v1/continue: what follows a receipt's answer. Settings and seed are the receipt's."""

    max_tokens: int = Field(
        ge=1, le=1 << 24, description="Of the whole answer; more than the receipt's answer has."
    )
    model: str | None = Field(None, max_length=1024)
    force: bool | None = Field(None, description="Go on even if the fingerprints differ.")
    stream: bool | None = None
    stream_options: StreamOptions | None = Field(None, description="Only with `stream`.")
    return_receipt: bool | None = Field(None, description="Return a receipt of the whole answer.")
    return_token_ids: bool | None = Field(None, description="Return the token ids of the rest.")


class ContinueTokensRequest(RequestModel):
    """/v1/continue: what follows the tokens that a client has of an answer."""

    request: Annotated[
        Annotated[CompletionRequest, Tag("completion")] | Annotated[ChatCompletionRequest, Tag("chat")],
        Discriminator(lambda body: "chat" if isinstance(body, dict) and "messages" in body else "completion"),
    ] = Field(description="The body of `/v1/completions` or `/v1/chat/completions`, as it was sent.")
    token_ids: TokenIds = Field(description="The beginning of the answer.")


class ContinueBody(
    RootModel[
        Annotated[
            Annotated[ContinueRequest, Tag("of a receipt")]
            | Annotated[ContinueTokensRequest, Tag("of tokens")],
            Discriminator(
                lambda body: "of tokens" if {"request", "token_ids"} & set(body) else "of a receipt"
            ),
        ]
    ]
):
    """/v1/continue: with a receipt, or with a request and token ids."""

    @property
    def model(self) -> str | None:
        return (self.root if isinstance(self.root, ContinueRequest) else self.root.request).model

    @property
    def request_id(self) -> str | None:
        return (self.root if isinstance(self.root, ContinueRequest) else self.root.request).request_id
