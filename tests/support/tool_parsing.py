"""Parses a whole text with a tool parser."""

from holdfast.server.tools.deltas import ParsedMessage, ToolParser, merge_deltas


def parse_text(parser: ToolParser, text: str) -> ParsedMessage:
    return merge_deltas([*parser.feed(text), *parser.finish()])
