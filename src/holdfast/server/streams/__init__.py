"""Streams that a client can resume after it lost its connection: their events are kept for a while."""
