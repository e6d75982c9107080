"""The web page that shows the protocol at work.

`hub` streams events, `view` builds them, `static` holds the page.
"""
