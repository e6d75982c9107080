"""The process boundary: ports to engines, the requests that outlive them, and the engine's side."""
