"""Certificates: which batch sizes give the reference bits on this machine, and how that was tested."""
