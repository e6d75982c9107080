"""Load on a server, measured from outside."""
