"""Speed and memory on a CPU."""
