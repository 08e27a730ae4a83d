"""What several test folders share, one topic a file: small systems, plain towers, tiny runs."""
