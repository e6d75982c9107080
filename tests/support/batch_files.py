"""A batch file with all routes, wrong values and a line that is no JSON."""

import json
from pathlib import Path
from typing import Any


def write_batch(path: Path, num_lines: int) -> Path:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "the dog"}], "max_tokens": 12}
    bodies = [
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"prompt": "the quick fox", "max_tokens": 12, "n": 2, "temperature": 1.0}),
        ("/v1/embeddings", {"input": ["the dog", "fox"]}),
        ("/v1/score", {"prompt": "the dog", "completion": " sleeps"}),
        ("/v1/completions", {"prompt": "a", "temperature": "hot"}),
    ]
    lines = []
    for number in range(num_lines):
        url, body = bodies[number % len(bodies)]
        lines.append(json.dumps({"custom_id": f"c{number}", "method": "POST", "url": url, "body": body}))
    path.write_text("\n".join([*lines, "nonsense", ""]))
    return path
