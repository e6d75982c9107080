"""The engine process and the frontend's connection to it: messages over a socket pair, response
streams, a supervisor.
"""
