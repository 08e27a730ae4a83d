"""Tasks on the text of a domain."""
