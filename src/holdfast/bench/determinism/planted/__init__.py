"""Planted order changes: does the certification report an operation that is computed in another
order at some batch sizes?

One operation of a real backend is computed in another order at some batch sizes and left alone at
the others, as a library does (`switched.py`). The certification's own check of that operation runs
on it. Independently a search over inputs decides at which sizes some input gives other bits
(`search.py`). A change with such an input and without a report is a miss.
"""
