"""Files of requests, one a line, answered in a way that survives a crash.

lines.py     a line of the input -> a request, or the error that is its answer
journal.py   what is answered so far, on disk
runner.py    sends what is not answered yet, several at a time
"""
