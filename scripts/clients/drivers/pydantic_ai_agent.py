"""pydantic-ai: agents over chat completions and the Responses API."""

from checks import MAX_TOKENS, TEMPERATURE, Target, run_recipe
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelSettings, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

CLIENT = "pydantic-ai-slim"
QUESTION = "Name three rivers of Europe."


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=12)
    is_port: bool


def _chat_model(target: Target) -> OpenAIChatModel:
    return OpenAIChatModel(target.model, provider=OpenAIProvider(base_url=target.base_url, api_key="unused"))


def check_recipe(target: Target) -> None:
    """the example of docs/recipes.md"""
    run_recipe("pydantic-ai", target)


def check_text(target: Target) -> None:
    """an agent's text answer, twice the same, and streamed"""
    agent = Agent(_chat_model(target), instructions="Be brief.")
    settings = ModelSettings(max_tokens=8, seed=3)
    first, second = (agent.run_sync(QUESTION, model_settings=settings).output for _ in range(2))
    assert first == second
    streamed = agent.run_stream_sync(QUESTION, model_settings=settings)
    assert streamed.get_output() == first


def check_structured(target: Target) -> None:
    """NativeOutput and ToolOutput into a pydantic model"""
    settings = ModelSettings(max_tokens=64, seed=1)
    for output in (NativeOutput(City), ToolOutput(City)):
        agent = Agent(_chat_model(target), output_type=output, retries=0)
        assert isinstance(agent.run_sync(QUESTION, model_settings=settings).output, City)


def check_tool_result(target: Target) -> None:
    """an agent with a function tool"""
    agent = Agent(_chat_model(target), retries=0)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    assert agent.run_sync(QUESTION, model_settings=ModelSettings(max_tokens=24, seed=1)).output


def check_responses(target: Target) -> None:
    """the Responses API"""
    model = OpenAIResponsesModel(
        target.model, provider=OpenAIProvider(base_url=target.base_url, api_key="unused")
    )
    assert Agent(model).run_sync(QUESTION, model_settings=ModelSettings(max_tokens=16)).output


def ask(target: Target, prompt: str, seed: int) -> str:
    settings = ModelSettings(temperature=TEMPERATURE, max_tokens=MAX_TOKENS, seed=seed)
    return Agent(_chat_model(target)).run_sync(prompt, model_settings=settings).output
