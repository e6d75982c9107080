"""The page on which one sees the protocol work: `hub` has the watchers, `view` what they see, `static` the page itself."""
