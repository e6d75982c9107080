"""HTTP below the routes: JSON request bodies, event streams and client disconnects."""
