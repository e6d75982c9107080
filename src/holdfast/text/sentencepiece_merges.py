"""Merges of a sentencepiece BPE model, rebuilt from the scores of its pieces.

Sentencepiece stores no merges: it joins the neighbours whose joint piece has the best score. As a merge
list that is every way to split a piece into two pieces, best piece first. The order is total, so the same
scores always give the same list.
"""

from collections.abc import Sequence


def rebuild_merges(
    tokens: Sequence[str], scores: Sequence[float], mergeable: Sequence[bool]
) -> list[tuple[str, str]]:
    """The merge list, best first. Only `mergeable` pieces (no control or byte tokens) take part."""
    ids = {token: id_ for id_, token in enumerate(tokens) if mergeable[id_]}
    order = sorted(ids.values(), key=lambda id_: (-scores[id_], id_))
    merges: list[tuple[str, str]] = []
    for id_ in order:
        token = tokens[id_]
        splits = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs = [pair for pair in splits if pair[0] in ids and pair[1] in ids]
        pairs.sort(key=lambda pair: (-len(pair[0]), ids[pair[0]], ids[pair[1]]))
        merges += pairs
    return merges
