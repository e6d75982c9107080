"""Everything between the socket and the routes: what a connection, a request and a body may be."""
