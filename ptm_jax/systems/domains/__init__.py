"""Systems for the text of one domain."""
