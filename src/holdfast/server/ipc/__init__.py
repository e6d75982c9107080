"""The engine process, and the front's way to it: messages over a socket pair, tickets, and a supervisor."""
