"""HTTP below the routes: connection limits, JSON request bodies, responses and client disconnects."""
