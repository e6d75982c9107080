"""Models: where they are found, how their files are read, and the one decoder that serves their
families."""
