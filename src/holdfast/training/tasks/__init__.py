"""Tasks with gold thoughts: what is asked, what is answered, and what may be thought where."""
