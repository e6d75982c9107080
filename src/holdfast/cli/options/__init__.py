"""Command-line options, from the configuration dataclasses and from groups of their own."""
