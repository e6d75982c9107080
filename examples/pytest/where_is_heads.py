"""An application: it asks a model about coins."""

from openai import OpenAI

PROMPT = "The coin shows heads. {event} Is it still heads up? A:"


def is_heads_up(event: str, base_url: str) -> bool:
    """Ask whether a coin that showed heads still does after an event."""
    client = OpenAI(base_url=base_url, api_key="none")
    answer = client.completions.create(
        model="any", prompt=PROMPT.format(event=event), max_tokens=8, temperature=0.7, seed=1, stop=["."]
    )
    return "yes" in answer.choices[0].text.lower()
