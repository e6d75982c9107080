"""Prompts of the n-gram benchmark: some whose answers copy much of the prompt, some whose answers
do not.
"""

import json

_ARTICLE = """The holdfast of a kelp is not a root. It takes no food from the rock; it only grips it. Its fingers, called \
haptera, grow down over the stone and into every crack, and each new ring of them covers the last. A storm that tears the \
blades away often leaves the holdfast where it was, and from it the plant may grow again. Small animals live between the \
haptera: brittle stars, worms, young crabs. Some biologists have counted more than ten thousand of them in a single \
holdfast."""

_LETTER = """Dear Mrs Olsen, thank you for your order of 12 May. Two of the three lamps left our warehouse this morning and \
will reach you on Thursday. The third, the brass reading lamp, is being made again, because the first one did not pass our \
inspection; we expect to send it in the second week of June. You have not been charged for it. If you would rather have your \
money back, write one line to this address and we will return the full price of 148 crowns within three days."""

_CODE = '''import csv
from pathlib import Path

HEADER = ["date", "station", "depth", "temperature"]


def read_samples(path):
    """All samples of one file, the newest first."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return sorted(rows, key=lambda row: row["date"], reverse=True)


def mean_temperature(samples, station):
    values = [float(sample["temperature"]) for sample in samples if sample["station"] == station]
    if not values:
        raise ValueError(f"no samples from {station}")
    return sum(values) / len(values)


def write_report(samples, folder):
    target = Path(folder) / "report.csv"
    with target.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for sample in samples:
            writer.writerow([sample[name] for name in HEADER])
    return target
'''

_PEOPLE = json.dumps(
    [
        {
            "id": 17,
            "name": "Ada Lovelace",
            "born": "1815-12-10",
            "city": "London",
            "fields": ["mathematics", "poetry"],
        },
        {
            "id": 23,
            "name": "Grace Hopper",
            "born": "1906-12-09",
            "city": "New York",
            "fields": ["compilers", "navy"],
        },
        {
            "id": 31,
            "name": "Edsger Dijkstra",
            "born": "1930-05-11",
            "city": "Rotterdam",
            "fields": ["proofs"],
        },
        {
            "id": 48,
            "name": "Barbara Liskov",
            "born": "1939-11-07",
            "city": "Boston",
            "fields": ["abstraction"],
        },
    ]
)

COPYING = {
    "quote an article": f"Repeat the following text word for word, and then stop.\n\n{_ARTICLE}",
    "quote a letter": f"Copy this letter exactly, sentence by sentence, and write nothing else.\n\n{_LETTER}",
    "edit code": "Here is a Python file. Write the whole file again with the constant HEADER renamed to COLUMNS.\n\n"
    f"```python\n{_CODE}```",
    "reformat JSON": f"Write this JSON again, with every key on a line of its own. Change no value.\n\n{_PEOPLE}",
}

PLAIN = {
    "explain": "Explain in one paragraph why the sky is blue.",
    "story": "Write the beginning of a story about a lighthouse keeper who finds a letter.",
    "advice": "I want to learn to swim as an adult. What should I do first, and what next?",
    "compare": "What is the difference between a lake and a sea? Answer in four sentences.",
}
